// Command runnerd-shim is the part of runnerd that stands beside each running instance: the programs
// "shim" and "stage" of package runnerd/shim. It is a program of its own because there is one per
// instance and it is in the way of every start: without the image store and the rings of runnerd it
// begins several milliseconds earlier and takes less memory. runnerd finds it beside its own file; without
// it, runnerd starts itself instead.
package main

import (
	"fmt"
	"os"

	"colloid.net/runnerd/shim"
)

func main() {
	if len(os.Args) == 2 {
		switch os.Args[1] {
		case shim.ArgumentShim:
			os.Exit(shim.Main())
		case shim.ArgumentStage:
			os.Exit(shim.StageMain())
		}
	}
	fmt.Fprintln(os.Stderr, "runnerd-shim is started by runnerd, not by hand")
	os.Exit(2)
}
