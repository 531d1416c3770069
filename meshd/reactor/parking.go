package reactor

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// parking is where a reactor waits: in the poller of the Go runtime, on one descriptor that becomes readable
// when there is something to do (F127). A goroutine that waits there holds no processor of the runtime, whose
// monitor thread then sleeps too; one that blocks in a system call keeps that thread polling, which cost a
// fifth of the processor time of a cluster that forms on one machine (docs/measurements.md).
type parking struct {
	file *os.File
	raw  syscall.RawConn
	look func(fd uintptr) bool
}

// newParking takes over fd. look is called before each wait and after each event: it must not block, and
// says whether the wait is over. What it misses must make fd readable again, or the reactor sleeps on it.
func newParking(fd int, look func(fd uintptr) bool) (*parking, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("making descriptor %d non-blocking: %w", fd, err)
	}
	p := &parking{file: os.NewFile(uintptr(fd), "reactor"), look: look}
	var err error
	if p.raw, err = p.file.SyscallConn(); err != nil {
		return nil, err
	}
	return p, nil
}

// wait returns once look has said so.
func (p *parking) wait() error { return p.raw.Read(p.look) }

func (p *parking) free() { _ = p.file.Close() }
