package ring

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/ipc/passed"
)

// Version is the version of the hello and the layout.
const Version = 1

const (
	// handshakeTimeout bounds how long the helper may find no room for its half.
	handshakeTimeout = 5 * time.Second
	// helloPatience bounds how long meshd waits for it. The helper may be starting on a machine that is very
	// busy, and nobody connects the two a second time while both run; if it ends, so does the wait.
	helloPatience = 10 * time.Minute
)

const (
	helloSize       = 32
	helloMagic      = 0x31474E49_52444C43 // "CLDRING1" read as little-endian
	helloFDs        = 3                   // memory, eventfd of the helper, eventfd of meshd
	requiredSeals   = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	eventfdFlags    = unix.EFD_CLOEXEC | unix.EFD_NONBLOCK
	memoryName      = "colloid-ring"
	memfdFlags      = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	memfdNoExecSeal = 0x0008 // MFD_NOEXEC_SEAL, since Linux 6.3
)

// Errors of the handshake.
var (
	ErrHello       = errors.New("ring: hello record is not of this version")
	ErrDescriptors = errors.New("ring: hello must come with exactly three descriptors")
	ErrSeals       = errors.New("ring: shared memory is not sealed against resizing, or has the wrong size")
	ErrEventfd     = errors.New("ring: a passed descriptor is not an eventfd")
)

// Create makes the rings and passes them to the peer; the helper calls it. On success the link owns
// the connection; on an error the caller still does.
func Create(conn *net.UnixConn) (*Link, error) {
	if err := admit(); err != nil {
		return nil, err
	}
	descriptors, err := createDescriptors()
	if err != nil {
		return nil, err
	}
	hello := appendHello(nil)
	rights := unix.UnixRights(descriptors[:]...)
	_ = conn.SetWriteDeadline(time.Now().Add(handshakeTimeout))
	n, control, err := conn.WriteMsgUnix(hello, rights, nil)
	_ = conn.SetWriteDeadline(time.Time{})
	if err == nil && (n != len(hello) || control != len(rights)) {
		err = errors.New("ring: hello was sent in part")
	}
	if err != nil {
		passed.Close(descriptors[:])
		return nil, fmt.Errorf("ring: pass descriptors: %w", err)
	}
	link, err := newLink(conn, descriptors, 0)
	if err != nil {
		return nil, err
	}
	link.notifier = newNotifier(link.notifyPeer)
	return link, nil
}

// Accept takes the rings the helper passes; meshd calls it. On success the link owns the
// connection; on an error the caller still does.
func Accept(conn *net.UnixConn) (*Link, error) {
	_ = conn.SetReadDeadline(time.Now().Add(helloPatience))
	defer conn.SetReadDeadline(time.Time{})
	var hello [helloSize]byte
	control := make([]byte, unix.CmsgSpace(4*helloFDs))
	// The net package passes MSG_CMSG_CLOEXEC.
	n, controlLength, flags, _, err := conn.ReadMsgUnix(hello[:], control)
	if err != nil {
		return nil, fmt.Errorf("ring: wait for hello: %w", err)
	}
	descriptors, err := passed.Descriptors(control[:controlLength])
	if err != nil {
		err = ErrDescriptors
	} else {
		err = checkHello(hello[:n], descriptors, flags)
	}
	if err != nil {
		passed.Close(descriptors)
		return nil, err
	}
	return newLink(conn, [helloFDs]int(descriptors), 1)
}

func appendHello(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, helloMagic)
	dst = binary.LittleEndian.AppendUint32(dst, Version)
	dst = binary.LittleEndian.AppendUint32(dst, SlotSize)
	dst = binary.LittleEndian.AppendUint32(dst, SlotCount)
	dst = binary.LittleEndian.AppendUint32(dst, RecordMax)
	return binary.LittleEndian.AppendUint64(dst, memorySize)
}

func checkHello(hello []byte, descriptors []int, flags int) error {
	if flags&unix.MSG_CTRUNC != 0 || len(descriptors) != helloFDs {
		return ErrDescriptors
	}
	if string(hello) != string(appendHello(nil)) {
		return ErrHello
	}
	seals, err := unix.FcntlInt(uintptr(descriptors[0]), unix.F_GET_SEALS, 0)
	if err != nil || seals&requiredSeals != requiredSeals {
		return ErrSeals
	}
	var stat unix.Stat_t
	if err := unix.Fstat(descriptors[0], &stat); err != nil || stat.Size != memorySize {
		return ErrSeals
	}
	for _, fd := range descriptors[1:] {
		name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
		if err == nil && name != "anon_inode:[eventfd]" {
			return ErrEventfd
		}
	}
	return nil
}

func createDescriptors() ([helloFDs]int, error) {
	var descriptors [helloFDs]int
	memory, err := unix.MemfdCreate(memoryName, memfdFlags|memfdNoExecSeal)
	if err == unix.EINVAL {
		memory, err = unix.MemfdCreate(memoryName, memfdFlags)
	}
	if err != nil {
		return descriptors, fmt.Errorf("ring: memfd_create: %w", err)
	}
	if err := unix.Ftruncate(memory, memorySize); err != nil {
		unix.Close(memory)
		return descriptors, fmt.Errorf("ring: size shared memory: %w", err)
	}
	if _, err := unix.FcntlInt(uintptr(memory), unix.F_ADD_SEALS, requiredSeals); err != nil {
		unix.Close(memory)
		return descriptors, fmt.Errorf("ring: seal shared memory: %w", err)
	}
	descriptors[0] = memory
	for i := 1; i < helloFDs; i++ {
		if descriptors[i], err = unix.Eventfd(0, eventfdFlags); err != nil {
			passed.Close(descriptors[:i])
			return descriptors, fmt.Errorf("ring: eventfd: %w", err)
		}
	}
	return descriptors, nil
}

// newLink maps the memory and closes its descriptor. Side 0 is the helper, 1 is meshd; side s sends
// in region s and sleeps on descriptor 1+s. On an error the descriptors are closed.
func newLink(conn *net.UnixConn, descriptors [helloFDs]int, side int) (*Link, error) {
	memory, err := unix.Mmap(descriptors[0], 0, memorySize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		passed.Close(descriptors[:])
		return nil, fmt.Errorf("ring: map shared memory: %w", err)
	}
	interrupt, err := unix.Eventfd(0, eventfdFlags)
	if err != nil {
		_ = unix.Munmap(memory)
		passed.Close(descriptors[:])
		return nil, fmt.Errorf("ring: eventfd: %w", err)
	}
	unix.Close(descriptors[0])
	link := &Link{
		conn:       conn,
		memory:     memory,
		notifySelf: descriptors[1+side],
		notifyPeer: descriptors[2-side],
		interrupt:  interrupt,
	}
	region := func(i int) []byte { return memory[i*regionSize : (i+1)*regionSize : (i+1)*regionSize] }
	link.outgoing.memory = region(side)
	link.incoming.memory = region(1 - side)
	if side == 0 { // nobody has looked yet, so both sides count as asleep
		*link.outgoing.word(waitingOffset) = 1
		*link.incoming.word(waitingOffset) = 1
	}
	return link, nil
}
