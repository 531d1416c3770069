package storage

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// makeDirectory creates the state directory for its owner alone.
func makeDirectory(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("storage: %w", err)
	}
	err := os.Mkdir(path, 0o700)
	if err == nil {
		return systemDisk{filepath.Dir(path)}.Sync()
	}
	info, statErr := os.Stat(path)
	if statErr != nil {
		if link, linkErr := os.Lstat(path); linkErr == nil && link.Mode()&os.ModeSymlink != 0 {
			return fmt.Errorf("%w: %s is a symbolic link to nothing: remove it or mount what it leads to", ErrUnusable, path)
		}
		return fmt.Errorf("storage: %w", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("%w: %s is not a directory: move it away or choose another state directory", ErrUnusable, path)
	}
	if info.Mode().Perm()&0o077 != 0 {
		if err := os.Chmod(path, 0o700); err != nil {
			return fmt.Errorf("storage: %s is open to others (%v) and this cannot be changed: %w",
				path, info.Mode().Perm(), err)
		}
	}
	return nil
}

// writeHolder names this process in its lock.
func writeHolder(f *os.File) error {
	err := f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return err
}

// parseHolder reads who holds the lock, in words.
func parseHolder(text []byte) string {
	if pid, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 31); err == nil && pid > 0 {
		return fmt.Sprintf("process %d", pid)
	}
	return "another process"
}

// lockDirectory makes sure that one process at a time uses the directory. The lock goes with the
// process; the file stays and names the last holder.
func lockDirectory(path string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(path, nameLock), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, fmt.Errorf("storage: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == unix.EWOULDBLOCK {
		text, _ := io.ReadAll(io.LimitReader(f, 32))
		f.Close()
		return nil, fmt.Errorf("storage: %s is in use by %s: stop it, or set COLLOID_DIR to another directory",
			path, parseHolder(text))
	}
	if err == nil {
		err = writeHolder(f)
	}
	if err != nil && !IsNoSpace(err) { // a full disk does not make the lock less of a lock
		f.Close()
		return nil, fmt.Errorf("storage: lock in %s: %w", path, err)
	}
	return f, nil
}
