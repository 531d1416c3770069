package launcher

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// Standard places (decision D13).
const (
	SystemDirectory    = "/var/lib/colloid"
	SystemRunDirectory = "/run/colloid"
	SystemLibexec      = "/usr/lib/colloid"
	SocketName         = "colloid.sock"
)

// Environment variables that move the standard places.
const (
	EnvironmentDirectory = "COLLOID_DIR"
	EnvironmentLibexec   = "COLLOID_LIBEXEC"
)

// DefaultDirectory returns the state root: $COLLOID_DIR, /var/lib/colloid for root, else a directory
// of the user's own.
func DefaultDirectory(root bool, getenv func(string) string) string {
	if dir := getenv(EnvironmentDirectory); dir != "" {
		return dir
	}
	if root {
		return SystemDirectory
	}
	return UserDirectory(getenv)
}

// UserDirectory returns the state root of an unprivileged user, "" if the user has no home.
func UserDirectory(getenv func(string) string) string {
	if state := getenv("XDG_STATE_HOME"); filepath.IsAbs(state) {
		return filepath.Join(state, "colloid")
	}
	if home := getenv("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".local", "state", "colloid")
	}
	return ""
}

// RunDirectory returns where the command socket lies for a state root.
func RunDirectory(directory string) string {
	if filepath.Clean(directory) == SystemDirectory {
		return SystemRunDirectory
	}
	return filepath.Join(directory, "run")
}

// prepareRoot creates the state root and refuses one that another user could tamper with.
func prepareRoot(path string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("state directory %q is not an absolute path", path)
	}
	if filepath.Clean(path) == "/" {
		return errors.New("the state directory cannot be /: choose a directory of its own with --directory")
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	switch err := os.Mkdir(path, 0o711); {
	case err == nil:
		if err := os.Chmod(path, 0o711); err != nil { // whatever the umask
			return err
		}
	case !errors.Is(err, fs.ErrExist):
		return err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	owner := info.Sys().(*syscall.Stat_t).Uid
	switch {
	case !info.IsDir():
		return fmt.Errorf("%s is not a directory (mode %v): move it away, or choose another with --directory", path, info.Mode())
	case owner != uint32(os.Geteuid()):
		return fmt.Errorf("state directory %s belongs to user %d, not to you (%d): choose another with --directory",
			path, owner, os.Geteuid())
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("others may write to the state directory %s (mode %04o): chmod go-w it", path,
			info.Mode().Perm())
	}
	return nil
}

// checkReachable finds a directory on the way to path that id may not pass through.
func checkReachable(path string, id Identity) error {
	for dir := filepath.Clean(path); ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return err
		}
		stat := info.Sys().(*syscall.Stat_t)
		search := os.FileMode(0o001)
		switch {
		case id.User == 0:
			return nil
		case stat.Uid == id.User:
			search = 0o100
		case stat.Gid == id.Group:
			search = 0o010
		}
		if info.Mode().Perm()&search == 0 {
			return fmt.Errorf("meshd runs as user %s, who may not pass through %s (mode %04o): chmod o+x it, "+
				"choose another place, or another user with --user", id.Name, dir, info.Mode().Perm())
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}

// prepareOwned creates a directory that belongs to id (nil: to the caller) with exactly this mode.
// If it belonged to somebody else before, its contents change hands too.
func prepareOwned(path string, mode os.FileMode, id *Identity) error {
	if info, err := os.Lstat(path); err == nil && !info.IsDir() {
		return fmt.Errorf("%s is not a directory (mode %v): move it away", path, info.Mode())
	}
	if err := os.MkdirAll(path, mode); err != nil {
		return err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is not a directory", path)
	}
	if id != nil && info.Sys().(*syscall.Stat_t).Uid != id.User {
		if err := chownTree(path, id); err != nil {
			return fmt.Errorf("give %s to user %s: %w", path, id.Name, err)
		}
	}
	return os.Chmod(path, mode)
}

// chownEntriesMax bounds a walk over a tree whose contents an attacker may have made.
const chownEntriesMax = 1 << 20

// chownTree changes owners without following links. A file with several hard links is refused: one
// of its names may be a file elsewhere that must not change hands.
func chownTree(root string, id *Identity) error {
	entries := 0
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entries++; entries > chownEntriesMax {
			return fmt.Errorf("more than %d files", chownEntriesMax)
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if info.Mode().IsRegular() && info.Sys().(*syscall.Stat_t).Nlink > 1 {
			return fmt.Errorf("%s has several hard links: remove it", path)
		}
		return os.Lchown(path, int(id.User), int(id.Group))
	})
}

// ErrNoBinary means that a program of the appliance is not installed.
var ErrNoBinary = errors.New("not found")

// FindBinary looks for a program of the appliance: $COLLOID_LIBEXEC, the directory of the running
// executable, /usr/lib/colloid.
func FindBinary(name string, getenv func(string) string) (string, error) {
	var places []string
	if dir := getenv(EnvironmentLibexec); dir != "" {
		places = append(places, dir)
	} else {
		if self, err := os.Executable(); err == nil {
			places = append(places, filepath.Dir(self))
		}
		places = append(places, SystemLibexec)
	}
	for _, place := range places {
		path := filepath.Join(place, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && unix.Access(path, unix.X_OK) == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("program %s %w in %q: install it there or set %s", name, ErrNoBinary, places,
		EnvironmentLibexec)
}
