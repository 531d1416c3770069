package invoke

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/ipc/passed"
)

// writePatience is how long a peer may leave the socket full before the connection ends.
const writePatience = time.Second

// Conn is one end of the connection. One goroutine receives; any may send.
type Conn struct {
	socket *net.UnixConn
	raw    syscall.RawConn

	mutex sync.Mutex // guards what follows
	frame []byte     // reused for sending
}

// Pair makes a connected pair; runnerd hands one end to the worker, the other to meshd.
func Pair() (one, other *os.File, err error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("invoke: socketpair: %w", err)
	}
	return os.NewFile(uintptr(ends[0]), "invoke"), os.NewFile(uintptr(ends[1]), "invoke"), nil
}

// Open takes a socket of the right kind; it owns file from now on, also on an error.
func Open(file *os.File) (*Conn, error) {
	defer file.Close() // FileConn duplicates
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	kind, option := 0, error(nil)
	if err := raw.Control(func(fd uintptr) {
		kind, option = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TYPE)
	}); err != nil || option != nil || kind != unix.SOCK_SEQPACKET {
		return nil, errors.New("invoke: the descriptor is no SOCK_SEQPACKET socket")
	}
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, fmt.Errorf("invoke: %w", err)
	}
	socket, ok := conn.(*net.UnixConn)
	if !ok {
		conn.Close()
		return nil, errors.New("invoke: the descriptor is no unix socket")
	}
	c := &Conn{socket: socket}
	if c.raw, err = socket.SyscallConn(); err != nil {
		conn.Close()
		return nil, fmt.Errorf("invoke: %w", err)
	}
	return c, nil
}

// appender is any frame.
type appender interface{ Append(dst []byte) []byte }

// Send sends one frame. It waits up to a second for room; an error ends the connection.
func (c *Conn) Send(frame appender) error { return c.send(frame, nil) }

// SendFile sends one frame with a descriptor, which stays the caller's.
func (c *Conn) SendFile(frame appender, file *os.File) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	failed := raw.Control(func(fd uintptr) { err = c.send(frame, unix.UnixRights(int(fd))) })
	return errors.Join(failed, err)
}

func (c *Conn) send(frame appender, rights []byte) error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.frame = frame.Append(c.frame[:0])
	if len(c.frame) > FrameMax {
		panic(fmt.Sprintf("invoke: frame of %d bytes", len(c.frame))) // the bounds of all parts forbid it
	}
	n, err := c.sendNow(rights)
	if err == unix.EAGAIN || err == unix.EINTR {
		_ = c.socket.SetWriteDeadline(time.Now().Add(writePatience))
		n, _, err = c.socket.WriteMsgUnix(c.frame, rights, nil)
	}
	if err == nil && n != len(c.frame) {
		err = io.ErrShortWrite
	}
	if err != nil {
		c.socket.Close()
	}
	return err
}

// sendNow sends without waiting: a deadline for each frame would wake the thread that waits for the network.
func (c *Conn) sendNow(rights []byte) (n int, err error) {
	if closed := c.raw.Write(func(fd uintptr) bool {
		n, err = unix.SendmsgN(int(fd), c.frame, rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		return true
	}); closed != nil {
		return 0, closed
	}
	return n, err
}

// Receive waits for the next frame and parses it; what it returns points into buffer, which has room for
// FrameMax+1 bytes. Any error ends the connection.
func (c *Conn) Receive(buffer []byte) (any, error) {
	n, err := c.socket.Read(buffer[:FrameMax+1])
	if err == nil && n == 0 {
		err = io.EOF
	}
	var body any
	if err == nil {
		body, err = Parse(buffer[:n])
	}
	if err != nil {
		c.socket.Close()
		return nil, err
	}
	return body, nil
}

// ReceiveFile is Receive for the worker: a ChannelOpen brings a descriptor, which is the caller's then, and
// no other frame does. What else was passed is closed. (The kernel drops descriptors for which Receive gives
// no room.)
func (c *Conn) ReceiveFile(buffer []byte) (body any, file *os.File, err error) {
	n, files, err := c.receiveMessage(buffer[:FrameMax+1])
	if err == nil {
		body, err = Parse(buffer[:n])
	}
	_, wants := body.(*ChannelOpen)
	if err == nil && (wants != (len(files) == 1) || len(files) > 1) {
		err = fmt.Errorf("%w: %d descriptors", ErrFrame, len(files))
	}
	if err != nil {
		passed.Close(files)
		c.socket.Close()
		return nil, nil, err
	}
	if wants {
		file = os.NewFile(uintptr(files[0]), "channel")
	}
	return body, file, nil
}

// passedMax is room for more descriptors than are allowed, so that surplus ones are seen.
const passedMax = 4

func (c *Conn) receiveMessage(buffer []byte) (n int, files []int, err error) {
	var control [64]byte // CmsgSpace(passedMax * 4) is less
	length, flags := 0, 0
	closed := c.raw.Read(func(fd uintptr) bool {
		n, length, flags, err = receive(int(fd), buffer, control[:unix.CmsgSpace(passedMax*4)])
		return err != unix.EAGAIN
	})
	if err == nil {
		err = closed
	}
	if err != nil {
		return 0, nil, err
	}
	if length > 0 {
		files, _ = passed.Descriptors(control[:length])
	}
	switch {
	case flags&unix.MSG_CTRUNC != 0:
		err = ErrFrame // the kernel has closed those that found no room
	case n == 0 && length == 0:
		err = io.EOF
	}
	return n, files, err
}

// Close ends the connection. It may be called twice and from any goroutine.
func (c *Conn) Close() error { return c.socket.Close() }
