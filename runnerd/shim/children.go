package shim

import "os"

// Children reports whether this process was started as one of the children of this package, and if so does
// their work and returns the exit status: the shim of an instance, the stage that becomes the workload, and
// the copying of files. A program that shims may be started from calls it first thing in main.
func Children() (exit int, is bool) {
	if len(os.Args) > 2 && os.Args[1] == ArgumentCopy {
		return CopyMain(os.Args[2:]), true
	}
	if len(os.Args) != 2 {
		return 0, false
	}
	switch os.Args[1] {
	case ArgumentShim:
		return Main(), true
	case ArgumentStage:
		return StageMain(), true
	}
	return 0, false
}
