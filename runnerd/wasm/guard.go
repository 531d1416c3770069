package wasm

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"github.com/tetratelabs/wazero/experimental/sys"
	"github.com/tetratelabs/wazero/experimental/sysfs"
	wasisys "github.com/tetratelabs/wazero/sys"
)

// guardedFS is one volume as a module sees it. The engine's own view of a directory follows symbolic
// links to anywhere; here each name must stay inside, links included. The sandbox, in which nothing else
// exists, is the second wall, and holds where somebody else changes the volume meanwhile.
type guardedFS struct {
	sys.FS
	root *os.Root
}

func openGuarded(directory string, writable bool) (sys.FS, error) {
	root, err := os.OpenRoot(directory)
	if err != nil {
		return nil, err
	}
	inner := sysfs.DirFS(directory)
	if !writable {
		inner = &sysfs.ReadFS{FS: inner}
	}
	return &guardedFS{inner, root}, nil
}

// errnoOf translates what the checks can say.
func errnoOf(err error) sys.Errno {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, fs.ErrNotExist):
		return sys.ENOENT
	case errors.Is(err, fs.ErrPermission):
		return sys.EACCES
	case errors.Is(err, syscall.ELOOP), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ENAMETOOLONG),
		errors.Is(err, syscall.EINVAL):
		return sys.UnwrapOSError(err)
	}
	return sys.EPERM
}

// follow checks a name whose last part is followed if it is a link.
func (g *guardedFS) follow(name string) sys.Errno {
	name = local(name)
	if _, err := g.root.Stat(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return errnoOf(err)
	}
	// What does not exist yet may still be a link that points outside.
	if target, err := g.root.Readlink(name); err == nil && escapes(name, target) {
		return sys.EPERM
	}
	return g.parent(name)
}

// parent checks the directory of a name.
func (g *guardedFS) parent(name string) sys.Errno {
	info, err := g.root.Stat(path.Dir(local(name)))
	if err == nil && !info.IsDir() {
		return sys.ENOTDIR
	}
	return errnoOf(err)
}

func local(name string) string {
	if name = strings.TrimLeft(path.Clean("/"+name), "/"); name != "" {
		return name
	}
	return "."
}

// escapes reports whether a link leads out of the volume.
func escapes(link, target string) bool {
	if path.IsAbs(target) {
		return true
	}
	joined := path.Join(path.Dir(local(link)), target)
	return joined == ".." || strings.HasPrefix(joined, "../")
}

func (g *guardedFS) OpenFile(name string, flag sys.Oflag, perm fs.FileMode) (sys.File, sys.Errno) {
	if errno := g.follow(name); errno != 0 {
		return nil, errno
	}
	return g.FS.OpenFile(name, flag, perm)
}

func (g *guardedFS) Lstat(name string) (wasisys.Stat_t, sys.Errno) {
	if errno := g.parent(name); errno != 0 {
		return wasisys.Stat_t{}, errno
	}
	return g.FS.Lstat(name)
}

func (g *guardedFS) Stat(name string) (wasisys.Stat_t, sys.Errno) {
	if errno := g.follow(name); errno != 0 {
		return wasisys.Stat_t{}, errno
	}
	return g.FS.Stat(name)
}

func (g *guardedFS) Mkdir(name string, perm fs.FileMode) sys.Errno {
	if errno := g.parent(name); errno != 0 {
		return errno
	}
	return g.FS.Mkdir(name, perm)
}

func (g *guardedFS) Chmod(name string, perm fs.FileMode) sys.Errno {
	if errno := g.follow(name); errno != 0 {
		return errno
	}
	return g.FS.Chmod(name, perm)
}

func (g *guardedFS) Rename(from, to string) sys.Errno {
	return g.pair(from, to, func() sys.Errno { return g.FS.Rename(from, to) })
}

func (g *guardedFS) Link(from, to string) sys.Errno {
	return g.pair(from, to, func() sys.Errno { return g.FS.Link(from, to) })
}

func (g *guardedFS) pair(from, to string, do func() sys.Errno) sys.Errno {
	if errno := g.parent(from); errno != 0 {
		return errno
	}
	if errno := g.parent(to); errno != 0 {
		return errno
	}
	return do()
}

func (g *guardedFS) Rmdir(name string) sys.Errno {
	if errno := g.parent(name); errno != 0 {
		return errno
	}
	return g.FS.Rmdir(name)
}

func (g *guardedFS) Unlink(name string) sys.Errno {
	if errno := g.parent(name); errno != 0 {
		return errno
	}
	return g.FS.Unlink(name)
}

func (g *guardedFS) Symlink(target, link string) sys.Errno {
	if escapes(link, target) {
		return sys.EPERM
	}
	if errno := g.parent(link); errno != 0 {
		return errno
	}
	return g.FS.Symlink(target, link)
}

func (g *guardedFS) Readlink(name string) (string, sys.Errno) {
	if errno := g.parent(name); errno != 0 {
		return "", errno
	}
	return g.FS.Readlink(name)
}

func (g *guardedFS) Utimens(name string, atim, mtim int64) sys.Errno {
	if errno := g.follow(name); errno != 0 {
		return errno
	}
	return g.FS.Utimens(name, atim, mtim)
}
