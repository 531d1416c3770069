// Command runnerd-shim is what runnerd puts between itself and a workload: "runnerd-shim shim" watches one
// instance, "runnerd-shim stage" becomes it. It is a program of its own because there is one for each
// instance and runnerd carries much that these need not: see docs/decisions.md. Nobody starts it by hand.
//
// The Go runtime otherwise keeps files of the host's control groups open, in sandboxes too.
//
//go:debug containermaxprocs=0
package main

import (
	"fmt"
	"os"

	"colloid.net/runnerd/shim"
)

func main() {
	if exit, is := shim.Children(); is {
		os.Exit(exit)
	}
	fmt.Fprintln(os.Stderr, "runnerd-shim: started by runnerd, not by hand")
	os.Exit(2)
}
