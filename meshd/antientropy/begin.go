package antientropy

import (
	"colloid.net/meshd/clock"
	"colloid.net/meshd/wire"
)

// state puts down what this side states at the beginning: root, key count and, if asked for or if
// garbage waits for it, the vector. The view is frozen at the same moment.
func (a *Sessions) state(s *session, root uint64, vector bool) {
	deleted, emptied := a.Store.Tombstones()
	s.stated = s.stated[:0]
	if vector || deleted+emptied > 0 {
		s.stated = a.Store.AppendStable(s.stated)
		if len(s.stated) > vectorDotsMax*wire.DotSize {
			s.stated = s.stated[:vectorDotsMax*wire.DotSize] // the rest counts as 0, which is safe
		}
	}
	first := s.stated[:min(len(s.stated), wire.BeginVectorMax*wire.DotSize)]
	s.statedSent = len(first) / wire.DotSize
	s.begin = wire.AppendBegin(s.begin[:0],
		wire.Begin{KeyCount: uint32(a.Store.Len()), Root: root, Vector: first})
}

// vectorDotsMax is what AE_VV can count.
const vectorDotsMax = 1<<16 - 1

func (a *Sessions) sendBegin(now clock.Instant, s *session) {
	o := s.window.take(kindBegin)
	o.payload = append(o.payload, s.begin...)
	a.send(now, s, o, s.nonce)
}

// whole reports whether a BEGIN holds its vector completely: a full one is always followed by AE_VV.
func whole(vector []byte) bool { return len(vector) < wire.BeginVectorMax*wire.DotSize }

// receiveBegin starts a session as its responder, or lets the own one go on.
func (a *Sessions) receiveBegin(now clock.Instant, s *session, from wire.CellID, nonce uint32,
	payload []byte) {
	begin, err := wire.ParseBegin(payload)
	if err != nil || from == a.Self {
		a.stats.Dropped++
		return
	}
	if s != nil && s.initiator && s.nonce == nonce {
		a.receiveReply(now, s, begin)
		return
	}
	if a.begunHere(from, nonce) {
		a.stats.Dropped++ // a late answer, or the second one to a repeated BEGIN
		return
	}
	bootstrap := false
	switch {
	case s == nil:
	case !s.initiator && s.nonce == nonce: // our reply was lost
		s.heard = now
		if now.Sub(s.replied) >= replyInterval {
			s.replied = now
			a.Send(from, wire.TypeAEBegin, nonce, s.begin)
		}
		return
	case !s.initiator: // the peer gave the old session up
		a.fail(s)
	case a.Self > from || s.begun && now.Sub(s.heard) > yieldAfterSilence:
		bootstrap = s.bootstrap // our wish is fulfilled by the peer's session
		a.fail(s)
	default: // both began; the peer will give way
		return
	}
	if a.idle() == nil {
		a.wait(now, from, nonce, payload)
		return
	}
	a.respond(now, from, nonce, begin, bootstrap)
}

// respond answers a BEGIN with our own; an incoming session must be free.
func (a *Sessions) respond(now clock.Instant, from wire.CellID, nonce uint32, begin wire.Begin,
	bootstrap bool) {
	s := a.idle()
	a.open(s, now, from, false, nonce)
	s.bootstrap, s.begun = bootstrap, true
	a.count++
	root := a.Store.Root()
	a.state(s, root, len(begin.Vector) > 0 || (a.count-1)%VectorEvery == 0)
	equal := s.over(root, begin)
	if !equal { // most sessions are over here, and a view is dear
		s.view = a.Store.View()
	}
	a.meet(s, begin)
	s.replied = now
	a.Send(from, wire.TypeAEBegin, nonce, s.begin)
	a.plan(s)
	if equal {
		a.stats.Equal++
		a.complete(now, s)
	}
}

// receiveReply takes the responder's BEGIN.
func (a *Sessions) receiveReply(now clock.Instant, s *session, begin wire.Begin) {
	if s.begun {
		return
	}
	o, waiting := s.window.find(s.nonce)
	if !waiting || o.kind != kindBegin {
		panic("antientropy: begin is not in the window")
	}
	s.heard = now
	s.window.measure(now, o)
	s.window.free(o)
	s.begun = true
	a.meet(s, begin)
	if s.over(s.view.Root(), begin) {
		a.stats.Equal++
		a.complete(now, s)
		return
	}
	switch root := s.view.Root(); {
	case root == begin.Root:
	case root == 0 || begin.Root == 0:
		s.differ(0, 0)
	default:
		s.drills = append(s.drills, wire.MerkleRange{Levels: drillLevels(0)})
	}
}

// meet notes what the peer stated.
func (a *Sessions) meet(s *session, begin wire.Begin) {
	s.vector = append(s.vector[:0], begin.Vector...)
	if whole(begin.Vector) {
		s.vectorSize = len(begin.Vector) / wire.DotSize
		a.learn(s)
	}
	here, there := uint64(a.Store.Len()), uint64(begin.KeyCount)
	s.fast = s.fast || 2*here < there || 2*there < here
}

// learn keeps a complete vector of the peer for garbage collection. The latest statement counts, also
// if it is lower: the peer may have lost state.
func (a *Sessions) learn(s *session) {
	if len(s.vector) == 0 {
		return
	}
	known, present := a.vectors[s.peer]
	if present || len(a.vectors) < vectorsMax {
		a.vectors[s.peer] = append(known[:0], s.vector...)
	}
}

// over reports whether the two BEGINs were enough. Both sides decide alike, because both look at the same two
// messages.
func (s *session) over(root uint64, begin wire.Begin) bool {
	return root == begin.Root && whole(begin.Vector) && whole(s.stated)
}

// vectorsLeft reports whether parts of our vector are still to be sent. A vector that fills BEGIN
// exactly needs one empty AE_VV to say that there is no more.
func (s *session) vectorsLeft() bool {
	return !whole(s.stated) && s.statedSent <= len(s.stated)/wire.DotSize
}

func (a *Sessions) sendVector(now clock.Instant, s *session) {
	total := len(s.stated) / wire.DotSize
	end := min(s.statedSent+wire.VectorMax, total)
	o := s.window.take(kindVector)
	o.payload = wire.AppendVector(o.payload, wire.Vector{Total: uint16(total), Offset: uint16(s.statedSent),
		Part: s.stated[s.statedSent*wire.DotSize : end*wire.DotSize]})
	s.statedSent = end
	if end == total {
		s.statedSent++ // nothing left
	}
	a.send(now, s, o, o.nonce)
}

// vectorWhole reports whether all of the peer's vector is here; an incomplete one is not used at all.
func (s *session) vectorWhole() bool { return len(s.vector) == s.vectorSize*wire.DotSize }

// receiveVector takes the next part of the peer's vector. A part that comes too early is not
// acknowledged and so comes again; memory grows with what was received, not with what was announced.
func (a *Sessions) receiveVector(s *session, nonce uint32, payload []byte) {
	v, err := wire.ParseVector(payload)
	if err != nil || s == nil || !s.begun || whole(s.vector) ||
		s.vectorSize >= 0 && s.vectorSize != int(v.Total) {
		a.stats.Dropped++
		return
	}
	have := len(s.vector) / wire.DotSize
	if int(v.Offset) > have {
		return
	}
	if int(v.Offset) == have && !s.vectorWhole() {
		s.vectorSize = int(v.Total)
		s.vector = append(s.vector, v.Part...)
		if wire.CheckVector(s.vector) != nil {
			a.stats.Dropped++
			a.fail(s) // parts that do not fit together: the peer is broken
			return
		}
		if s.vectorWhole() {
			a.learn(s)
		}
	}
	a.acknowledge(s.peer, nonce, 0)
}

// receiveEnd ends the session of an initiator, or tells a responder that it may end it.
func (a *Sessions) receiveEnd(now clock.Instant, s *session, from wire.CellID, nonce uint32, payload []byte) {
	switch {
	case len(payload) != 0:
		a.stats.Dropped++
	case s != nil && s.nonce == nonce && !s.initiator:
		s.peerEnded = true
	case s != nil && s.nonce == nonce:
		if o, known := s.window.find(nonce); known && o.kind == kindEnd {
			a.complete(now, s)
		}
	case a.wasClosed(from, nonce) && !a.begunHere(from, nonce):
		// Our last END was lost. Only the responder says it again: if both did, two cells whose ENDs were
		// duplicated would answer each other for ever.
		a.Send(from, wire.TypeAEEnd, nonce, nil)
	default:
		a.stats.Dropped++
	}
}

func (a *Sessions) wasClosed(peer wire.CellID, nonce uint32) bool {
	for _, e := range a.closed {
		if e.peer == peer && e.nonce == nonce {
			return true
		}
	}
	return false
}
