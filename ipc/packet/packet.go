// Package packet carries JSON documents over a SOCK_SEQPACKET Unix socket: one document per packet, of
// at most MessageMax bytes, each with at most one descriptor (SCM_RIGHTS). It joins runnerd with the
// processes that it starts for images, and the command line with runnerd.
//
// Nouns. A Conn is one end. It may be used by one sender and one receiver at a time; Send locks, so
// several goroutines may send. Both ends are hostile to each other as far as this package goes: a packet
// that is too long, is no document, or carries several descriptors is an error, and descriptors of a
// packet that is refused are closed.
package packet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/ipc/passed"
)

// MessageMax bounds one document in bytes. The kernel's default socket buffer holds three of them.
const MessageMax = 64 << 10

// descriptorsMax is room for more than the one that is allowed, so that a surplus is seen and closed.
const descriptorsMax = 4

// ErrMalformed means that the other side does not keep to this protocol.
var ErrMalformed = errors.New("packet: malformed message")

// Conn is one end of a connection.
type Conn struct {
	socket *net.UnixConn
	mutex  sync.Mutex // one sender at a time
	buffer []byte     // of the receiver
}

// Pair makes a connected pair: a Conn, and the other end to be inherited by a child.
func Pair() (*Conn, *os.File, error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("packet: socketpair: %w", err)
	}
	conn, err := Open(os.NewFile(uintptr(ends[0]), "packet"))
	if err != nil {
		unix.Close(ends[1])
		return nil, nil, err
	}
	return conn, os.NewFile(uintptr(ends[1]), "packet"), nil
}

// Open takes over a connected socket, as a child inherits it.
func Open(file *os.File) (*Conn, error) {
	defer file.Close() // FileConn works on a copy
	kind, err := unix.GetsockoptInt(int(file.Fd()), unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil || kind != unix.SOCK_SEQPACKET {
		return nil, errors.New("packet: the descriptor is no SOCK_SEQPACKET socket")
	}
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, fmt.Errorf("packet: %w", err)
	}
	return Over(conn)
}

// Over uses a connection that was accepted or dialled on network "unixpacket".
func Over(conn net.Conn) (*Conn, error) {
	socket, ok := conn.(*net.UnixConn)
	if !ok || conn.LocalAddr().Network() != "unixpacket" {
		conn.Close()
		return nil, fmt.Errorf("packet: a connection of kind %s, expected unixpacket", conn.LocalAddr().Network())
	}
	return &Conn{socket: socket}, nil
}

// Dial connects to a listening socket.
func Dial(path string) (*Conn, error) {
	conn, err := net.DialTimeout("unixpacket", path, 5*time.Second)
	if err != nil {
		return nil, err
	}
	return Over(conn)
}

// Close ends the connection; a Receive under way returns.
func (c *Conn) Close() error { return c.socket.Close() }

// Socket is the socket itself, for credentials and deadlines.
func (c *Conn) Socket() *net.UnixConn { return c.socket }

// Send writes one document and, unless it is nil, a descriptor, which stays the caller's.
func (c *Conn) Send(document any, file *os.File) error {
	text, err := json.Marshal(document)
	if err != nil {
		return fmt.Errorf("packet: %w", err)
	}
	if len(text) > MessageMax {
		return fmt.Errorf("packet: message of %d bytes, at most %d are possible", len(text), MessageMax)
	}
	var rights []byte
	if file != nil {
		rights = unix.UnixRights(int(file.Fd()))
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	_, _, err = c.socket.WriteMsgUnix(text, rights, nil)
	return err
}

// Receive reads one document. file is nil when the packet carries none; the caller closes it. Errors:
// io.EOF when the other side has closed, ErrMalformed, or one of the socket.
func (c *Conn) Receive(document any) (file *os.File, err error) {
	if c.buffer == nil {
		c.buffer = make([]byte, MessageMax+1)
	}
	control := make([]byte, unix.CmsgSpace(descriptorsMax*4))
	n, controlLength, flags, _, err := c.socket.ReadMsgUnix(c.buffer, control)
	if err == nil && n == 0 && controlLength == 0 {
		err = io.EOF
	}
	if err != nil {
		return nil, err
	}
	descriptors, _ := passed.Descriptors(control[:controlLength])
	refuse := func(why string) (*os.File, error) {
		passed.Close(descriptors)
		return nil, fmt.Errorf("%w: %s", ErrMalformed, why)
	}
	switch {
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 || n > MessageMax:
		return refuse("it is too long")
	case len(descriptors) > 1:
		return refuse("it carries several descriptors")
	}
	if err := json.Unmarshal(c.buffer[:n], document); err != nil {
		return refuse(err.Error())
	}
	if len(descriptors) == 1 {
		unix.CloseOnExec(descriptors[0])
		file = os.NewFile(uintptr(descriptors[0]), "received")
	}
	return file, nil
}

// Credentials is who is at the other end, as the kernel remembers it (SO_PEERCRED). For a socketpair
// that is whoever made the pair.
func (c *Conn) Credentials() (uid uint32, pid int, err error) {
	var credentials *unix.Ucred
	err = c.control(func(fd int) (err error) {
		credentials, err = unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		return err
	})
	if err != nil {
		return 0, 0, fmt.Errorf("packet: peer credentials: %w", err)
	}
	return credentials.Uid, int(credentials.Pid), nil
}

func (c *Conn) control(f func(fd int) error) error {
	raw, err := c.socket.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = f(int(fd)) }); err != nil {
		return err
	}
	return inner
}
