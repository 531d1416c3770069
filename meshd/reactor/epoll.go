package reactor

import (
	"fmt"
	"net/netip"
	"unsafe"

	"colloid.net/meshd/clock"
	"golang.org/x/sys/unix"
)

// epoller is the driver for kernels that refuse io_uring (F111, F125).
type epoller struct {
	*core
	epoll, timerfd int
	parking        *parking
	count          int   // events of the last poll
	failure        error // of the last poll
	inbox          *inbox
	timing         bool // the timerfd is armed, for timerAt
	timerAt        clock.Instant
	readable       bool // the last receive filled its batch: there is more
	ask            int  // how many receives the next batch may have
	events         [WatchesMax + 4]unix.EpollEvent
}

// receiveBatch is how many receives one recvmmsg does at most, receiveFirst how many after it found fewer.
const (
	receiveBatch = 64
	receiveFirst = 8
)

// inbox is the memory of recvmmsg.
type inbox struct {
	memory  []byte
	headers []multiHeader
	vectors []unix.Iovec
	slots   []byte // stride bytes for each header: name, control messages, payload
	stride  int
	dirty   int // headers that the kernel has written since they were prepared
}

// Places in a slot.
const (
	slotControl = 32
	slotPayload = slotControl + receiveControlSize
)

func newInbox(count, stride int) (*inbox, error) {
	headers := count * int(unsafe.Sizeof(multiHeader{}))
	vectors := count * int(unsafe.Sizeof(unix.Iovec{}))
	memory, err := mapMemory(headers + vectors + count*stride)
	if err != nil {
		return nil, err
	}
	b := &inbox{
		memory:  memory,
		headers: view[multiHeader](memory, 0, count),
		vectors: view[unix.Iovec](memory, headers, count),
		slots:   memory[headers+vectors:],
		stride:  stride,
	}
	for i := range b.headers {
		header := &b.headers[i].header
		slot := b.slot(i)
		b.vectors[i].Base = &slot[slotPayload]
		b.vectors[i].SetLen(stride - slotPayload)
		header.Iov, header.Iovlen = &b.vectors[i], 1
		header.Name, header.Control = &slot[0], &slot[slotControl]
	}
	b.dirty = count
	return b, nil
}

func (b *inbox) slot(i int) []byte { return b.slots[i*b.stride : (i+1)*b.stride] }

// prepare restores what the kernel overwrote in the headers of the last batch.
func (b *inbox) prepare() {
	for i := range b.headers[:b.dirty] {
		b.headers[i].header.Namelen = nameSize
		b.headers[i].header.SetControllen(receiveControlSize)
	}
	b.dirty = 0
}

func openEpoll(shared *core, name string) (Reactor, error) {
	e := &epoller{core: shared, epoll: -1, timerfd: -1}
	e.driver = name
	e.watchExtras = e.add
	if err := e.open(); err != nil {
		shared.free()
		e.freeEpoll()
		return nil, fmt.Errorf("reactor: epoll: %w", err)
	}
	return e, nil
}

func (e *epoller) open() (err error) {
	if e.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	e.timerfd, err = unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return err
	}
	count := min(receiveBatch, e.options.ReceiveBuffers)
	if e.inbox, err = newInbox(count, e.bufferSize()); err != nil {
		return err
	}
	e.ask = min(receiveFirst, count)
	for _, fd := range []int{e.socket.fd, e.eventfd, e.timerfd} {
		if err := e.add(fd, 0); err != nil {
			return err
		}
	}
	e.parking, err = newParking(e.epoll, func(uintptr) bool { return e.poll() })
	return err
}

// add polls fd; the generation comes back with each of its events.
func (e *epoller) add(fd int, generation uint32) error {
	event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd), Pad: int32(generation)}
	return unix.EpollCtl(e.epoll, unix.EPOLL_CTL_ADD, fd, &event)
}

func (e *epoller) freeEpoll() {
	switch {
	case e.parking != nil:
		e.parking.free()
	case e.epoll >= 0:
		unix.Close(e.epoll)
	}
	if e.timerfd >= 0 {
		unix.Close(e.timerfd)
	}
	if e.inbox != nil {
		unmapMemory(e.inbox.memory)
	}
}

// Close implements Reactor.
func (e *epoller) Close() error {
	if e.requestClose() {
		return nil
	}
	if e.core.free() {
		e.freeEpoll()
	}
	return nil
}

// Run implements Reactor.
func (e *epoller) Run(handler Handler) error {
	if err := e.start(handler); err != nil {
		return err
	}
	defer e.freeEpoll()
	defer e.core.free()
	err := e.loop()
	e.flush()
	return err
}

func (e *epoller) loop() error {
	for !e.closed.Load() {
		deadline := e.tick()
		e.flush()
		wait := !e.readable && !deadline.Reached(boot.now())
		if wait {
			if err := e.armTimer(deadline); err != nil {
				return err
			}
			e.counters.sleeps.Add(1)
		}
		count, err := e.wait(wait)
		if err != nil {
			return err
		}
		if wait {
			boot.refresh()
		}
		e.readable = false // the epoll set has just said whether it is; receive says it again
		for _, event := range e.events[:count] {
			if err := e.handle(int(event.Fd), uint32(event.Pad)); err != nil {
				return err
			}
		}
	}
	return nil
}

// wait takes the events there are; with block it parks until there is one.
func (e *epoller) wait(block bool) (int, error) {
	e.count, e.failure = 0, nil
	if !block {
		e.poll()
	} else if err := e.parking.wait(); err != nil {
		return 0, fmt.Errorf("reactor: waiting: %w", err)
	}
	return e.count, e.failure
}

// poll asks once, without waiting, and reports whether there is something to do.
func (e *epoller) poll() bool {
	count, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(e.epoll),
		uintptr(unsafe.Pointer(&e.events[0])), uintptr(len(e.events)), 0, 0, 0)
	switch errno {
	case 0:
		e.count = int(count)
	case unix.EINTR:
		return true
	default:
		e.failure = fmt.Errorf("reactor: epoll_wait: %w", errno)
	}
	return e.count > 0 || e.failure != nil
}

func (e *epoller) handle(fd int, generation uint32) error {
	switch fd {
	case e.socket.fd:
		return e.receive()
	case e.eventfd:
		var buffer [8]byte
		_, _ = unix.Read(fd, buffer[:])
		e.woken()
	case e.timerfd:
		e.expired()
	default:
		// An event of a watch that has ended may come for a new one of the same number.
		if i := e.findWatch(fd); i >= 0 && e.watches[i].generation == generation {
			e.drain(i)
		}
	}
	return nil
}

// receive takes up to one batch from the socket. When receives bring many datagrams each, the next batch
// is smaller, so that the deadline is never forgotten.
func (e *epoller) receive() error {
	e.inbox.prepare()
	count, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(e.socket.fd),
		uintptr(unsafe.Pointer(&e.inbox.headers[0])), uintptr(e.ask), unix.MSG_DONTWAIT, 0, 0)
	e.readable = false
	switch errno {
	case 0:
	case unix.EAGAIN, unix.EINTR:
		return nil
	case unix.EBADF, unix.EINVAL, unix.ENOSYS, unix.EFAULT, unix.ENOTSOCK:
		return fmt.Errorf("reactor: recvmmsg: %w", errno)
	default:
		e.counters.receiveErrors.Add(1) // reported by ICMP for an earlier datagram, or no memory
		return nil
	}
	e.readable = int(count) == e.ask
	e.inbox.dirty = int(count)
	e.handled = int(count)
	for i := range int(count) {
		name, control, payload, truncated := e.inbox.received(i)
		e.deliver(0, name, control, payload, truncated)
	}
	switch {
	case e.handled > batchMax:
		e.ask = max(e.ask/2, 1)
	case e.readable:
		e.ask = min(2*e.ask, len(e.inbox.headers))
	default:
		e.ask = min(receiveFirst, len(e.inbox.headers))
	}
	return nil
}

// armTimer sets the timerfd unless it will fire early enough already.
func (e *epoller) armTimer(deadline clock.Instant) error {
	if deadline == clock.Never || e.timing && e.timerAt <= deadline {
		return nil
	}
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(max(int64(deadline), 1))}
	if err := unix.TimerfdSettime(e.timerfd, unix.TFD_TIMER_ABSTIME, &spec, nil); err != nil {
		return fmt.Errorf("reactor: timerfd_settime: %w", err)
	}
	e.timing, e.timerAt = true, deadline
	return nil
}

func (e *epoller) expired() {
	var buffer [8]byte
	if n, _ := unix.Read(e.timerfd, buffer[:]); n != len(buffer) {
		return // set again in the meantime
	}
	e.timing = false
	boot.reached(e.timerAt)
}

// Send implements Reactor.
func (e *epoller) Send(to netip.AddrPort, datagram []byte) { e.SendFrom(e.source(to), to, datagram) }

// SendFrom implements Reactor.
func (e *epoller) SendFrom(local netip.Addr, to netip.AddrPort, datagram []byte) {
	if e.outbox.full() {
		e.counters.sendQueueFull.Add(1)
		e.flush()
	}
	e.enqueue(local, to, datagram)
}

// flush sends the outbox. The kernel stops at the first datagram it refuses; that one is dropped.
// The observer hears of it when the outbox is free again, because it may want to send.
func (e *epoller) flush() {
	total := e.outbox.runs
	var refused [refusedMax]refusal
	count := 0
	for next := 0; next < total; {
		sent, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(e.socket.fd),
			uintptr(e.outbox.headerAddress(next)), uintptr(total-next), unix.MSG_DONTWAIT, 0, 0)
		switch {
		case errno == unix.EINTR:
		case errno != 0:
			refused[count%refusedMax] = refusal{e.outbox.destination(next), next, errno}
			count++
			next++
		default:
			next += int(sent)
		}
	}
	e.outbox.reset()
	again := false
	for i := range count {
		switch {
		case i == 0 && e.singly(refused[0].run, refused[0].reason, e.Send):
			again = true
			// What it queues takes the places of the runs behind: those are dropped, as a network would.
		case i < refusedMax:
			e.sendFailed(refused[i].to, refused[i].reason)
		default:
			e.sendFailed(netip.AddrPort{}, refused[i%refusedMax].reason)
		}
	}
	if again { // singly queues nothing a second time
		e.flush()
	}
}

// refusal is a datagram the kernel did not take.
type refusal struct {
	to     netip.AddrPort
	run    int
	reason unix.Errno
}

// refusedMax bounds how many refusals of one flush are reported by address; all are counted.
const refusedMax = 32

// WatchEventfd implements Reactor.
func (e *epoller) WatchEventfd(fd int, notify func()) error {
	i := e.addWatch(fd, notify)
	if i < 0 {
		return errWatches
	}
	if err := e.add(fd, e.watches[i].generation); err != nil {
		e.watches[i].notify = nil
		return fmt.Errorf("reactor: watching descriptor %d: %w", fd, err)
	}
	return nil
}

// Unwatch implements Reactor.
func (e *epoller) Unwatch(fd int) {
	if i := e.findWatch(fd); i >= 0 {
		_ = unix.EpollCtl(e.epoll, unix.EPOLL_CTL_DEL, fd, nil)
		e.watches[i].notify = nil
	}
}
