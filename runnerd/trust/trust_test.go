package trust

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func write(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// TestF132_OnlyWhatNobodyElseCanChangeIsTrusted goes through every way to own a path.
func TestF132_OnlyWhatNobodyElseCanChangeIsTrusted(t *testing.T) {
	root := t.TempDir()
	at := func(name string) string { return filepath.Join(root, name) }
	write(t, at("good/file"), 0o644)
	write(t, at("good/group"), 0o664)
	write(t, at("good/others"), 0o646)
	write(t, at("open/file"), 0o644)
	write(t, at("open/deep/file"), 0o644)
	write(t, at("sticky/file"), 0o644)
	os.Chmod(at("open"), 0o777)
	os.Chmod(at("sticky"), 0o777|os.ModeSticky)
	for link, target := range map[string]string{
		"good/relative": "file", "good/absolute": at("good/file"), "good/up": "../good/./file",
		"good/toopen": "../open/file", "good/dir": "../open", "good/self": "self", "good/dangling": "none",
	} {
		if err := os.Symlink(target, at(link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(at("good/fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path, want string // want "" = trusted, else a part of the error
	}{
		{at("good/file"), ""},
		{at("good/relative"), ""},
		{at("good/absolute"), ""},
		{at("good/up"), ""},
		{at("sticky/file"), ""},
		{at("good/group"), "writable by group or others (mode 0664)"},
		{at("good/others"), "mode 0646"},
		{at("open/file"), "directory " + at("open") + " is writable"},
		{at("open/deep/file"), "directory " + at("open") + " is writable"},
		{at("good/toopen"), "directory " + at("open") + " is writable"},
		{at("good/dir") + "/file", "directory " + at("open") + " is writable"},
		{at("good/self"), "symbolic links"},
		{at("good/dangling"), "no such file"},
		{at("good/fifo"), "not a regular file"},
		{at("good"), "not a regular file"},
		{at("good/file/x"), "not a directory"},
		{root + "/good/../good/file", "not a clean absolute path"},
		{"good/file", "not a clean absolute path"},
		{"", "not a clean absolute path"},
		{"/", "is a directory"},
		{at("good/file") + "\x00", "not a clean absolute path"},
	} {
		file, _, err := Own().OpenFile(c.path)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.path, err)
		case c.want == "":
			if content, _ := io.ReadAll(file); string(content) != "content" {
				t.Errorf("%s holds %q", c.path, content)
			}
			file.Close()
		case err == nil:
			t.Errorf("%s was trusted", c.path)
		case !strings.Contains(err.Error(), c.want):
			t.Errorf("%s: %v, expected %q", c.path, err, c.want)
		}
	}
}

func TestF132_ForeignOwnersAreNotTrusted(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to give files away")
	}
	root := t.TempDir()
	write(t, root+"/a/file", 0o644)
	write(t, root+"/b/file", 0o644)
	os.Symlink("b/file", root+"/link")
	os.Chown(root+"/a", 65534, 65534)
	os.Chown(root+"/b/file", 65534, 65534)
	for _, path := range []string{"/a/file", "/b/file"} {
		if _, _, err := Own().OpenFile(root + path); err == nil || !strings.Contains(err.Error(), "belongs to uid 65534") {
			t.Errorf("%s: %v", path, err)
		}
	}
	os.Chown(root+"/b/file", 0, 0)
	os.Lchown(root+"/link", 65534, 65534)
	if _, _, err := Own().OpenFile(root + "/link"); err == nil || !strings.Contains(err.Error(), "symbolic link") {
		t.Errorf("link: %v", err)
	}
}
