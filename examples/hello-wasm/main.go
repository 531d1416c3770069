//go:build wasip1

// Command hello-wasm is a WebAssembly module written in Go: it greets whom it is told to, says on which cell
// it runs, and counts the greetings in the cluster. Build it with
//
//	GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared -o hello.wasm ./examples/hello-wasm
//
// and invoke it with `colloid wasm invoke hello WORLD`. It needs the capabilities kv_read, kv_write, clock,
// random, env and stdio, the last four for the runtime of Go itself. hello.wat is the same in text form.
package main

import (
	"strconv"
	"syscall" // for one variable of the environment: os would make the module a sixth larger
	"unsafe"
)

// The host functions that it uses; docs/wasm.md has all of them.
//
//go:wasmimport colloid colloid_argument
func hostArgument(index uint32, buffer unsafe.Pointer, length uint32) int32

//go:wasmimport colloid colloid_output
func hostOutput(buffer unsafe.Pointer, length uint32) int32

//go:wasmimport colloid colloid_kv_get
func hostGet(key unsafe.Pointer, keyLength uint32, buffer unsafe.Pointer, length uint32) int32

//go:wasmimport colloid colloid_kv_set
func hostSet(key unsafe.Pointer, keyLength uint32, value unsafe.Pointer, valueLength uint32) int32

var (
	buffer [1024]byte
	key    = []byte("greetings")
)

//go:wasmexport colloid_invoke
func invoke() int32 {
	name := "nobody"
	if n := hostArgument(0, unsafe.Pointer(&buffer[0]), uint32(len(buffer))); n >= 0 {
		name = string(buffer[:min(int(n), len(buffer))])
	}
	count := 0
	if n := hostGet(unsafe.Pointer(&key[0]), uint32(len(key)), unsafe.Pointer(&buffer[0]), 20); n > 0 {
		count, _ = strconv.Atoi(string(buffer[:min(n, 20)]))
	}
	count++
	cell, _ := syscall.Getenv("COLLOID_CELL")
	value := strconv.AppendInt(nil, int64(count), 10)
	hostSet(unsafe.Pointer(&key[0]), uint32(len(key)), unsafe.Pointer(&value[0]), uint32(len(value)))
	text := []byte("hello " + name + " from cell " + cell + ", greeting " + string(value) + "\n")
	return hostOutput(unsafe.Pointer(&text[0]), uint32(len(text)))
}

func main() {}
