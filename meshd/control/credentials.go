package control

import (
	"fmt"
	"net"
	"os/user"
	"slices"
	"strconv"
	"unsafe"

	"colloid.net/ipc/uds"
	"golang.org/x/sys/unix"
)

// level is what a client may do.
type level int

const (
	levelNone level = iota
	levelRead
	levelWrite
)

// credentials are what the kernel says of the other end.
type credentials struct {
	uid, gid uint32
	pid      int32
	groups   []uint32
}

// groupsMax bounds the supplementary groups that are asked for; the kernel's own limit is 65536.
const groupsMax = 65536

// peerCredentials asks the kernel who connected (SO_PEERCRED, SO_PEERGROUPS). They are those of the
// moment of connecting and cannot be forged by the payload (F135).
func peerCredentials(connection *net.UnixConn) (credentials, error) {
	raw, err := connection.SyscallConn()
	if err != nil {
		return credentials{}, err
	}
	var c credentials
	var failure error
	err = raw.Control(func(fd uintptr) {
		peer, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil {
			failure = fmt.Errorf("SO_PEERCRED: %w", err)
			return
		}
		c = credentials{uid: peer.Uid, gid: peer.Gid, pid: peer.Pid}
		c.groups, failure = peerGroups(int(fd))
	})
	if err == nil {
		err = failure
	}
	return c, err
}

// peerGroups asks once with room for most and once more with what the kernel says it needs.
func peerGroups(fd int) ([]uint32, error) {
	groups := make([]uint32, 64)
	for range 2 {
		size := uint32(len(groups) * 4)
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(unsafe.SliceData(groups))), uintptr(unsafe.Pointer(&size)), 0)
		switch {
		case errno == 0:
			return groups[:min(int(size/4), len(groups))], nil
		case errno == unix.ENODATA:
			return nil, nil // the other end has no supplementary groups
		case errno == unix.ERANGE && int(size/4) > len(groups) && size/4 <= groupsMax:
			groups = make([]uint32, size/4)
		default:
			return nil, fmt.Errorf("SO_PEERGROUPS: %w", errno)
		}
	}
	return nil, fmt.Errorf("SO_PEERGROUPS: %w", unix.ERANGE)
}

func (c *credentials) in(group int) bool {
	return group >= 0 && (c.gid == uint32(group) || slices.Contains(c.groups, uint32(group)))
}

// levelOf applies the rules of F135.
func (s *Server) levelOf(c *credentials) level {
	switch {
	case c.uid == 0 || c.uid == s.options.UID || c.in(s.options.WriteGroup):
		return levelWrite
	case c.in(s.options.ReadGroup):
		return levelRead
	}
	return levelNone
}

// NoGroup stands for a group that does not exist on this host.
const NoGroup = -1

// LookupGroup returns a group's number, NoGroup if there is none of this name.
func LookupGroup(name string) int {
	group, err := user.LookupGroup(name)
	if err != nil {
		return NoGroup
	}
	number, err := strconv.Atoi(group.Gid)
	if err != nil || number < 0 {
		return NoGroup
	}
	return number
}

// levels of the commands. What is not here does not exist.
var levels = map[uds.Code]level{
	uds.CodeHello:   levelRead,
	uds.CodeStatus:  levelRead,
	uds.CodeGet:     levelRead,
	uds.CodeSet:     levelWrite,
	uds.CodeDelete:  levelWrite,
	uds.CodeResolve: levelWrite,
	uds.CodeList:    levelRead,
	uds.CodeConnect: levelWrite,
	uds.CodeLeave:   levelWrite,
	uds.CodeForget:  levelWrite,
	uds.CodePeers:   levelRead,
	uds.CodeExplain: levelRead,
	uds.CodeDoor:    levelWrite,

	uds.CodeWasmInvoke:  levelWrite,
	uds.CodeWasmChannel: levelWrite,
	uds.CodeDrain:       levelWrite,
	uds.CodeEnvironment: levelWrite,
	uds.CodeAcceptLoss:  levelWrite,
}
