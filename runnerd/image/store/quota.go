package store

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A project quota bounds what the files of one project may use of a file system (F147). The writable layer of a root
// with a limit becomes a project where the state directory's file system counts them and holds limits: ext4
// with the feature project and the mount option prjquota, or xfs with prjquota. The number of the project is the
// first id of the instance (F139), which no other has.
//
// Limits do not hold for whoever has CAP_SYS_RESOURCE, and writes through an overlay count as those of the process
// that mounted it: dropRights gives that capability up.

// Numbers of the kernel's interface that the library lacks.
const (
	quotaOfProjects   = 2
	quotaSet          = 0x800007 + 1 // Q_SETQUOTA
	quotaState        = 0x5805       // Q_XGETQSTAT, which ext4 answers too
	quotaEnforced     = 1 << 5       // FS_QUOTA_PDQ_ENFD
	quotaLimitsValid  = 1 | 4        // blocks and inodes
	quotaBlocksPerMiB = 1 << 10      // blocks of 1 KiB

	attributesGet     = 0x801c581f // FS_IOC_FSGETXATTR
	attributesSet     = 0x401c5820 // FS_IOC_FSSETXATTR
	attributesInherit = 0x200      // FS_XFLAG_PROJINHERIT
)

// quotaLimits is struct if_dqblk.
type quotaLimits struct {
	blocksHard, blocksSoft, space, inodesHard, inodesSoft, inodes, blocksTime, inodesTime uint64
	valid                                                                                 uint32
}

// attributes is struct fsxattr.
type attributes struct {
	flags, extentSize, extents, project, copyExtentSize uint32
	_                                                   [8]byte
}

// errNoQuota says that the file system of a directory does not bound projects.
var errNoQuota = errors.New("the file system has no project quota")

// limitProject makes an empty directory a project of its own that holds so much. All that will be in it belongs to the
// project.
func limitProject(directory string, project, mebibytes uint32) error {
	fd, err := unix.Open(directory, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: directory, Err: err}
	}
	defer unix.Close(fd)
	if project == 0 || !projectsLimited(fd) {
		return errNoQuota
	}
	limits := quotaLimits{blocksHard: uint64(mebibytes) * quotaBlocksPerMiB, inodesHard: inodes(mebibytes), valid: quotaLimitsValid}
	if errno := quotaControl(fd, quotaSet, project, unsafe.Pointer(&limits)); errno != 0 {
		return fmt.Errorf("limit project %d to %d MiB: %w", project, mebibytes, errno)
	}
	a := attributes{}
	if errno := ioctl(fd, attributesGet, &a); errno != 0 {
		return fmt.Errorf("read attributes of %s: %w", directory, errno)
	}
	a.project, a.flags = project, a.flags|attributesInherit
	if errno := ioctl(fd, attributesSet, &a); errno != 0 {
		return fmt.Errorf("make %s project %d: %w", directory, project, errno)
	}
	return nil
}

// forgetProject takes the limit of a project away whose files are gone, so that nothing is left of it.
func forgetProject(directory string, project uint32) {
	fd, err := unix.Open(directory, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if projectsLimited(fd) {
		_ = quotaControl(fd, quotaSet, project, unsafe.Pointer(&quotaLimits{valid: quotaLimitsValid}))
	}
}

// projectsLimited reports whether limits of projects hold on the file system of a descriptor. Kernels before 5.14 cannot
// be asked by descriptor: there they count as not held.
func projectsLimited(fd int) bool {
	var state struct {
		version int8
		flags   uint16
		_       [124]byte // more than the kernel writes
	}
	errno := quotaControl(fd, quotaState, 0, unsafe.Pointer(&state))
	return errno == 0 && state.flags&quotaEnforced != 0
}

func quotaControl(fd, command int, id uint32, data unsafe.Pointer) unix.Errno {
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, uintptr(fd), uintptr(command<<8|quotaOfProjects),
		uintptr(id), uintptr(data), 0, 0)
	return errno
}

func ioctl(fd int, request uint, a *attributes) unix.Errno {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(unsafe.Pointer(a)))
	return errno
}
