// Package supply hands connected sockets from the launcher to the processes it started.
//
// Every child inherits one end of a SOCK_SEQPACKET pair, its supply socket. Whenever meshd and a
// helper are both up and one of them is new, the launcher makes a fresh SOCK_STREAM pair and sends
// one end to each: a datagram whose text names the other side ("runnerd" for meshd, "meshd" for the
// helper) and which carries exactly one descriptor. End of file on the supply socket means that the
// launcher is gone; the child then ends by itself, while workloads live on (F134).
//
// A datagram with a notice (see Notice) carries none: what the launcher saw of a program that keeps ending.
//
// A reader accepts one descriptor per datagram and closes what is more (F133): neither side trusts
// the other with its descriptor table. Names have at most NameMax bytes of [a-z0-9].
package supply

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"colloid.net/ipc/passed"
)

// NameMax bounds the name in a datagram.
const NameMax = 32

// Exit statuses with which a child tells the launcher what to do. Every other status, 0 included, is
// an end that nobody asked for: the child is started again. Go's runtime ends a process with 2 to 5 when it
// panics or gets a signal that it prints its goroutines for, so these are others.
const (
	// ExitMisconfigured: the configuration is wrong, trying again cannot help (EX_CONFIG of sysexits.h).
	ExitMisconfigured = 78
	// ExitLeft: meshd has left its cluster for good; the launcher stops everything and ends.
	ExitLeft = 79
)

// HelpersVariable names, in the environment of meshd, the helpers that the launcher starts, with commas
// between them.
const HelpersVariable = "COLLOID_HELPERS"

// descriptorsMax is how many descriptors a reader has room for; only one is accepted, but room for a
// few means that a surplus is seen and closed instead of lost by truncation.
const descriptorsMax = 4

// Errors of this package.
var (
	// ErrMalformed means that a datagram did not carry a valid name and exactly one descriptor.
	ErrMalformed = errors.New("supply: malformed datagram")
	// ErrFull means that the child has not read its supply socket for a long time.
	ErrFull = errors.New("supply: socket is full, the child does not read it")
)

// Pair makes a supply socket: ours stays in the launcher, theirs is inherited by the child. Both are
// close-on-exec; exec.Cmd.ExtraFiles clears that for theirs alone.
func Pair() (ours, theirs *os.File, err error) {
	return pair(unix.SOCK_SEQPACKET)
}

// Connection makes the connected stream whose ends are sent with Send.
func Connection() (a, b *os.File, err error) {
	return pair(unix.SOCK_STREAM)
}

func pair(kind int) (a, b *os.File, err error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("supply: socketpair: %w", err)
	}
	return os.NewFile(uintptr(ends[0]), "supply"), os.NewFile(uintptr(ends[1]), "supply"), nil
}

// Send passes one end of a connection under a name. It never blocks: a child that lets its supply
// socket fill up gets ErrFull. The caller keeps, and should close, its copy of connection.
func Send(ours *os.File, name string, connection *os.File) error {
	if !validName([]byte(name)) {
		return fmt.Errorf("supply: invalid name %q", name)
	}
	rights := unix.UnixRights(int(connection.Fd()))
	err := unix.Sendmsg(int(ours.Fd()), []byte(name), rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	if errors.Is(err, unix.EAGAIN) {
		return ErrFull
	}
	if err != nil {
		return fmt.Errorf("supply: send %s: %w", name, err)
	}
	return nil
}

// Receiver reads the supply socket in the child.
type Receiver struct {
	// Notices, if set before the first Next, is told of each notice, on the goroutine of Next.
	Notices    func(Notice)
	connection *net.UnixConn
}

// NewReceiver takes over the inherited descriptor (the value of --supply-fd).
func NewReceiver(descriptor int) (*Receiver, error) {
	unix.CloseOnExec(descriptor)
	file := os.NewFile(uintptr(descriptor), "supply")
	if file == nil {
		return nil, fmt.Errorf("supply: %d is not a descriptor", descriptor)
	}
	defer file.Close() // net.FileConn works on a copy
	connection, err := net.FileConn(file)
	if err != nil {
		return nil, fmt.Errorf("supply: descriptor %d: %w", descriptor, err)
	}
	socket, ok := connection.(*net.UnixConn)
	if !ok {
		connection.Close()
		return nil, fmt.Errorf("supply: descriptor %d is not a unix socket", descriptor)
	}
	return &Receiver{connection: socket}, nil
}

// Next waits for the next connection. It returns io.EOF when the launcher is gone and ErrMalformed
// for a datagram that does not fit the protocol, after which reading may go on.
func (r *Receiver) Next() (name string, connection *net.UnixConn, err error) {
	for {
		name, connection, notice, err := r.next()
		if notice == nil {
			return name, connection, err
		}
		if r.Notices != nil {
			r.Notices(*notice)
		}
	}
}

func (r *Receiver) next() (name string, connection *net.UnixConn, notice *Notice, err error) {
	var text [noticeMax + 1]byte
	control := make([]byte, unix.CmsgSpace(descriptorsMax*4))
	n, controlSize, flags, _, err := r.connection.ReadMsgUnix(text[:], control)
	if n == 0 && err == nil {
		err = io.EOF // end of file and an empty datagram look alike; the launcher sends no empty one
	}
	if err != nil {
		return "", nil, nil, err
	}
	descriptors, _ := passed.Descriptors(control[:controlSize]) // received close-on-exec
	if parsed, ok := parseNotice(text[:n]); ok && len(descriptors) == 0 && flags&(unix.MSG_CTRUNC|unix.MSG_TRUNC) == 0 {
		return "", nil, &parsed, nil
	}
	if len(descriptors) != 1 || flags&(unix.MSG_CTRUNC|unix.MSG_TRUNC) != 0 || !validName(text[:n]) {
		passed.Close(descriptors)
		return "", nil, nil, ErrMalformed
	}
	file := os.NewFile(uintptr(descriptors[0]), "connection")
	defer file.Close()
	stream, err := net.FileConn(file)
	if err != nil {
		return "", nil, nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	socket, ok := stream.(*net.UnixConn)
	if !ok {
		stream.Close()
		return "", nil, nil, ErrMalformed
	}
	return string(text[:n]), socket, nil, nil
}

// Close ends a Next that waits.
func (r *Receiver) Close() error { return r.connection.Close() }

func validName(name []byte) bool {
	if len(name) == 0 || len(name) > NameMax {
		return false
	}
	for _, c := range name {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}
