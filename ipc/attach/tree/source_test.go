package tree

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What is named is copied, also through a link, or the copy fails: it never succeeds with nothing in it.
func TestWhatIsNamedArrivesOrIsAnError(t *testing.T) {
	base := t.TempDir()
	from := filepath.Join(base, "from")
	os.MkdirAll(filepath.Join(from, "real"), 0o755)
	os.WriteFile(filepath.Join(from, "real", "file"), []byte("content"), 0o644)
	os.WriteFile(filepath.Join(base, "secret"), []byte("secret"), 0o644)
	for link, target := range map[string]string{"file": "real/file", "directory": "real", "twice": "file", "out": "../secret",
		"absolute": filepath.Join(base, "secret"), "nothing": "nowhere", "loop": "loop"} {
		os.Symlink(target, filepath.Join(from, link))
	}
	if err := unix.Mkfifo(filepath.Join(from, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"file": "", "directory": "", "twice": "",
		"out": "out is a link to ../secret, which leads out", "absolute": "leads out", "loop": "loop is a link",
		"nothing": "nothing is a link to nowhere, which does not exist", "pipe": "pipe is a socket, a pipe or a device",
		"absent": "absent: no such file",
	} {
		var archive bytes.Buffer
		left, err := Send(&archive, open(t, from), name, name)
		if want != "" {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v %v", name, left, err)
			}
			continue
		}
		to := t.TempDir()
		if _, receiveErr := Receive(&archive, open(t, to), "new"); err != nil || receiveErr != nil || left != (LeftOut{}) {
			t.Errorf("%s: %v, %v, %v", name, left, err, receiveErr)
			continue
		}
		path := filepath.Join(to, "new")
		if name == "directory" {
			path = filepath.Join(path, "file")
		}
		if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() || info.Size() != 7 {
			t.Errorf("%s: %v %v", name, info, err)
		}
	}
}

// What says that it has no bytes, or more than it has, is read to its end.
func TestFilesOfTheKernelAreReadToTheirEnd(t *testing.T) {
	copied := func(directory, name string) string {
		t.Helper()
		var archive bytes.Buffer
		if _, err := Send(&archive, open(t, directory), name, name); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		to := t.TempDir()
		if _, err := Receive(&archive, open(t, to), "new"); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		text, err := os.ReadFile(filepath.Join(to, "new"))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	want, _ := os.ReadFile("/proc/version")
	if got := copied("/proc", "version"); got != string(want) || got == "" {
		t.Errorf("version: %q", got)
	}
	if _, err := os.Stat("/sys/kernel/mm/transparent_hugepage/enabled"); err == nil { // says 4096
		want, _ = os.ReadFile("/sys/kernel/mm/transparent_hugepage/enabled")
		if got := copied("/sys/kernel/mm/transparent_hugepage", "enabled"); got != string(want) {
			t.Errorf("enabled: %q", got)
		}
	}
	long, _ := os.ReadFile("/proc/kallsyms") // some MiB, and says 0
	if got := copied("/proc", "kallsyms"); len(long) < pseudoMax-1<<20 && len(got) < len(long)/2 {
		t.Errorf("kallsyms: %d of %d bytes", len(got), len(long))
	}
	directory := t.TempDir()
	for _, size := range []int{0, 1, peek - 1, peek, peek + 1, 3 * peek} {
		text := strings.Repeat("x", size)
		os.WriteFile(filepath.Join(directory, "file"), []byte(text), 0o644)
		if got := copied(directory, "file"); got != text {
			t.Errorf("%d of %d bytes", len(got), size)
		}
	}
}

// A directory that is closed to its owner arrives like that, with what was in it.
func TestClosedDirectoriesStayClosed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to read a directory that nobody may read")
	}
	from, to := t.TempDir(), t.TempDir()
	os.MkdirAll(filepath.Join(from, "d", "closed", "inner"), 0o755)
	os.WriteFile(filepath.Join(from, "d", "closed", "inner", "file"), nil, 0o644)
	os.Chmod(filepath.Join(from, "d", "closed", "inner"), 0o500)
	os.Chmod(filepath.Join(from, "d", "closed"), 0)
	var archive bytes.Buffer
	_, err := Send(&archive, open(t, from), "d", "d")
	_, receiveErr := Receive(&archive, open(t, to), "d")
	if err := errors.Join(err, receiveErr); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]fs.FileMode{"d": 0o755, "d/closed": 0, "d/closed/inner": 0o500, "d/closed/inner/file": 0o644} {
		if info, err := os.Lstat(filepath.Join(to, name)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v %v", name, info.Mode(), err)
		}
	}
}

// Directories keep permissions and times as files do, whatever the mask of new files is; one that was there
// stays as it was.
func TestDirectoriesKeepPermissionsAndTimes(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077))
	from, to := t.TempDir(), t.TempDir()
	modes := map[string]fs.FileMode{"d": 0o777, "d/a": 0o750, "d/a/closed": 0o511, "d/b": 0o775, "d/b/c": 0o700}
	at := time.Unix(1_000_000_000, 0)
	os.MkdirAll(filepath.Join(from, "d/a/closed"), 0o700)
	os.MkdirAll(filepath.Join(from, "d/b/c"), 0o700)
	os.WriteFile(filepath.Join(from, "d/a/closed/file"), []byte("x"), 0o640)
	os.WriteFile(filepath.Join(from, "d/z"), []byte("x"), 0o640)
	for name, mode := range modes {
		os.Chmod(filepath.Join(from, name), mode)
		os.Chtimes(filepath.Join(from, name), at, at)
	}
	var archive bytes.Buffer
	if _, err := Send(&archive, open(t, from), "d", "d"); err != nil {
		t.Fatal(err)
	}
	if _, err := Receive(bytes.NewReader(archive.Bytes()), open(t, to), "new"); err != nil {
		t.Fatal(err)
	}
	for name, mode := range modes {
		info, err := os.Stat(filepath.Join(to, "new"+name[1:]))
		if err != nil || info.Mode().Perm() != mode || !info.ModTime().Equal(at) {
			t.Errorf("%s: %v %v, %v", name, info.Mode(), info.ModTime(), err)
		}
	}
	os.Chmod(filepath.Join(to, "new"), 0o700)
	os.Rename(filepath.Join(to, "new"), filepath.Join(to, "d"))
	if _, err := Receive(bytes.NewReader(archive.Bytes()), open(t, to), "."); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(to, "d")); err != nil || info.Mode().Perm() != 0o700 {
		t.Error(info.Mode(), err)
	}
}
