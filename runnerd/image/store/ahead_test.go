package store

import (
	"io"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"colloid.net/runnerd/image/manifest"
)

// watched is a Source that says on which thread what of it is read.
type watched struct {
	memory
	read map[manifest.Digest]int // the priority of that thread
}

type watchedBlob struct {
	io.ReadCloser
	looked func()
}

func (b watchedBlob) Read(p []byte) (int, error) {
	b.looked()
	return b.ReadCloser.Read(p)
}

func (w watched) Open(digest manifest.Digest) (io.ReadCloser, error) {
	blob, err := w.memory.Open(digest)
	return watchedBlob{blob, func() { w.read[digest] = threadNice() }}, err
}

// TestStandby_AWantedImportStaysRaised: what an import ahead is raised to, when a start wants the image, holds for the
// layers that come after as well.
func TestStandby_AWantedImportStaysRaised(t *testing.T) {
	s, blobs := openStore(t), watched{memory{}, map[manifest.Digest]int{}}
	layers := [][]byte{pack(t, file("a", "a")), pack(t, file("b", "b")), pack(t, file("c", "c"))}
	digest := blobs.image(t, layers...)
	const raised = 5
	progress := func(layer, _ int, _ int64) {
		if layer == 2 { // on the thread that imports
			if err := unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), raised); err != nil {
				t.Error(err)
			}
		}
	}
	wanted := Wanted{References: []string{"a.example/a:1"}, Digest: digest, Architecture: runtime.GOARCH, Ahead: true}
	if _, _, err := s.Import(blobs, wanted, progress); err != nil {
		t.Fatal(err)
	}
	for n, nice := range []int{niceLeast, raised, raised} {
		if got := blobs.read[blobs.add(layers[n])]; got != nice {
			t.Errorf("layer %d has priority %d, want %d", n+1, got, nice)
		}
	}
}
