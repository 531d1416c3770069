package launcher

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Confinement is what a child may not do. The zero value changes nothing.
type Confinement struct {
	// Identity is the user to become; nil keeps the launcher's.
	Identity *Identity
	// Bounded empties the bounding set except for Capabilities. A child that stays root then has
	// exactly those; one that becomes another user has none.
	Bounded      bool
	Capabilities []uintptr
	// NoNewPrivileges makes set-user-id bits and file capabilities void for the child and for
	// everything it starts.
	NoNewPrivileges bool
}

// start starts a command under a confinement. Bounding set and no_new_privs belong to the thread
// that forks, so a thread is spent on it: the goroutine stays locked to it and both end together.
func (c Confinement) start(command *exec.Cmd) error {
	if c.Identity != nil {
		credential := &syscall.Credential{Uid: c.Identity.User, Gid: c.Identity.Group}
		if c.Identity.SocketGroup != 0 {
			credential.Groups = []uint32{c.Identity.SocketGroup}
		}
		command.SysProcAttr.Credential = credential
	}
	if !c.Bounded && !c.NoNewPrivileges {
		return command.Start()
	}
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if err := c.confineThread(); err != nil {
			result <- err
			return
		}
		result <- command.Start()
	}()
	return <-result
}

func (c Confinement) confineThread() error {
	if c.Bounded {
		if err := dropBoundingSet(c.Capabilities); err != nil {
			return err
		}
	}
	if !c.NoNewPrivileges {
		return nil
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	return nil
}

// capabilitiesMax is above any capability number the kernel can have: sets are 64 bits wide.
const capabilitiesMax = 64

func dropBoundingSet(keep []uintptr) error {
	kept := uint64(0)
	for _, k := range keep {
		kept |= 1 << k
	}
	for number := uintptr(0); number < capabilitiesMax; number++ {
		present, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, number, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) {
			return nil // one past the last capability of this kernel
		}
		if err != nil {
			return fmt.Errorf("read capability bound %d: %w", number, err)
		}
		if present == 0 || kept&(1<<number) != 0 {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, number, 0, 0, 0); err != nil {
			return fmt.Errorf("drop capability %d: %w", number, err)
		}
	}
	return nil
}
