// Package trust answers one question: can anybody but the trusted users change what is behind a
// path? It is asked of the policy file and of every host binary (F132, F145). The answer is yes, they
// cannot, when the file and each directory and symbolic link on the way to it belong to a trusted
// user and are writable by nobody else.
//
// A directory that all may write to but that has the sticky bit (/tmp) counts as safe, because there
// nobody can replace another user's entry, and each entry on the path is checked as well.
package trust

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// linksMax bounds the symbolic links of one path, as the kernel does.
const linksMax = 40

// Users are the user ids that may own what is trusted.
type Users []uint32

// Own gives uid 0, and the calling user when that is another (decision D2).
func Own() Users {
	if euid := os.Geteuid(); euid != 0 {
		return Users{0, uint32(euid)}
	}
	return Users{0}
}

// OpenFile opens a trusted regular file for reading and returns it with its real path. What is read
// from the descriptor is what was checked, since nobody else could have changed it in between.
func (u Users) OpenFile(path string) (*os.File, string, error) {
	real, err := u.resolve(path)
	if err != nil {
		return nil, "", err
	}
	how := unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY,
		Resolve: unix.RESOLVE_NO_SYMLINKS,
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, real, &how)
	if err == unix.ENOSYS || err == unix.EPERM { // before Linux 5.6, or a seccomp filter of old times
		fd, err = unix.Open(real, int(how.Flags), 0)
	}
	if err != nil {
		return nil, "", &os.PathError{Op: "open", Path: real, Err: err}
	}
	var stat unix.Stat_t
	if err = unix.Fstat(fd, &stat); err == nil {
		err = u.checkFile(real, &stat)
	}
	if err != nil {
		unix.Close(fd)
		return nil, "", err
	}
	return os.NewFile(uintptr(fd), real), real, nil
}

func (u Users) checkFile(path string, stat *unix.Stat_t) error {
	if stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return fmt.Errorf("%s is not a regular file", path)
	}
	if !slices.Contains(u, stat.Uid) {
		return fmt.Errorf("%s belongs to uid %d, expected %s", path, stat.Uid, u)
	}
	if stat.Mode&0o022 != 0 {
		return fmt.Errorf("%s is writable by group or others (mode %04o), expected chmod go-w",
			path, stat.Mode&0o7777)
	}
	return nil
}

// resolve walks the path as the kernel would and checks every step but the last file itself.
func (u Users) resolve(path string) (string, error) {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path || strings.ContainsRune(path, 0) {
		return "", fmt.Errorf("%q is not a clean absolute path", path)
	}
	current, links := "/", 0
	rest := strings.Split(path[1:], "/")
	if err := u.checkDirectory("/"); err != nil {
		return "", err
	}
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			current = filepath.Dir(current)
			continue
		}
		next := filepath.Join(current, name)
		var stat unix.Stat_t
		if err := unix.Lstat(next, &stat); err != nil {
			return "", &os.PathError{Op: "open", Path: next, Err: err}
		}
		switch {
		case stat.Mode&unix.S_IFMT == unix.S_IFLNK:
			if !slices.Contains(u, stat.Uid) {
				return "", fmt.Errorf("symbolic link %s belongs to uid %d, expected %s", next, stat.Uid, u)
			}
			if links++; links > linksMax {
				return "", fmt.Errorf("%s has more than %d symbolic links", path, linksMax)
			}
			target, err := os.Readlink(next)
			if err != nil {
				return "", err
			}
			if filepath.IsAbs(target) {
				current = "/"
			}
			rest = append(strings.Split(target, "/"), rest...)
		case len(rest) == 0:
			return next, nil
		default:
			if err := u.checkDirectory(next); err != nil {
				return "", err
			}
			current = next
		}
	}
	return "", fmt.Errorf("%s is a directory", path)
}

func (u Users) checkDirectory(path string) error {
	var stat unix.Stat_t
	if err := unix.Lstat(path, &stat); err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	switch {
	case stat.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fmt.Errorf("%s is not a directory", path)
	case !slices.Contains(u, stat.Uid):
		return fmt.Errorf("directory %s belongs to uid %d, expected %s", path, stat.Uid, u)
	case stat.Mode&0o022 != 0 && stat.Mode&unix.S_ISVTX == 0:
		return fmt.Errorf("directory %s is writable by group or others (mode %04o), expected chmod go-w",
			path, stat.Mode&0o7777)
	}
	return nil
}

// String lists the users for a message.
func (u Users) String() string {
	names := make([]string, len(u))
	for i, uid := range u {
		names[i] = fmt.Sprintf("uid %d", uid)
	}
	return strings.Join(names, " or ")
}
