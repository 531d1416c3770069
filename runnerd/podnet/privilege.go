package podnet

import (
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// GiveUp gives away for good what only this package needs of the process's rights: CAP_NET_ADMIN for
// bridges, addresses and rules, CAP_NET_BIND_SERVICE for port 53. It reports whether it did; it does not
// while there are networks of containers, which somebody has to take away. Where another thread cannot be
// reached (a binary with cgo) the rights stay.
func (n *Network) GiveUp() bool {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if n.pool.bridge != "" || dropCapabilities(unix.CAP_NET_ADMIN, unix.CAP_NET_BIND_SERVICE) != nil {
		return false
	}
	n.gaveUp = true
	return true
}

// dropCapabilities takes capabilities from all sets of all threads.
func dropCapabilities(list ...uint) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	for _, number := range list {
		mask := ^(uint32(1) << (number % 32))
		set := &data[number/32]
		set.Effective, set.Permitted, set.Inheritable = set.Effective&mask, set.Permitted&mask, set.Inheritable&mask
	}
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data[0])), 0)
	if errno != 0 {
		return fmt.Errorf("drop capabilities: %w", errno)
	}
	return nil
}
