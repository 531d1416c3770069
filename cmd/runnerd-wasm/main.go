// Command runnerd-wasm is the worker process of a Wasm instance (package runnerd/wasm). It is a program of
// its own because there is one per instance: without the image store and the rings of runnerd it takes
// less memory and starts earlier. runnerd finds it beside its own file; without it, runnerd starts itself
// instead.
//
// The Go runtime otherwise keeps files of the host's control groups open, in sandboxes too.
//
//go:debug containermaxprocs=0
package main

import (
	"fmt"
	"os"

	"colloid.net/runnerd/shim"
	"colloid.net/runnerd/wasm"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == wasm.Argument {
		os.Exit(wasm.Main(shim.ExtraFirst))
	}
	fmt.Fprintln(os.Stderr, "runnerd-wasm is started by runnerd, not by hand")
	os.Exit(2)
}
