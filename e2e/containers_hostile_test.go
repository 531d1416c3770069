package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"colloid.net/runnerd/image/imagetest"
)

// hostileLayers are archives that would reach the host, and what is said of each.
func hostileLayers(t *testing.T) map[string]struct {
	words string
	layer []byte
} {
	entry := func(kind byte, name, target string) tar.Header {
		return tar.Header{Typeflag: kind, Name: name, Linkname: target, Mode: 0o777}
	}
	layers := map[string]struct {
		words string
		layer []byte
	}{
		"a path out":    {"leads out of the image", imagetest.Tar(t, tar.Header{Name: "../../../../etc/colloid-e2e"})},
		"through links": {"which is a symbolic link", imagetest.Tar(t, entry(tar.TypeSymlink, "a", "/etc"), tar.Header{Name: "a/colloid-e2e"})},
		"a hard link":   {"there is no such file", imagetest.Tar(t, entry(tar.TypeLink, "a", "/etc/shadow"))},
		"no archive":    {"no valid tar", bytes.Repeat([]byte("nonsense "), 100)},
	}
	if !long() {
		return layers
	}
	// More than 256 MiB of zeros out of a quarter of a mebibyte.
	var bomb bytes.Buffer
	packed := gzip.NewWriter(&bomb)
	w := tar.NewWriter(packed)
	err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "zeros", Mode: 0o644, Size: 300 << 20})
	for range 300 {
		if err == nil {
			_, err = w.Write(make([]byte, 1<<20))
		}
	}
	if err := errors.Join(err, w.Close(), packed.Close()); err != nil {
		t.Fatal(err)
	}
	layers["a bomb"] = struct {
		words string
		layer []byte
	}{"expands by more than 250 to 1", bomb.Bytes()}
	return layers
}

// Images whose archives would reach out of their directory, or fill the disk, are refused by a real cell with a sentence,
// from a registry and from a file, and leave nothing. Device nodes are left out, and the rest of the image works (F140).
func TestF140_HostileImagesAreRefused(t *testing.T) {
	c := startContainers(t, nil)
	cell := c.Cells[0]
	for name, hostile := range hostileLayers(t) {
		image := imagetest.Image(t, runtime.GOARCH, v1.Config{Cmd: []string{"true"}}, hostile.layer)
		c.registry.Push(t, "hostile:1", image)
		result, err := cell.Run(t.Context(), "image", "pull", c.in("hostile:1"))
		refused(t, "pull: "+name, result, err, 1, hostile.words)
		archive := filepath.Join(t.TempDir(), "hostile.tar")
		writeLayout(t, archive, "localhost/hostile:1", image)
		result, err = cell.Run(t.Context(), "image", "load", archive)
		refused(t, "load: "+name, result, err, 1, hostile.words)
		if left := c.imageRemains(cell); len(left) > 0 {
			t.Errorf("%s left %v", name, left)
		}
	}
	if _, err := os.Lstat("/etc/colloid-e2e"); err == nil {
		os.Remove("/etc/colloid-e2e")
		t.Error("a file of an image is in /etc")
	}
	device := imagetest.Tar(t, tar.Header{Typeflag: tar.TypeBlock, Name: "disk", Mode: 0o666, Devmajor: 254, Devminor: 0},
		tar.Header{Name: "file"})
	c.registry.Push(t, "device:1", imagetest.Image(t, runtime.GOARCH, v1.Config{Cmd: []string{"true"}}, device))
	c.run(cell, 0, "image", "pull", c.in("device:1"))
	layers := filepath.Join(cell.Directory, "runnerd", "images", "layers")
	for name, want := range map[string]int{"disk": 0, "file": 1} {
		if found, err := filepath.Glob(filepath.Join(layers, "*", "diff", name)); err != nil || len(found) != want {
			t.Errorf("%s: %v, %v; want %d", name, found, err, want)
		}
	}
}
