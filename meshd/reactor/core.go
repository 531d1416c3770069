package reactor

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/wire"
	"golang.org/x/sys/unix"
)

// core is what both drivers have in common.
type core struct {
	socket
	options  Options
	handler  Handler
	observer SendObserver // the handler, if it wants to know
	outbox   *outbox
	routes   *routeTable // nil unless bound to a wildcard address
	counters counters
	drops    uint32 // the kernel's drop counter as last seen
	handled  int    // datagrams and events of the batch at hand
	// coalesced: the kernel may hand over several datagrams of one peer together (UDP_GRO).
	coalesced bool
	driver    string
	watches   [WatchesMax + 1]watch
	extras    extras
	many      SocketHandler // the handler, if it knows of further sockets
	// watchExtras makes the driver watch their epoll set; nil where it looks through watches by itself.
	watchExtras func(fd int, generation uint32) error
	waker
}

// watch is one descriptor of WatchEventfd. The generation tells a late event of an earlier watch in
// the same place from one of this.
type watch struct {
	fd         int
	notify     func() // nil: free
	generation uint32
}

// waker is the part that other threads touch.
type waker struct {
	mutex   sync.Mutex // guards fd against use after close
	eventfd int
	freed   bool
	started bool
	closed  atomic.Bool
	pending atomic.Bool // a wake-up is on its way
}

func newCore(options Options) (*core, error) {
	s, err := openSocket(options.Bind, options.ReceiveBuffer)
	if err != nil {
		return nil, err
	}
	c := &core{socket: s, options: options}
	c.counters.socketBuffer.Store(uint64(s.buffer))
	c.eventfd, err = unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		unix.Close(s.fd)
		return nil, err
	}
	if c.outbox, err = newOutbox(s.family, options.SendQueue); err == nil {
		// Kernels before 4.18 would send a run as one large datagram: only those that know the option get
		// any.
		c.outbox.segments = unix.SetsockoptInt(s.fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT, 0) == nil
		// Since Linux 5.0. What comes in one piece over loopback and veth, or was joined by a network card,
		// is then copied once and costs one completion instead of one for each datagram.
		c.coalesced = !options.single && unix.SetsockoptInt(s.fd, unix.IPPROTO_UDP, unix.UDP_GRO, 1) == nil
		if s.wildcard {
			c.routes, err = newRouteTable()
		}
	}
	if err != nil {
		c.free()
		return nil, err
	}
	return c, nil
}

// free closes and unmaps everything and reports whether it was the first call.
func (c *core) free() bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.freed {
		return false
	}
	c.freed = true
	c.closed.Store(true)
	unix.Close(c.socket.fd)
	unix.Close(c.eventfd)
	if c.outbox != nil {
		c.outbox.free()
	}
	if c.routes != nil {
		c.routes.free()
	}
	c.extras.free()
	return true
}

// start marks the reactor as running; it fails when it was closed or started before.
func (c *core) start(handler Handler) error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.freed || c.closed.Load() {
		return ErrClosed
	}
	if c.started {
		panic("reactor: Run called twice")
	}
	c.started = true
	c.handler = handler
	c.observer, _ = handler.(SendObserver)
	c.many, _ = handler.(SocketHandler)
	return nil
}

// requestClose asks a running reactor to end and reports whether there is one.
func (c *core) requestClose() (running bool) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.closed.Store(true)
	if c.started && !c.freed {
		c.signal()
	}
	return c.started
}

func (c *core) signal() {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	// The counter would have to reach 2^64 before this blocks; pending keeps it near one.
	_, _ = unix.Write(c.eventfd, one[:])
}

// Wake implements Reactor.
func (c *core) Wake() {
	if c.pending.Swap(true) {
		return
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if !c.freed {
		c.signal()
	}
}

// woken runs after the eventfd was read.
func (c *core) woken() {
	// Cleared before the call: a Wake during the call must lead to another one.
	if c.pending.Swap(false) {
		c.counters.wakes.Add(1)
		c.handler.Wake()
	}
}

// Now implements Reactor.
func (c *core) Now() clock.Instant { return boot.now() }

// Driver implements Reactor.
func (c *core) Driver() string { return c.driver }

// LocalAddress implements Reactor.
func (c *core) LocalAddress() netip.AddrPort { return c.bound }

// Counters implements Reactor.
func (c *core) Counters() Counters { return c.counters.read() }

// tick calls the handler when its deadline has come and returns the next one.
func (c *core) tick() clock.Instant {
	deadline := c.handler.Deadline()
	if deadline == clock.Never || !deadline.Reached(boot.now()) {
		return deadline
	}
	c.counters.ticks.Add(1)
	c.handler.Tick()
	return c.handler.Deadline()
}

// bufferSize is what the kernel needs for one receive.
func (c *core) bufferSize() int {
	if c.coalesced {
		return coalescedBufferSize
	}
	return ReceiveBufferSize
}

// deliver checks what one receive on a socket, 0 for the reactor's own, brought and hands its datagrams over.
func (c *core) deliver(number int, name, control, payload []byte, truncated bool) {
	found := parseControl(control)
	if found.hasDrops {
		c.counters.kernelDrops.Add(uint64(found.drops - c.drops))
		c.drops = found.drops
	}
	if truncated {
		c.counters.oversize.Add(1)
		return
	}
	from, ok := parseName(name)
	if !ok || from.Port() == 0 {
		c.counters.malformed.Add(1)
		return
	}
	if !found.local.IsValid() {
		found.local = c.bound.Addr()
	}
	if c.routes != nil && !found.local.IsMulticast() {
		c.routes.remember(from, found.local)
	}
	size := len(payload)
	if found.segment > 0 && found.segment < size {
		size = found.segment
		c.handled += (len(payload) - 1) / size
	}
	for {
		datagram := payload[:min(size, len(payload)):min(size, len(payload))] // the next one is out of reach
		payload = payload[len(datagram):]
		if len(datagram) > wire.DatagramMax {
			c.counters.oversize.Add(1)
		} else {
			c.counters.received.Add(1)
			c.counters.receivedBytes.Add(uint64(len(datagram)))
			switch {
			case number == 0:
				c.handler.Datagram(from, found.local, datagram)
			case c.many != nil:
				c.many.DatagramVia(number, from, found.local, datagram)
			}
		}
		if len(payload) == 0 {
			return
		}
	}
}

// source is the address from which a datagram to a peer should leave.
func (c *core) source(to netip.AddrPort) netip.Addr {
	if c.routes == nil {
		return netip.Addr{}
	}
	local, _ := c.routes.lookup(to)
	return local
}

// enqueue puts a datagram into the outbox, which must have room. It reports whether there is one more
// header to be sent.
func (c *core) enqueue(local netip.Addr, to netip.AddrPort, datagram []byte) bool {
	fresh, ok := c.outbox.put(local, to, datagram)
	if !ok {
		c.counters.sendInvalid.Add(1)
		return false
	}
	c.counters.sent.Add(1)
	c.counters.sentBytes.Add(uint64(len(datagram)))
	return fresh
}

// singly takes a run of several datagrams that the kernel refused, queues them again one by one, and reports
// whether it did. Where the kernel cannot cut runs, because a path is too narrow or a device too simple, this
// socket sends none any more; then SendFailed hears which datagram is wrong (F30). The run's slots must not
// have been filled again.
func (c *core) singly(run int, reason unix.Errno, send func(to netip.AddrPort, datagram []byte)) bool {
	switch reason {
	case unix.EINVAL, unix.EIO, unix.EMSGSIZE, unix.EOPNOTSUPP:
	default:
		return false // there is no room: more of the same would not help
	}
	o := c.outbox
	count, first := int(o.headers[run].header.Iovlen), int(o.first[run])
	if count == 1 {
		return false
	}
	o.segments = false
	to := o.destination(run)
	for i := first; i < first+count; i++ { // what send fills lies before what is read, or is the same
		send(to, o.slots[i].payload[:o.vectors[i].Len])
	}
	return true
}

// sendFailed counts a datagram that the kernel refused. Nothing of this ends the reactor: errors
// that ICMP reported earlier arrive here too, on whatever datagram comes next.
func (c *core) sendFailed(to netip.AddrPort, reason unix.Errno) {
	c.counters.sendErrors.Add(1)
	switch reason {
	case unix.EMSGSIZE:
		c.counters.sendTooLong.Add(1)
	case unix.EAGAIN, unix.ENOBUFS:
		c.counters.sendFull.Add(1)
	case unix.EINVAL, unix.EADDRNOTAVAIL, unix.ENETUNREACH, unix.ENODEV:
		// The local address may be gone from this host: let the kernel choose from now on.
		if c.routes != nil && to.IsValid() {
			c.routes.forget(to)
		}
	}
	if c.observer != nil && to.IsValid() {
		c.observer.SendFailed(to, reason)
	}
}

// addWatch takes a free place and returns its index, -1 when there is none.
func (c *core) addWatch(fd int, notify func()) int {
	if notify == nil {
		panic("reactor: WatchEventfd without a function")
	}
	for i := range WatchesMax {
		if c.watches[i].notify == nil {
			c.watches[i] = watch{fd, notify, c.watches[i].generation + 1}
			return i
		}
	}
	return -1
}

func (c *core) findWatch(fd int) int {
	for i := range c.watches {
		if c.watches[i].notify != nil && c.watches[i].fd == fd {
			return i
		}
	}
	return -1
}

// drain empties a watched descriptor that was reported readable, and tells whether it holds more
// promise than an endless stream of errors.
func (c *core) drain(i int) {
	w := &c.watches[i]
	if i == extraWatch { // an epoll set, of which nothing is read
		w.notify()
		return
	}
	var buffer [8]byte
	// Readable was reported and this thread is the only reader, so the read does not block. An error
	// is left to the owner of the descriptor, who is told all the same.
	_, _ = unix.Read(w.fd, buffer[:])
	w.notify()
}

// silent takes the handler's place while a reactor shuts down.
type silent struct{}

func (silent) Datagram(netip.AddrPort, netip.Addr, []byte) {}
func (silent) Wake()                                       {}
func (silent) Tick()                                       {}
func (silent) Deadline() clock.Instant                     { return clock.Never }

var errWatches = fmt.Errorf("reactor: %d descriptors are watched already", WatchesMax)
