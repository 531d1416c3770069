package invoke

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// receive is recvmsg with no sender's address: unix.Recvmsg makes one for each message. What it gives in
// flags says whether control was too small.
func receive(fd int, buffer, control []byte) (n, controlLength, flags int, err error) {
	vector := unix.Iovec{Base: unsafe.SliceData(buffer)}
	vector.SetLen(len(buffer))
	header := unix.Msghdr{Iov: &vector, Control: unsafe.SliceData(control)}
	header.SetIovlen(1)
	header.SetControllen(len(control))
	for {
		got, _, errno := unix.Syscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&header)),
			unix.MSG_CMSG_CLOEXEC)
		switch errno {
		case 0:
			return int(got), int(header.Controllen), int(header.Flags), nil
		case unix.EINTR:
			continue
		}
		return 0, 0, 0, errno
	}
}
