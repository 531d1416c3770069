package gossip

import (
	"fmt"
	"math/bits"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/wire"
)

const (
	hashSlotsMin = 64             // powers of two: the tables double while they are more than half full
	hashSlotsMax = 2 * PendingMax // so that an idle cell does not hold 64 KiB for frames it never has
	none         = int32(-1)
)

// slot is one frame on its way to one peer.
type slot struct {
	used       bool
	ring       bool // the ring edge: moves on when the peer does not answer
	moved      bool // a further successor was given the frame already
	lost       bool // the peer is known to be gone
	attempts   uint8
	moves      uint8 // successors given up before this peer
	nameLength uint8
	frame      uint16
	nonce      uint32
	peer       wire.CellID
	except     wire.CellID
	keyHash    uint64
	due        clock.Instant
	name       [wire.NameMax]byte

	heapAt     int32
	nonceNext  int32 // chain of equal nonce hash; also the free list
	keyNext    int32 // chain of equal key hash
	rankBefore int32 // list of equal attempts, oldest first
	rankAfter  int32
}

// attemptsMax returns how often the slot's peer is tried.
func (s *slot) attemptsMax() uint8 {
	if s.ring {
		return attemptsMax
	}
	return attemptsRandom
}

// pending holds the slots with four indices over them: a heap by due time, hash chains by (peer, nonce)
// and by (peer, key, frame), and one list per number of attempts. All links are slot numbers, so nothing
// is allocated once the slots have grown to what is needed.
type pending struct {
	slots   []slot
	count   int
	free    int32
	heap    []int32
	seed    uint64
	nonces  []int32
	keys    []int32
	rankOld [attemptsMax + 1]int32 // oldest slot of a number of attempts
	rankNew [attemptsMax + 1]int32
}

func (p *pending) init(seed uint64) {
	p.seed, p.free = seed|1, none
	p.makeTables(hashSlotsMin)
	for i := range p.rankOld {
		p.rankOld[i], p.rankNew[i] = none, none
	}
}

func (p *pending) makeTables(size int) {
	p.nonces, p.keys = make([]int32, size), make([]int32, size)
	for i := range size {
		p.nonces[i], p.keys[i] = none, none
	}
}

// grow doubles the tables and puts the slots in use into them.
func (p *pending) grow() {
	p.makeTables(2 * len(p.nonces))
	for at := range p.slots {
		if p.slots[at].used {
			p.linkKey(int32(at))
			p.linkNonce(int32(at))
		}
	}
}

// add takes a slot that was not sent yet. The caller keeps to PendingMax.
func (p *pending) add(peer wire.CellID, keyHash uint64, frame int) int32 {
	if p.count > len(p.nonces)/2 && len(p.nonces) < hashSlotsMax {
		p.grow()
	}
	at := p.free
	if at == none {
		if len(p.slots) == PendingMax {
			panic("gossip: no slot left although one was freed")
		}
		p.slots = append(p.slots, slot{})
		at = int32(len(p.slots) - 1)
	} else {
		p.free = p.slots[at].nonceNext
	}
	s := &p.slots[at]
	*s = slot{used: true, peer: peer, keyHash: keyHash, frame: uint16(frame), due: clock.Never, heapAt: none}
	p.count++
	p.linkKey(at)
	p.linkNonce(at)
	p.linkRank(at)
	p.push(at)
	return at
}

func (p *pending) remove(at int32) {
	s := &p.slots[at]
	if !s.used {
		panic(fmt.Sprintf("gossip: slot %d removed twice", at))
	}
	p.unlinkKey(at)
	p.unlinkNonce(at)
	p.unlinkRank(at)
	p.pull(at)
	s.used = false
	s.nonceNext, p.free = p.free, at
	p.count--
}

// sent notes an attempt.
func (p *pending) sent(at int32, nonce uint32, attempts uint8, due clock.Instant) {
	s := &p.slots[at]
	p.unlinkNonce(at)
	p.unlinkRank(at)
	s.nonce, s.attempts, s.lost = nonce, attempts, false
	p.linkNonce(at)
	p.linkRank(at)
	p.reschedule(at, due)
}

// readdress gives the slot another peer.
func (p *pending) readdress(at int32, peer wire.CellID) {
	s := &p.slots[at]
	p.unlinkKey(at)
	p.unlinkNonce(at)
	s.peer, s.moves = peer, s.moves+1
	p.linkKey(at)
	p.linkNonce(at)
}

// byNonce returns the slot that waits for this acknowledgement, or none.
func (p *pending) byNonce(peer wire.CellID, nonce uint32) int32 {
	for at := p.nonces[p.nonceHash(peer, nonce)]; at != none; at = p.slots[at].nonceNext {
		if s := &p.slots[at]; s.peer == peer && s.nonce == nonce && s.attempts > 0 {
			return at
		}
	}
	return none
}

// byKey returns the slot of a frame on its way to a peer, or none.
func (p *pending) byKey(peer wire.CellID, keyHash uint64, frame int) int32 {
	for at := p.keys[p.keyHash(peer, keyHash, uint16(frame))]; at != none; at = p.slots[at].keyNext {
		if s := &p.slots[at]; s.peer == peer && s.keyHash == keyHash && int(s.frame) == frame {
			return at
		}
	}
	return none
}

// mostAttempts returns the oldest slot among those with the most attempts. There must be a slot.
func (p *pending) mostAttempts() int32 {
	for rank := attemptsMax; rank >= 0; rank-- {
		if p.rankOld[rank] != none {
			return p.rankOld[rank]
		}
	}
	panic("gossip: no pending frame")
}

func mix(a, b uint64) uint64 {
	high, low := bits.Mul64(a^0x9e3779b97f4a7c15, b^0xd1b54a32d192ed03)
	return high ^ low
}

func (p *pending) nonceHash(peer wire.CellID, nonce uint32) int {
	return int(mix(mix(uint64(peer), p.seed)^uint64(nonce), p.seed) % uint64(len(p.nonces)))
}

func (p *pending) keyHash(peer wire.CellID, keyHash uint64, frame uint16) int {
	return int(mix(mix(uint64(peer)^uint64(frame), p.seed)^keyHash, p.seed) % uint64(len(p.keys)))
}

func (p *pending) linkNonce(at int32) {
	s := &p.slots[at]
	head := &p.nonces[p.nonceHash(s.peer, s.nonce)]
	s.nonceNext, *head = *head, at
}

func (p *pending) unlinkNonce(at int32) {
	s := &p.slots[at]
	link := &p.nonces[p.nonceHash(s.peer, s.nonce)]
	for *link != at {
		link = &p.slots[*link].nonceNext
	}
	*link = s.nonceNext
}

func (p *pending) linkKey(at int32) {
	s := &p.slots[at]
	head := &p.keys[p.keyHash(s.peer, s.keyHash, s.frame)]
	s.keyNext, *head = *head, at
}

func (p *pending) unlinkKey(at int32) {
	s := &p.slots[at]
	link := &p.keys[p.keyHash(s.peer, s.keyHash, s.frame)]
	for *link != at {
		link = &p.slots[*link].keyNext
	}
	*link = s.keyNext
}

func (p *pending) linkRank(at int32) {
	s := &p.slots[at]
	newest := p.rankNew[s.attempts]
	s.rankBefore, s.rankAfter = newest, none
	p.rankNew[s.attempts] = at
	if newest == none {
		p.rankOld[s.attempts] = at
	} else {
		p.slots[newest].rankAfter = at
	}
}

func (p *pending) unlinkRank(at int32) {
	s := &p.slots[at]
	if s.rankBefore == none {
		p.rankOld[s.attempts] = s.rankAfter
	} else {
		p.slots[s.rankBefore].rankAfter = s.rankAfter
	}
	if s.rankAfter == none {
		p.rankNew[s.attempts] = s.rankBefore
	} else {
		p.slots[s.rankAfter].rankBefore = s.rankBefore
	}
}
