package antientropy

import (
	"colloid.net/meshd/clock"
	"colloid.net/meshd/crdt"
	"colloid.net/meshd/wire"
)

// acknowledge sends a 0x06.
func (a *Sessions) acknowledge(to wire.CellID, nonce uint32, hash uint64) {
	a.Send(to, wire.TypeDeltaAck, nonce, wire.AppendDeltaAck(a.scratch[:0], hash))
}

// receiveAck frees a message of the window, and acknowledges what an answer held back.
func (a *Sessions) receiveAck(now clock.Instant, s *session, nonce uint32) {
	if s == nil {
		return
	}
	o, known := s.window.find(nonce)
	if !known || o.kind == kindBegin || o.kind == kindEnd || o.kind == kindDrill {
		return
	}
	s.heard = now
	s.window.measure(now, o)
	if o.kind == kindAnswer {
		a.acknowledge(s.peer, o.ackNonce, o.ackHash)
	}
	s.window.free(o)
}

// receiveState merges the records of one message. Entries that are superseded here are answered, and
// then the message is acknowledged only together with the answer (package comment).
func (a *Sessions) receiveState(now clock.Instant, s *session, from wire.CellID, nonce uint32,
	payload []byte) {
	if _, err := wire.CheckState(payload); err != nil || from == a.Self {
		a.stats.Dropped++
		return
	}
	if s != nil && (s.window.objecting(nonce) || s.window.objects == slotsMax) {
		return // answered already, or no room to object: it will come again
	}
	answers := a.scratch[:0]
	first := uint64(0)
	for rest := payload; len(rest) > 0; {
		rest, _ = wire.NextStateRecord(rest, &a.record)
		if first == 0 {
			first = a.record.KeyHash
		}
		outcome := a.Merge(now, from, &a.record)
		if outcome.Rejected {
			// Not acknowledged: the peer must not believe that its state is here.
			a.stats.Dropped++
			if s != nil && outcome.Full {
				a.fail(s)
			}
			return
		}
		a.stats.Records++
		if outcome.Stale && !a.willSee(s, &a.record) {
			// An answer holds for each entry 16 bytes where its record held 34 or more, so all answers fit.
			a.Store.StaleAnswer(&a.answer)
			answers = wire.AppendStateRecord(answers, &a.answer)
		}
	}
	switch {
	case len(answers) == 0:
		a.acknowledge(from, nonce, first)
	case s == nil:
		// Nobody here waits until the answer is acknowledged, so the message is not acknowledged either: it
		// may belong to a session that goes on at the peer only. Gossip gives up after a few tries.
		a.Send(from, wire.TypeAEState, a.Random.Uint32(), answers)
	default:
		o := s.window.take(kindAnswer)
		o.payload = append(o.payload, answers...)
		o.ackNonce, o.ackHash = nonce, first
		a.send(now, s, o, o.nonce)
	}
}

// willSee reports whether the peer gets the present register of a record in this session anyway: then
// the register's context answers for itself.
func (a *Sessions) willSee(s *session, record *wire.Record) bool {
	if s == nil || !s.wanted.Has(crdt.LeafOf(record.KeyHash)) || s.cursor.leaf == crdt.LeafOf(record.KeyHash) {
		return false
	}
	r, present := a.Store.Lookup(record.KeyHash, record.Name)
	return present && r.EntryCount() > 0 && !r.Deleted() // so that it cannot be collected before it is sent
}

// sendState sends one frame with as many registers of the wanted leaves as fit. It reports false if
// there was none.
func (a *Sessions) sendState(now clock.Instant, s *session) bool {
	o := s.window.take(kindState)
	for {
		r, ok := a.nextRegister(s)
		if !ok {
			break
		}
		if len(o.payload) > 0 && stateSize(r) > wire.SealedPayloadMax-len(o.payload) {
			break
		}
		if stateSize(r) > wire.SealedPayloadMax || r.ContextCount() > wire.FrameContextMax {
			if len(o.payload) == 0 {
				o.payload = a.appendFragment(s, r, o.payload)
			}
			break
		}
		r.Record(&a.answer)
		o.payload = wire.AppendStateRecord(o.payload, &a.answer)
		s.cursor.pass(r)
	}
	if len(o.payload) == 0 {
		s.window.free(o)
		return false
	}
	a.stats.Frames++
	a.send(now, s, o, o.nonce)
	return true
}

func stateSize(r crdt.Register) int {
	return wire.RecordHeadSize + len(r.Entries()) + len(r.Context()) + len(r.Name())
}

// pass moves the cursor behind a register.
func (c *cursor) pass(r crdt.Register) {
	c.hash = r.KeyHash()
	c.nameLength = copy(c.name[:], r.Name())
	c.fragment = 0
}

// nextRegister returns the register to be sent next, moving the cursor over leaves that are through.
func (a *Sessions) nextRegister(s *session) (crdt.Register, bool) {
	for {
		c := &s.cursor
		if c.leaf < 0 {
			leaf, any := s.wanted.Next(0)
			if !any {
				return crdt.Register{}, false
			}
			*c = cursor{leaf: leaf, hash: uint64(leaf) << (64 - crdt.Depth)}
		}
		r, ok := a.Store.After(c.hash, c.name[:c.nameLength])
		if ok && crdt.LeafOf(r.KeyHash()) == c.leaf {
			return r, true
		}
		// Leaves between here and the next register are empty.
		next := crdt.Leaves
		if ok {
			next = crdt.LeafOf(r.KeyHash())
		}
		s.wanted.Set(c.leaf) // it counts as done even if nobody wants it any more
		s.wanted.Move(c.leaf, next, &s.done)
		c.leaf = -1
	}
}

// appendFragment appends the next part of a register that does not fit in one frame (F43). If the
// register changed since the last part, it starts again: the parts must together be one state.
func (a *Sessions) appendFragment(s *session, r crdt.Register, dst []byte) []byte {
	c := &s.cursor
	if fingerprint := r.Fingerprint(); c.fragment == 0 || c.fingerprint != fingerprint {
		c.fragment, c.fingerprint = 0, fingerprint
	}
	number := 0
	more := false
	a.Store.FramesOf(r, wire.SealedPayloadMax, func(record *wire.Record) bool {
		if number > c.fragment {
			more = true
			return false
		}
		if number == c.fragment {
			dst = wire.AppendStateRecord(dst, record)
		}
		number++
		return true
	})
	if more {
		c.fragment++
	} else {
		c.pass(r)
	}
	return dst
}
