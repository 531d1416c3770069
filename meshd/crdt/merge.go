package crdt

import (
	"bytes"
	"encoding/binary"

	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// Merge joins a record from another cell or from disk into the store (sections 7.3 and 7.4): an entry
// stays if both sides have it or if the other side's context does not cover it; contexts take the
// greater sequence per actor. It is commutative, associative and idempotent (SEC), and does not
// allocate for a key that is there already. The record is copied.
func (s *Store) Merge(record *wire.Record) Outcome {
	if len(record.Name) == 0 || !wellFormed(record) {
		return Outcome{Rejected: true}
	}
	hash := s.Hash(record.Name)
	if hash != record.KeyHash {
		return Outcome{Rejected: true}
	}
	var outcome Outcome
	if own := wire.ContextLookup(record.Context, s.self); own > s.ownSequence {
		outcome.OwnDotAhead = true
	}
	position, found := s.find(hash, record.Name)
	local := emptyRegister
	var category state.Category
	if found {
		local = s.at(position)
		category = local.Category()
		if s.mergeNewer(local, position, record, &outcome) {
			return outcome
		}
	} else {
		if !wire.ValidName(record.Name) {
			return Outcome{Rejected: true}
		}
		category = state.CategoryOf(record.Name)
	}
	s.entries, s.context, s.stale = s.entries[:0], s.context[:0], s.stale[:0]
	s.joinContexts(local.Context(), record.Context)
	var count int
	if category == state.Status {
		count = s.joinStatus(local.Entries(), record.Entries)
	} else {
		count, outcome.DuplicateDot = s.joinEntries(local, record)
	}
	if len(s.stale) > 0 {
		outcome.Stale = true
		s.staleHash, s.staleName = hash, append(s.staleName[:0], record.Name...)
	}
	if !found && count == 0 && covered(s.context, s.stable) {
		return outcome // would be forgotten by the next Collect anyway
	}
	s.commit(position, found, hash, record.Name, category, count, &outcome)
	return outcome
}

// mergeNewer is the short way for what nearly all traffic consists of: the only writer of a key has
// written again, or the record is known. It reports false, having changed nothing, for all else.
func (s *Store) mergeNewer(local Register, position int, record *wire.Record, outcome *Outcome) bool {
	const one = wire.DotSize
	a, b := local.Entries(), record.Entries
	if len(record.Context) != one || record.EntryCount != 1 || local.EntryCount() != 1 ||
		local.ContextCount() != 1 || local.Category() == state.Status ||
		[8]byte(a[:8]) != [8]byte(b[:8]) {
		return false
	}
	present, incoming := binary.BigEndian.Uint64(a[8:]), binary.BigEndian.Uint64(b[8:])
	if incoming == present {
		return bytes.Equal(a, b)
	}
	if wire.ContextLookup(s.stable, wire.DotAt(b).Actor) >= incoming {
		return false
	}
	if incoming < present {
		return true
	}
	size := local.size() - len(a) + len(b)
	if blockSize(size) != s.arena.capacity(s.index.slots[position].reference) {
		return false
	}
	emptied := len(b) == wire.EntryHeaderSize
	if emptied != (len(a) == wire.EntryHeaderSize) {
		return false // becomes a tombstone or ceases to be one: the totals change
	}
	binary.LittleEndian.PutUint32(local.raw[8:], uint32(len(b)))
	copy(local.Entries(), b)
	copy(local.Context(), record.Context)
	s.merkle.touch(leafOf(local.KeyHash()))
	outcome.Changed = true
	return true
}

// emptyRegister is what an absent key merges as.
var emptyRegister = Register{make([]byte, registerHeader)}

// Write makes a local write: it supersedes everything that is here, and so resolves a conflict. An
// empty value is a tombstone. Under a status key the value is joined with the present one instead
// (F47), and a tombstone is refused: what others know of a cell's life cannot be unknown.
//
// The dot must be above every sequence of its actor that the register has seen; if it is not, the
// write would be lost everywhere, so it is rejected with OwnDotAhead set (F1).
func (s *Store) Write(name, value []byte, dot wire.Dot) Outcome {
	var scratch [wire.DotSize]byte
	category := state.CategoryOf(name)
	if !wire.ValidName(name) || len(value) > wire.ValueMax || !dot.Actor.Valid() || dot.Sequence == 0 ||
		category == state.Status && len(value) == 0 {
		return Outcome{Rejected: true}
	}
	hash := s.Hash(name)
	position, found := s.find(hash, name)
	local := emptyRegister
	if found {
		local = s.at(position)
	}
	if wire.ContextLookup(local.Context(), dot.Actor) >= dot.Sequence {
		return Outcome{Rejected: true, OwnDotAhead: true}
	}
	s.entries, s.context, s.stale = s.entries[:0], s.context[:0], s.stale[:0]
	s.joinContexts(local.Context(), wire.AppendDot(scratch[:0], dot))
	if category == state.Status {
		var entry [wire.EntryHeaderSize + wire.ValueMax]byte // joinStatus uses s.value itself
		s.joinStatus(local.Entries(), wire.AppendEntry(entry[:0], dot, value))
	} else {
		s.entries = wire.AppendEntry(s.entries, dot, value)
	}
	var outcome Outcome
	s.commit(position, found, hash, name, category, 1, &outcome)
	if !outcome.Rejected && dot.Actor == s.self {
		s.RaiseOwnSequence(dot.Sequence)
	}
	return outcome
}

// StaleAnswer fills in the record that answers the last Merge whose Outcome was Stale: no entries,
// and as context the dots that are superseded here (F45 iii). It is valid until the next mutation.
func (s *Store) StaleAnswer(answer *wire.Record) {
	*answer = wire.Record{KeyHash: s.staleHash, Name: s.staleName, Context: s.stale}
}

// joinContexts writes the pointwise maximum of two contexts to s.context.
func (s *Store) joinContexts(a, b []byte) {
	out := s.context
	for len(a) > 0 && len(b) > 0 {
		actorA, actorB := binary.BigEndian.Uint64(a), binary.BigEndian.Uint64(b)
		switch {
		case actorA < actorB:
			out, a = append(out, a[:wire.DotSize]...), a[wire.DotSize:]
		case actorB < actorA:
			out, b = append(out, b[:wire.DotSize]...), b[wire.DotSize:]
		default:
			greater := a
			if binary.BigEndian.Uint64(b[8:]) > binary.BigEndian.Uint64(a[8:]) {
				greater = b
			}
			out = append(out, greater[:wire.DotSize]...)
			a, b = a[wire.DotSize:], b[wire.DotSize:]
		}
	}
	out = append(out, a...)
	s.context = append(out, b...)
}

// joinEntries writes the surviving entries to s.entries in the order of their actors, and dots that C
// covers to s.stale.
func (s *Store) joinEntries(local Register, record *wire.Record) (count int, duplicate bool) {
	a, b := local.Entries(), record.Entries
	localContext := local.Context()
	for len(a) > 0 || len(b) > 0 {
		dotA, valueA, restA, okA := wire.NextEntry(a)
		dotB, valueB, restB, okB := wire.NextEntry(b)
		keep := []byte(nil)
		switch {
		case okA && (!okB || dotA.Actor < dotB.Actor):
			if wire.ContextLookup(record.Context, dotA.Actor) < dotA.Sequence {
				keep = a[:len(a)-len(restA)]
			}
			a = restA
		case okB && (!okA || dotB.Actor < dotA.Actor):
			if !s.superseded(dotB) && wire.ContextLookup(localContext, dotB.Actor) < dotB.Sequence {
				keep = b[:len(b)-len(restB)]
			}
			b = restB
		case !okA:
			panic("crdt: malformed entries passed the check")
		default: // one actor on both sides: the later dot supersedes, equal dots are one entry (F2)
			greater := dotA.Sequence > dotB.Sequence
			if dotA == dotB {
				order := bytes.Compare(valueA, valueB)
				duplicate = duplicate || order != 0
				greater = order >= 0
			}
			stale := dotA != dotB && s.superseded(dotB)
			if greater {
				keep = a[:len(a)-len(restA)]
			} else if !stale {
				keep = b[:len(b)-len(restB)]
			}
			a, b = restA, restB
		}
		if keep != nil {
			s.entries = append(s.entries, keep...)
			count++
		}
	}
	return count, duplicate
}

// superseded applies F45 (iii) to an entry that is not held here: if C covers its dot, the write was
// reflected in this state once and is gone since, so it comes from someone who missed that. An answer
// is due also if the register's context says the same: whoever sent the entry may get to see that
// context too late, or never if this register is freed meanwhile.
func (s *Store) superseded(dot wire.Dot) bool {
	if wire.ContextLookup(s.stable, dot.Actor) < dot.Sequence {
		return false
	}
	s.stale = wire.AppendDot(s.stale, dot)
	return true
}

// joinStatus writes the one entry of a max-register (F47): the least upper bound of the values, under
// the greatest dot of the joined context, which must be in s.context already. Deriving the dot from
// the context makes the register a product of two lattices, so order, grouping and repetition of
// merges cannot matter, and the context always holds the entry's dot exactly. The empty value is the
// bottom: it counts as no entry.
func (s *Store) joinStatus(a, b []byte) (count int) {
	_, valueA, _, _ := wire.NextEntry(a)
	s.value = append(s.value[:0], valueA...)
	var scratch [2][wire.ValueMax]byte
	joined := append(scratch[0][:0], valueA...)
	for i := 0; len(b) > 0; i++ {
		_, valueB, rest, _ := wire.NextEntry(b)
		b = rest
		switch {
		case len(valueB) == 0:
		case len(joined) == 0:
			joined = append(joined, valueB...)
		default:
			joined = state.JoinStatusValues(scratch[(i+1)%2][:0], joined, valueB)
		}
	}
	if len(joined) == 0 {
		return 0
	}
	var greatest wire.Dot
	for rest := s.context; len(rest) > 0; rest = rest[wire.DotSize:] {
		if dot := wire.DotAt(rest); dotLess(greatest, dot) {
			greatest = dot
		}
	}
	s.entries = wire.AppendEntry(s.entries, greatest, joined)
	return 1
}

// commit stores the register that the scratch buffers describe.
func (s *Store) commit(position int, found bool, hash uint64, name []byte, category state.Category, count int,
	outcome *Outcome) {
	size := registerHeader + len(name) + len(s.entries) + len(s.context)
	if count > countMax || len(s.context)/wire.DotSize > countMax || size > registerSizeMax {
		s.refuse(outcome)
		return
	}
	if !found {
		s.commitNew(position, hash, name, category, count, outcome)
		return
	}
	old := s.at(position)
	if old.EntryCount() == count && bytes.Equal(old.Context(), s.context) &&
		bytes.Equal(old.Entries(), s.entries) {
		return
	}
	ref := s.index.slots[position].reference
	fresh := ref
	if blockSize(size) != s.arena.capacity(ref) {
		if fresh = s.arena.allocate(size); fresh == 0 {
			s.refuse(outcome)
			return
		}
	}
	before := old.Conflicted()
	digested := old.EntryCount() > 0
	s.uncount(old)
	// name may point into the old register, which stays intact until the new one is written.
	putRegister(s.arena.data(fresh), hash, name, category, s.entries, count, s.context)
	if fresh != ref {
		s.arena.release(ref)
		s.index.slots[position].reference = fresh
	}
	r := s.at(position)
	s.count(r)
	if digested || count > 0 {
		s.merkle.touch(leafOf(hash))
	}
	outcome.Changed = true
	outcome.Conflicted = !before && r.Conflicted()
	outcome.Resolved = before && !r.Conflicted()
}

func (s *Store) commitNew(position int, hash uint64, name []byte, category state.Category, count int,
	outcome *Outcome) {
	if s.index.count >= s.keysMax || s.index.count >= 1<<indexBitsMax*3/4 {
		s.refuse(outcome)
		return
	}
	ref := s.arena.allocate(registerHeader + len(name) + len(s.entries) + len(s.context))
	if ref == 0 {
		s.refuse(outcome)
		return
	}
	putRegister(s.arena.data(ref), hash, name, category, s.entries, count, s.context)
	s.index.insert(position, tagOf(hash), ref)
	r := Register{s.arena.data(ref)}
	s.count(r)
	if count > 0 {
		s.merkle.touch(leafOf(hash))
	}
	outcome.Changed = true
	outcome.Conflicted = r.Conflicted()
}

func (s *Store) refuse(outcome *Outcome) {
	s.refused = true
	*outcome = Outcome{Rejected: true, Full: true}
}

// count and uncount keep the totals of conflicts and of what garbage collection waits for.
func (s *Store) count(r Register) {
	switch {
	case r.EntryCount() == 0:
		s.emptied++
		s.candidates.Set(leafOf(r.KeyHash()))
	case r.Deleted():
		s.tombstones++
		s.candidates.Set(leafOf(r.KeyHash()))
	}
	if r.Conflicted() {
		s.conflicts++
	}
}

func (s *Store) uncount(r Register) {
	switch {
	case r.EntryCount() == 0:
		s.emptied--
	case r.Deleted():
		s.tombstones--
	}
	if r.Conflicted() {
		s.conflicts--
	}
}

// wellFormed checks what the merge relies on (F22). Package wire checks the same on the way in; a
// record from disk or from a test has only this. The name is checked only where a key is made.
func wellFormed(record *wire.Record) bool {
	context := record.Context
	if len(context)%wire.DotSize != 0 || len(context)/wire.DotSize > countMax ||
		len(context) == 0 {
		return false
	}
	last := wire.CellID(0)
	for rest := context; len(rest) > 0; rest = rest[wire.DotSize:] {
		dot := wire.DotAt(rest)
		if dot.Actor <= last || !dot.Actor.Valid() || dot.Sequence == 0 {
			return false
		}
		last = dot.Actor
	}
	count := 0
	last = 0
	for rest := record.Entries; len(rest) > 0; count++ {
		dot, value, after, ok := wire.NextEntry(rest)
		if !ok || len(value) > wire.ValueMax || dot.Actor <= last ||
			wire.ContextLookup(context, dot.Actor) != dot.Sequence {
			return false
		}
		last, rest = dot.Actor, after
	}
	return count == record.EntryCount && count <= countMax
}
