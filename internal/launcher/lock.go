package launcher

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// lockName is the file in the state root that keeps a second launcher out.
const lockName = "launcher.lock"

// lockDirectory takes the lock of a state root. The kernel drops it when the process ends, however
// it ends; children do not inherit it.
func lockDirectory(root string) (*os.File, error) {
	path := filepath.Join(root, lockName)
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("%s is not a file: move it away", path), file.Close())
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer file.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("a cell already runs on %s (launcher process %s), the directory is %w: "+
				"stop it, or choose another directory with --directory", root, holder(file), errBusy)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	if err := file.Truncate(0); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	if _, err := file.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// holder reads the process id that the present holder wrote.
func holder(file *os.File) string {
	var text [32]byte
	n, err := file.ReadAt(text[:], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return "unknown"
	}
	id := strings.TrimSpace(string(text[:n]))
	if _, err := strconv.Atoi(id); err != nil {
		return "unknown"
	}
	return id
}
