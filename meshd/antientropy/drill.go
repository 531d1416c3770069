package antientropy

import (
	"colloid.net/meshd/clock"
	"colloid.net/meshd/crdt"
	"colloid.net/meshd/wire"
)

const (
	drillRangesMax   = 8  // per request: as many responses of up to 1 KiB come back at once
	requestRangesMax = 32 // what a responder answers of one request
	askRangesMax     = 64 // questions per message
)

// drillLevels returns how many levels to compare below a depth: 7, then 5, then 4. The same three round
// trips as 7, 7, 2, but an isolated difference costs 128+32+16 hashes instead of 128+128+4.
func drillLevels(depth uint8) uint8 {
	switch depth {
	case 0:
		return 7
	case 7:
		return 5
	}
	return 4
}

// sendDrill asks for the digests below the ranges on top of the stack.
func (a *Sessions) sendDrill(now clock.Instant, s *session) {
	o := s.window.take(kindDrill)
	for count := 0; count < drillRangesMax && len(s.drills) > 0; count++ {
		last := len(s.drills) - 1
		o.payload = wire.AppendMerkleReq(o.payload, s.drills[last])
		s.drills = s.drills[:last]
	}
	a.send(now, s, o, o.nonce)
}

// sendAsk asks for the state of differing leaves, as few ranges as possible.
func (a *Sessions) sendAsk(now clock.Instant, s *session, leaf int) {
	o := s.window.take(kindAsk)
	for any := true; any && len(o.payload) < askRangesMax*wire.MerkleRangeSize; leaf, any = s.asks.Next(leaf) {
		depth := uint8(wire.MerkleDepth)
		for depth > 0 && allSet(&s.asks, depth-1, leaf) {
			depth--
		}
		below := wire.MerkleDepth - depth
		o.payload = wire.AppendMerkleReq(o.payload, wire.MerkleRange{Depth: depth, Prefix: uint16(leaf >> below)})
		s.asks.Remove(leaf, leaf+1<<below)
	}
	a.send(now, s, o, o.nonce)
}

// allSet reports whether leaf is the first one below a node of that depth and all of these are set.
func allSet(set *crdt.LeafSet, depth uint8, leaf int) bool {
	width := 1 << (wire.MerkleDepth - depth)
	return leaf&(width-1) == 0 && set.Holds(leaf, leaf+width)
}

// receiveRequest answers comparisons from the frozen digests and takes note of the leaves asked for.
func (a *Sessions) receiveRequest(s *session, nonce uint32, payload []byte) {
	if _, err := wire.CheckMerkleReq(payload); err != nil || s == nil || s.initiator {
		a.stats.Dropped++
		return
	}
	asked := false
	for answered := 0; len(payload) > 0; {
		m, rest, _ := wire.NextMerkleReq(payload)
		payload = rest
		if m.Levels == 0 {
			asked = true
			s.want(m)
			continue
		}
		if answered == requestRangesMax {
			continue // asked for again
		}
		answered++
		a.hashes = s.view.Level(int(m.Depth), int(m.Prefix), int(m.Levels), a.hashes[:0])
		a.Send(s.peer, wire.TypeAEMerkleResp, nonce, wire.AppendMerkleResp(a.scratch[:0], m, a.hashes))
	}
	if asked {
		a.acknowledge(s.peer, nonce, 0)
	}
}

// want marks the leaves below a node for sending, once.
func (s *session) want(m wire.MerkleRange) {
	below := wire.MerkleDepth - m.Depth
	first := int(m.Prefix) << below
	s.wanted.Add(first, first+1<<below, &s.done)
}

// receiveResponse compares a level of the peer's tree with ours.
func (a *Sessions) receiveResponse(now clock.Instant, s *session, nonce uint32, payload []byte) {
	hashes, err := wire.ParseMerkleResp(payload)
	if err != nil || s == nil || !s.initiator {
		a.stats.Dropped++
		return
	}
	o, known := s.window.find(nonce)
	if !known || o.kind != kindDrill || !takeRange(o, hashes.Range) {
		return // repeated
	}
	if len(o.payload) == 0 {
		s.window.measure(now, o)
		s.window.free(o)
	}
	m := hashes.Range
	a.hashes = s.view.Level(int(m.Depth), int(m.Prefix), int(m.Levels), a.hashes[:0])
	depth := m.Depth + m.Levels
	for i, ours := range a.hashes {
		theirs := hashes.At(i)
		prefix := int(m.Prefix)<<m.Levels | i
		switch {
		case ours == theirs:
		case ours == 0 || theirs == 0 || depth == wire.MerkleDepth:
			s.differ(int(depth), prefix)
		default:
			s.drills = append(s.drills,
				wire.MerkleRange{Depth: depth, Prefix: uint16(prefix), Levels: drillLevels(depth)})
		}
	}
}

// takeRange strikes an answered range off a request; what is left is asked for again.
func takeRange(o *outstanding, m wire.MerkleRange) bool {
	for rest := o.payload; len(rest) > 0; {
		other, after, err := wire.NextMerkleReq(rest)
		if err != nil {
			panic("antientropy: own request is malformed")
		}
		if other == m {
			copy(rest, after)
			o.payload = o.payload[:len(o.payload)-wire.MerkleRangeSize]
			return true
		}
		rest = after
	}
	return false
}

// differ has the leaves below a node exchanged both ways: registers without entries are in no digest,
// but may be just what the other side lacks (F45 v).
func (s *session) differ(depth, prefix int) {
	below := wire.MerkleDepth - depth
	first := prefix << below
	s.asks.Add(first, first+1<<below, nil)
	s.wanted.Add(first, first+1<<below, nil)
}
