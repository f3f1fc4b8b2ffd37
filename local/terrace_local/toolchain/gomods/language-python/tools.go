//go:build tools

// Package tools pins the commands that this module builds.
package tools

import _ "github.com/pulumi/pulumi/sdk/v3/python/cmd/pulumi-language-python"
