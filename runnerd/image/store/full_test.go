package store

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestF140_AFullDiskRefuses holds that images stop before the disk is full, and leave nothing.
func TestF140_AFullDiskRefuses(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it mounts a small disk")
	}
	disk := t.TempDir()
	if err := unix.Mount("small", disk, "tmpfs", 0, "size=64m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	s, err := Open(filepath.Join(disk, "images"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	m := memory{}
	digest := m.image(t, pack(t, file("big", strings.Repeat("text ", 16<<20))))
	_, _, err = s.Import(m, Wanted{Digest: digest, Architecture: runtime.GOARCH}, noProgress)
	if err == nil || !strings.Contains(err.Error(), "MiB left") || !strings.Contains(err.Error(), "image prune") {
		t.Errorf("%v", err)
	}
	var stat unix.Statfs_t
	if unix.Statfs(disk, &stat); stat.Bfree*uint64(stat.Bsize) < 60<<20 {
		t.Errorf("%d bytes are free of 64 MiB", stat.Bfree*uint64(stat.Bsize))
	}
	if left := s.everything(t); len(left) > 0 {
		t.Errorf("left %q", left)
	}
}

// TestF157_AFullDiskStopsNoStart holds that what stays free for others keeps images out, and no instance of an image that
// is here from starting again.
func TestF157_AFullDiskStopsNoStart(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it mounts a small disk")
	}
	disk := t.TempDir()
	if err := unix.Mount("small", disk, "tmpfs", 0, "size=64m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unmountBelow(disk); _ = unix.Unmount(disk, unix.MNT_DETACH) })
	s, err := Open(filepath.Join(disk, "images"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	m := memory{}
	here, other := m.image(t, pack(t, file("a", "x"))), m.image(t, pack(t, file("b", "x")))
	s.mustImport(t, m, here)
	var stat unix.Statfs_t
	if err := unix.Statfs(disk, &stat); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(disk, "filler"), make([]byte, int64(stat.Bfree)*stat.Bsize-1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Import(m, Wanted{Digest: other, Architecture: runtime.GOARCH}, noProgress); err == nil || !strings.Contains(err.Error(), "MiB left") {
		t.Errorf("another image: %v", err)
	}
	for _, diskMiB := range []uint32{0, 4} {
		for range 2 { // the second is a restart
			rootfs, err := s.Mount("web-0", here, IDRange{5 << 16, 65536}, diskMiB)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(rootfs, "new"), []byte("x"), 0o600); err != nil {
				t.Error(err)
			}
			s.afters.Wait()
			if err := s.Unmount("web-0"); err != nil {
				t.Fatal(err)
			}
		}
	}
}
