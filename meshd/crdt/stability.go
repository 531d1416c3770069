package crdt

import (
	"encoding/binary"

	"colloid.net/meshd/wire"
)

// StableActorsMax bounds the vector C. Actors beyond it count as 0, which delays garbage collection
// and loses nothing.
const StableActorsMax = 1 << 16

// Stable returns C for one actor: all its writes up to this sequence are reflected in the state here.
func (s *Store) Stable(actor wire.CellID) uint64 { return wire.ContextLookup(s.stable, actor) }

// AppendStable appends the whole vector, 16 bytes per actor, sorted by actor.
func (s *Store) AppendStable(dst []byte) []byte { return append(dst, s.stable...) }

// RaiseStable takes the maximum of C and a vector that a peer stated at the beginning of a session in
// which all its differences were received (F45 ii). It reports false, and changes nothing, if the
// vector is not sorted by valid unique actors with sequences above zero.
func (s *Store) RaiseStable(raw []byte) bool {
	if wire.CheckVector(raw) != nil {
		return false
	}
	s.context = s.context[:0]
	s.joinContexts(s.stable, raw)
	if len(s.context) <= StableActorsMax*wire.DotSize {
		s.stable = append(s.stable[:0], s.context...)
	}
	return true
}

// OwnStable states that all own writes up to sequence are here, which holds when the own-write log
// survived the restart (F45 i). After a loss of state the caller leaves this out until
// TOMBSTONE_GRACE has passed; until then only what peers report counts.
func (s *Store) OwnStable(sequence uint64) {
	if sequence == 0 || s.Stable(s.self) >= sequence {
		return
	}
	var raw [wire.DotSize]byte
	s.RaiseStable(wire.AppendDot(raw[:0], wire.Dot{Actor: s.self, Sequence: sequence}))
}

// Collect frees what nobody needs any more and returns how many registers went: those whose entries
// are all tombstones, when the vector of every member covers the whole context, and those without
// entries, when the own vector does (F45 iv). Vectors are the last ones that the members stated;
// an empty one stands for a member that never did. The store's own vector counts by itself.
func (s *Store) Collect(members [][]byte) int {
	if s.tombstones+s.emptied == 0 {
		return 0
	}
	floor := s.floor(members)
	freed := 0
	for leaf, ok := s.candidates.Next(0); ok; leaf, ok = s.candidates.Next(leaf + 1) {
		freed += s.collectLeaf(leaf, floor)
	}
	return freed
}

// floor is the minimum of C and all members' vectors; an actor that one of them lacks counts as 0.
func (s *Store) floor(members [][]byte) []byte {
	floor := append([]byte(nil), s.stable...)
	for _, vector := range members {
		kept := floor[:0]
		for rest := floor; len(rest) > 0; rest = rest[wire.DotSize:] {
			dot := wire.DotAt(rest)
			for len(vector) >= wire.DotSize && wire.DotAt(vector).Actor < dot.Actor {
				vector = vector[wire.DotSize:]
			}
			if len(vector) < wire.DotSize {
				break
			}
			if other := wire.DotAt(vector); other.Actor == dot.Actor {
				kept = wire.AppendDot(kept, wire.Dot{Actor: dot.Actor, Sequence: min(dot.Sequence, other.Sequence)})
			}
		}
		floor = kept
	}
	return floor
}

func (s *Store) collectLeaf(leaf int, floor []byte) (freed int) {
	waiting := false
	first := uint64(leaf) << (64 - leafBits)
	for i := s.index.seek(tagOf(first)); i < len(s.index.slots); {
		if s.index.slots[i].reference == 0 {
			if i >= s.index.home(tagOf(first|(1<<(64-leafBits)-1))) {
				break
			}
			i++
			continue
		}
		r := s.at(i)
		if at := leafOf(r.KeyHash()); at != leaf {
			if at > leaf {
				break
			}
			i++
			continue
		}
		emptied := r.EntryCount() == 0
		switch {
		case emptied && covered(r.Context(), s.stable), r.Deleted() && covered(r.Context(), floor):
			s.drop(i)
			freed++
			continue // the next entry has moved here
		case emptied || r.Deleted():
			waiting = true
		}
		i++
	}
	if !waiting {
		s.candidates.Clear(leaf)
	}
	return freed
}

// drop forgets the register at a position of the index.
func (s *Store) drop(position int) {
	r := s.at(position)
	s.uncount(r)
	if r.EntryCount() > 0 {
		s.merkle.touch(leafOf(r.KeyHash()))
	}
	s.arena.release(s.index.slots[position].reference)
	s.index.remove(position)
}

// covered reports whether every dot of a context is at or below the vector.
func covered(context, vector []byte) bool {
	for ; len(context) > 0; context = context[wire.DotSize:] {
		if wire.ContextLookup(vector, wire.CellID(binary.BigEndian.Uint64(context))) <
			binary.BigEndian.Uint64(context[8:]) {
			return false
		}
	}
	return true
}
