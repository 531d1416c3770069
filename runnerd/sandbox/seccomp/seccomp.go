// Package seccomp is the system call filter of containers (F138): default-deny, one list for all
// (list.go), compiled ahead of time for each architecture (filter_*.go, by generate). It is part of
// every sandbox; no specification and no policy turns it off.
package seccomp

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

//go:generate go run ./generate

// instruction has the layout of struct sock_filter.
type instruction struct {
	code   uint16
	jt, jf uint8
	k      uint32
}

type program struct {
	length uint16
	filter *instruction
}

// Load puts the filter on every thread of the process, for good, and sets no_new_privs, without which
// the kernel lets only privileged processes do that.
func Load() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	p := program{length: uint16(len(filter)), filter: &filter[0]}
	thread, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&p)))
	if errno != 0 {
		return fmt.Errorf("load the system call filter: %w", errno)
	}
	if thread != 0 {
		return fmt.Errorf("load the system call filter: thread %d has another one", thread)
	}
	return nil
}
