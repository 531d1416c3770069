package wasm

import (
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"
)

// A worker that compiles only makes the cache ahead of a start (docs/wasm.md). It is confined as every other one, before it
// has read a byte of the module, and ends where another one would make the first instance: nothing of the module runs in it,
// so that its cache is not written by what a module may have taken over.

// compileOnly compiles into the cache and ends.
func (w *worker) compileOnly(descriptor int) (int, error) {
	go endCostlyCompilation()
	if err := w.load(descriptor); err != nil {
		return ExitModule, err
	}
	return 0, nil
}

// endCostlyCompilation ends a compilation by what it cost: at the lowest priority the time on the clock says nothing of the
// module. Who started the worker bounds that.
func endCostlyCompilation() {
	for range time.Tick(time.Second) {
		var spent unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &spent); err != nil || spent.Nano() > int64(compilePatience) {
			endSlowCompilation()
		}
	}
}

// Engine names what compiled forms are good for: those of another engine are of no use.
var Engine = engineName()

const engineModule = "github.com/tetratelabs/wazero"

func engineName() string {
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, dependency := range build.Deps {
		if dependency.Path == engineModule {
			return dependency.Version
		}
	}
	return "unknown"
}
