//go:build wasip1

package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"unsafe"
)

// The functions of WASI preview 1 themselves: what the runtime of Go makes of them hides too much.

//go:wasmimport wasi_snapshot_preview1 args_sizes_get
func args_sizes_get(count, size unsafe.Pointer) uint32

//go:wasmimport wasi_snapshot_preview1 args_get
func args_get(vector, buffer unsafe.Pointer) uint32

//go:wasmimport wasi_snapshot_preview1 environ_sizes_get
func environ_sizes_get(count, size unsafe.Pointer) uint32

//go:wasmimport wasi_snapshot_preview1 environ_get
func environ_get(vector, buffer unsafe.Pointer) uint32

//go:wasmimport wasi_snapshot_preview1 clock_res_get
func clock_res_get(clock uint32, result unsafe.Pointer) uint32

//go:wasmimport wasi_snapshot_preview1 clock_time_get
func clock_time_get(clock uint32, precision uint64, result unsafe.Pointer) uint32

//go:wasmimport wasi_snapshot_preview1 random_get
func random_get(buffer unsafe.Pointer, size uint32) uint32

//go:wasmimport wasi_snapshot_preview1 sched_yield
func sched_yield() uint32

//go:wasmimport wasi_snapshot_preview1 proc_exit
func proc_exit(code uint32)

//go:wasmimport wasi_snapshot_preview1 fd_advise
func fd_advise(fd uint32, offset, size uint64, advice uint32) uint32

//go:wasmimport wasi_snapshot_preview1 fd_allocate
func fd_allocate(fd uint32, offset, size uint64) uint32

//go:wasmimport wasi_snapshot_preview1 fd_close
func fd_close(fd uint32) uint32

//go:wasmimport wasi_snapshot_preview1 fd_datasync
func fd_datasync(fd uint32) uint32

//go:wasmimport wasi_snapshot_preview1 fd_sync
func fd_sync(fd uint32) uint32

//go:wasmimport wasi_snapshot_preview1 fd_fdstat_get
func fd_fdstat_get(fd uint32, stat unsafe.Pointer) uint32

//go:wasmimport wasi_snapshot_preview1 fd_fdstat_set_flags
func fd_fdstat_set_flags(fd, flags uint32) uint32

//go:wasmimport wasi_snapshot_preview1 fd_filestat_get
func fd_filestat_get(fd uint32, stat unsafe.Pointer) uint32

//go:wasmimport wasi_snapshot_preview1 fd_filestat_set_size
func fd_filestat_set_size(fd uint32, size uint64) uint32

//go:wasmimport wasi_snapshot_preview1 fd_filestat_set_times
func fd_filestat_set_times(fd uint32, accessed, modified uint64, flags uint32) uint32

//go:wasmimport wasi_snapshot_preview1 fd_pread
func fd_pread(fd uint32, vector unsafe.Pointer, count uint32, offset uint64, done unsafe.Pointer) uint32

//go:wasmimport wasi_snapshot_preview1 fd_pwrite
func fd_pwrite(fd uint32, vector unsafe.Pointer, count uint32, offset uint64, done unsafe.Pointer) uint32

//go:wasmimport wasi_snapshot_preview1 fd_read
func fd_read(fd uint32, vector unsafe.Pointer, count uint32, done unsafe.Pointer) uint32

//go:wasmimport wasi_snapshot_preview1 fd_write
func fd_write(fd uint32, vector unsafe.Pointer, count uint32, done unsafe.Pointer) uint32

//go:wasmimport wasi_snapshot_preview1 fd_readdir
func fd_readdir(fd uint32, buffer unsafe.Pointer, size uint32, cookie uint64, done unsafe.Pointer) uint32

//go:wasmimport wasi_snapshot_preview1 fd_renumber
func fd_renumber(from, to uint32) uint32

//go:wasmimport wasi_snapshot_preview1 fd_seek
func fd_seek(fd uint32, offset int64, whence uint32, result unsafe.Pointer) uint32

//go:wasmimport wasi_snapshot_preview1 fd_tell
func fd_tell(fd uint32, result unsafe.Pointer) uint32

//go:wasmimport wasi_snapshot_preview1 fd_prestat_get
func fd_prestat_get(fd uint32, stat unsafe.Pointer) uint32

//go:wasmimport wasi_snapshot_preview1 fd_prestat_dir_name
func fd_prestat_dir_name(fd uint32, buffer unsafe.Pointer, size uint32) uint32

//go:wasmimport wasi_snapshot_preview1 path_create_directory
func path_create_directory(fd uint32, path unsafe.Pointer, size uint32) uint32

//go:wasmimport wasi_snapshot_preview1 path_filestat_get
func path_filestat_get(fd, flags uint32, path unsafe.Pointer, size uint32, stat unsafe.Pointer) uint32

//go:wasmimport wasi_snapshot_preview1 path_filestat_set_times
func path_filestat_set_times(fd, flags uint32, path unsafe.Pointer, size uint32, accessed, modified uint64, set uint32) uint32

//go:wasmimport wasi_snapshot_preview1 path_link
func path_link(fd, flags uint32, path unsafe.Pointer, size, newFd uint32, newPath unsafe.Pointer, newSize uint32) uint32

//go:wasmimport wasi_snapshot_preview1 path_open
func path_open(fd, flags uint32, path unsafe.Pointer, size, open uint32, rights, inherited uint64, fdFlags uint32,
	result unsafe.Pointer) uint32

//go:wasmimport wasi_snapshot_preview1 path_readlink
func path_readlink(fd uint32, path unsafe.Pointer, size uint32, buffer unsafe.Pointer, room uint32, done unsafe.Pointer) uint32

//go:wasmimport wasi_snapshot_preview1 path_remove_directory
func path_remove_directory(fd uint32, path unsafe.Pointer, size uint32) uint32

//go:wasmimport wasi_snapshot_preview1 path_rename
func path_rename(fd uint32, path unsafe.Pointer, size, newFd uint32, newPath unsafe.Pointer, newSize uint32) uint32

//go:wasmimport wasi_snapshot_preview1 path_symlink
func path_symlink(target unsafe.Pointer, targetSize, fd uint32, path unsafe.Pointer, size uint32) uint32

//go:wasmimport wasi_snapshot_preview1 path_unlink_file
func path_unlink_file(fd uint32, path unsafe.Pointer, size uint32) uint32

//go:wasmimport wasi_snapshot_preview1 poll_oneoff
func poll_oneoff(in, out unsafe.Pointer, count uint32, events unsafe.Pointer) uint32

//go:wasmimport wasi_snapshot_preview1 sock_shutdown
func sock_shutdown(fd, how uint32) uint32

// Error numbers of WASI preview 1.
const (
	eOK       = 0
	eAccess   = 2
	eBadFile  = 8
	eExist    = 20
	eInvalid  = 28
	eIO       = 29
	eIsDir    = 31
	eLoop     = 32
	eNoEntry  = 44
	eNoSys    = 52
	eNotDir   = 54
	eNotEmpty = 55
	eNotSock  = 57
	eNotSup   = 58
	ePerm     = 63
	eReadOnly = 69
	eSeekPipe = 70
	eNotCap   = 76
)

// Flags of path_open and of descriptors.
const (
	oCreate, oDirectory, oExclusive, oTruncate = 1, 2, 4, 8
	fAppend, fNonblock                         = 1, 4
	follow                                     = 1
	rightRead, rightWrite                      = 1 << 1, 1 << 6
	setAccessed, setAccessedNow                = 1, 2
	setModified, setModifiedNow                = 4, 8
)

const (
	typeCharacter = 2
	typeDirectory = 3
	typeRegular   = 4
	typeLink      = 7
)

// root is the descriptor of /data, the first that a host opens before the program starts.
const root = 3

func fail(format string, arguments ...any) {
	fmt.Printf("failed: "+format+"\n", arguments...)
	os.Exit(1)
}

// want ends the program unless a call answered one of the numbers.
func want(what string, got uint32, allowed ...uint32) {
	for _, a := range allowed {
		if got == a {
			return
		}
	}
	fail("%s: errno %d, expected one of %v", what, got, allowed)
}

func equal[T comparable](what string, got, wanted T) {
	if got != wanted {
		fail("%s: %v, expected %v", what, got, wanted)
	}
}

func text(s string) (unsafe.Pointer, uint32) {
	b := append([]byte(s), 0) // never empty, so that there is a pointer
	return unsafe.Pointer(&b[0]), uint32(len(s))
}

// vector is a list of one buffer, as reads and writes take it.
type vector struct {
	pointer, size uint32
}

// kept holds what vectors point to: the collector does not see their numbers, and stacks move.
var kept [][]byte

func vectorOf(b []byte) *vector {
	if len(b) == 0 {
		return &vector{}
	}
	kept = append(kept, b)
	return &vector{uint32(uintptr(unsafe.Pointer(&b[0]))), uint32(len(b))}
}

func open(dir uint32, flags uint32, path string, how uint32, rights uint64, fdFlags uint32) (fd, errno uint32) {
	p, n := text(path)
	errno = path_open(dir, flags, p, n, how, rights, rights, fdFlags, unsafe.Pointer(&fd))
	return fd, errno
}

func mustOpen(path string, how uint32, rights uint64, fdFlags uint32) uint32 {
	fd, errno := open(root, 0, path, how, rights, fdFlags)
	want("open "+path, errno, eOK)
	return fd
}

func create(path, content string) {
	fd := mustOpen(path, oCreate|oTruncate, rightRead|rightWrite, 0)
	if content != "" {
		equal("write "+path, write(fd, content), uint32(len(content)))
	}
	want("close "+path, fd_close(fd), eOK)
}

func write(fd uint32, s string) (done uint32) {
	b := []byte(s)
	want("fd_write", fd_write(fd, unsafe.Pointer(vectorOf(b)), 1, unsafe.Pointer(&done)), eOK)
	return done
}

func read(fd uint32, size int) string {
	b, done := make([]byte, size), uint32(0)
	want("fd_read", fd_read(fd, unsafe.Pointer(vectorOf(b)), 1, unsafe.Pointer(&done)), eOK)
	return string(b[:done])
}

func pread(fd uint32, size int, offset uint64) string {
	b, done := make([]byte, size), uint32(0)
	want("fd_pread", fd_pread(fd, unsafe.Pointer(vectorOf(b)), 1, offset, unsafe.Pointer(&done)), eOK)
	return string(b[:done])
}

func pwrite(fd uint32, s string, offset uint64) (done uint32) {
	want("fd_pwrite", fd_pwrite(fd, unsafe.Pointer(vectorOf([]byte(s))), 1, offset, unsafe.Pointer(&done)), eOK)
	return done
}

func seek(fd uint32, offset int64, whence uint32) (at uint64) {
	want("fd_seek", fd_seek(fd, offset, whence, unsafe.Pointer(&at)), eOK)
	return at
}

func content(path string) string {
	fd := mustOpen(path, 0, rightRead, 0)
	defer fd_close(fd)
	return read(fd, 1<<16)
}

// filestat is what WASI says of a file.
type filestat struct {
	device, inode                 uint64
	kind                          byte
	links, size                   uint64
	accessed, modified, something uint64
}

func statOf(raw [64]byte) filestat {
	at := func(n int) uint64 { return binary.LittleEndian.Uint64(raw[n:]) }
	return filestat{at(0), at(8), raw[16], at(24), at(32), at(40), at(48), at(56)}
}

func stat(fd uint32) filestat {
	var raw [64]byte
	want("fd_filestat_get", fd_filestat_get(fd, unsafe.Pointer(&raw)), eOK)
	return statOf(raw)
}

func statPath(path string, flags uint32) (filestat, uint32) {
	var raw [64]byte
	p, n := text(path)
	errno := path_filestat_get(root, flags, p, n, unsafe.Pointer(&raw))
	return statOf(raw), errno
}

func mustStat(path string, flags uint32) filestat {
	s, errno := statPath(path, flags)
	want("stat "+path, errno, eOK)
	return s
}

func fdstat(fd uint32) (kind byte, flags uint16) {
	var raw [24]byte
	want("fd_fdstat_get", fd_fdstat_get(fd, unsafe.Pointer(&raw)), eOK)
	return raw[0], binary.LittleEndian.Uint16(raw[2:])
}

func onPath(call func(uint32, unsafe.Pointer, uint32) uint32, path string) uint32 {
	p, n := text(path)
	return call(root, p, n)
}

func mkdir(path string) uint32  { return onPath(path_create_directory, path) }
func rmdir(path string) uint32  { return onPath(path_remove_directory, path) }
func unlink(path string) uint32 { return onPath(path_unlink_file, path) }

func rename(from, to string) uint32 {
	p, n := text(from)
	q, m := text(to)
	return path_rename(root, p, n, root, q, m)
}

func link(from, to string, flags uint32) uint32 {
	p, n := text(from)
	q, m := text(to)
	return path_link(root, flags, p, n, root, q, m)
}

func symlink(target, path string) uint32 {
	p, n := text(target)
	q, m := text(path)
	return path_symlink(p, n, root, q, m)
}

func readlink(path string, room int) (string, uint32) {
	b, done := make([]byte, room+1), uint32(0)
	p, n := text(path)
	errno := path_readlink(root, p, n, unsafe.Pointer(&b[0]), uint32(room), unsafe.Pointer(&done))
	return string(b[:done]), errno
}

// entry is one of a directory.
type entry struct {
	name string
	kind byte
	node uint64
	next uint64
}

// list reads a directory with a buffer of some size, from a cookie on.
func list(fd uint32, size int, cookie uint64) (all []entry) {
	for {
		b, done := make([]byte, size), uint32(0)
		want("fd_readdir", fd_readdir(fd, unsafe.Pointer(&b[0]), uint32(size), cookie, unsafe.Pointer(&done)), eOK)
		rest, progress := b[:done], false
		for len(rest) >= 24 {
			length := int(binary.LittleEndian.Uint32(rest[16:]))
			if len(rest) < 24+length {
				break
			}
			e := entry{string(rest[24 : 24+length]), rest[20], binary.LittleEndian.Uint64(rest[8:]), binary.LittleEndian.Uint64(rest)}
			all, cookie, progress = append(all, e), e.next, true
			rest = rest[24+length:]
		}
		if int(done) < size || !progress {
			return all
		}
	}
}
