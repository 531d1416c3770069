package tree

import (
	"archive/tar"
	"bytes"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func open(t *testing.T, directory string) *os.Root {
	t.Helper()
	root, err := os.OpenRoot(directory)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root
}

func listing(t *testing.T, directory string) []string {
	t.Helper()
	var list []string
	err := filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(directory, path)
		info, err := entry.Info()
		if err != nil {
			return err
		}
		line := name + " " + info.Mode().String()
		if entry.Type().IsRegular() {
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += " " + string(content)
		}
		if entry.Type()&fs.ModeSymlink != 0 {
			target, _ := os.Readlink(path)
			line += " " + target
		}
		list = append(list, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestTreesArriveAsTheyWere(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	for name, content := range map[string]string{"d/a": "A", "d/e/b": "B", "single": "S"} {
		os.MkdirAll(filepath.Dir(filepath.Join(from, name)), 0o755)
		os.WriteFile(filepath.Join(from, name), []byte(content), 0o640)
	}
	os.Chmod(filepath.Join(from, "d/a"), 0o755|fs.ModeSetuid)
	os.Symlink("e/b", filepath.Join(from, "d/link"))
	os.Symlink("/etc/passwd", filepath.Join(from, "d/out"))
	os.Symlink("../../x", filepath.Join(from, "d/up"))
	if err := unix.Mkfifo(filepath.Join(from, "d/pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	if skipped, err := Send(&archive, open(t, from), "d", "d"); err != nil || skipped != (LeftOut{Special: 1, Links: 2}) {
		t.Fatal(skipped, err)
	}
	result, err := Receive(bytes.NewReader(archive.Bytes()), open(t, to), "new")
	if err != nil || result.Skipped != 0 || result.Bytes != 2 {
		t.Fatal(result, err)
	}
	want := []string{"new drwxr-xr-x", "new/a -rwxr-xr-x A", "new/e drwxr-xr-x", "new/e/b -rw-r----- B", "new/link Lrwxrwxrwx e/b"}
	if got := listing(t, to)[1:]; !slices.Equal(got, want) {
		t.Fatalf("%q", got)
	}
	// Into a directory that is there it goes under its own name, and replaces what is there.
	for range 2 {
		if _, err := Receive(bytes.NewReader(archive.Bytes()), open(t, to), "new"); err != nil {
			t.Fatal(err)
		}
	}
	if got := listing(t, filepath.Join(to, "new", "d")); len(got) != len(want) {
		t.Fatalf("%q", got)
	}
}

func hostile(t *testing.T, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		h.Mode, h.ModTime = 0o7777, time.Unix(1, 0)
		if h.Typeflag == tar.TypeReg {
			h.Size = 1
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			w.Write([]byte("x"))
		}
	}
	w.Close()
	return b.Bytes()
}

// Whatever an archive holds, nothing comes to be outside of the place it was meant for.
func TestHostileArchivesStayInside(t *testing.T) {
	file := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name} }
	link := func(name, to string) tar.Header {
		return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}
	}
	dir := tar.Header{Typeflag: tar.TypeDir, Name: "d/"}
	for name, headers := range map[string][]tar.Header{
		"up":             {file("../x")},
		"up inside":      {dir, file("d/../../x")},
		"absolute":       {file("/tmp/x")},
		"not clean":      {file("d//x")},
		"dot":            {file("./x")},
		"two trees":      {dir, file("e")},
		"link and write": {dir, link("d/l", "../.."), file("d/l/x")},
		"absolute link":  {dir, link("d/l", "/tmp"), file("d/l/x")},
		"link to link":   {dir, link("d/a", "."), link("d/b", "a/../.."), file("d/b/x")},
		"link for dir":   {link("d", ".."), file("d/x")},
		"through a link": {dir, link("d/a", "."), file("d/a/x")},
		"links that go up behind each other": {dir, {Typeflag: tar.TypeDir, Name: "d/e/"}, {Typeflag: tar.TypeDir, Name: "d/e/f/"},
			link("d/e/f/up", "../.."), link("d/out", "e/f/up/.."), file("d/out/x")},
		"hard link":     {dir, {Typeflag: tar.TypeLink, Name: "d/h", Linkname: "/etc/passwd"}},
		"device":        {dir, {Typeflag: tar.TypeChar, Name: "d/null", Devmajor: 1, Devminor: 3}},
		"pipe":          {dir, {Typeflag: tar.TypeFifo, Name: "d/p"}},
		"file over dir": {dir, file("d")},
		"empty":         {},
		"deep":          {file(strings.Repeat("d/", DepthMax+1) + "x")},
	} {
		base := t.TempDir()
		inside := filepath.Join(base, "a", "b")
		if err := os.MkdirAll(inside, 0o755); err != nil {
			t.Fatal(err)
		}
		_, err := Receive(bytes.NewReader(hostile(t, headers...)), open(t, inside), "target")
		if err == nil {
			t.Errorf("%s: taken", name)
		}
		for _, line := range listing(t, base) {
			if !strings.HasPrefix(line, "a/b/target") && line[0] != '.' && !strings.HasPrefix(line, "a d") && !strings.HasPrefix(line, "a/b d") {
				t.Errorf("%s: outside: %s", name, line)
			}
		}
		t.Logf("%s: %v", name, err)
	}
	// Links that were there before lead nowhere either.
	base := t.TempDir()
	os.Mkdir(filepath.Join(base, "in"), 0o755)
	os.Symlink("..", filepath.Join(base, "in", "out"))
	if _, err := Receive(bytes.NewReader(hostile(t, file("x"))), open(t, filepath.Join(base, "in")), "out/y"); err == nil {
		t.Error("through a link")
	}
	var nothing bytes.Buffer
	if _, err := Send(&nothing, open(t, filepath.Join(base, "in")), "out/in", "in"); err == nil {
		t.Error("read through a link")
	}
	// A link that leads out is not followed, nor lost where the operator named it. A link under a name that
	// the archive chose is replaced. Bits beyond the permissions do not come.
	os.WriteFile(filepath.Join(base, "victim"), []byte("v"), 0o600)
	os.Symlink("../victim", filepath.Join(base, "in", "named"))
	if _, err := Receive(bytes.NewReader(hostile(t, file("x"))), open(t, filepath.Join(base, "in")), "named"); err == nil {
		t.Error("through a link that was named")
	}
	if to, err := os.Readlink(filepath.Join(base, "in", "named")); to != "../victim" {
		t.Error("the link is lost", err)
	}
	os.Symlink("../victim", filepath.Join(base, "in", "x"))
	if _, err := Receive(bytes.NewReader(hostile(t, file("x"))), open(t, filepath.Join(base, "in")), "."); err != nil {
		t.Error(err)
	}
	if v, _ := os.ReadFile(filepath.Join(base, "victim")); string(v) != "v" {
		t.Error("a link was followed")
	}
	if info, _ := os.Lstat(filepath.Join(base, "in", "x")); info.Mode() != 0o777 {
		t.Error(info.Mode())
	}
}

// The sizes of files are added up without an overflow.
func TestHostileSizesAreBounded(t *testing.T) {
	huge := tar.Header{Typeflag: tar.TypeReg, Name: "d/huge", Size: math.MaxInt64} // with what came before less than nothing
	var archive bytes.Buffer
	archive.Write(bytes.TrimRight(hostile(t, tar.Header{Typeflag: tar.TypeDir, Name: "d/"}, tar.Header{Typeflag: tar.TypeReg, Name: "d/x"}), "\x00")) // without its end, and so padded again
	archive.Write(make([]byte, -archive.Len()&511))
	tar.NewWriter(&archive).WriteHeader(&huge)
	result, err := Receive(&archive, open(t, t.TempDir()), "target")
	if err == nil || !strings.Contains(err.Error(), "holds more than") || result.Bytes != 1 {
		t.Errorf("a file of 2^63-1 bytes: %+v, %v", result, err)
	}
}

func FuzzReceive(f *testing.F) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "a", Size: 1, Mode: 0o644})
	w.Write([]byte("x"))
	w.Close()
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, raw []byte) {
		base := t.TempDir()
		inside := filepath.Join(base, "in")
		os.Mkdir(inside, 0o755)
		root, err := os.OpenRoot(inside)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		_, _ = Receive(bytes.NewReader(raw), root, "t")
		if list, _ := os.ReadDir(base); len(list) != 1 {
			t.Fatal("something came out")
		}
		if list, _ := os.ReadDir(inside); len(list) > 1 {
			t.Fatal("beside the target")
		}
	})
}

// A disk that is full, an archive that ends early, and a place where nothing may be written: each is said
// with the name, what was there before stays, and nothing half is left.
func TestFailedCopiesLeaveWhatWasThere(t *testing.T) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	content := bytes.Repeat([]byte("x"), 3<<20)
	w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "d", Size: int64(len(content)), Mode: 0o600})
	w.Write(content)
	w.Close()
	whole := archive.Bytes()
	for name, c := range map[string]struct {
		archive []byte
		options string // of the file system, "" = none of its own
		want    string
	}{
		"full":         {whole, "size=1m", "write d: no space left on device"},
		"ends early":   {whole[:len(whole)/2], "", "write d: unexpected EOF"},
		"may not":      {whole, "ro", "create d: read-only file system"},
		"enough space": {whole, "size=4m", ""},
	} {
		t.Run(name, func(t *testing.T) {
			directory := t.TempDir()
			mount := func(flags uintptr, options string) {
				if err := unix.Mount("tmpfs", directory, "tmpfs", flags, options); err != nil {
					t.Skip("mounting needs root: ", err)
				}
			}
			if c.options != "" {
				mount(0, strings.TrimPrefix(c.options, "ro"))
				t.Cleanup(func() { unix.Unmount(directory, 0) })
			}
			os.WriteFile(filepath.Join(directory, "d"), []byte("before"), 0o600)
			if c.options == "ro" {
				mount(unix.MS_REMOUNT|unix.MS_RDONLY, "")
			}
			root, err := os.OpenRoot(directory)
			if err != nil {
				t.Fatal(err)
			}
			_, err = Receive(bytes.NewReader(c.archive), root, "d")
			root.Close()
			list := listing(t, directory)
			if c.want == "" {
				if err != nil || len(list) != 2 || strings.Contains(list[1], "before") {
					t.Fatal(err, len(list))
				}
				return
			}
			if err == nil || err.Error() != c.want {
				t.Errorf("error %v, want %s", err, c.want)
			}
			if len(list) != 2 || list[1] != "d -rw------- before" {
				t.Errorf("left: %.200q", list)
			}
		})
	}
}
