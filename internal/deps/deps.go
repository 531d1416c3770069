//go:build deps

// Package deps pins the modules that packages under construction are going to import, so that
// go.mod stays still while several of them grow side by side. It is never built.
package deps

import (
	_ "github.com/dchest/siphash"
	_ "github.com/flynn/noise"
	_ "github.com/spf13/cobra"
	_ "github.com/vishvananda/netlink"
	_ "golang.org/x/crypto/chacha20poly1305"
	_ "golang.org/x/sys/unix"
	_ "google.golang.org/protobuf/proto"
	_ "pgregory.net/rapid"
)
