package packet

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// groupsMax bounds the supplementary groups that are asked for; the kernel's own limit is 65536.
const groupsMax = 65536

// Groups gives the group and the supplementary groups of who is at the other end, as they were at the
// moment of connecting (SO_PEERCRED, SO_PEERGROUPS).
func (c *Conn) Groups() (groups []uint32, err error) {
	err = c.control(func(fd int) error {
		credentials, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil {
			return err
		}
		more, err := peerGroups(fd)
		groups = append(more, credentials.Gid)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("packet: peer groups: %w", err)
	}
	return groups, nil
}

// peerGroups asks once with room for most and once more with what the kernel says it needs.
func peerGroups(fd int) ([]uint32, error) {
	list := make([]uint32, 64)
	for range 2 {
		size := uint32(len(list)) * 4
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&list[0])), uintptr(unsafe.Pointer(&size)), 0)
		runtime.KeepAlive(list)
		switch {
		case errno == 0:
			return list[:min(len(list), int(size/4))], nil
		case errno == unix.ENODATA: // none
			return nil, nil
		case errno == unix.ERANGE && size/4 <= groupsMax && int(size/4) > len(list):
			list = make([]uint32, size/4)
		default:
			return nil, errno
		}
	}
	return nil, unix.ERANGE
}
