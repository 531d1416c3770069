package stream

import (
	"math/bits"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/wire"
)

const (
	bitmapWords = WindowMax / 64
	// ackEvery is how many datagrams in order are acknowledged together, ackDelay how long one waits
	// for company.
	ackEvery = 2
	ackDelay = 2 * time.Millisecond
	// updateStep is how much the window must have opened to be worth a datagram of its own.
	updateStep = WindowMax / 4
	inMin      = 32
	// scarce is the memory of all streams below which only what is in order is taken.
	scarce = 64
)

// inSlot is one sequence number that has arrived and is not read to its end.
type inSlot struct {
	buffer       *chunk // nil for a CLOSE
	offset, size uint16
}

// incoming is the receiving half. Sequences: below read is read, up to cum has arrived, up to top
// something has.
type incoming struct {
	slots          []inSlot
	have           [bitmapWords]uint64 // of (cum, cum+WindowMax], by sequence modulo WindowMax
	read, cum, top uint32
	fin            uint32 // sequence of the CLOSE, 0 = not seen
	limit          uint32 // greatest sequence that was promised room
	unacked        int
	ackNow         bool
	ackAt          clock.Instant // 0 = none due
	extended       [bitmapWords * 8]byte
}

func (in *incoming) init() {
	in.read = 1
	in.limit = windowInitial
}

func (in *incoming) at(sequence uint32) *inSlot { return &in.slots[sequence&uint32(len(in.slots)-1)] }

func (in *incoming) has(sequence uint32) bool {
	return in.have[sequence%WindowMax/64]&(1<<(sequence%64)) != 0
}

// room makes place for a sequence; it reports false for one outside of the window.
func (in *incoming) room(sequence uint32) bool {
	span := int(sequence-in.read) + 1
	if span > WindowMax {
		return false
	}
	if span > len(in.slots) {
		old := in.slots
		size := max(2*len(old), inMin)
		for size < span {
			size *= 2
		}
		in.slots = make([]inSlot, size)
		for s := in.read; s != in.top+1 && len(old) > 0; s++ {
			*in.at(s) = old[s&uint32(len(old)-1)]
		}
	}
	return true
}

// place puts a slot and advances over everything that is complete.
func (in *incoming) place(sequence uint32, slot inSlot) {
	*in.at(sequence) = slot
	in.have[sequence%WindowMax/64] |= 1 << (sequence % 64)
	in.top = max(in.top, sequence)
	for in.has(in.cum + 1) {
		in.cum++
		in.have[in.cum%WindowMax/64] &^= 1 << (in.cum % 64)
	}
}

// release gives all memory back.
func (in *incoming) release(memory *pool) {
	if len(in.slots) > 0 {
		for sequence := in.read; sequence != in.top+1; sequence++ {
			if slot := in.at(sequence); slot.buffer != nil && (sequence <= in.cum || in.has(sequence)) {
				memory.put(slot.buffer)
				slot.buffer = nil
			}
		}
	}
	in.slots, in.read = nil, in.top+1
	in.ackNow, in.ackAt = false, 0
}

// receiveData takes one datagram of the other end.
func (s *Stream) receiveData(now clock.Instant, data wire.StreamData) {
	in, m := &s.in, s.mux
	if data.Sequence <= in.cum || data.Sequence <= in.top && in.has(data.Sequence) {
		m.stats.Duplicates++
		in.ackNow = true
		return
	}
	if !s.state.receiving() || in.fin != 0 && data.Sequence > in.fin || len(data.Data) <= tagSize {
		m.stats.Malformed++
		return
	}
	inOrder := data.Sequence == in.cum+1
	var buffer *chunk
	if in.room(data.Sequence) && (inOrder || m.pool.available() > scarce) && m.share(s) {
		buffer = m.pool.get()
	}
	if buffer == nil {
		m.stats.NoRoom++
		in.ackNow = true
		return
	}
	size := s.keys.openData(buffer, data.Data, data.Sequence)
	if size < 0 {
		m.pool.put(buffer)
		m.stats.Forged++
		return
	}
	m.stats.ReceivedBytes += uint64(size)
	s.heardNow(now)
	in.place(data.Sequence, inSlot{buffer: buffer, size: uint16(size)})
	s.scheduleAck(now, inOrder)
	s.advanced()
}

// receiveFin takes a CLOSE of the other end.
func (s *Stream) receiveFin(now clock.Instant, fin *wire.StreamClose) {
	in, m := &s.in, s.mux
	if fin.Sequence <= in.cum || in.fin != 0 {
		in.ackNow = true
		return
	}
	if !s.state.receiving() || fin.Sequence <= in.top || !in.room(fin.Sequence) {
		m.stats.Malformed++
		return
	}
	m.tag = fin.Tag
	if !s.keys.openFin(&m.tag, fin.Sequence) {
		m.stats.Forged++
		return
	}
	s.heardNow(now)
	in.fin = fin.Sequence
	in.place(fin.Sequence, inSlot{})
	in.ackNow = true
	s.advanced()
}

func (s *Stream) scheduleAck(now clock.Instant, inOrder bool) {
	in := &s.in
	in.unacked++
	if in.unacked >= ackEvery || !inOrder || in.cum != in.top {
		in.ackNow = true
	} else if in.ackAt == 0 {
		in.ackAt = now.Add(ackDelay)
	}
}

// advanced tells the reader, and the state machine of the end.
func (s *Stream) advanced() {
	in := &s.in
	if in.read <= in.cum {
		s.raise(pendingReadable)
	}
	if in.fin != 0 && in.cum == in.fin && s.state.receiving() {
		in.ackNow = true
		s.move(eventEnd)
	}
}

// credit is the greatest sequence that there is room for.
func (s *Stream) credit() uint32 {
	in := &s.in
	free := s.mux.pool.available() / 2
	return min(in.read-1+WindowMax, in.cum+uint32(max(free, windowInitial)))
}

// sendAck says what has arrived.
func (s *Stream) sendAck() {
	in, m := &s.in, s.mux
	in.ackNow, in.ackAt, in.unacked = false, 0, 0
	in.limit = max(s.credit(), in.cum)
	ack := wire.StreamAck{Stream: s.id, Sequence: in.cum, Credit: in.limit - in.cum}
	if in.top > in.cum {
		ack.Selective = in.bits(in.cum + 2)
		size := 0
		for sequence := in.cum + 66; sequence <= in.top && size < len(in.extended); sequence += 8 {
			in.extended[size] = byte(in.bits(sequence))
			size++
		}
		if size > 0 {
			ack.Extensions = wire.AppendExtension(m.extension[:0], wire.ExtensionSelective, in.extended[:size])
		}
	}
	m.stats.Acknowledgements++
	m.send(s, wire.TypeStreamAck, wire.AppendStreamAck(m.payload[:0], ack))
}

// bits returns which of 64 sequences have arrived, as far as they lie in the window.
func (in *incoming) bits(from uint32) uint64 {
	word, shift := from%WindowMax/64, from%64
	low := in.have[word] >> shift
	high := in.have[(word+1)%bitmapWords] << (64 - shift)
	if beyond := in.cum + WindowMax + 1 - from; beyond < 64 { // the ring begins again
		return (low | high) & (1<<beyond - 1)
	}
	return low | high
}

// peek returns what can be read without copying: nil if there is nothing now.
func (in *incoming) peek() []byte {
	if in.read > in.cum || in.read == in.fin {
		return nil
	}
	slot := in.at(in.read)
	return slot.buffer[slot.offset:slot.size]
}

// discard consumes n bytes of what peek has shown.
func (s *Stream) discard(n int) {
	in := &s.in
	slot := in.at(in.read)
	slot.offset += uint16(n)
	if slot.offset < slot.size {
		return
	}
	s.mux.pool.put(slot.buffer)
	slot.buffer = nil
	in.read++
	if s.pair != nil {
		s.pair.localFlush()
		return
	}
	if limit := s.credit(); s.state.receiving() && limit > in.limit &&
		(limit-in.limit >= updateStep || in.limit == in.cum) {
		in.ackNow = true
		s.mux.kick()
	}
}

func trailingZeros(bitmap uint64) uint32 { return uint32(bits.TrailingZeros64(bitmap)) }
