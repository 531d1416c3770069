package store

import (
	"archive/tar"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"colloid.net/runnerd/image/manifest"
)

// TestF140_WhiteoutsStayInTheirLayer holds that a whiteout hides the layer below and removes nothing of it.
func TestF140_WhiteoutsStayInTheirLayer(t *testing.T) {
	s := openStore(t)
	m := memory{}
	below := pack(t, file("a", "1"), file("d/x", "1"), file("d/y", "1"))
	lower, upper := m.image(t, below), m.image(t, below, pack(t, file(".wh.a", ""), file("d/.wh..wh..opq", ""), file("d/z", "2")))
	s.mustImport(t, m, lower)
	s.mustImport(t, m, upper)
	for digest, want := range map[manifest.Digest]string{lower: "a d d/x d/y", upper: "d d/z"} {
		rootfs, err := s.Mount("root-"+digest.Hex()[:8], digest, IDRange{}, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := everyName(rootfs); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	// The lower image may go while the upper one needs its layer.
	if err := s.Unmount("root-" + lower.Hex()[:8]); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(lower); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(s.directory, "layers", s.chainOf(t, upper)[0])); err != nil {
		t.Error(err)
	}
}

// TestF140_WhiteoutsThatHideNothingAreNotSeen holds that a name that a layer removes is gone however the directory around
// it came to be: an overlay shows the mark where it merges nothing.
func TestF140_WhiteoutsThatHideNothingAreNotSeen(t *testing.T) {
	s := openStore(t)
	bottom := pack(t, file("d/a", "1"), file("d/b", "1"), file("d/e/a", "1"), file("f", "1"), file("o/e/a", "1"), file("o/b", "1"))
	for name, c := range map[string]struct {
		layers [][]byte
		want   string
	}{
		"in an opaque directory": {[][]byte{bottom, pack(t, file("d/.wh.a", ""), file("d/.wh..wh..opq", ""), file("d/c", "2"))},
			"d d/c f o o/b o/e o/e/a"},
		"opaque first": {[][]byte{bottom, pack(t, file("d/.wh..wh..opq", ""), file("d/.wh.a", ""), file("d/c", "2"))},
			"d d/c f o o/b o/e o/e/a"},
		"below an opaque directory": {[][]byte{bottom, pack(t, file("d/.wh..wh..opq", ""), file("d/e/.wh.a", ""), file("d/e/c", "2"))},
			"d d/e d/e/c f o o/b o/e o/e/a"},
		"in a new directory": {[][]byte{bottom, pack(t, file("n/.wh.a", ""), file("n/c", "2"))},
			"d d/a d/b d/e d/e/a f n n/c o o/b o/e o/e/a"},
		"where a file was": {[][]byte{bottom, pack(t, item{tar.Header{Name: "f/", Typeflag: tar.TypeDir}, ""}, file("f/.wh.a", ""))},
			"d d/a d/b d/e d/e/a f o o/b o/e o/e/a"},
		"where the middle replaced": {[][]byte{bottom, pack(t, file("o/.wh..wh..opq", ""), file("o/c", "2")), pack(t, file("o/e/.wh.a", ""), file("o/.wh.b", ""))},
			"d d/a d/b d/e d/e/a f o o/c o/e"},
		"where the middle removed": {[][]byte{bottom, pack(t, file(".wh.o", "")), pack(t, file("o/.wh.b", ""), file("o/n", "3"))},
			"d d/a d/b d/e d/e/a f o o/n"},
		"one that hides": {[][]byte{bottom, pack(t, file("d/.wh.a", ""), file("d/e/.wh.a", ""), file(".wh.f", ""), file("o/.wh..wh..opq", ""))},
			"d d/b d/e o"},
		"and had again": {[][]byte{bottom, pack(t, file(".wh.d", ""), file("d/x", "2"), file(".wh.f", ""), file("f/x", "2"), file("o/n", "2"), file(".wh.o", ""))},
			"d d/x f f/x o o/n"},
		"and replaced": {[][]byte{bottom, pack(t, file(".wh.d", ""), file("d", "2"), file("o/e", "2"), file("o/.wh.e", ""), file("f/.wh.x", ""), file(".wh.f", ""))},
			"d o o/b o/e"},
		"and is needed above": {[][]byte{bottom, pack(t, file("d/.wh.a", "")), pack(t, file("d/x", "3"))},
			"d d/b d/e d/e/a d/x f o o/b o/e o/e/a"},
	} {
		m := memory{}
		digest := m.image(t, c.layers...)
		s.mustImport(t, m, digest)
		rootfs, err := s.Mount("root-"+digest.Hex()[:8], digest, IDRange{}, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := everyName(rootfs); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// everyName lists what is below a directory.
func everyName(directory string) string {
	var found []string
	filepath.WalkDir(directory, func(path string, _ os.DirEntry, err error) error {
		if relative, _ := filepath.Rel(directory, path); relative != "." {
			found = append(found, relative)
		}
		return err
	})
	return strings.Join(found, " ")
}
