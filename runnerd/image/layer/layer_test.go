package layer

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"pgregory.net/rapid"
)

// entry is a header with content, written exactly as it is.
type entry struct {
	tar.Header
	content string
}

func file(name, content string) entry {
	return entry{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content))}, content}
}

func directory(name string) entry {
	return entry{Header: tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755}}
}

func link(kind byte, name, target string) entry {
	return entry{Header: tar.Header{Typeflag: kind, Name: name, Linkname: target, Mode: 0o777}}
}

func pack(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range entries {
		if err := w.WriteHeader(&e.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func gzipped(t testing.TB, text []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	w.Write(text)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func names(t testing.TB, text []byte) (list []string) {
	t.Helper()
	r := tar.NewReader(bytes.NewReader(text))
	for {
		header, err := r.Next()
		if err == io.EOF {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, header.Name)
	}
}

// TestF140_FilterRefuses holds each trick that an archive is known for to its sentence.
func TestF140_FilterRefuses(t *testing.T) {
	long := strings.Repeat("a/", 3000) + "b"
	for name, c := range map[string]struct {
		want    string
		entries []entry
	}{
		"parent":                    {"leads out of the image", []entry{file("../etc/passwd", "x")}},
		"parent inside":             {"leads out of the image", []entry{file("a/../../etc/passwd", "x")}},
		"parent that stays":         {"leads out of the image", []entry{file("a/../b", "x")}},
		"through a symbolic link":   {"which is a symbolic link", []entry{link(tar.TypeSymlink, "a", "/etc"), file("a/passwd", "x")}},
		"through a dotted link":     {"which is a symbolic link", []entry{link(tar.TypeSymlink, "./a/", "/etc"), file("a//passwd", "x")}},
		"through a link of a link":  {"which is a symbolic link", []entry{link(tar.TypeSymlink, "a", "/"), link(tar.TypeLink, "b", "a"), file("b/x", "x")}},
		"link where a directory is": {"which is a symbolic link", []entry{directory("a"), link(tar.TypeSymlink, "a", ".."), file("a/x", "")}},
		"through a file":            {"which is a file", []entry{file("a", "x"), file("a/b", "x")}},
		"hard link out":             {"leads out of the image", []entry{link(tar.TypeLink, "a", "../../etc/shadow")}},
		"hard link to the host":     {"there is no such file", []entry{link(tar.TypeLink, "a", "/etc/shadow")}},
		"hard link to a directory":  {"there is no such file", []entry{directory("d"), link(tar.TypeLink, "a", "d")}},
		"hard link through a link":  {"which is a symbolic link", []entry{link(tar.TypeSymlink, "s", "/etc"), link(tar.TypeLink, "a", "s/shadow")}},
		"hard link before its file": {"there is no such file", []entry{link(tar.TypeLink, "a", "b"), file("b", "")}},
		"whiteout of the parent":    {"removes no name", []entry{file("a/.wh...", "")}},
		"whiteout of itself":        {"removes no name", []entry{file("a/.wh..", "")}},
		"whiteout of nothing":       {"removes no name", []entry{file(".wh.", "")}},
		"whiteout with content":     {"no empty file", []entry{file(".wh.a", "x")}},
		"whiteout as a link":        {"no empty file", []entry{link(tar.TypeSymlink, ".wh.a", "/etc")}},
		"below a whiteout":          {"below a whiteout", []entry{file(".wh.a/b", "")}},
		"long path":                 {"bytes, expected at most 4096", []entry{file(long, "")}},
		"long name":                 {"a name of 300 bytes", []entry{file(strings.Repeat("n", 300), "")}},
		"long target":               {"a target of 5000 bytes", []entry{link(tar.TypeSymlink, "a", strings.Repeat("t", 5000))}},
		"root as a link":            {"expected a directory", []entry{link(tar.TypeSymlink, "./", "/etc")}},
		"unknown type":              {"not known here", []entry{{Header: tar.Header{Typeflag: '7', Name: "a"}}}},
	} {
		_, err := Filter(io.Discard, bytes.NewReader(pack(t, c.entries...)), Limits{})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestF140_FilterRefusesBombs holds sizes: what is announced, what comes, how much, and out of how little.
func TestF140_FilterRefusesBombs(t *testing.T) {
	zeros := gzipped(t, pack(t, file("zeros", strings.Repeat("\x00", 8<<20))))
	many := make([]entry, 200)
	for i := range many {
		many[i] = file("f", "")
	}
	noRoom := errors.New("the disk is full")
	for name, c := range map[string]struct {
		want   string
		layer  []byte
		limits Limits
	}{
		"ratio":        {"expands by more than 250 to 1", zeros, Limits{RatioFree: 1 << 20}},
		"zstd ratio":   {"expands by more than 250 to 1", zstded(t, pack(t, file("z", strings.Repeat("\x00", 8<<20)))), Limits{RatioFree: 1 << 20}},
		"bytes":        {"a layer holds at most", zeros, Limits{BytesMax: 1 << 20}},
		"many files":   {"a layer holds at most", pack(t, file("a", "12345"), file("b", "12345")), Limits{BytesMax: 9}},
		"entries":      {"more than 100 entries", pack(t, many...), Limits{EntriesMax: 100}},
		"disk":         {"the disk is full", pack(t, file("z", strings.Repeat("x", 20<<20))), Limits{Room: func() error { return noRoom }}},
		"empty":        {"is empty", nil, Limits{}},
		"no tar":       {"no valid tar", []byte(strings.Repeat("nonsense ", 100)), Limits{}},
		"broken gzip":  {"no valid gzip", []byte{0x1f, 0x8b, 0, 0, 0}, Limits{}},
		"cut off gzip": {"unexpected EOF", zeros[:len(zeros)/2], Limits{}},
	} {
		_, err := Filter(io.Discard, bytes.NewReader(c.layer), c.limits)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func zstded(t testing.TB, text []byte) []byte {
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	return w.EncodeAll(text, nil)
}

// TestF140_FilterPassesWhatImagesNeed holds that nothing useful is lost and that digests are those of what came.
func TestF140_FilterPassesWhatImagesNeed(t *testing.T) {
	capability := "\x01\x00\x00\x02\x00\x04\x00\x00"
	withAttributes := file("bin/ping", "elf")
	withAttributes.Mode = 0o4755
	withAttributes.PAXRecords = map[string]string{
		"SCHILY.xattr.security.capability":    capability,
		"SCHILY.xattr.trusted.overlay.opaque": "y",
		"SCHILY.xattr.user.note":              "x",
	}
	device := entry{Header: tar.Header{Typeflag: tar.TypeChar, Name: "dev/sda", Devmajor: 8}}
	whiteout := entry{Header: tar.Header{Typeflag: tar.TypeChar, Name: "smuggled"}} // 0/0
	plain := pack(t, directory("./"), directory("bin/"), withAttributes, link(tar.TypeLink, "bin/ping6", "bin/ping"),
		link(tar.TypeSymlink, "lib", "usr/lib"), link(tar.TypeLink, "lib2", "lib"), device, whiteout,
		file("/absolute/ko-app", "x"), file("etc/.wh.old", ""), file("etc/.wh..wh..opq", ""), file("etc/.wh..wh.plnk", ""),
		entry{Header: tar.Header{Typeflag: tar.TypeFifo, Name: "run/fifo"}})
	want := "./ bin/ bin/ping bin/ping6 lib lib2 absolute/ko-app run/fifo etc/.wh.old etc/.wh..wh..opq"
	for name, layer := range map[string][]byte{"tar": plain, "gzip": gzipped(t, plain), "zstd": zstded(t, plain)} {
		var out bytes.Buffer
		result, err := Filter(&out, bytes.NewReader(layer), Limits{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := strings.Join(names(t, out.Bytes()), " "); got != want {
			t.Errorf("%s:\n%s\n%s", name, got, want)
		}
		if result.Blob != sha256.Sum256(layer) || result.Diff != sha256.Sum256(plain) || result.Skipped != 3 {
			t.Errorf("%s: %+v", name, result)
		}
		checkPing(t, out.Bytes(), capability)
	}
}

func checkPing(t *testing.T, text []byte, capability string) {
	t.Helper()
	r := tar.NewReader(bytes.NewReader(text))
	for {
		header, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if header.Name != "bin/ping" {
			continue
		}
		attributes := 0
		for key := range header.PAXRecords {
			if strings.HasPrefix(key, "SCHILY.xattr.") {
				attributes++
			}
		}
		if header.PAXRecords["SCHILY.xattr.security.capability"] != capability || attributes != 1 || header.Mode != 0o4755 {
			t.Errorf("%+v", header)
		}
		return
	}
}

// TestF140_TrailingBytesCount holds that the digest covers bytes behind the archive.
func TestF140_TrailingBytesCount(t *testing.T) {
	layer := append(pack(t, file("a", "x")), "behind the end"...)
	result, err := Filter(io.Discard, bytes.NewReader(layer), Limits{})
	if err != nil || result.Blob != sha256.Sum256(layer) || result.Diff != sha256.Sum256(layer) {
		t.Errorf("%v, %+v", err, result)
	}
}

// inside is the slow oracle: it resolves a path in a model of the output and reports whether it stays
// within the root, following symbolic links as somebody careless would.
func inside(t interface{ Fatalf(string, ...any) }, text []byte) {
	links := map[string]bool{}
	r := tar.NewReader(bytes.NewReader(text))
	for {
		header, err := r.Next()
		if err == io.EOF {
			return
		}
		if err != nil {
			t.Fatalf("the output is no tar: %v", err)
		}
		name := strings.TrimSuffix(header.Name, "/")
		paths := []string{name}
		if header.Typeflag == tar.TypeLink {
			paths = append(paths, header.Linkname)
		}
		for _, p := range paths {
			if strings.HasPrefix(p, "/") {
				t.Fatalf("absolute path %q", p)
			}
			parts := strings.Split(p, "/")
			for i, part := range parts {
				if part == ".." || i < len(parts)-1 && links[strings.Join(parts[:i+1], "/")] {
					t.Fatalf("path %q leads out", p)
				}
			}
		}
		switch header.Typeflag {
		case tar.TypeSymlink:
			links[name] = true
		case tar.TypeLink:
			links[name] = links[header.Linkname]
		case tar.TypeReg, tar.TypeDir, tar.TypeFifo:
			links[name] = false
		default:
			t.Fatalf("entry %q of type %q", name, header.Typeflag)
		}
	}
}

// TestF140_OutputStaysInside builds archives at random from few names, so that they get in each other's way.
func TestF140_OutputStaysInside(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[./]{0,2}[ab](/{1,2}([ab]|\.|\.\.|\.wh\.a)){0,3}/?`)
		var out bytes.Buffer
		w := tar.NewWriter(&out)
		for range rapid.IntRange(1, 8).Draw(t, "entries") {
			header := tar.Header{Name: name.Draw(t, "name"), Mode: 0o644,
				Typeflag: rapid.SampledFrom([]byte{tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeLink, tar.TypeChar}).Draw(t, "type")}
			if header.Typeflag == tar.TypeSymlink || header.Typeflag == tar.TypeLink {
				header.Linkname = name.Draw(t, "target")
			}
			if w.WriteHeader(&header) != nil {
				return
			}
		}
		w.Close()
		var filtered bytes.Buffer
		if _, err := Filter(&filtered, &out, Limits{}); err == nil {
			inside(t, filtered.Bytes())
		}
	})
}

func FuzzFilter(f *testing.F) {
	f.Add(pack(f, directory("a"), file("a/b", "text"), link(tar.TypeSymlink, "c", "a"), link(tar.TypeLink, "d", "a/b")))
	f.Add(gzipped(f, pack(f, file("x", "y"))))
	f.Add(zstded(f, pack(f, file("x", "y"))))
	f.Add(pack(f, file("etc/.wh.x", "")))
	f.Add(pack(f, file(".wh.a", ""), file("a/b", ""), file("a/.wh.b", ""), file("c/.wh.d", ""), file(".wh.c", "")))
	f.Fuzz(func(t *testing.T, layer []byte) {
		var out bytes.Buffer
		limits := Limits{EntriesMax: 1000, BytesMax: 1 << 20, RatioFree: 1 << 20}
		result, err := Filter(&out, bytes.NewReader(layer), limits)
		if err != nil {
			return
		}
		if result.Blob != sha256.Sum256(layer) || result.Bytes > 1<<20 || result.Entries > 1000 {
			t.Fatalf("%+v", result)
		}
		inside(t, out.Bytes())
	})
}
