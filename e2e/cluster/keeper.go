package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// keeperVariable tells a copy of this program to be a keeper.
const (
	keeperVariable      = "COLLOID_E2E_KEEPER"
	keeperGroupVariable = "COLLOID_E2E_GROUP_FILE" // see Options.GroupFile
	keeperDenyVariable  = "COLLOID_E2E_DENY_RING"  // see Options.DenyRing
)

// RunKeeper turns this process into a keeper if it was started as one; otherwise it does nothing.
func RunKeeper() {
	if os.Getenv(keeperVariable) == "" {
		return
	}
	if err := keep(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "keeper: %v\n", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// keep runs a command and then reaps whatever becomes its child until nothing is left.
func keep(arguments []string) error {
	if len(arguments) == 0 {
		return errors.New("nothing to run")
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become subreaper: %w", err)
	}
	runtime.LockOSThread() // what follows is of this thread and of what it starts
	if err := prepareKeeper(); err != nil {
		return err
	}
	for _, name := range []string{keeperVariable, keeperGroupVariable, keeperDenyVariable} {
		os.Unsetenv(name)
	}
	command := exec.Command(arguments[0], arguments[1:]...)
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	if err := command.Start(); err != nil {
		return err
	}
	for {
		_, err := unix.Wait4(-1, nil, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ECHILD):
			return nil
		case err != nil:
			return fmt.Errorf("wait: %w", err)
		}
	}
}

// prepareKeeper makes the surroundings that a test wants for its cell.
func prepareKeeper() error {
	if file := os.Getenv(keeperGroupVariable); file != "" {
		err := unix.Unshare(unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			err = unix.Mount(file, "/etc/group", "", unix.MS_BIND, "")
		}
		if err != nil {
			return fmt.Errorf("replace /etc/group: %w", err)
		}
	}
	if os.Getenv(keeperDenyVariable) != "" {
		return denyRing()
	}
	return nil
}

// denyRing forbids io_uring_setup to this thread and to everything it starts.
func denyRing() error {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number of the call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_IO_URING_SETUP, Jt: 0, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	if os.Geteuid() != 0 {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return err
		}
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program)))
	runtime.KeepAlive(filter)
	if errno != 0 {
		return fmt.Errorf("install seccomp filter: %w", errno)
	}
	return nil
}
