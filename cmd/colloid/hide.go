package main

import (
	"os"
	"strings"
	"unsafe"
)

// keyLengthMin is shorter than any key of a cluster, and longer than what else might stand behind a #.
const keyLengthMin = 40

// takeArguments returns the arguments and overwrites the keys of HOST#KEY where the kernel shows them: every
// user of the host can read /proc/PID/cmdline, and `colloid connect` stays as long as the cell. A moment
// remains in which the key can be seen.
func takeArguments() []string {
	arguments := make([]string, 0, len(os.Args))
	for _, shown := range os.Args[1:] {
		arguments = append(arguments, strings.Clone(shown))
		if at := strings.LastIndexByte(shown, '#'); at >= 0 && len(shown)-at > keyLengthMin {
			// The runtime does not copy what the kernel put on the first stack, so this is that memory.
			for i, bytes := at+1, unsafe.Slice(unsafe.StringData(shown), len(shown)); i < len(bytes); i++ {
				bytes[i] = '.'
			}
		}
	}
	return arguments
}
