//go:build wasip1

package main

import (
	"encoding/binary"
	"strings"
	"unsafe"
)

// What programs do to open files and directories, by their descriptors.

// danglingDescriptor: a number that was closed is closed, and a file that was removed stays usable while it is open.
func danglingDescriptor() {
	create("file", "kept")
	fd := mustOpen("file", 0, rightRead|rightWrite, 0)
	want("unlink", unlink("file"), eOK)
	equal("read of a removed file", read(fd, 10), "kept")
	equal("write to it", write(fd, "!"), 1)
	want("close", fd_close(fd), eOK)
	want("close again", fd_close(fd), eBadFile)
	_, errno := statPath("file", 0)
	want("stat", errno, eNoEntry)
	want("mkdir", mkdir("dir"), eOK)
	dir := mustOpen("dir", oDirectory, 0, 0)
	want("rmdir", rmdir("dir"), eOK)
	want("close", fd_close(dir), eOK)
	create("dir", "")
}

// closePreopen: a program may give up what it was given. Then nothing can be opened any more.
func closePreopen() {
	want("prestat", fd_prestat_get(root, unsafe.Pointer(&[8]byte{})), eOK)
	dir := mustOpen(".", oDirectory, 0, 0)
	want("close", fd_close(root), eOK)
	_, errno := open(root, 0, "file", oCreate, rightWrite, 0)
	want("open below it", errno, eBadFile)
	fd, errno := open(dir, 0, "file", oCreate, rightWrite, 0)
	want("open below another descriptor", errno, eOK)
	want("close", fd_close(fd), eOK)
}

func renumber() {
	create("a", "from a")
	create("b", "from b")
	a, b := mustOpen("a", 0, rightRead, 0), mustOpen("b", 0, rightRead, 0)
	want("renumber", fd_renumber(a, b), eOK)
	equal("read", read(b, 10), "from a")
	want("the old number", fd_close(a), eBadFile)
	want("renumber of nothing", fd_renumber(77, b), eBadFile)
	want("close", fd_close(b), eOK)
}

func overwritePreopen() {
	create("a", "x")
	a := mustOpen("a", 0, rightRead, 0)
	want("renumber onto a preopened directory", fd_renumber(a, root), eNotSup, eOK)
	want("renumber of a preopened directory", fd_renumber(root, a), eNotSup, eOK, eBadFile)
}

func prestat() {
	var raw [8]byte
	want("prestat", fd_prestat_get(root, unsafe.Pointer(&raw)), eOK)
	equal("tag", raw[0], 0)
	length := binary.LittleEndian.Uint32(raw[4:])
	name := make([]byte, length)
	want("name", fd_prestat_dir_name(root, unsafe.Pointer(&name[0]), length), eOK)
	equal("name", string(name), "/data")
	want("there is one", fd_prestat_get(root+1, unsafe.Pointer(&raw)), eBadFile)
}

func advise() {
	create("file", "0123456789")
	fd := mustOpen("file", 0, rightRead|rightWrite, 0)
	for advice := range uint32(6) {
		want("advise", fd_advise(fd, 0, 10, advice), eOK)
	}
	want("unknown advice", fd_advise(fd, 0, 10, 99), eInvalid)
	want("advise about nothing", fd_advise(77, 0, 10, 0), eBadFile)
	equal("size", stat(fd).size, 10)
}

func allocate() {
	fd := mustOpen("file", oCreate, rightRead|rightWrite, 0)
	if errno := fd_allocate(fd, 0, 100); errno != eNotSup { // hosts may leave it out
		want("allocate", errno, eOK)
		equal("size", stat(fd).size, 100)
		want("inside", fd_allocate(fd, 10, 10), eOK)
		equal("size", stat(fd).size, 100)
		want("beyond", fd_allocate(fd, 90, 20), eOK)
		equal("size", stat(fd).size, 110)
	}
	want("allocate nothing", fd_allocate(fd, 0, 0), eInvalid, eOK, eNotSup)
}

func filestatSet() {
	create("file", "")
	fd := mustOpen("file", 0, rightRead|rightWrite, 0)
	equal("size", stat(fd).size, 0)
	want("grow", fd_filestat_set_size(fd, 100), eOK)
	equal("size", stat(fd).size, 100)
	before := stat(fd)
	want("set times", fd_filestat_set_times(fd, 5_000_000_000, before.modified-1_000_000_000, setModified), eOK)
	after := stat(fd)
	equal("modified", after.modified, before.modified-1_000_000_000)
	equal("accessed", after.accessed, before.accessed)
	equal("size", after.size, 100)
	want("of nothing", fd_filestat_set_times(77, 0, 0, setModified), eBadFile)
}

func flagsSet() {
	fd := mustOpen("file", oCreate, rightRead|rightWrite, fAppend)
	_, flags := fdstat(fd)
	equal("append", flags&fAppend, fAppend)
	write(fd, "Hello")
	seek(fd, 0, 0)
	write(fd, "!")
	equal("appended", content("file"), "Hello!")
	want("set no flags", fd_fdstat_set_flags(fd, 0), eOK)
	_, flags = fdstat(fd)
	equal("append", flags&fAppend, 0)
	seek(fd, 0, 0)
	write(fd, "J")
	equal("overwritten", content("file"), "Jello!")
	want("set append", fd_fdstat_set_flags(fd, fAppend), eOK)
	seek(fd, 0, 0)
	write(fd, "?")
	equal("appended again", content("file"), "Jello!?")
}

func readdir() {
	dir := mustOpen(".", oDirectory, rightRead, 0)
	names := func(all []entry) (s string) {
		for _, e := range all {
			if e.name != "." && e.name != ".." {
				s += e.name + " "
			}
		}
		return s
	}
	equal("an empty directory", names(list(dir, 1024, 0)), "")
	create("file", "x")
	want("mkdir", mkdir("nested"), eOK)
	dir = mustOpen(".", oDirectory, rightRead, 0)
	for _, e := range list(dir, 1024, 0) {
		switch e.name {
		case "file":
			equal("type of file", e.kind, typeRegular)
			equal("its number", e.node, mustStat("file", 0).inode)
		case "nested":
			equal("type of nested", e.kind, typeDirectory)
		case ".", "..":
			equal("type of dots", e.kind, typeDirectory)
		default:
			fail("unexpected entry %q", e.name)
		}
	}
	for n := range 40 {
		create("a-longer-name-"+string(rune('a'+n%26))+string(rune('a'+n/26)), "")
	}
	dir = mustOpen(".", oDirectory, rightRead, 0)
	all := list(dir, 1<<16, 0)
	equal("entries", len(all) >= 42, true)
	for _, size := range []int{64, 100, 333, 4096} { // also such as hold one entry at a time
		dir := mustOpen(".", oDirectory, rightRead, 0)
		equal("with a small buffer", names(list(dir, size, 0)), names(all))
	}
	half := all[len(all)/2]
	again := list(dir, 1<<16, half.next)
	equal("from a cookie on", names(again), names(all[len(all)/2+1:]))
	fd := mustOpen("file", 0, rightRead, 0)
	want("readdir of a file", fd_readdir(fd, unsafe.Pointer(&[64]byte{}), 64, 0, unsafe.Pointer(&[4]byte{})), eNotDir, eBadFile)
}

func readdirOfNew() {
	want("mkdir", mkdir("fresh"), eOK)
	create("fresh/one", "")
	found := false
	for _, e := range list(mustOpen("fresh", oDirectory, rightRead, 0), 512, 0) {
		found = found || e.name == "one"
	}
	equal("found", found, true)
}

func directorySeek() {
	want("mkdir", mkdir("dir"), eOK)
	fd := mustOpen("dir", oDirectory, rightRead, 0)
	var at uint64
	want("seek", fd_seek(fd, 0, 1, unsafe.Pointer(&at)), eBadFile, eNotCap, eIsDir, eInvalid)
	kind, _ := fdstat(fd)
	equal("type", kind, typeDirectory)
}

func directoryFailures() {
	want("mkdir", mkdir("dir"), eOK)
	fd := mustOpen("dir", oDirectory, rightRead, 0)
	b, done := make([]byte, 8), uint32(0)
	v, d := unsafe.Pointer(vectorOf(b)), unsafe.Pointer(&done)
	refused := []uint32{eBadFile, eIsDir, eNotCap, eInvalid}
	want("read", fd_read(fd, v, 1, d), refused...)
	want("write", fd_write(fd, v, 1, d), refused...)
	want("pread", fd_pread(fd, v, 1, 0, d), refused...)
	want("pwrite", fd_pwrite(fd, v, 1, 0, d), refused...)
	want("set size", fd_filestat_set_size(fd, 0), refused...)
	want("allocate", fd_allocate(fd, 0, 1), append(refused, eNotSup, eOK)...) // it is larger than that already
	_, errno := open(root, 0, "dir", 0, rightRead|rightWrite, 0)
	want("open for writing", errno, eIsDir, eOK) // on Linux an error, elsewhere the rights decide
	_, errno = open(root, 0, "dir", oCreate|oDirectory, rightRead, 0)
	want("create a directory by opening", errno, eInvalid, eNotSup, eOK, eExist, eIsDir)
}

func preadPwrite() {
	fd := mustOpen("file", oCreate, rightRead|rightWrite, 0)
	equal("pwrite", pwrite(fd, "01234567", 0), 8)
	equal("pread", pread(fd, 4, 0), "0123")
	equal("pread", pread(fd, 4, 6), "67")
	equal("the offset stays", seek(fd, 0, 1), 0)
	equal("pwrite", pwrite(fd, "AB", 2), 2)
	equal("content", read(fd, 20), "01AB4567")
	equal("pwrite beyond the end", pwrite(fd, "Z", 10), 1)
	equal("a hole", pread(fd, 20, 7), "7\x00\x00Z")
	equal("pread at the end", pread(fd, 4, 100), "")
	var done uint32
	parts := [2]vector{*vectorOf([]byte("xy")), *vectorOf([]byte("z"))}
	want("two buffers", fd_pwrite(fd, unsafe.Pointer(&parts), 2, 0, unsafe.Pointer(&done)), eOK)
	equal("written", done, 3)
	equal("content", pread(fd, 4, 0), "xyzB")
}

func pwriteAppend() {
	create("file", "base")
	fd := mustOpen("file", 0, rightRead|rightWrite, fAppend)
	var done uint32
	errno := fd_pwrite(fd, unsafe.Pointer(vectorOf([]byte("x"))), 1, 0, unsafe.Pointer(&done))
	want("pwrite", errno, eOK, eInvalid, eIO) // Linux appends, others write or refuse
	write(fd, "end")
	all := content("file")
	equal("appended", all[len(all)-3:], "end")
}

func seekTell() {
	fd := mustOpen("file", oCreate, rightRead|rightWrite, 0)
	tell := func() (at uint64) {
		want("tell", fd_tell(fd, unsafe.Pointer(&at)), eOK)
		return at
	}
	equal("at the beginning", tell(), 0)
	write(fd, strings.Repeat("x", 100))
	equal("after a write", tell(), 100)
	equal("back", seek(fd, -50, 1), 50)
	equal("beginning", seek(fd, 0, 0), 0)
	equal("end", seek(fd, 0, 2), 100)
	equal("beyond the end", seek(fd, 1000, 1), 1100)
	equal("tell", tell(), 1100)
	var at uint64
	want("before the beginning", fd_seek(fd, -2000, 1, unsafe.Pointer(&at)), eInvalid)
	equal("stays", tell(), 1100)
	want("from nowhere", fd_seek(fd, 0, 9, unsafe.Pointer(&at)), eInvalid)
}

func truncation() {
	create("file", "content")
	fd := mustOpen("file", oCreate|oTruncate, rightRead|rightWrite, 0)
	equal("truncated by opening", stat(fd).size, 0)
	write(fd, "0123456789")
	want("shrink", fd_filestat_set_size(fd, 5), eOK)
	equal("content", pread(fd, 20, 0), "01234")
	want("grow", fd_filestat_set_size(fd, 8), eOK)
	equal("content", pread(fd, 20, 0), "01234\x00\x00\x00")
}

func unbufferedWrite() {
	writer := mustOpen("file", oCreate, rightWrite, 0)
	reader := mustOpen("file", 0, rightRead, 0)
	write(writer, "a")
	equal("seen at once", read(reader, 10), "a")
	write(writer, "bc")
	equal("and the next", read(reader, 10), "bc")
}

// truncationOfReadOnly: what was opened to be read is not cut off.
func truncationOfReadOnly() {
	create("file", "content")
	fd := mustOpen("file", 0, rightRead, 0)
	want("set size", fd_filestat_set_size(fd, 0), eInvalid, eBadFile, eNotCap, ePerm, eAccess)
	equal("content", content("file"), "content")
}

func setTimesFlags() {
	create("file", "")
	fd := mustOpen("file", 0, rightRead|rightWrite, 0)
	for _, flags := range []uint32{setAccessed | setAccessedNow, setModified | setModifiedNow, 15} {
		want("a time and now", fd_filestat_set_times(fd, 1, 1, flags), eInvalid)
		p, n := text("file")
		want("a time and now, by path", path_filestat_set_times(root, 0, p, n, 1, 1, flags), eInvalid)
	}
	want("now", fd_filestat_set_times(fd, 0, 0, setAccessedNow|setModifiedNow), eOK)
	equal("now", stat(fd).modified > 1_577_836_800_000_000_000, true)
}

func statIdentity() {
	create("a", "")
	create("b", "")
	a, b := mustStat("a", 0), mustStat("b", 0)
	equal("the same device", a.device, b.device)
	equal("the same number", a.inode == b.inode, false)
	want("link", link("a", "c", 0), eOK)
	equal("of a link", mustStat("c", 0).inode, a.inode)
	equal("links", mustStat("a", 0).links, 2)
	equal("by descriptor", stat(mustOpen("a", 0, rightRead, 0)).inode, a.inode)
}

func syncs() {
	fd := mustOpen("file", oCreate, rightRead|rightWrite, 0)
	write(fd, "x")
	want("sync", fd_sync(fd), eOK)
	want("datasync", fd_datasync(fd), eOK)
	want("sync of nothing", fd_sync(77), eBadFile)
	want("datasync of nothing", fd_datasync(77), eBadFile)
}

func openWithAccess() {
	create("file", "readable")
	equal("content", content("file"), "readable")
}

// openWithoutAccess: what was opened for one direction refuses the other.
func openWithoutAccess() {
	create("file", "x")
	b, done := []byte("y"), uint32(0)
	fd := mustOpen("file", 0, rightRead, 0)
	want("write", fd_write(fd, unsafe.Pointer(vectorOf(b)), 1, unsafe.Pointer(&done)), eBadFile, eNotCap)
	fd = mustOpen("file", 0, rightWrite, 0)
	want("read", fd_read(fd, unsafe.Pointer(vectorOf(b)), 1, unsafe.Pointer(&done)), eBadFile, eNotCap)
	_, errno := open(root, 0, "missing", 0, rightRead, 0)
	want("open of nothing", errno, eNoEntry)
}
