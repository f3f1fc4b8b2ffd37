// Command pulumi-resource-kubernetes serves the Pulumi Kubernetes provider.
//
// The provider's own main embeds two generated files that its module does not carry; the toolchain
// writes them beside this file before it builds: schema-embed.json (the module's schema.json with the
// version filled in) and terraform-mapping-embed.json.
package main

import (
	_ "embed"

	"github.com/pulumi/pulumi-kubernetes/provider/v4/pkg/provider"
	"github.com/pulumi/pulumi-kubernetes/provider/v4/pkg/version"
)

//go:embed schema-embed.json
var schema []byte

//go:embed terraform-mapping-embed.json
var mapping []byte

func main() {
	provider.Serve("kubernetes", version.Version, schema, mapping)
}
