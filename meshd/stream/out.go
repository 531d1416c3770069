package stream

import (
	"fmt"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/wire"
)

const (
	// unsentMax bounds what a writer may be ahead of the network, 290 KB.
	unsentMax = 256
	outMax    = 4096 // slots: WindowMax under way or waiting behind a hole, and unsentMax
	outMin    = 32
	// fastRetransmit is how many later datagrams must have arrived before one counts as lost (F151).
	fastRetransmit = 3
	// unansweredMax ends a stream after so many timeouts in a row without any sign of the other end.
	unansweredMax = 5
	sequenceMax   = 1<<32 - 1 - outMax
)

// Flags of a slot.
const (
	slotSealed uint8 = 1 << iota
	slotFin
	slotAcked
	slotLost
	slotFlight
	slotAgain // sent more than once: its round trip says nothing
)

// outSlot is one sequence number from Write until it is acknowledged.
type outSlot struct {
	buffer         *chunk // nil for a CLOSE and once acknowledged
	size           uint16
	flags          uint8
	reason         Reason // of a CLOSE
	previous, next uint32 // sequences in order of sending, 0 = none
	order          uint64 // number of the transmission
	sample         sample
}

// outgoing is the sending half. Sequences: [una, next) were sent, [next, end) wait.
type outgoing struct {
	slots          []outSlot
	una, next, end uint32
	first, last    uint32 // of the flight, in order of sending
	inFlight       int
	lost           int
	lostFrom       uint32 // no lost one below
	order          uint64
	highest        uint64 // greatest order acknowledged
	limit          uint32 // greatest sequence the receiver takes
	lossAt         clock.Instant
	progress       clock.Instant // last acknowledgement that said something new
	persistAt      clock.Instant // of a probe against a closed window, 0 = none
	backoff        int
	unanswered     int
	finished       bool // a CLOSE is queued
}

func (o *outgoing) init() {
	o.una, o.next, o.end = 1, 1, 1
	o.limit = windowInitial // until the first acknowledgement says more
}

func (o *outgoing) at(sequence uint32) *outSlot { return &o.slots[sequence&uint32(len(o.slots)-1)] }

// append makes a new slot at the end. Writers ask room first; a CLOSE always finds a place, because what
// is under way and what may wait are together less than outMax.
func (o *outgoing) append() *outSlot {
	if used := int(o.end - o.una); used == len(o.slots) {
		if used == outMax {
			panic(fmt.Sprintf("stream: %d slots in use from sequence %d on", used, o.una))
		}
		o.grow()
	}
	slot := o.at(o.end)
	*slot = outSlot{}
	o.end++
	return slot
}

func (o *outgoing) grow() {
	old := o.slots
	o.slots = make([]outSlot, max(2*len(old), outMin))
	for sequence := o.una; sequence != o.end; sequence++ {
		*o.at(sequence) = old[sequence&uint32(len(old)-1)]
	}
}

// write copies as much of p as there is room for.
func (s *Stream) write(p []byte) int {
	o, total := &s.out, 0
	for len(p) > 0 {
		var slot *outSlot
		if o.end != o.next {
			slot = o.at(o.end - 1)
		}
		if slot == nil || slot.flags != 0 || slot.size == dataMax {
			if !o.room() || !s.mux.share(s) {
				break
			}
			buffer := s.mux.pool.get()
			if buffer == nil {
				break
			}
			slot = o.append()
			slot.buffer = buffer
		}
		n := copy(slot.buffer[slot.size:dataMax], p)
		slot.size += uint16(n)
		p = p[n:]
		total += n
	}
	return total
}

// room reports whether a write would be taken.
func (o *outgoing) room() bool {
	return o.end-o.next < unsentMax && o.end-o.una < outMax-unsentMax
}

// release gives all memory back.
func (o *outgoing) release(memory *pool) {
	for sequence := o.una; sequence != o.end; sequence++ {
		if slot := o.at(sequence); slot.buffer != nil {
			memory.put(slot.buffer)
			slot.buffer = nil
		}
	}
	o.una, o.next = o.end, o.end
	o.slots, o.inFlight, o.lost, o.first, o.last = nil, 0, 0, 0, 0
	o.lossAt, o.persistAt = 0, 0
}

func (o *outgoing) link(sequence uint32, slot *outSlot) {
	slot.flags |= slotFlight
	slot.previous, slot.next = o.last, 0
	if o.last != 0 {
		o.at(o.last).next = sequence
	} else {
		o.first = sequence
	}
	o.last = sequence
	o.inFlight++
}

func (o *outgoing) unlink(slot *outSlot) {
	if slot.previous != 0 {
		o.at(slot.previous).next = slot.next
	} else {
		o.first = slot.next
	}
	if slot.next != 0 {
		o.at(slot.next).previous = slot.previous
	} else {
		o.last = slot.previous
	}
	slot.flags &^= slotFlight
	o.inFlight--
}

func (o *outgoing) markLost(sequence uint32) {
	slot := o.at(sequence)
	o.unlink(slot)
	slot.flags |= slotLost
	o.lost++
	if o.lost == 1 || sequence < o.lostFrom {
		o.lostFrom = sequence
	}
}

// choose returns what to send next, 0 for nothing.
func (o *outgoing) choose(allowed int) uint32 {
	if o.inFlight >= allowed {
		return 0
	}
	if o.lost > 0 {
		for o.at(o.lostFrom).flags&slotLost == 0 {
			o.lostFrom++
		}
		return o.lostFrom
	}
	if o.next != o.end && o.next <= o.limit {
		return o.next
	}
	return 0
}

// transmit sends up to budget datagrams, as far as window and pace allow, and returns how many.
func (s *Stream) transmit(now clock.Instant, budget int) int {
	o, sent := &s.out, 0
	if !s.state.established() || s.keys.seal == nil || s.pair != nil {
		return 0
	}
	for sent < budget {
		sequence := o.choose(s.control.allowed())
		if sequence == 0 {
			s.control.paced = false
			if o.inFlight < s.control.allowed() {
				s.control.idle(o.inFlight)
			}
			break
		}
		if !s.control.pace(now) {
			break
		}
		s.sendSlot(now, sequence)
		sent++
	}
	o.persistAt = 0
	if o.inFlight == 0 && o.lost == 0 && o.next != o.end && o.next > o.limit {
		o.persistAt = max(o.progress, s.heard).Add(s.control.rto(o.backoff))
	}
	if sent > 0 && s.wantWrite && o.room() {
		s.raise(pendingWritable)
	}
	return sent
}

// sendSlot sends one sequence number, for the first time or again.
func (s *Stream) sendSlot(now clock.Instant, sequence uint32) {
	o, m := &s.out, s.mux
	slot := o.at(sequence)
	if slot.flags&slotLost != 0 {
		slot.flags &^= slotLost
		slot.flags |= slotAgain
		o.lost--
		m.stats.Retransmitted++
	} else {
		o.next++
	}
	o.order++
	slot.order = o.order
	s.control.sent(now, &slot.sample, o.inFlight)
	o.link(sequence, slot)
	if slot.flags&slotFin != 0 {
		fin := wire.StreamClose{Stream: s.id, Reason: uint8(slot.reason), Sequence: sequence}
		s.keys.sealFin(&m.tag, sequence)
		fin.Tag = m.tag
		m.send(s, wire.TypeStreamClose, wire.AppendStreamClose(m.payload[:0], fin))
		return
	}
	if slot.flags&slotSealed == 0 {
		s.keys.sealData(slot.buffer, int(slot.size), sequence)
		slot.size += tagSize
		slot.flags |= slotSealed
	}
	m.send(s, wire.TypeStreamData, wire.AppendStreamData(m.payload[:0], wire.StreamData{
		Stream: s.id, Sequence: sequence, Data: slot.buffer[:slot.size],
	}))
}

// receiveAck takes an acknowledgement of established streams.
func (s *Stream) receiveAck(now clock.Instant, ack *wire.StreamAck) {
	o := &s.out
	if ack.Sequence >= o.next {
		s.mux.stats.Malformed++ // of what was never sent
		return
	}
	if ack.Sequence+1 >= o.una {
		o.unanswered = 0
	}
	if limit := ack.Sequence + min(ack.Credit, WindowMax); limit > o.limit {
		o.limit = limit
	}
	var newest outSlot
	newly := 0
	for ; o.una <= ack.Sequence; o.una++ {
		newly += s.arrived(o.una, &newest)
	}
	newly += s.selective(ack.Sequence+2, ack.Selective, &newest)
	if extended := extension(ack.Extensions, wire.ExtensionSelective); extended != nil {
		for i, bits := range extended {
			newly += s.selective(ack.Sequence+66+8*uint32(i), uint64(bits), &newest)
		}
	}
	if newly == 0 {
		return
	}
	o.progress, o.backoff = now, 0
	o.highest = max(o.highest, newest.order)
	if newest.flags&slotAgain == 0 {
		s.control.observeRTT(now, now.Sub(newest.sample.sentAt))
	}
	s.control.acknowledged(now, newly, &newest.sample, o.inFlight)
	s.detectLoss(now)
	if s.wantWrite && o.room() {
		s.raise(pendingWritable)
	}
	if o.finished && o.una == o.end && (s.state == LocalFin || s.state == Closing) {
		s.move(eventFinished)
	}
}

// selective marks what a bitmap beginning at a sequence says.
func (s *Stream) selective(from uint32, bitmap uint64, newest *outSlot) int {
	newly := 0
	for ; bitmap != 0; bitmap &= bitmap - 1 {
		sequence := from + trailingZeros(bitmap)
		if sequence < from || sequence >= s.out.next || sequence < s.out.una {
			break
		}
		newly += s.arrived(sequence, newest)
	}
	return newly
}

// arrived marks one sequence as acknowledged; it returns 1 if that is news.
func (s *Stream) arrived(sequence uint32, newest *outSlot) int {
	o := &s.out
	slot := o.at(sequence)
	if slot.flags&slotAcked != 0 {
		return 0
	}
	switch {
	case slot.flags&slotFlight != 0:
		o.unlink(slot)
	case slot.flags&slotLost != 0:
		o.lost--
		slot.flags &^= slotLost
	}
	slot.flags |= slotAcked
	if slot.buffer != nil {
		s.mux.pool.put(slot.buffer)
		slot.buffer = nil
	}
	if slot.order > newest.order {
		*newest = *slot
	}
	return 1
}

// detectLoss finds datagrams that later ones have overtaken, in number and in time.
func (s *Stream) detectLoss(now clock.Instant) {
	o := &s.out
	o.lossAt = 0
	late := max(s.control.lastRTT, s.control.srtt) + s.control.reorder()
	for o.first != 0 {
		slot := o.at(o.first)
		if slot.order+fastRetransmit > o.highest {
			return
		}
		if due := slot.sample.sentAt.Add(late); due > now {
			o.lossAt = due
			return
		}
		o.markLost(o.first)
		s.control.lost(1)
	}
}

// retransmitAt is when the oldest datagram under way is given up.
func (s *Stream) retransmitAt() clock.Instant {
	o := &s.out
	if o.first == 0 {
		return clock.Never
	}
	return max(o.progress, o.at(o.first).sample.sentAt).Add(s.control.rto(o.backoff))
}

// outTimers does what is due in the sending half.
func (s *Stream) outTimers(now clock.Instant) {
	o := &s.out
	if o.lossAt != 0 && o.lossAt.Reached(now) {
		s.detectLoss(now)
	}
	if s.retransmitAt().Reached(now) {
		s.timeout(now)
	}
	if o.persistAt != 0 && o.persistAt.Reached(now) {
		o.persistAt = 0
		o.backoff++
		s.sendSlot(now, o.next) // one beyond the window: its acknowledgement tells the window
	}
}

func (s *Stream) timeout(now clock.Instant) {
	o := &s.out
	o.backoff++
	o.unanswered++
	s.mux.stats.Timeouts++
	if o.unanswered > unansweredMax && now.Sub(s.heard) > s.patience() {
		s.end(eventTimeout, ReasonTimeout)
		return
	}
	o.markLost(o.first)
	if o.unanswered > 1 {
		for o.first != 0 {
			o.markLost(o.first)
		}
	}
	s.control.timedOut()
	s.suspect(now)
}

// patience is how long the other end may be silent while it owes acknowledgements. A relayed stream may
// have to find another way first.
func (s *Stream) patience() time.Duration {
	if s.via != s.peer {
		return 3 * silenceMax / 2
	}
	return silenceMax
}
