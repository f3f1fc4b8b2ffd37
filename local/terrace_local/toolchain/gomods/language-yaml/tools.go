//go:build tools

// Package tools pins the command that this module builds.
package tools

import _ "github.com/pulumi/pulumi-yaml/cmd/pulumi-language-yaml"
