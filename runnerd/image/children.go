package image

import (
	"os"

	"colloid.net/runnerd/image/registry"
	"colloid.net/runnerd/image/store"
)

// Children runs this process as one of the children of a Client if it was started as such, and gives its
// exit status. It is the first thing in main of every program that has a Client, tests included.
func Children() (exit int, is bool) {
	if store.Reexec() {
		return 0, true
	}
	if len(os.Args) < 2 {
		return 0, false
	}
	switch os.Args[1] {
	case store.Argument:
		return store.Main(os.Args[2:]), true
	case registry.Argument:
		return registry.Main(), true
	}
	return 0, false
}
