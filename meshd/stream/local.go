package stream

// localMax bounds what the reader of a stream within the cell is behind, in datagrams.
const localMax = 256

// openLocal makes both ends of a stream within this cell. Chunks change hands without being copied, sealed
// or sent.
func (m *Mux) openLocal(s *Stream) {
	other := &Stream{
		mux: m, peer: s.peer, id: s.id, kind: s.kind, class: s.class, name: s.name, grant: s.grant,
		state: Incoming, via: s.peer, pair: s,
	}
	other.out.init()
	other.in.init()
	s.pair = other
	m.list = append(m.list, s, other)
	m.arrivals = append(m.arrivals, other)
	m.kick()
}

// localFlush hands over what was written, as far as the reader has room.
func (s *Stream) localFlush() {
	o, reader := &s.out, s.pair
	if !s.state.established() || reader.state == Closed && reader.told {
		return
	}
	for o.next != o.end && o.next-reader.in.read < localMax && reader.in.room(o.next) {
		slot := o.at(o.next)
		if slot.flags&slotFin != 0 {
			reader.in.fin = o.next
		}
		reader.in.place(o.next, inSlot{buffer: slot.buffer, size: slot.size})
		slot.buffer = nil
		o.next++
		o.una = o.next
	}
	reader.advanced()
	if s.wantWrite && o.room() {
		s.raise(pendingWritable)
	}
	if o.finished && o.una == o.end && (s.state == LocalFin || s.state == Closing) {
		s.move(eventFinished)
	}
	s.mux.kick()
}
