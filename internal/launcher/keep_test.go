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
	for limit := time.Now().Add(10 * time.Second); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("not within 10 s: %s", what)
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
	within(t, "everything is there", complete)
	for _, place := range append(places, "") {
		_ = os.RemoveAll(filepath.Join(root, place)) // it may be filled again meanwhile
		within(t, "again after "+place, complete)
		if _, err := lockDirectory(root); !errors.Is(err, errBusy) {
			t.Errorf("after the loss of %q a second launcher could start: %v", place, err)
		}
	}
	if err := r.stop(); err != nil {
		t.Error(err)
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
