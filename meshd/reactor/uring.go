package reactor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"time"

	"colloid.net/meshd/clock"
	"golang.org/x/sys/unix"
)

// uring is the io_uring driver.
type uring struct {
	*core
	ring    *ring
	buffers *bufferRing
	scratch []byte // mapped: receive header, timer, wake buffer
	skip    uint8  // entrySkipSuccess where the kernel has it

	receiving bool // the multishot receive is armed
	waking    bool // the read of the eventfd is armed
	timerAt   clock.Instant
	timing    bool // a timer is armed, for timerAt
	watching  [WatchesMax + 1]bool
	canceling bool
	failures  int // of the receive in a row
}

// What a completion belongs to sits in the top byte of its user data.
const (
	kindIgnore uint64 = iota << 56
	kindReceive
	kindWake
	kindTimer
	kindWatch // index in the low byte, generation above it
	kindSend  // run of the outbox in the low bits
	kindMask  = uint64(0xff) << 56
)

// outHeaderSize is struct io_uring_recvmsg_out, which precedes name, control and payload.
const outHeaderSize = 16

// Places in the scratch page.
const (
	scratchReceive = 0
	scratchTimer   = 64
	scratchWake    = 80
	scratchSize    = 4096
)

// receiveFailuresMax ends Run: so many errors in a row without one datagram are no ICMP report.
const receiveFailuresMax = 1000

func openURing(shared *core) (*uring, error) {
	u := &uring{core: shared}
	var err error
	u.ring, err = openRing(uint32(shared.options.QueueEntries), shared.options.setup)
	if err != nil {
		return nil, err
	}
	u.ring.features &^= shared.options.without
	if !u.ring.supports(opSendZC) {
		err = errors.New("multishot receive is missing, Linux 6.0 is needed")
	}
	if err == nil {
		first, count := buffersFirst, shared.options.ReceiveBuffers
		if shared.coalesced {
			first, count = coalescedBuffersFirst, min(count, coalescedBuffersMax)
		}
		u.buffers, err = newBufferRing(u.ring, count, first, shared.bufferSize())
	}
	if err == nil {
		u.scratch, err = mapMemory(scratchSize)
	}
	if err != nil {
		u.freeRing()
		return nil, err
	}
	if u.ring.features&featureSkipSuccess != 0 {
		u.skip = entrySkipSuccess
	}
	u.driver = u.ring.mode
	return u, nil
}

func (u *uring) freeRing() {
	u.ring.free()
	if u.buffers != nil {
		u.buffers.free()
	}
	unmapMemory(u.scratch)
}

// Close implements Reactor.
func (u *uring) Close() error {
	if u.requestClose() {
		return nil
	}
	if u.core.free() {
		u.freeRing()
	}
	return nil
}

// Run implements Reactor.
func (u *uring) Run(handler Handler) error {
	if err := u.start(handler); err != nil {
		return err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer u.freeRing()
	defer u.core.free()
	if err := u.ring.register(registerEnableRings, nil, 0); err != nil {
		return fmt.Errorf("reactor: enabling the ring: %w", err)
	}
	err := u.loop()
	u.drainRing()
	return err
}

func (u *uring) loop() error {
	for !u.closed.Load() {
		deadline := u.tick()
		u.rearm()
		wait := !u.ring.ready() && !deadline.Reached(boot.now())
		if wait {
			u.armTimer(deadline)
			u.counters.sleeps.Add(1)
		}
		if wait || !u.ring.submitted() || !u.ring.ready() {
			if err := u.enter(wait); err != nil {
				return err
			}
		}
		if wait {
			boot.refresh()
		}
		if err := u.reap(); err != nil {
			return err
		}
	}
	return nil
}

// enter submits everything and frees the outbox. Sends carry MSG_DONTWAIT, so they are finished,
// one way or the other, when the kernel has taken them; their slots can be used again at once.
func (u *uring) enter(wait bool) error {
	u.outbox.close()
	errno := u.ring.enter(wait)
	switch errno {
	case 0, unix.EINTR:
	case unix.EAGAIN, unix.EBUSY: // no memory for requests, or completions must be taken first
		if !u.ring.ready() {
			time.Sleep(time.Millisecond)
		}
	default:
		return fmt.Errorf("reactor: io_uring_enter: %w", errno)
	}
	if u.ring.submitted() {
		u.outbox.reset()
	}
	return nil
}

// reap handles a bounded number of completions and datagrams, so that the deadline is never forgotten.
func (u *uring) reap() error {
	for u.handled = 0; u.handled < batchMax; u.handled++ {
		c, ok := u.ring.take()
		if !ok {
			break
		}
		if err := u.complete(c); err != nil {
			return err
		}
	}
	u.buffers.publish()
	return nil
}

func (u *uring) complete(c completion) error {
	switch c.userData & kindMask {
	case kindReceive:
		return u.received(c)
	case kindWake:
		u.waking = false
		u.woken()
	case kindTimer:
		u.timing = false
		if unix.Errno(-c.result) == unix.ETIME {
			boot.reached(u.timerAt)
		}
	case kindWatch:
		u.watchReady(int(c.userData&0xff), uint32(c.userData>>8))
	case kindSend:
		if c.result < 0 {
			u.sendRefused(c.userData&^kindMask, unix.Errno(-c.result))
		}
	}
	return nil
}

// sendRefused finds out what was refused, if its place has not been used again.
func (u *uring) sendRefused(ticket uint64, reason unix.Errno) {
	var to netip.AddrPort
	if run := u.outbox.runOf(ticket); run >= 0 {
		to = u.outbox.destination(run)
		if u.singly(run, reason, u.Send) {
			return
		}
	}
	u.sendFailed(to, reason)
}

// received handles one completion of the multishot receive.
func (u *uring) received(c completion) error {
	if c.flags&completionMore == 0 {
		u.receiving = false
	}
	if c.flags&completionBuffer != 0 {
		id := uint16(c.flags >> bufferShift)
		if c.result >= 0 {
			u.failures = 0
			u.unpack(u.buffers.buffer(id)[:min(int(c.result), u.buffers.stride)])
		}
		u.buffers.give(id)
		if c.result >= 0 {
			return nil
		}
	}
	if c.result >= 0 || u.canceling {
		return nil
	}
	switch errno := unix.Errno(-c.result); errno {
	case unix.ENOBUFS:
		u.counters.bufferStalls.Add(1)
		u.buffers.grow(u.buffers.given)
	case unix.EINVAL, unix.EOPNOTSUPP, unix.EBADF:
		return fmt.Errorf("reactor: multishot receive: %w", errno)
	default:
		u.counters.receiveErrors.Add(1)
		if u.failures++; u.failures > receiveFailuresMax {
			return fmt.Errorf("reactor: receive failed %d times in a row: %w", u.failures, errno)
		}
	}
	return nil
}

// unpack takes a filled buffer apart: header, name, control and payload at fixed places.
func (u *uring) unpack(buffer []byte) {
	const nameAt, controlAt = outHeaderSize, outHeaderSize + nameSize
	const payloadAt = controlAt + receiveControlSize
	if len(buffer) < payloadAt {
		u.counters.malformed.Add(1)
		return
	}
	nameLength := min(int(binary.NativeEndian.Uint32(buffer)), nameSize)
	controlLength := min(int(binary.NativeEndian.Uint32(buffer[4:])), receiveControlSize)
	payloadLength := int(binary.NativeEndian.Uint32(buffer[8:]))
	flags := binary.NativeEndian.Uint32(buffer[12:])
	payload := buffer[payloadAt:]
	truncated := flags&unix.MSG_TRUNC != 0 || payloadLength > len(payload)
	u.deliver(0, buffer[nameAt:nameAt+nameLength], buffer[controlAt:controlAt+controlLength],
		payload[:min(payloadLength, len(payload))], truncated)
}

// rearm renews the standing requests that have ended. The reserved entries always have room for
// them unless the kernel refuses submissions; then they wait for the next round.
func (u *uring) rearm() {
	if u.ring.room() < reservedEntries {
		return
	}
	if !u.receiving {
		u.armReceive()
	}
	if !u.waking {
		u.armWake()
	}
	for i := range u.watches {
		if u.watches[i].notify != nil && !u.watching[i] {
			u.armWatch(i)
		}
	}
}

func (u *uring) armReceive() {
	header := &view[unix.Msghdr](u.scratch, scratchReceive, 1)[0]
	header.Namelen = nameSize
	header.SetControllen(receiveControlSize)
	entry := u.ring.next()
	entry.opcode, entry.flags, entry.priority = opRecvmsg, entryBufferSelect, receiveMultishot
	entry.fd, entry.address, entry.length = int32(u.socket.fd), address(&u.scratch[scratchReceive]), 1
	entry.userData = kindReceive
	u.receiving = true
	u.counters.rearms.Add(1)
}

func (u *uring) armWake() {
	entry := u.ring.next()
	entry.opcode, entry.fd = opRead, int32(u.eventfd)
	entry.address, entry.length, entry.userData = address(&u.scratch[scratchWake]), 8, kindWake
	u.waking = true
}

// armWatch polls rather than reads: whether a read waits would depend on the O_NONBLOCK flag of a
// descriptor that others share.
func (u *uring) armWatch(i int) {
	entry := u.ring.next()
	entry.opcode, entry.fd, entry.operation = opPollAdd, int32(u.watches[i].fd), unix.POLLIN
	entry.userData = kindWatch | uint64(u.watches[i].generation)<<8 | uint64(i)
	u.watching[i] = true
}

func (u *uring) watchReady(i int, generation uint32) {
	if i >= len(u.watches) || u.watches[i].generation != generation || u.watches[i].notify == nil {
		return // of a watch that has ended
	}
	u.watching[i] = false
	u.drain(i)
}

// armTimer makes the kernel wake the reactor at the deadline. A timer that is armed for an earlier
// moment stays: one early wake-up is cheaper than moving the timer on each datagram.
func (u *uring) armTimer(deadline clock.Instant) {
	if deadline == clock.Never || u.timing && u.timerAt <= deadline || u.ring.room() == 0 {
		return
	}
	spec := &view[unix.Timespec](u.scratch, scratchTimer, 1)[0]
	*spec = unix.NsecToTimespec(max(int64(deadline), 1))
	entry := u.ring.next()
	if u.timing {
		// The clock of an armed timer cannot be changed and need not be named.
		entry.opcode, entry.operation = opTimeoutRemove, timeoutUpdate|timeoutAbsolute
		entry.address, entry.offset = kindTimer, address(&u.scratch[scratchTimer])
		entry.flags, entry.userData = u.skip, kindIgnore
	} else {
		entry.opcode, entry.operation = opTimeout, timeoutAbsolute|timeoutBoottime
		entry.address, entry.length, entry.userData = address(&u.scratch[scratchTimer]), 1, kindTimer
	}
	u.timing, u.timerAt = true, deadline
}

// Send implements Reactor.
func (u *uring) Send(to netip.AddrPort, datagram []byte) { u.SendFrom(u.source(to), to, datagram) }

// SendFrom implements Reactor.
func (u *uring) SendFrom(local netip.Addr, to netip.AddrPort, datagram []byte) {
	if u.outbox.full() || u.ring.room() <= reservedEntries {
		u.counters.sendQueueFull.Add(1)
		if u.enter(false) != nil || u.outbox.full() {
			u.counters.sendErrors.Add(1) // the loop meets the same error and ends
			u.counters.sendFull.Add(1)
			return
		}
	}
	run := u.outbox.runs
	if !u.enqueue(local, to, datagram) {
		return
	}
	entry := u.ring.next()
	entry.opcode, entry.flags, entry.fd = opSendmsg, u.skip, int32(u.socket.fd)
	entry.address, entry.length = u.outbox.headerAddress(run), 1
	entry.operation = unix.MSG_DONTWAIT
	entry.userData = kindSend | u.outbox.ticket(run)
}

// WatchEventfd implements Reactor.
func (u *uring) WatchEventfd(fd int, notify func()) error {
	i := u.addWatch(fd, notify)
	if i < 0 {
		return errWatches
	}
	u.watching[i] = false
	return nil
}

// Unwatch implements Reactor. The poll is cancelled before the next sleep; until then its place
// knows by generation that it is nobody's.
func (u *uring) Unwatch(fd int) {
	i := u.findWatch(fd)
	if i < 0 {
		return
	}
	if u.watching[i] {
		u.cancelWatch(i)
	}
	u.watches[i].notify = nil
	u.watching[i] = false
}

func (u *uring) cancelWatch(i int) {
	if u.ring.room() == 0 && (u.enter(false) != nil || u.ring.room() == 0) {
		return // the poll stays until its descriptor is closed, and is ignored when it fires
	}
	entry := u.ring.next()
	entry.opcode, entry.flags, entry.userData = opAsyncCancel, u.skip, kindIgnore
	entry.address = kindWatch | uint64(u.watches[i].generation)<<8 | uint64(i)
}
