package store

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// needProjects skips where the file system of a directory does not bound projects. The disk of make vm does.
func needProjects(t *testing.T, directory string) {
	t.Helper()
	fd, err := unix.Open(directory, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if !projectsLimited(fd) {
		t.Skip("needs a file system with project quotas for temporary files: ext4 or xfs, mounted with prjquota")
	}
}

// used is what the kernel counts for a project, in MiB, and its limits of MiB and of files.
func used(t *testing.T, directory string, project uint32) (mebibytes, limit, files uint64) {
	t.Helper()
	fd, err := unix.Open(directory, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	const quotaGet = 0x800007 // Q_GETQUOTA
	var limits quotaLimits
	if errno := quotaControl(fd, quotaGet, project, unsafe.Pointer(&limits)); errno != 0 {
		t.Fatal(errno)
	}
	return limits.space >> 20, limits.blocksHard / quotaBlocksPerMiB, limits.inodesHard
}

// asImages calls a function on a thread that has given up what `runnerd images` has.
func asImages(t *testing.T, f func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with this function
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var have [2]unix.CapUserData
		err := unix.Capget(&header, &have[0])
		if err == nil {
			have[0].Effective &^= 1 << unix.CAP_SYS_RESOURCE
			err = unix.Capset(&header, &have[0])
		}
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// full reports whether an error says that a limit of space was met: ext4 and xfs name it differently.
func full(err error) bool { return errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.ENOSPC) }

// TestF147_ScratchSpaceIsAProject holds that the limit is one of the disk, not of memory, where the disk can hold it; that
// what an image brings does not count, what is changed of it does; and that nothing is left of it.
func TestF147_ScratchSpaceIsAProject(t *testing.T) {
	s := openStore(t)
	needProjects(t, s.directory)
	m := memory{}
	digest := m.image(t, pack(t, file("big", string(make([]byte, 3<<20)))))
	s.mustImport(t, m, digest)
	const base, other, limit = 1 << 20, 1<<20 + 65536, 8
	asImages(t, func() {
		rootfs, err := s.Mount("web-0", digest, IDRange{base, 65536}, limit)
		if err != nil {
			t.Error(err)
			return
		}
		neighbour, err := s.Mount("web-1", digest, IDRange{other, 65536}, limit)
		if err != nil {
			t.Error(err)
			return
		}
		var stat unix.Statfs_t
		if err := unix.Statfs(filepath.Join(filepath.Dir(rootfs), spaceName), &stat); err != nil || stat.Type == unix.TMPFS_MAGIC {
			t.Errorf("the space is in memory: %v", err)
		}
		if n, most, files := used(t, s.directory, base); n > 0 || most != limit || files != inodes(limit) {
			t.Errorf("%d MiB of %d are used of an untouched image, at most %d files", n, most, files)
		}
		big := filepath.Join(rootfs, "big")
		file, err := os.OpenFile(big, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Error(err)
			return
		}
		if _, err = file.WriteString("changed"); err == nil {
			err = file.Close()
		}
		if n, _, _ := used(t, s.directory, base); err != nil || n != 3 {
			t.Errorf("a changed file of 3 MiB counts as %d, %v", n, err)
		}
		if err := os.WriteFile(filepath.Join(rootfs, "fill"), make([]byte, 6<<20), 0o600); !full(err) {
			t.Errorf("6 MiB into the 5 that are left: %v", err)
		}
		_ = os.Remove(filepath.Join(rootfs, "fill"))
		if err := os.WriteFile(filepath.Join(rootfs, "fits"), make([]byte, 4<<20), 0o600); err != nil {
			t.Errorf("4 MiB into the 5 that are left: %v", err)
		}
		if err := os.WriteFile(filepath.Join(neighbour, "fits"), make([]byte, 7<<20), 0o600); err != nil {
			t.Errorf("the neighbour has no room: %v", err)
		}
		for _, name := range []string{"web-0", "web-1"} {
			if err := s.Unmount(name); err != nil {
				t.Error(err)
			}
		}
	})
	for _, project := range []uint32{base, other} {
		if n, most, files := used(t, s.directory, project); n+most+files > 0 {
			t.Errorf("left of project %d: %d MiB of %d, at most %d files", project, n, most, files)
		}
	}
}
