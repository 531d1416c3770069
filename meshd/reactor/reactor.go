package reactor

import (
	"errors"
	"fmt"
	"net/netip"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/wire"
	"golang.org/x/sys/unix"
)

// Handler is what a reactor drives. All methods run on the reactor's thread.
type Handler interface {
	// Datagram takes one received datagram of at most wire.DatagramMax bytes. local is the address
	// it was sent to. The slice may be changed in place and is valid only during the call.
	Datagram(from netip.AddrPort, local netip.Addr, datagram []byte)
	// Wake runs once after one or more calls of Reactor.Wake.
	Wake()
	// Tick runs when the deadline has been reached.
	Tick()
	// Deadline says when Tick is due next; clock.Never for not at all. It is asked before each sleep.
	Deadline() clock.Instant
}

// SendObserver is implemented by handlers that want to hear of datagrams which the kernel refused
// to send, EMSGSIZE above all: the path cannot carry 1200 bytes and must be given up (F30).
type SendObserver interface {
	SendFailed(to netip.AddrPort, reason unix.Errno)
}

// Reactor is one UDP socket with its thread. Methods are for the reactor's thread, that is for use
// inside Handler calls, unless they say otherwise.
type Reactor interface {
	// Run serves the handler until Close. It locks its goroutine to its thread meanwhile, and frees
	// everything before it returns. It can be called once, from any goroutine.
	Run(Handler) error
	// Send queues a copy of datagram. It leaves before the reactor sleeps, from the local address on
	// which the peer was last heard. A datagram that cannot be sent is dropped and counted.
	Send(to netip.AddrPort, datagram []byte)
	// SendFrom is Send with a chosen source address; the zero Addr leaves the choice to the kernel.
	SendFrom(local netip.Addr, to netip.AddrPort, datagram []byte)
	// Wake makes the reactor call Handler.Wake. Any thread may call it, at any time.
	Wake()
	// Now reads CLOCK_BOOTTIME. Any thread may call it.
	Now() clock.Instant
	// WatchEventfd calls notify after each time fd became readable and has been read. Before Run it
	// may be called from any single goroutine. The descriptor stays the caller's, who must Unwatch
	// it before closing it. It fails when WatchesMax descriptors are watched already.
	WatchEventfd(fd int, notify func()) error
	// Unwatch ends a WatchEventfd; notify is not called again.
	Unwatch(fd int)
	// OpenSocket opens one more socket, bound like the reactor's own but to a port of the kernel's choice,
	// under a number from 1 to SocketsMax that is free. Handlers that are no SocketHandler hear nothing of
	// it. It fails with ErrDescriptors where the process has few descriptors left.
	OpenSocket(number int) error
	// CloseSocket closes it, if it is open: nothing of it is handed over any more.
	CloseSocket(number int)
	// SendVia is Send through one of these sockets, at once.
	SendVia(number int, to netip.AddrPort, datagram []byte)
	// Driver names the way in use and why, for status: "io_uring (defer-taskrun)" or
	// "epoll (io_uring refused: operation not permitted)". Any thread may call it.
	Driver() string
	// LocalAddress is the bound address with its real port. Any thread may call it.
	LocalAddress() netip.AddrPort
	// Counters may be read by any thread.
	Counters() Counters
	// Close makes Run return soon, and frees the reactor at once when Run was never called. Any
	// thread may call it, any number of times.
	Close() error
}

// Names for Options.Driver.
const (
	DriverAuto  = "auto"
	DriverURing = "io_uring"
	DriverEpoll = "epoll"
)

// Limits and defaults of the implementation.
const (
	// WatchesMax is how many descriptors one reactor watches besides its own.
	WatchesMax = 16
	// ReceiveBufferSize must hold what multishot receive puts in front of 1200 bytes (F126).
	ReceiveBufferSize = 2048

	// coalescedBufferSize holds the longest UDP payload and what stands in front of it, where the kernel
	// hands over several datagrams at once. Pages come into being when used: a single datagram touches one.
	coalescedBufferSize = 68 << 10
	// coalescedBuffersMax of them bound the memory to 8.5 MiB; what finds none waits in the socket.
	coalescedBuffersMax = 128

	defaultSocketBuffer   = 8 << 20 // F29
	defaultSendBuffer     = 4 << 20
	defaultQueueEntries   = 4096
	defaultReceiveBuffers = 1024
	defaultSendQueue      = 1024
	queueEntriesMin       = 32
	queueEntriesMax       = 32768
	receiveBuffersMax     = 32768
	// reservedEntries of the submission queue are kept from sends for timer, receive and watches.
	reservedEntries = 24
	// batchMax is how many events are handled before the deadline is looked at again.
	batchMax = 128
)

// Options of Open. The zero value binds [::]:0 with production sizes.
type Options struct {
	// Bind is the local address. The zero value and [::] mean both families, or IPv4 alone where the
	// kernel has no IPv6 (F34).
	Bind netip.AddrPort
	// Driver is DriverAuto (or empty), DriverURing or DriverEpoll.
	Driver string
	// ReceiveBuffer is the socket's receive buffer in bytes, 8 MiB by default (F29). The kernel may
	// grant less; see Counters.SocketBuffer.
	ReceiveBuffer int
	// QueueEntries is the size of the io_uring submission queue, 4096 by default.
	QueueEntries int
	// ReceiveBuffers is how many datagrams the kernel may have delivered that were not yet handled,
	// 1024 by default. Rounded up to a power of two. Where the kernel delivers many datagrams in one buffer
	// there are at most 128 buffers.
	ReceiveBuffers int
	// SendQueue is how many datagrams are collected before they are sent, 1024 by default.
	SendQueue int

	// setup stands in for io_uring_setup in tests.
	setup func(entries uint32, p *ringParameters) (int, error)
	// single refuses datagrams that come together, in tests.
	single bool
	// without hides ring features from the driver in tests.
	without uint32
}

func (o *Options) normalise() error {
	if !o.Bind.Addr().IsValid() {
		o.Bind = netip.AddrPortFrom(netip.IPv6Unspecified(), o.Bind.Port())
	}
	if o.ReceiveBuffer == 0 {
		o.ReceiveBuffer = defaultSocketBuffer
	}
	if o.QueueEntries == 0 {
		o.QueueEntries = defaultQueueEntries
	}
	if o.ReceiveBuffers == 0 {
		o.ReceiveBuffers = defaultReceiveBuffers
	}
	if o.SendQueue == 0 {
		o.SendQueue = defaultSendQueue
	}
	if o.QueueEntries < queueEntriesMin || o.QueueEntries > queueEntriesMax {
		return fmt.Errorf("reactor: %d queue entries: want %d to %d",
			o.QueueEntries, queueEntriesMin, queueEntriesMax)
	}
	if o.ReceiveBuffers < 1 || o.ReceiveBuffers > receiveBuffersMax {
		return fmt.Errorf("reactor: %d receive buffers: want 1 to %d", o.ReceiveBuffers, receiveBuffersMax)
	}
	if o.SendQueue < 1 || o.ReceiveBuffer < 0 {
		return fmt.Errorf("reactor: send queue %d, receive buffer %d: want more", o.SendQueue, o.ReceiveBuffer)
	}
	o.SendQueue = min(o.SendQueue, o.QueueEntries-reservedEntries)
	if o.setup == nil {
		o.setup = ringSetup
	}
	return nil
}

// ErrClosed is returned by Run on a reactor that was closed before.
var ErrClosed = errors.New("reactor: closed")

// Open binds the socket and prepares the driver. With DriverAuto it falls back to epoll when
// io_uring is refused, and Driver tells the reason.
func Open(options Options) (Reactor, error) {
	if err := options.normalise(); err != nil {
		return nil, err
	}
	switch options.Driver {
	case "", DriverAuto, DriverURing, DriverEpoll:
	default:
		return nil, fmt.Errorf("reactor: driver %q: want auto, io_uring or epoll", options.Driver)
	}
	shared, err := newCore(options)
	if err != nil {
		return nil, err
	}
	if options.Driver == DriverEpoll {
		return openEpoll(shared, "epoll")
	}
	ring, err := openURing(shared)
	if err == nil {
		return ring, nil
	}
	if options.Driver == DriverURing {
		shared.free()
		return nil, fmt.Errorf("reactor: io_uring: %w", err)
	}
	return openEpoll(shared, fmt.Sprintf("epoll (io_uring refused: %v)", err))
}

// assertDatagramFits documents that a buffer always holds a full datagram behind its headers.
const _ = uint(ReceiveBufferSize - outHeaderSize - nameSize - receiveControlSize - wire.DatagramMax - 1)
