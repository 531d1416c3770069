package reactor

import (
	"errors"
	"fmt"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// SocketsMax is how many sockets one reactor has beside its own; they are numbered from 1.
const SocketsMax = 272

const (
	// extraWatch is the place of their epoll set among the watched descriptors, behind those of WatchEventfd.
	extraWatch = WatchesMax
	// extraBuffer bytes are what each may hold in either direction. The kernel takes memory for what is there
	// only.
	extraBuffer = 1 << 20
	// extraBatch datagrams of one socket, and extraEvents sockets, are looked at before anything else has its
	// turn.
	extraBatch  = 32
	extraEvents = 32
	// descriptorsKept stay free for the rest of the process.
	descriptorsKept = 128
)

// ErrDescriptors is returned by OpenSocket where the process has too few descriptors left (RLIMIT_NOFILE).
var ErrDescriptors = errors.New("reactor: too few file descriptors left for one more socket, see ulimit -n")

// SocketHandler is a Handler that takes what comes in on the sockets of OpenSocket; without it, that is
// dropped.
type SocketHandler interface {
	// DatagramVia is Handler.Datagram for the socket with a number.
	DatagramVia(number int, from netip.AddrPort, local netip.Addr, datagram []byte)
}

// extras are the sockets of OpenSocket. Few of them are open for longer than a search for a port takes, and
// none carries what all cells have to say, so they are asked for readiness together, by an epoll set that is
// one watched descriptor for either driver, and each datagram is sent by a call of its own.
type extras struct {
	epoll       int // 0 = none was opened yet: descriptor 0 is never one of ours
	descriptors [SocketsMax + 1]int32
	inbox       *inbox
	outbox      *outbox
	events      [extraEvents]unix.EpollEvent
}

// OpenSocket implements Reactor.
func (c *core) OpenSocket(number int) error {
	if number < 1 || number > SocketsMax {
		return fmt.Errorf("reactor: socket %d: want 1 to %d", number, SocketsMax)
	}
	if c.extras.descriptors[number] != 0 {
		return fmt.Errorf("reactor: socket %d is open", number)
	}
	if err := c.prepareExtras(); err != nil {
		return err
	}
	s, err := bindSocket(c.family, netip.AddrPortFrom(c.bound.Addr(), 0), extraBuffer)
	if err != nil {
		return err
	}
	// Its drop counter would be taken for that of the reactor's own socket.
	err = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RXQ_OVFL, 0)
	var limit unix.Rlimit
	if err == nil {
		err = unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)
	}
	if err == nil && uint64(s.fd)+descriptorsKept >= limit.Cur { // the kernel gives the lowest free number
		err = ErrDescriptors
	}
	if err == nil {
		event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(number)}
		err = unix.EpollCtl(c.extras.epoll, unix.EPOLL_CTL_ADD, s.fd, &event)
	}
	if err != nil {
		unix.Close(s.fd)
		return err
	}
	c.extras.descriptors[number] = int32(s.fd)
	return nil
}

// prepareExtras makes what the first socket needs; it stays until the reactor ends.
func (c *core) prepareExtras() (err error) {
	e := &c.extras
	if e.inbox == nil {
		if e.inbox, err = newInbox(extraBatch, ReceiveBufferSize); err != nil {
			return err
		}
	}
	if e.outbox == nil {
		if e.outbox, err = newOutbox(c.family, 1); err != nil {
			return err
		}
	}
	if e.epoll != 0 {
		return nil
	}
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return err
	}
	w := &c.watches[extraWatch]
	*w = watch{epoll, c.receiveExtras, w.generation + 1}
	if c.watchExtras != nil {
		if err := c.watchExtras(epoll, w.generation); err != nil {
			w.notify = nil
			unix.Close(epoll)
			return err
		}
	}
	e.epoll = epoll
	return nil
}

// CloseSocket implements Reactor.
func (c *core) CloseSocket(number int) {
	if number < 1 || number > SocketsMax || c.extras.descriptors[number] == 0 {
		return
	}
	unix.Close(int(c.extras.descriptors[number])) // which takes it out of the epoll set
	c.extras.descriptors[number] = 0
}

// SendVia implements Reactor.
func (c *core) SendVia(number int, to netip.AddrPort, datagram []byte) {
	e := &c.extras
	if number < 1 || number > SocketsMax || e.descriptors[number] == 0 {
		c.counters.sendInvalid.Add(1)
		return
	}
	e.outbox.reset()
	if _, ok := e.outbox.put(c.source(to), to, datagram); !ok {
		c.counters.sendInvalid.Add(1)
		return
	}
	c.counters.sent.Add(1)
	c.counters.sentBytes.Add(uint64(len(datagram)))
	for {
		_, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(e.descriptors[number]),
			uintptr(e.outbox.headerAddress(0)), 1, unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0:
			return
		case unix.EINTR:
		default:
			c.sendFailed(to, errno)
			return
		}
	}
}

// receiveExtras hands over what the sockets that are readable hold. What is left makes the epoll set readable
// again.
func (c *core) receiveExtras() {
	e := &c.extras
	count, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(e.epoll),
		uintptr(unsafe.Pointer(&e.events[0])), uintptr(len(e.events)), 0, 0, 0)
	if errno != 0 {
		return
	}
	for i := range int(count) {
		if number := int(e.events[i].Fd); number >= 1 && number <= SocketsMax {
			c.receiveExtra(number)
		}
	}
}

func (c *core) receiveExtra(number int) {
	e := &c.extras
	if e.descriptors[number] == 0 {
		return // closed by what another one brought
	}
	e.inbox.prepare()
	count, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(e.descriptors[number]),
		uintptr(unsafe.Pointer(&e.inbox.headers[0])), uintptr(len(e.inbox.headers)), unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		if errno != unix.EAGAIN && errno != unix.EINTR {
			c.counters.receiveErrors.Add(1)
		}
		return
	}
	e.inbox.dirty = int(count)
	for i := range int(count) {
		if e.descriptors[number] == 0 {
			return
		}
		name, control, payload, truncated := e.inbox.received(i)
		c.deliver(number, name, control, payload, truncated)
	}
}

// received returns the parts of what the last batch brought in one place.
func (b *inbox) received(i int) (name, control, payload []byte, truncated bool) {
	slot, header := b.slot(i), &b.headers[i]
	payload = slot[slotPayload:]
	return slot[:min(header.header.Namelen, nameSize)],
		slot[slotControl:slotPayload][:min(uint64(header.header.Controllen), receiveControlSize)],
		payload[:min(int(header.length), len(payload))],
		header.header.Flags&unix.MSG_TRUNC != 0
}

func (e *extras) free() {
	for _, descriptor := range e.descriptors {
		if descriptor != 0 {
			unix.Close(int(descriptor))
		}
	}
	if e.epoll != 0 {
		unix.Close(e.epoll)
	}
	if e.inbox != nil {
		unmapMemory(e.inbox.memory)
	}
	if e.outbox != nil {
		e.outbox.free()
	}
}
