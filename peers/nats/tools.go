//go:build tools

// The server is a program of another module: naming it here keeps its version in go.mod.
package main

import _ "github.com/nats-io/nats-server/v2"
