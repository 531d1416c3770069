//go:build wasip1

package main

import (
	"strings"
	"unsafe"
)

// pathCases are those about names: what they lead to, and where they may not lead.
var pathCases = map[string]func(){
	"dangling_symlink": danglingLink, "interesting_paths": interestingPaths, "nofollow_errors": nofollowErrors,
	"path_exists": pathExists, "path_filestat": pathFilestat, "path_link": pathLink,
	"path_open_create_existing": createExisting, "path_open_dirfd_not_dir": openBelowFile, "path_open_missing": openMissing,
	"path_open_nonblock": openNonblock, "path_open_preopen": openPreopen, "path_open_read_write": openReadWrite,
	"path_open_lots": openLots, "path_rename": pathRename, "path_rename_dir_trailing_slashes": renameSlashes,
	"path_symlink_trailing_slashes": symlinkSlashes, "readlink": readLink, "readlink_no_buffer": readLinkNoBuffer,
	"remove_directory_trailing_slashes": removeDirectorySlashes, "remove_nonempty_directory": removeNonempty,
	"symlink_create": symlinkCreate, "symlink_filestat": symlinkFilestat, "symlink_loop": symlinkLoop,
	"unlink_file_trailing_slashes": unlinkSlashes, "path_create_directory": createDirectory, "absolute_paths": absolutePaths,
}

func danglingLink() {
	want("symlink", symlink("nothing", "link"), eOK)
	_, errno := open(root, 0, "link", oDirectory, 0, 0)
	want("open as a directory", errno, eNotDir, eLoop)
	_, errno = open(root, 0, "link", 0, rightRead, 0)
	want("open without following", errno, eLoop)
	_, errno = open(root, follow, "link", 0, rightRead, 0)
	want("open", errno, eNoEntry)
	equal("type", mustStat("link", 0).kind, typeLink)
	_, errno = statPath("link", follow)
	want("stat", errno, eNoEntry)
	want("unlink", unlink("link"), eOK)
}

func interestingPaths() {
	want("mkdir", mkdir("dir"), eOK)
	want("mkdir", mkdir("dir/nested"), eOK)
	create("dir/nested/file", "x")
	for _, path := range []string{
		"dir/nested/file", "dir/.//nested/../../dir/nested/../nested///./file", "./dir/nested/file", "dir//nested/file",
	} {
		fd, errno := open(root, 0, path, 0, rightRead, 0)
		want("open "+path, errno, eOK)
		want("close", fd_close(fd), eOK)
	}
	for path, errnos := range map[string][]uint32{
		"/dir/nested/file":              {ePerm, eNotCap, eNoEntry, eInvalid},
		"dir/nested/../../../dir":       {ePerm, eNotCap, eNoEntry},
		"../dir":                        {ePerm, eNotCap, eNoEntry},
		"dir/nested/file\x00":           {eInvalid, eNoEntry},
		"dir/nested/\x00file":           {eInvalid, eNoEntry},
		"dir/nested/file/":              {eNotDir, eNoEntry, eInvalid},
		"dir/nested/file/.":             {eNotDir, eNoEntry, eOK}, // hosts may clean a name first
		"dir/nested/missing/../file":    {eNoEntry, eOK},
		strings.Repeat("n", 300):        {eNoEntry, eInvalid, 37, eIO},
		"dir/nested/file/below/nothing": {eNotDir, eNoEntry},
	} {
		_, errno := open(root, 0, path, 0, rightRead, 0)
		want("open "+path[:min(len(path), 40)], errno, errnos...)
	}
	fd, errno := open(root, 0, "dir/nested/", oDirectory, 0, 0)
	want("a directory with a slash", errno, eOK)
	_, errno = open(fd, 0, "../nested/file", 0, rightRead, 0)
	want("up from a descriptor that is no root", errno, eOK, ePerm, eNotCap)
}

func nofollowErrors() {
	want("mkdir", mkdir("target"), eOK)
	want("symlink", symlink("target", "link"), eOK)
	_, errno := open(root, 0, "link", oDirectory, 0, 0)
	want("a link to a directory", errno, eLoop, eNotDir)
	_, errno = open(root, 0, "link", 0, 0, 0)
	want("a link to a directory, as a file", errno, eLoop)
	_, errno = open(root, follow, "link", oDirectory, 0, 0)
	want("followed", errno, eOK)
	want("unlink", unlink("link"), eOK)
	want("rmdir", rmdir("target"), eOK)
	create("target", "x")
	want("symlink", symlink("target", "link"), eOK)
	_, errno = open(root, 0, "link", oDirectory, 0, 0)
	want("a link to a file, as a directory", errno, eLoop, eNotDir)
	_, errno = open(root, follow, "link", oDirectory, 0, 0)
	want("a link to a file, followed, as a directory", errno, eNotDir)
	_, errno = open(root, 0, "link", 0, rightRead, 0)
	want("a link to a file", errno, eLoop)
	_, errno = open(root, follow, "link", 0, rightRead, 0)
	want("a link to a file, followed", errno, eOK)
}

func pathExists() {
	want("mkdir", mkdir("dir"), eOK)
	create("dir/file", "")
	want("symlink", symlink("dir/file", "link"), eOK)
	for path, kind := range map[string]byte{"dir": typeDirectory, "dir/file": typeRegular} {
		equal(path, mustStat(path, 0).kind, kind)
		equal(path, mustStat(path, follow).kind, kind)
	}
	equal("link", mustStat("link", 0).kind, typeLink)
	equal("link followed", mustStat("link", follow).kind, typeRegular)
	for _, path := range []string{"missing", "dir/missing", "missing/file"} {
		_, errno := statPath(path, follow)
		want(path, errno, eNoEntry)
	}
	_, errno := statPath("dir/file/below", 0)
	want("below a file", errno, eNotDir)
}

func pathFilestat() {
	fd := mustOpen("file", oCreate, rightRead|rightWrite, fAppend)
	equal("size", mustStat("file", 0).size, 0)
	write(fd, "0123456789")
	s := mustStat("file", 0)
	equal("size", s.size, 10)
	equal("type", s.kind, typeRegular)
	p, n := text("file")
	want("set times", path_filestat_set_times(root, 0, p, n, 0, s.modified-100_000_000_000, setModified), eOK)
	equal("modified", mustStat("file", 0).modified, s.modified-100_000_000_000)
	q, m := text("missing")
	want("of nothing", path_filestat_set_times(root, 0, q, m, 0, 0, setModified), eNoEntry)
}

func pathLink() {
	create("file", "content")
	want("link", link("file", "hard", 0), eOK)
	equal("content", content("hard"), "content")
	equal("the same", mustStat("hard", 0).inode, mustStat("file", 0).inode)
	want("onto itself", link("file", "file", 0), eExist)
	create("other", "")
	want("onto another", link("file", "other", 0), eExist)
	want("of nothing", link("missing", "new", 0), eNoEntry)
	want("into nothing", link("file", "missing/new", 0), eNoEntry)
	want("mkdir", mkdir("dir"), eOK)
	want("of a directory", link("dir", "dirlink", 0), ePerm, eAccess)
	want("onto a directory", link("file", "dir", 0), eExist)
	want("to a name with a slash", link("file", "new/", 0), eNoEntry, eNotDir, eInvalid)
	want("symlink", symlink("file", "link"), eOK)
	want("of a link", link("link", "linklink", 0), eOK)
	equal("type", mustStat("linklink", 0).kind, typeLink)
	want("unlink", unlink("file"), eOK)
	equal("what is left", content("hard"), "content")
}

func createExisting() {
	create("file", "x")
	_, errno := open(root, 0, "file", oCreate|oExclusive, rightRead|rightWrite, 0)
	want("exclusive", errno, eExist)
	fd, errno := open(root, 0, "file", oCreate, rightRead|rightWrite, 0)
	want("not exclusive", errno, eOK)
	equal("content", read(fd, 5), "x")
}

func openBelowFile() {
	create("file", "")
	fd := mustOpen("file", 0, rightRead, 0)
	_, errno := open(fd, 0, "below", oCreate, rightWrite, 0)
	want("open", errno, eNotDir, eNotCap, eBadFile)
	_, errno = open(77, 0, "below", oCreate, rightWrite, 0)
	want("open below nothing", errno, eBadFile)
}

func openMissing() {
	_, errno := open(root, 0, "missing", 0, rightRead, 0)
	want("file", errno, eNoEntry)
	_, errno = open(root, 0, "missing", oDirectory, 0, 0)
	want("directory", errno, eNoEntry)
	_, errno = open(root, 0, "missing/file", oCreate, rightWrite, 0)
	want("below", errno, eNoEntry)
	_, errno = open(root, 0, "", oCreate, rightWrite, 0)
	want("no name", errno, eNoEntry, eInvalid, eIsDir, eExist)
}

func openNonblock() {
	create("file", "x")
	fd, errno := open(root, 0, "file", 0, rightRead, fNonblock)
	want("open", errno, eOK, eNotSup)
	if errno == eOK {
		equal("content", read(fd, 5), "x")
	}
}

func openPreopen() {
	for _, path := range []string{".", "./", "./."} {
		fd, errno := open(root, 0, path, oDirectory, 0, 0)
		want("open "+path, errno, eOK)
		equal("the same", stat(fd).inode, stat(root).inode)
	}
	_, errno := open(root, 0, ".", 0, 0, 0)
	want("without saying that it is one", errno, eOK)
	_, errno = open(root, 0, "..", oDirectory, 0, 0)
	want("above it", errno, ePerm, eNotCap, eNoEntry)
}

func openReadWrite() {
	create("file", "content")
	fd := mustOpen("file", 0, rightRead|rightWrite, 0)
	equal("read", read(fd, 3), "con")
	write(fd, "XX")
	equal("content", content("file"), "conXXnt")
	reader := mustOpen("file", 0, rightRead, 0)
	var done uint32
	want("write", fd_write(reader, unsafe.Pointer(vectorOf([]byte("y"))), 1, unsafe.Pointer(&done)), eBadFile, eNotCap)
}

// openLots: closed descriptors are free again.
func openLots() {
	create("file", "x")
	for range 2000 {
		fd := mustOpen("file", 0, rightRead, 0)
		want("close", fd_close(fd), eOK)
		equal("a small number", fd < 20, true)
	}
}

func pathRename() {
	want("mkdir", mkdir("source"), eOK)
	want("mkdir", mkdir("source/nested"), eOK)
	want("a directory", rename("source", "target"), eOK)
	_, errno := statPath("source", 0)
	want("the old name", errno, eNoEntry)
	equal("what is in it", mustStat("target/nested", 0).kind, typeDirectory)
	want("mkdir", mkdir("empty"), eOK)
	want("onto an empty directory", rename("target", "empty"), eOK)
	want("mkdir", mkdir("other"), eOK)
	want("onto a full directory", rename("other", "empty"), eNotEmpty, eExist)
	create("file", "one")
	want("a file onto a directory", rename("file", "other"), eIsDir, eExist)
	want("a directory onto a file", rename("other", "file"), eNotDir)
	create("second", "two")
	want("a file onto a file", rename("file", "second"), eOK)
	equal("content", content("second"), "one")
	want("nothing", rename("missing", "x"), eNoEntry)
	want("into nothing", rename("second", "missing/x"), eNoEntry)
	want("onto itself", rename("second", "second"), eOK)
	want("into itself", rename("empty", "empty/below"), eInvalid)
}

func renameSlashes() {
	want("mkdir", mkdir("source"), eOK)
	want("with slashes", rename("source/", "target/"), eOK, eNoEntry)
	if _, errno := statPath("target", 0); errno != eOK {
		fail("the directory is gone")
	}
	create("file", "")
	want("a file with a slash", rename("file/", "new"), eNotDir, eNoEntry, eInvalid, eOK)
}

func symlinkSlashes() {
	want("to a name with a slash", symlink("target", "link/"), eNoEntry, eNotDir, eInvalid, eOK)
	want("mkdir", mkdir("dir"), eOK)
	want("onto a directory", symlink("target", "dir/"), eExist)
	want("onto a directory", symlink("target", "dir"), eExist)
	create("file", "")
	want("onto a file", symlink("target", "file"), eExist)
	want("onto a file with a slash", symlink("target", "file/"), eExist, eNotDir, eInvalid)
}

func readLink() {
	create("target", "")
	want("symlink", symlink("target", "link"), eOK)
	got, errno := readlink("link", 100)
	want("readlink", errno, eOK)
	equal("target", got, "target")
	got, errno = readlink("link", 4)
	want("with little room", errno, eOK, 61, 68) // cut, or refused: overflow, range
	if errno == eOK {
		equal("cut", got, "targ")
	}
	_, errno = readlink("target", 100)
	want("of a file", errno, eInvalid)
	_, errno = readlink("missing", 100)
	want("of nothing", errno, eNoEntry)
}

func readLinkNoBuffer() {
	want("symlink", symlink("target", "link"), eOK)
	_, errno := readlink("link", 0)
	want("no room", errno, eOK, eInvalid, 61, 68)
}

func removeDirectorySlashes() {
	want("mkdir", mkdir("dir"), eOK)
	want("with a slash", rmdir("dir/"), eOK)
	want("mkdir", mkdir("dir"), eOK)
	want("with dots", rmdir("./dir"), eOK)
	create("file", "")
	want("a file", rmdir("file"), eNotDir)
	want("a file with a slash", rmdir("file/"), eNotDir, eInvalid)
	want("nothing", rmdir("missing"), eNoEntry)
}

func removeNonempty() {
	want("mkdir", mkdir("dir"), eOK)
	want("mkdir", mkdir("dir/nested"), eOK)
	want("rmdir", rmdir("dir"), eNotEmpty)
	want("rmdir", rmdir("dir/nested"), eOK)
	want("rmdir", rmdir("dir"), eOK)
}

func symlinkCreate() {
	create("target", "x")
	want("to a file", symlink("target", "link"), eOK)
	fd, errno := open(root, follow, "link", 0, rightRead, 0)
	want("open", errno, eOK)
	equal("content", read(fd, 5), "x")
	want("mkdir", mkdir("dir"), eOK)
	want("to a directory", symlink("dir", "dirlink"), eOK)
	create("dirlink/file", "y")
	equal("through a link", content("dir/file"), "y")
	want("an absolute one", symlink("/etc/passwd", "absolute"), ePerm, eNotCap, eInvalid)
	want("out of the directory", symlink("../secret", "up"), ePerm, eNotCap)
	want("within it", symlink("../target", "dir/up"), eOK)
	equal("content", func() string {
		fd, errno := open(root, follow, "dir/up", 0, rightRead, 0)
		want("open", errno, eOK)
		return read(fd, 5)
	}(), "x")
}

func symlinkFilestat() {
	create("file", "0123456789")
	want("symlink", symlink("file", "link"), eOK)
	l := mustStat("link", 0)
	equal("type", l.kind, typeLink)
	equal("size", l.size, 4)
	equal("size of the file", mustStat("link", follow).size, 10)
	equal("numbers", l.inode == mustStat("file", 0).inode, false)
	want("unlink", unlink("link"), eOK)
	equal("the file stays", content("file"), "0123456789")
}

func symlinkLoop() {
	want("symlink", symlink("link", "link"), eOK)
	_, errno := open(root, 0, "link", 0, rightRead, 0)
	want("open", errno, eLoop)
	_, errno = open(root, follow, "link", 0, rightRead, 0)
	want("open following", errno, eLoop)
	want("symlink", symlink("b", "a"), eOK)
	want("symlink", symlink("a", "b"), eOK)
	_, errno = statPath("a/below", follow)
	want("stat below", errno, eLoop, eNotDir)
}

func unlinkSlashes() {
	want("mkdir", mkdir("dir"), eOK)
	want("a directory", unlink("dir"), eIsDir, ePerm)
	want("a directory with a slash", unlink("dir/"), eIsDir, ePerm)
	create("file", "")
	want("a file with a slash", unlink("file/"), eNotDir, eInvalid)
	want("a file", unlink("file"), eOK)
	want("again", unlink("file"), eNoEntry)
}

func createDirectory() {
	want("mkdir", mkdir("dir"), eOK)
	want("again", mkdir("dir"), eExist)
	want("with a slash", mkdir("slash/"), eOK)
	equal("type", mustStat("slash", 0).kind, typeDirectory)
	want("below nothing", mkdir("missing/dir"), eNoEntry)
	create("file", "")
	want("below a file", mkdir("file/dir"), eNotDir)
	want("onto a file", mkdir("file"), eExist)
	want("no name", mkdir(""), eNoEntry, eInvalid, eExist)
}

// absolutePaths: no call takes one, and none leads out.
func absolutePaths() {
	outside := []uint32{ePerm, eNotCap, eNoEntry, eInvalid}
	for _, path := range []string{"/etc", "../outside", "a/../../outside"} {
		want("mkdir "+path, mkdir(path), outside...)
		want("rmdir "+path, rmdir(path), append(outside, eNotDir)...)
		want("unlink "+path, unlink(path), append(outside, eIsDir)...)
		create("file", "")
		want("rename to "+path, rename("file", path), outside...)
		want("rename from "+path, rename(path, "file2"), outside...)
		want("link to "+path, link("file", path, 0), outside...)
		want("symlink at "+path, symlink("file", path), outside...)
		_, errno := statPath(path, follow)
		want("stat "+path, errno, outside...)
		_, errno = readlink(path, 10)
		want("readlink "+path, errno, outside...)
	}
}
