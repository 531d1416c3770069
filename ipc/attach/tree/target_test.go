package tree

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The device nodes of these tests are made in directories of their own, never those of the machine: a copy
// that is wrong destroys what it goes to.

func null(t *testing.T, path string) {
	t.Helper()
	if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
		t.Skip("making a device node needs root: ", err)
	}
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Skip("no device opens here: ", err)
	}
	file.Close()
}

// one is an archive of one file.
func one(t *testing.T, name, content string) io.Reader {
	t.Helper()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(content)), Mode: 0o604})
	io.WriteString(w, content)
	w.Close()
	return &archive
}

// What the operator names as the target is written into, as cp(1) does: replacing it would destroy it.
func TestFilesGoIntoDevicesAndPipes(t *testing.T) {
	directory := t.TempDir()
	null(t, filepath.Join(directory, "null"))
	if err := unix.Mkfifo(filepath.Join(directory, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	os.Symlink("null", filepath.Join(directory, "link"))
	before := listing(t, directory)
	read := make(chan string)
	go func() {
		text, _ := os.ReadFile(filepath.Join(directory, "pipe"))
		read <- string(text)
	}()
	for _, name := range []string{"null", "link", "pipe"} {
		result, err := Receive(one(t, "f", "content"), open(t, directory), name)
		if err != nil || result.Bytes != 7 {
			t.Errorf("%s: %+v, %v", name, result, err)
		}
	}
	select {
	case text := <-read:
		if text != "content" {
			t.Errorf("the pipe has got %q", text)
		}
	case <-time.After(10 * time.Second):
		t.Error("nothing came through the pipe")
	}
	start := time.Now()
	if _, err := Receive(one(t, "f", "content"), open(t, directory), "pipe"); err == nil || !strings.Contains(err.Error(), "nobody reads") {
		t.Errorf("a pipe without a reader: %v after %v", err, time.Since(start))
	}
	file, err := os.OpenFile(filepath.Join(directory, "null"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if result, err := ReceiveInto(one(t, "f", "content"), file); err != nil || result.Bytes != 7 {
		t.Errorf("%+v, %v", result, err)
	}
	if after := listing(t, directory); !slices.Equal(before, after) {
		t.Errorf("before %q, after %q", before, after)
	}
}

// What cannot be written into such a target is refused, and so is a target that only the archive named:
// nothing is changed.
func TestSpecialFilesAreNeverReplaced(t *testing.T) {
	directory := t.TempDir()
	null(t, filepath.Join(directory, "null"))
	unix.Mkfifo(filepath.Join(directory, "pipe"), 0o600)
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(socket)
	if err := unix.Bind(socket, &unix.SockaddrUnix{Name: filepath.Join(directory, "socket")}); err != nil {
		t.Fatal(err)
	}
	os.Mkdir(filepath.Join(directory, "d"), 0o755)
	null(t, filepath.Join(directory, "d", "null"))
	before := listing(t, directory)
	file := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name} }
	dir := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeDir, Name: name} }
	for name, c := range map[string]struct {
		target, want string
		headers      []tar.Header
	}{
		"a directory onto a device":   {"null", "no directory", []tar.Header{dir("x/"), file("x/y")}},
		"a directory onto a pipe":     {"pipe", "no directory", []tar.Header{dir("x/")}},
		"a link onto a device":        {"null", "a device", []tar.Header{{Typeflag: tar.TypeSymlink, Name: "x", Linkname: "x"}}},
		"a file onto a socket":        {"socket", "a socket", []tar.Header{file("x")}},
		"a device that was not named": {".", "a device", []tar.Header{file("null")}},
		"a pipe that was not named":   {".", "a pipe", []tar.Header{file("pipe")}},
		"a device below a directory":  {".", "a device", []tar.Header{dir("d/"), file("d/null")}},
		"a link below, onto a device": {".", "a device", []tar.Header{dir("d/"), {Typeflag: tar.TypeSymlink, Name: "d/null", Linkname: "x"}}},
		"a directory below, on it":    {".", "no directory", []tar.Header{dir("d/"), dir("d/null/")}},
		"two files onto one device":   {"null", "beside", []tar.Header{file("x"), file("y")}},
	} {
		_, err := Receive(bytes.NewReader(hostile(t, c.headers...)), open(t, directory), c.target)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if after := listing(t, directory); !slices.Equal(before, after) {
			t.Errorf("%s: before %q, after %q", name, before, after)
		}
	}
}

// A link that was named is followed to the file, as far as it stays below the root; one to nothing is
// refused.
func TestNamedLinksAreFollowed(t *testing.T) {
	for name, c := range map[string]struct{ link, to, target, want, refused string }{
		"to a file":             {"l", "sub/file", "l", "sub/file", ""},
		"to a link":             {"l", "sub/second", "l", "sub/file", ""},
		"up again":              {"sub/l", "../top", "sub/l", "top", ""},
		"a link as a directory": {"l", "sub", "l/file", "sub/file", ""},
		"new below a link":      {"l", "sub", "l/new", "sub/new", ""},
		"to nothing":            {"l", "absent", "l", "", "does not exist"},
		"to nothing below":      {"l", "absent", "l/new", "", "does not exist"},
		"out":                   {"l", "../outside", "l", "", "leads out"},
		"out, absolute":         {"l", "/etc/hostname", "l", "", "leads out"},
		"to itself":             {"l", "l", "l", "", "more than 40 links"},
	} {
		base := t.TempDir()
		directory := filepath.Join(base, "in")
		os.MkdirAll(filepath.Join(directory, "sub"), 0o755)
		for _, file := range []string{"sub/file", "top", "../outside"} {
			os.WriteFile(filepath.Join(directory, file), []byte("before"), 0o600)
		}
		os.Symlink("file", filepath.Join(directory, "sub", "second"))
		os.Symlink(c.to, filepath.Join(directory, c.link))
		before := listing(t, base)
		_, err := Receive(one(t, "f", "content"), open(t, directory), c.target)
		if c.refused != "" {
			if err == nil || !strings.Contains(err.Error(), c.refused) || !slices.Equal(before, listing(t, base)) {
				t.Errorf("%s: %v, %q", name, err, listing(t, base))
			}
			continue
		}
		if text, readErr := os.ReadFile(filepath.Join(directory, c.want)); err != nil || string(text) != "content" {
			t.Errorf("%s: %v, %q, %v", name, err, text, readErr)
		}
		if to, err := os.Readlink(filepath.Join(directory, c.link)); to != c.to {
			t.Errorf("%s: the link is %q, %v", name, to, err)
		}
	}
}
