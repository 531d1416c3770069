//go:build wasip1

package main

import (
	"bytes"
	"encoding/binary"
	"os"
	"strings"
	"unsafe"
)

// cases are programs that hosts of WASI preview 1 are tested with, each under the name that its kind is known by, each
// written anew. Every one begins in an empty directory.
var cases = map[string]func(){
	"args_get": argsGet, "environ_get": environGet, "random_get": randomGet, "big_random_buf": bigRandom,
	"clock_res_get": clockResolution, "clock_time_get": clockTime, "sched_yield": schedYield,
	"poll_oneoff_stdio": pollStdio, "poll_oneoff_clock": pollClock, "stdio": stdio, "isatty": isatty,
	"fd_write_invalid": writeInvalid, "sock_shutdown_invalid_fd": shutdownInvalid, "sock_shutdown_not_sock": shutdownNoSocket,
	"dangling_fd": danglingDescriptor, "close_preopen": closePreopen, "renumber": renumber, "overwrite_preopen": overwritePreopen,
	"prestat": prestat, "fd_advise": advise, "file_allocate": allocate, "fd_filestat_set": filestatSet,
	"fd_flags_set": flagsSet, "fd_readdir": readdir, "fdopendir": readdirOfNew, "directory_seek": directorySeek,
	"dir_fd_op_failures": directoryFailures, "file_pread_pwrite": preadPwrite, "pwrite_with_append": pwriteAppend,
	"file_seek_tell": seekTell, "file_truncation": truncation, "file_unbuffered_write": unbufferedWrite,
	"truncation_rights": truncationOfReadOnly, "fstflags_validate": setTimesFlags, "stat_dev_ino": statIdentity,
	"sync": syncs, "fopen_with_access": openWithAccess, "fopen_with_no_access": openWithoutAccess,
}

func preview1(name string) {
	if name == "list" {
		for name := range cases {
			os.Stdout.WriteString(name + "\n")
		}
		for name := range pathCases {
			os.Stdout.WriteString(name + "\n")
		}
		return
	}
	run := cases[name]
	if run == nil {
		run = pathCases[name]
	}
	if run == nil {
		fail("there is no case %q", name)
	}
	run()
	os.Stdout.WriteString("passed\n")
}

// stringsOf reads arguments or environment.
func stringsOf(sizes, get func(a, b unsafe.Pointer) uint32) []string {
	var count, size uint32
	want("sizes", sizes(unsafe.Pointer(&count), unsafe.Pointer(&size)), eOK)
	pointers, buffer := make([]uint32, count+1), make([]byte, size+1)
	want("get", get(unsafe.Pointer(&pointers[0]), unsafe.Pointer(&buffer[0])), eOK)
	var all []string
	for n := range count {
		from := pointers[n] - uint32(uintptr(unsafe.Pointer(&buffer[0])))
		length := bytes.IndexByte(buffer[from:], 0)
		all = append(all, string(buffer[from:from+uint32(length)]))
	}
	if count > 0 {
		equal("size of all", int(size), len(strings.Join(all, "\x00"))+1)
	}
	return all
}

func argsGet() {
	got := stringsOf(args_sizes_get, args_get)
	equal("arguments", strings.Join(got, "|"), "test|preview1|args_get")
}

func environGet() {
	got := stringsOf(environ_sizes_get, environ_get)
	equal("environment", strings.Join(got, "|"), "A=1|B=two words|C=")
}

func randomGet() {
	var a, b [64]byte
	want("random", random_get(unsafe.Pointer(&a), 64), eOK)
	want("random", random_get(unsafe.Pointer(&b), 64), eOK)
	equal("the same twice", a == b, false)
	want("no bytes", random_get(unsafe.Pointer(&a), 0), eOK)
}

func bigRandom() {
	buffer := make([]byte, 1<<20)
	want("random", random_get(unsafe.Pointer(&buffer[0]), uint32(len(buffer))), eOK)
	var seen [256]int
	for _, b := range buffer {
		seen[b]++
	}
	for b, n := range seen {
		if n < 1000 { // 4096 are expected
			fail("byte %d occurs %d times", b, n)
		}
	}
}

func clockResolution() {
	for clock := range uint32(2) {
		var resolution uint64
		want("resolution", clock_res_get(clock, unsafe.Pointer(&resolution)), eOK)
		equal("resolution of nothing", resolution > 0, true)
	}
	var none uint64
	want("no such clock", clock_res_get(99, unsafe.Pointer(&none)), eInvalid, eNotSup)
}

func clockTime() {
	var wall, first, second uint64
	want("wall clock", clock_time_get(0, 1, unsafe.Pointer(&wall)), eOK)
	equal("before 2020", wall > 1_577_836_800_000_000_000, true)
	want("monotonic", clock_time_get(1, 1, unsafe.Pointer(&first)), eOK)
	want("monotonic", clock_time_get(1, 0, unsafe.Pointer(&second)), eOK)
	equal("it goes back", first <= second, true)
	want("no such clock", clock_time_get(99, 1, unsafe.Pointer(&wall)), eInvalid, eNotSup)
}

func schedYield() { want("yield", sched_yield(), eOK) }

// subscription of poll_oneoff: to a clock, or to a descriptor.
func subscription(user uint64, kind byte, fdOrClock uint32, timeout uint64) (s [48]byte) {
	binary.LittleEndian.PutUint64(s[:], user)
	s[8] = kind
	binary.LittleEndian.PutUint32(s[16:], fdOrClock)
	binary.LittleEndian.PutUint64(s[24:], timeout)
	return s
}

func poll(subscriptions ...[48]byte) (events [][32]byte) {
	events = make([][32]byte, len(subscriptions))
	var count uint32
	want("poll", poll_oneoff(unsafe.Pointer(&subscriptions[0]), unsafe.Pointer(&events[0]), uint32(len(subscriptions)),
		unsafe.Pointer(&count)), eOK)
	return events[:count]
}

func pollStdio() {
	for _, fd := range []uint32{1, 2} {
		events := poll(subscription(7, 2, fd, 0), subscription(8, 0, 1, 1_000_000))
		equal("events", len(events) >= 1, true)
		equal("user data", binary.LittleEndian.Uint64(events[0][:]), 7)
		want("errno", uint32(binary.LittleEndian.Uint16(events[0][8:])), eOK, eNotSup) // the engine waits for clocks only
	}
	events := poll(subscription(9, 2, 77, 0), subscription(10, 0, 1, 1_000_000))
	equal("events of a closed descriptor", len(events) >= 1, true)
	equal("its errno", binary.LittleEndian.Uint16(events[0][8:]), eBadFile)
	var none uint32
	var buffer [48]byte
	want("poll of nothing", poll_oneoff(unsafe.Pointer(&buffer), unsafe.Pointer(&buffer), 0, unsafe.Pointer(&none)), eInvalid)
}

func pollClock() {
	var before, after uint64
	want("monotonic", clock_time_get(1, 1, unsafe.Pointer(&before)), eOK)
	events := poll(subscription(5, 0, 1, 20_000_000))
	want("monotonic", clock_time_get(1, 1, unsafe.Pointer(&after)), eOK)
	equal("events", len(events), 1)
	equal("user data", binary.LittleEndian.Uint64(events[0][:]), 5)
	equal("kind", events[0][10], 0)
	equal("it slept", after-before >= 20_000_000, true)
}

func stdio() {
	for fd := range uint32(3) {
		fdstat(fd)
	}
	equal("stdin", read(0, 10), "")
	equal("stdout", write(1, "out\n"), 4)
	equal("stderr", write(2, "err\n"), 4)
}

// isatty: what libraries ask to find a terminal. There is none.
func isatty() {
	for fd := range uint32(3) {
		var at uint64
		want("seek of a stream", fd_seek(fd, 0, 1, unsafe.Pointer(&at)), eSeekPipe, eBadFile, eNotSup, eNoSys)
	}
	create("file", "x")
	fd := mustOpen("file", 0, rightRead, 0)
	kind, _ := fdstat(fd)
	equal("type of a file", kind, typeRegular)
}

func writeInvalid() {
	var done uint32
	b := []byte("x")
	want("write", fd_write(77, unsafe.Pointer(vectorOf(b)), 1, unsafe.Pointer(&done)), eBadFile)
	want("read", fd_read(77, unsafe.Pointer(vectorOf(b)), 1, unsafe.Pointer(&done)), eBadFile)
	want("close", fd_close(77), eBadFile)
	want("stat", fd_filestat_get(77, unsafe.Pointer(&[64]byte{})), eBadFile)
	want("fdstat", fd_fdstat_get(77, unsafe.Pointer(&[24]byte{})), eBadFile)
	want("seek", fd_seek(77, 0, 0, unsafe.Pointer(&[8]byte{})), eBadFile)
}

func shutdownInvalid() { want("shutdown", sock_shutdown(77, 3), eBadFile) }

func shutdownNoSocket() {
	create("file", "")
	want("shutdown of a file", sock_shutdown(mustOpen("file", 0, rightRead, 0), 3), eNotSock, eBadFile)
	want("shutdown of a directory", sock_shutdown(root, 3), eNotSock, eBadFile)
}
