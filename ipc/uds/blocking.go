package uds

import (
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// blocking is a connection whose descriptor blocks: a thread waits in the kernel for the reply to a command.
// The Go runtime's poller would be woken a second time when the daemon reads the request, and hands what it
// finds from one thread to another as often as not; that took half of the time of a short command.
//
// One goroutine reads and writes, and sets deadlines; Close may be called by any.
type blocking struct {
	deadline time.Time
	// What the kernel knows of the deadline: it costs a system call only when it changes.
	readPatience, writePatience time.Duration
	yielded                     time.Time // when Read last left the processor to others

	mutex  sync.Mutex // guards what follows
	fd     int
	users  int // in a system call
	closed bool
}

// newBlocking takes over a connection.
func newBlocking(connection *net.UnixConn) (*blocking, error) {
	defer connection.Close() // which takes it from the poller
	raw, err := connection.SyscallConn()
	if err != nil {
		return nil, err
	}
	b := &blocking{fd: -1}
	failed := raw.Control(func(fd uintptr) { b.fd, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
	if failed != nil {
		return nil, failed
	}
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	if err := unix.SetNonblock(b.fd, false); err != nil {
		unix.Close(b.fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	return b, nil
}

// SetDeadline bounds the reads and writes that begin from now on; zero is none.
func (b *blocking) SetDeadline(deadline time.Time) error {
	b.deadline = deadline
	return nil
}

// enter keeps the descriptor from being closed, and so from being another's, during a system call.
func (b *blocking) enter() (fd int, err error) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if b.closed {
		return -1, net.ErrClosed
	}
	b.users++
	return b.fd, nil
}

func (b *blocking) leave() {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if b.users--; b.users == 0 && b.closed {
		unix.Close(b.fd)
	}
}

// Close ends the connection, and what is under way.
func (b *blocking) Close() error {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if b.closed {
		return net.ErrClosed
	}
	b.closed = true
	_ = unix.Shutdown(b.fd, unix.SHUT_RDWR) // it fails only if there is no other end any more
	if b.users == 0 {
		unix.Close(b.fd)
	}
	return nil
}

// patienceStep is to what the kernel's patience is rounded up: commands of one timeout need not set it anew.
const patienceStep = time.Millisecond

// patience has the kernel wait no longer than the deadline says. known is what it has been told, 0 = for
// ever.
func (b *blocking) patience(fd, option int, known *time.Duration) error {
	left := time.Duration(0)
	if !b.deadline.IsZero() {
		if left = time.Until(b.deadline); left <= 0 {
			return os.ErrDeadlineExceeded
		}
		left = (left + patienceStep - 1) / patienceStep * patienceStep
	}
	if left == *known {
		return nil
	}
	value := unix.NsecToTimeval(left.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, option, &value); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	*known = left
	return nil
}

// yieldInterval is how often Read leaves the processor to others, see package invoke.
const yieldInterval = 5 * time.Millisecond

// Read implements io.Reader.
func (b *blocking) Read(p []byte) (int, error) {
	n, _, err := b.readMessage(p, nil)
	return n, err
}

// readMessage is Read that also takes descriptors, as far as control has room; length is what it holds of
// them.
func (b *blocking) readMessage(p, control []byte) (n, length int, err error) {
	if len(p) == 0 {
		return 0, 0, nil
	}
	fd, err := b.enter()
	if err != nil {
		return 0, 0, err
	}
	defer b.leave()
	if now := time.Now(); now.Sub(b.yielded) >= yieldInterval {
		b.yielded = now
		runtime.Gosched()
	}
	for {
		if err := b.patience(fd, unix.SO_RCVTIMEO, &b.readPatience); err != nil {
			return 0, 0, err
		}
		if control == nil {
			n, err = unix.Read(fd, p)
		} else {
			n, length, _, _, err = unix.Recvmsg(fd, p, control, unix.MSG_CMSG_CLOEXEC)
		}
		switch {
		case err == unix.EINTR:
			continue // with what is left of the patience
		case err == unix.EAGAIN:
			return 0, 0, os.ErrDeadlineExceeded
		case err != nil:
			return 0, 0, os.NewSyscallError("read", err)
		case n == 0:
			return 0, length, io.EOF
		}
		return n, length, nil
	}
}

// Write implements io.Writer.
func (b *blocking) Write(p []byte) (written int, err error) {
	fd, err := b.enter()
	if err != nil {
		return 0, err
	}
	defer b.leave()
	for written < len(p) {
		if err := b.patience(fd, unix.SO_SNDTIMEO, &b.writePatience); err != nil {
			return written, err
		}
		n, err := unix.SendmsgN(fd, p[written:], nil, nil, unix.MSG_NOSIGNAL)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			return written, os.ErrDeadlineExceeded
		case err != nil:
			return written, os.NewSyscallError("sendmsg", err)
		}
		written += n
	}
	return written, nil
}
