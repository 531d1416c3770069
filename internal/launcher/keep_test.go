package launcher

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func within(t *testing.T, what string, done func() bool) {
	t.Helper()
	for limit := time.Now().Add(time.Minute); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// The directories of a running cell, the root with its lock among them, are made again when they are deleted.
func TestDeletedDirectoriesAreMadeAgain(t *testing.T) {
	r := launch(t, func(o *Options) { o.DirectoryCheck = 5 * time.Millisecond }, "meshd", "runnerd")
	root := filepath.Join(r.directory, "state")
	places := []string{"run", "meshd", "runnerd", lockName}
	complete := func() bool {
		for _, place := range places {
			if _, err := os.Lstat(filepath.Join(root, place)); err != nil {
				return false
			}
		}
		return true
	}
	// Before the first start all is made once, and what is deleted meanwhile is an error.
	within(t, "both programs run", func() bool { return len(events(r.directory)) >= 2 })
	for _, place := range append(places, "") {
		_ = os.RemoveAll(filepath.Join(root, place)) // it may be filled again meanwhile
		within(t, "again after "+place, complete)
		within(t, "no second launcher can start after the loss of "+place, func() bool { return locked(root) })
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
}

func locked(root string) bool {
	lock, err := lockDirectory(root)
	if err == nil {
		lock.Close()
	}
	return errors.Is(err, errBusy)
}

// Whoever holds the lock for a moment when it is made again does not keep the launcher from it for good, and
// what could not be made is tried again although it is there by now.
func TestWhatCouldNotBeMadeAgainIsTriedAgain(t *testing.T) {
	l := &launcher{options: testOptions(t.TempDir(), "meshd", "runnerd")}
	if err := l.takeDirectory(); err != nil {
		t.Fatal(err)
	}
	defer func() { l.lock.Close() }()
	root := l.options.Directory
	if err := os.Remove(filepath.Join(root, lockName)); err != nil {
		t.Fatal(err)
	}
	other, err := lockDirectory(root)
	if err != nil {
		t.Fatal(err)
	}
	l.keepDirectories()
	if !strings.Contains(l.trouble, "cannot be made again") {
		t.Errorf("said %q", l.trouble)
	}
	other.Close()
	l.keepDirectories()
	if !locked(root) || strings.Contains(l.trouble, "cannot") {
		t.Errorf("a second launcher could start; said %q", l.trouble)
	}
	place := ProgramDirectory(root, "meshd")
	os.Remove(place)
	os.WriteFile(place, nil, 0o600) // what fails
	l.unfinished = place
	l.keepDirectories()
	os.Remove(place)
	os.Mkdir(place, 0o700)
	os.Chmod(place, 0) // what was begun
	l.keepDirectories()
	if info, err := os.Lstat(place); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("left as it was: %v, %v", info, err)
	}
}

// What is no directory, or no file, is one line and not worth another try.
func TestUnusableDirectoriesAreConfiguration(t *testing.T) {
	for name, put := range map[string]func(root string) error{
		"a file as root":       func(root string) error { return os.WriteFile(root, nil, 0o600) },
		"a link to nothing":    func(root string) error { return os.Symlink("/nowhere", root) },
		"a FIFO as root":       func(root string) error { return unix.Mkfifo(root, 0o600) },
		"a file as meshd's":    func(root string) error { return os.WriteFile(filepath.Join(root, "meshd"), nil, 0o600) },
		"a link as runnerd's":  func(root string) error { return os.Symlink("/nowhere", filepath.Join(root, "runnerd")) },
		"a FIFO as run":        func(root string) error { return unix.Mkfifo(filepath.Join(root, "run"), 0o600) },
		"a FIFO as lock":       func(root string) error { return unix.Mkfifo(filepath.Join(root, lockName), 0o600) },
		"a directory as lock":  func(root string) error { return os.Mkdir(filepath.Join(root, lockName), 0o700) },
		"a link as lock":       func(root string) error { return os.Symlink("/nowhere", filepath.Join(root, lockName)) },
		"the root of the host": nil,
	} {
		t.Run(name, func(t *testing.T) {
			options := testOptions(t.TempDir(), "meshd", "runnerd")
			if put == nil {
				options.Directory = "/"
			} else {
				if !strings.HasSuffix(name, "as root") && name != "a link to nothing" {
					os.Mkdir(options.Directory, 0o711)
				}
				if err := put(options.Directory); err != nil {
					t.Fatal(err)
				}
			}
			var unusable *DirectoryError
			if err := Run(t.Context(), options); !errors.As(err, &unusable) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v", err)
			}
		})
	}
}
