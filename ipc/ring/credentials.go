package ring

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// Credentials is who made the other end of a Unix connection, as the kernel remembers it. For a
// socketpair that is whoever made the pair.
type Credentials struct {
	PID int
	UID uint32
	GID uint32
}

// PeerCredentials asks the kernel (SO_PEERCRED), never the peer.
func PeerCredentials(conn *net.UnixConn) (Credentials, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return Credentials{}, fmt.Errorf("ring: peer credentials: %w", err)
	}
	var credentials *unix.Ucred
	var optionErr error
	err = raw.Control(func(fd uintptr) {
		credentials, optionErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err == nil {
		err = optionErr
	}
	if err != nil {
		return Credentials{}, fmt.Errorf("ring: peer credentials: %w", err)
	}
	return Credentials{PID: int(credentials.Pid), UID: credentials.Uid, GID: credentials.Gid}, nil
}
