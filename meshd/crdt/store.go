package crdt

import (
	"bytes"

	"github.com/dchest/siphash"

	"colloid.net/meshd/wire"
)

// Options of a store.
type Options struct {
	Self wire.CellID
	// HashKey0 and HashKey1 key the SipHash of names and digests; all members of a cluster share them (F16).
	HashKey0, HashKey1 uint64
	// KeysMax is the soft limit that this cell publishes (0 = 65,536). Refusing local writes near it is
	// the caller's affair; the store itself refuses at twice as many keys (F50).
	KeysMax uint32
	// MemoryMax is the hard limit in bytes of register memory (0 = 4096 per key of KeysMax, at least 16 MiB).
	MemoryMax int
	// OwnSequence is the last sequence this run may already have used, normally incarnation << 40.
	OwnSequence uint64
}

// KeysDefault is the limit that a cell publishes unless told otherwise (F50).
const KeysDefault = 65536

// Outcome says what a mutation did. The zero Outcome means that nothing changed.
type Outcome struct {
	// Changed: the register differs from before. Only then is the record worth forwarding (F27).
	Changed bool
	// Conflicted: the key is an operator key and has just come into CONFLICT. Resolved: it has just left it.
	Conflicted, Resolved bool
	// DuplicateDot: two different values bear one dot; a cell was cloned or forged (F2).
	DuplicateDot bool
	// OwnDotAhead: the record holds a dot of this cell above every sequence this run has used (F1): raise
	// the incarnation above it before the next write.
	OwnDotAhead bool
	// Rejected: the record is malformed, its name does not hash to its key hash, or the store is full.
	// Nothing changed, and nobody may be told that the record was received.
	Rejected bool
	// Full: Rejected for lack of room (F50).
	Full bool
	// Stale: the record brought entries that are not held here although C covers them, so they were
	// superseded; send the record got from StaleAnswer back to whoever sent it (F45 iii).
	Stale bool
}

// Store is the replicated state of one cell. It is not safe for concurrent use.
type Store struct {
	self               wire.CellID
	hashKey0, hashKey1 uint64
	hashMask           uint64 // all ones; tests make collisions with fewer
	ownSequence        uint64
	keysMax            int
	refused            bool // room was refused and has not come back yet

	arena arena
	index index

	stable []byte // the vector C: (actor, sequence) sorted by actor

	conflicts  int // operator keys with several entries
	tombstones int // registers whose entries are all tombstones
	emptied    int // registers without entries
	candidates LeafSet

	merkle merkle

	// Scratch of one mutation.
	entries, context []byte
	stale            []byte
	staleName        []byte
	staleHash        uint64
	value            []byte
	frame            wire.Record
}

// New returns an empty store.
func New(options Options) *Store {
	if options.KeysMax == 0 {
		options.KeysMax = KeysDefault
	}
	if options.MemoryMax == 0 {
		options.MemoryMax = max(4096*int(options.KeysMax), 16<<20)
	}
	s := &Store{
		self: options.Self, hashKey0: options.HashKey0, hashKey1: options.HashKey1, hashMask: ^uint64(0),
		ownSequence: options.OwnSequence, keysMax: 2 * int(options.KeysMax),
	}
	s.arena.bytesMax = options.MemoryMax
	s.reset(0)
	return s
}

// reset drops all keys and the vector C.
func (s *Store) reset(count int) {
	limit := s.arena.bytesMax
	s.arena = arena{}
	s.arena.initialise(limit)
	s.index.initialise(count)
	s.stable = s.stable[:0]
	s.conflicts, s.tombstones, s.emptied, s.refused = 0, 0, 0, false
	s.candidates = LeafSet{}
	s.merkle.reset()
}

// Self returns the cell this store belongs to.
func (s *Store) Self() wire.CellID { return s.self }

// OwnSequence returns the greatest sequence of this cell's own dots that this run has used or knows of.
func (s *Store) OwnSequence() uint64 { return s.ownSequence }

// RaiseOwnSequence tells that sequences up to the given one are used (a new incarnation starts at
// incarnation << 40; F1). A lower value changes nothing.
func (s *Store) RaiseOwnSequence(sequence uint64) { s.ownSequence = max(s.ownSequence, sequence) }

// Hash returns the hash that indexes name.
func (s *Store) Hash(name []byte) uint64 {
	return siphash.Hash(s.hashKey0, s.hashKey1, name) & s.hashMask
}

// Get finds the register of a key. A register without entries is found too.
func (s *Store) Get(name []byte) (Register, bool) { return s.Lookup(s.Hash(name), name) }

// Lookup is Get for a caller that knows the hash of the name already.
func (s *Store) Lookup(hash uint64, name []byte) (Register, bool) {
	i, found := s.find(hash, name)
	if !found {
		return Register{}, false
	}
	return s.at(i), true
}

// at returns the register at a position of the index that is not empty.
func (s *Store) at(i int) Register { return Register{s.arena.data(s.index.slots[i].reference)} }

// find returns where the key stands in the index, or where it would be inserted. Keys whose hashes
// are equal follow each other in the order of their names (F16).
func (s *Store) find(hash uint64, name []byte) (position int, found bool) {
	tag := tagOf(hash)
	i := s.index.seek(tag)
	for ; s.index.slots[i].reference != 0 && s.index.slots[i].tag == tag; i++ {
		r := s.at(i)
		other := r.KeyHash()
		if other < hash {
			continue
		}
		if other > hash {
			return i, false
		}
		switch bytes.Compare(r.Name(), name) {
		case 0:
			return i, true
		case 1:
			return i, false
		}
	}
	return i, false
}

// After returns the register that follows (hash, name) in the order of Walk. With an empty name it is
// the first one whose hash is at least hash.
func (s *Store) After(hash uint64, name []byte) (Register, bool) {
	i, found := s.find(hash, name)
	if found {
		i++
	}
	for ; i < len(s.index.slots); i++ {
		if s.index.slots[i].reference != 0 {
			return s.at(i), true
		}
	}
	return Register{}, false
}

// Walk yields all registers whose name starts with prefix, also those without entries, in the order
// of their key hashes, until yield returns false. The store must not be changed meanwhile.
func (s *Store) Walk(prefix string, yield func(Register) bool) {
	for i := range s.index.slots {
		if s.index.slots[i].reference == 0 {
			continue
		}
		r := s.at(i)
		name := r.Name()
		if len(name) >= len(prefix) && string(name[:len(prefix)]) == prefix && !yield(r) {
			return
		}
	}
}

// Len returns the number of registers, tombstones and registers without entries included.
func (s *Store) Len() int { return s.index.count }

// Tombstones returns how many registers hold nothing but tombstones (the caller caps them, F46), and
// how many hold no entry at all. While either is above zero, garbage collection has work to wait for.
func (s *Store) Tombstones() (deleted, emptied int) { return s.tombstones, s.emptied }

// Conflicts yields the keys in CONFLICT in the order of Walk. It costs nothing when there is none.
func (s *Store) Conflicts(yield func(Register) bool) {
	left := s.conflicts
	for i := 0; left > 0 && i < len(s.index.slots); i++ {
		if s.index.slots[i].reference == 0 {
			continue
		}
		if r := s.at(i); r.Conflicted() {
			left--
			if !yield(r) {
				return
			}
		}
	}
}

// ConflictCount returns how many keys are in CONFLICT.
func (s *Store) ConflictCount() int { return s.conflicts }

// Degraded reports that the store has refused a mutation for lack of room and is not yet a tenth
// below its limits again: this cell's state must not be acted upon (F50).
func (s *Store) Degraded() bool {
	if s.refused && s.index.count < s.keysMax-s.keysMax/10 &&
		s.arena.bytes < s.arena.bytesMax-s.arena.bytesMax/10 {
		s.refused = false
	}
	return s.refused
}

// MemoryBytes returns the memory that the store holds.
func (s *Store) MemoryBytes() int {
	return s.arena.bytes + len(s.arena.chunk) + 48*cap(s.arena.pages) + 8*cap(s.index.slots) +
		cap(s.stable) + s.merkle.memoryBytes() + cap(s.entries) + cap(s.context)
}
