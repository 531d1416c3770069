package runnerd

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"colloid.net/ipc/passed"
	"colloid.net/ipc/ring"
)

// ServeSupply takes connections from the launcher: each message on the SOCK_SEQPACKET socket is one
// byte with one descriptor, the connected socket of a new meshd. It returns nil at end of file: the
// launcher is gone.
func (s *Supervisor) ServeSupply(supply *os.File, allowed func(uid uint32) bool) error {
	kind, err := unix.GetsockoptInt(int(supply.Fd()), unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil || kind != unix.SOCK_SEQPACKET {
		return errors.New("runnerd: the supply descriptor is no SOCK_SEQPACKET socket")
	}
	for {
		descriptor, err := receiveDescriptor(int(supply.Fd()))
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if descriptor < 0 {
			continue
		}
		file := os.NewFile(uintptr(descriptor), "meshd")
		conn, err := net.FileConn(file)
		file.Close()
		if err != nil {
			s.options.Log.Printf("the launcher passed something that is no socket: %v", err)
			continue
		}
		s.take(conn, allowed)
	}
}

// receiveDescriptor waits for one message. Anything but exactly one descriptor is closed and -1.
func receiveDescriptor(supply int) (int, error) {
	var payload [1]byte
	control := make([]byte, unix.CmsgSpace(4*4))
	n, controlLength, flags, _, err := unix.Recvmsg(supply, payload[:], control, unix.MSG_CMSG_CLOEXEC)
	switch {
	case err == unix.EINTR || err == unix.EAGAIN:
		return -1, nil
	case err != nil:
		return -1, fmt.Errorf("runnerd: receive from the launcher: %w", err)
	case n == 0 && controlLength == 0:
		return -1, io.EOF
	}
	descriptors, _ := passed.Descriptors(control[:controlLength])
	if len(descriptors) == 1 && flags&unix.MSG_CTRUNC == 0 {
		return descriptors[0], nil
	}
	passed.Close(descriptors)
	return -1, nil
}

// ServeListener accepts connections of meshd on a Unix socket, as systemd passes one.
func (s *Supervisor) ServeListener(listener *os.File, allowed func(uid uint32) bool) error {
	socket, err := net.FileListener(listener)
	if err != nil {
		return fmt.Errorf("runnerd: listen descriptor: %w", err)
	}
	defer socket.Close()
	go func() { <-s.quit; socket.Close() }()
	for {
		conn, err := socket.Accept()
		if err != nil {
			select {
			case <-s.quit:
				return nil
			default:
				return fmt.Errorf("runnerd: accept: %w", err)
			}
		}
		s.take(conn, allowed)
	}
}

// take checks who made the connection and attaches it. SO_PEERCRED of a socketpair names its maker.
func (s *Supervisor) take(conn net.Conn, allowed func(uid uint32) bool) {
	stream, ok := conn.(*net.UnixConn)
	if !ok || stream.LocalAddr().Network() != "unix" {
		s.options.Log.Printf("a connection of kind %s is refused, expected a unix stream",
			conn.LocalAddr().Network())
		conn.Close()
		return
	}
	credentials, err := ring.PeerCredentials(stream)
	if err != nil || !allowed(credentials.UID) {
		s.options.Log.Printf("a connection by uid %d is refused", credentials.UID)
		s.do(func() {
			s.audit.write(peer{int64(credentials.UID), credentials.PID}, 0, "connect", "denied: wrong uid")
		})
		conn.Close()
		return
	}
	if err := s.Attach(stream); err != nil {
		s.options.Log.Printf("cannot connect meshd: %v", err)
	}
}

// Allowed gives the check of ServeSupply and ServeListener. meshdUID -1 means what the policy says,
// else the own uid. The own uid and root may always connect: they could do anything here anyway, and
// a socketpair carries the launcher's uid.
func (s *Supervisor) Allowed(meshdUID int64) func(uint32) bool {
	return func(uid uint32) bool {
		wanted := meshdUID
		if wanted < 0 {
			s.do(func() { wanted = s.policy.MeshdUID })
		}
		return int64(uid) == wanted || uid == 0 || int(uid) == os.Geteuid()
	}
}
