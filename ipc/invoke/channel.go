package invoke

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNotSent is what Channel.Send gives when the other end takes no more invocations: the frame has not
// reached it and never will.
var ErrNotSent = errors.New("invoke: the channel has ended")

// Channel is one end of a way for invocations between a client and a worker. Its descriptor blocks: a thread
// that waits in the kernel for the next frame is woken once for it, where the Go runtime's poller is woken by
// the other end's reading too and hands what it finds to a second thread as often as not. That is worth a
// thread for each channel, of which there are few.
//
// One goroutine owns it: it sends, receives and closes. Interrupt and Finish may be called by any.
type Channel struct {
	fd       int
	frame    []byte        // reused for sending
	patience time.Duration // for receiving, 0 = for ever
	// interrupted: the kernel has a shorter patience, what a signal left of it.
	interrupted bool
	yielded     time.Time // when Receive last left the processor to others

	mutex  sync.Mutex // guards closed
	closed bool
}

// ChannelPair makes both ends, the client's and the worker's.
func ChannelPair() (client, worker *os.File, err error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("invoke: socketpair: %w", err)
	}
	return os.NewFile(uintptr(ends[0]), "channel"), os.NewFile(uintptr(ends[1]), "channel"), nil
}

// OpenChannel takes a descriptor that came from elsewhere: it checks what it is. It owns file from now on,
// also on an error.
func OpenChannel(file *os.File) (*Channel, error) {
	defer file.Close()
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	c := &Channel{fd: -1}
	failed := raw.Control(func(fd uintptr) { err = c.adopt(int(fd)) })
	if err = errors.Join(failed, err); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (c *Channel) adopt(fd int) (err error) {
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	family := 0
	if err == nil {
		family, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	}
	if err != nil || kind != unix.SOCK_SEQPACKET || family != unix.AF_UNIX {
		return errors.New("invoke: the descriptor is no SOCK_SEQPACKET socket of this host")
	}
	if c.fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		c.fd = -1
		return fmt.Errorf("invoke: channel: %w", err)
	}
	if err = unix.SetNonblock(c.fd, false); err == nil {
		err = c.setTimeout(unix.SO_SNDTIMEO, writePatience)
	}
	return err
}

func (c *Channel) setTimeout(option int, patience time.Duration) error {
	value := unix.NsecToTimeval(patience.Nanoseconds())
	if err := unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, option, &value); err != nil {
		return fmt.Errorf("invoke: channel: %w", err)
	}
	return nil
}

// SetPatience bounds the next Receive, and likewise those after it that no signal interrupts. The kernel
// keeps it, so it costs something when it changes only.
func (c *Channel) SetPatience(patience time.Duration) error {
	if patience == c.patience && !c.interrupted {
		return nil
	}
	c.patience, c.interrupted = patience, false
	return c.setTimeout(unix.SO_RCVTIMEO, patience)
}

// Send sends one frame. It waits up to a second for room. ErrNotSent: the other end takes no more.
func (c *Channel) Send(frame appender) error {
	c.frame = frame.Append(c.frame[:0])
	return c.SendRaw(c.frame)
}

// SendRaw sends a frame that was made before.
func (c *Channel) SendRaw(frame []byte) error {
	if len(frame) > FrameMax {
		panic(fmt.Sprintf("invoke: frame of %d bytes", len(frame))) // the bounds of all parts forbid it
	}
	for {
		n, err := unix.SendmsgN(c.fd, frame, nil, nil, unix.MSG_NOSIGNAL)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EPIPE, err == unix.ECONNRESET:
			return ErrNotSent
		case err == unix.EAGAIN:
			return os.ErrDeadlineExceeded
		case err == nil && n != len(frame):
			return io.ErrShortWrite
		}
		return err
	}
}

// yieldInterval is how often Receive leaves the processor to others. A goroutine that does nothing but system
// calls for 10 ms looks to Go's scheduler like one that computes: it takes the processor away from each of
// its calls then, and wakes a thread every 20 microseconds to see to that.
const yieldInterval = 5 * time.Millisecond

// Receive waits for the next frame and parses it; what it returns points into buffer, which has room for
// FrameMax+1 bytes. io.EOF: the other end has gone; os.ErrDeadlineExceeded: the patience is over. Descriptors
// that came with it find no room and are dropped by the kernel.
func (c *Channel) Receive(buffer []byte) (any, error) {
	now := time.Now()
	until := now.Add(c.patience)
	if now.Sub(c.yielded) >= yieldInterval {
		c.yielded = now
		runtime.Gosched()
	}
	for {
		n, err := unix.Read(c.fd, buffer[:FrameMax+1])
		switch {
		case err == unix.EINTR:
			if err := c.shorten(until); err != nil {
				return nil, err
			}
			continue
		case err == unix.EAGAIN:
			return nil, os.ErrDeadlineExceeded
		case err == unix.ECONNRESET, err == nil && n == 0:
			return nil, io.EOF
		case err != nil:
			return nil, err
		}
		return Parse(buffer[:n])
	}
}

// shorten lets a Receive that a signal has interrupted wait no longer than it would have. The next
// SetPatience sets all of it again.
func (c *Channel) shorten(until time.Time) error {
	if c.patience == 0 {
		return nil
	}
	left := time.Until(until)
	if left < time.Microsecond { // less would be for ever
		return os.ErrDeadlineExceeded
	}
	c.interrupted = true
	return c.setTimeout(unix.SO_RCVTIMEO, left)
}

// Interrupt ends a Receive or Send that another goroutine is in, and all later ones.
func (c *Channel) Interrupt() { c.shutdown(unix.SHUT_RDWR) }

// Finish lets the other end send no more. What it has sent is still received, then comes io.EOF.
func (c *Channel) Finish() { c.shutdown(unix.SHUT_RD) }

func (c *Channel) shutdown(how int) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if !c.closed {
		_ = unix.Shutdown(c.fd, how) // it fails only if there is no other end any more
	}
}

// Close ends the channel. Only its owner may call it, more than once if it likes.
func (c *Channel) Close() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if !c.closed && c.fd >= 0 {
		unix.Close(c.fd)
	}
	c.closed = true
}

// EndChannel ends a channel by the client's end of it, which meshd keeps, and closes that: the client can
// send no more, and what it has sent is still done. It needs neither the client nor the worker for it.
func EndChannel(client *os.File) {
	if raw, err := client.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_WR) })
	}
	client.Close()
}
