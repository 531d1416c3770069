package crdt

import (
	"encoding/binary"

	"github.com/dchest/siphash"

	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// A register in memory:
//
//	0   key hash      8
//	8   entries size  4
//	12  entry count   2
//	14  context count 2
//	16  name length   1
//	17  category      1
//	18  name, entries (as in wire.Record), context (16 bytes per actor)
//
// Numbers of the header are little-endian; entries and context have the wire's form, so that frames
// are made by copying.
const registerHeader = 18

const (
	countMax        = 1<<16 - 1
	registerSizeMax = 48 << 20 // 65,535 entries with values of 512 bytes fit
)

// Register is a view of one register in the store, valid until the store's next mutation.
// The zero Register is no register.
type Register struct{ raw []byte }

// KeyHash returns the hash that indexes the key.
func (r Register) KeyHash() uint64 { return binary.LittleEndian.Uint64(r.raw) }

// Name returns the full name, which is the identity of the key (F16).
func (r Register) Name() []byte {
	return r.raw[registerHeader : registerHeader+int(r.raw[16]) : registerHeader+int(r.raw[16])]
}

// Category returns the conflict policy of the key.
func (r Register) Category() state.Category { return state.Category(r.raw[17]) }

// EntryCount returns the number of entries: 0 when all values were superseded by what is no longer
// held, 1 normally, more when writes are concurrent.
func (r Register) EntryCount() int { return int(binary.LittleEndian.Uint16(r.raw[12:])) }

// ContextCount returns the number of actors in the context.
func (r Register) ContextCount() int { return int(binary.LittleEndian.Uint16(r.raw[14:])) }

func (r Register) entriesSize() int { return int(binary.LittleEndian.Uint32(r.raw[8:])) }

// Entries returns the entries in the form of wire.Record, sorted by actor; use wire.NextEntry.
func (r Register) Entries() []byte {
	start := registerHeader + int(r.raw[16])
	end := start + r.entriesSize()
	return r.raw[start:end:end]
}

// Context returns the context in the form of wire.Record, sorted by actor.
func (r Register) Context() []byte {
	start := registerHeader + int(r.raw[16]) + r.entriesSize()
	end := start + wire.DotSize*r.ContextCount()
	return r.raw[start:end:end]
}

func (r Register) size() int {
	return registerHeader + int(r.raw[16]) + r.entriesSize() + wire.DotSize*r.ContextCount()
}

// Record fills in record with the whole register. It may be too large for one datagram: see Store.Frames.
func (r Register) Record(record *wire.Record) {
	*record = wire.Record{KeyHash: r.KeyHash(), Name: r.Name(), EntryCount: r.EntryCount(),
		Entries: r.Entries(), Context: r.Context()}
}

// Live returns the value if there is exactly one entry and it is not a tombstone.
func (r Register) Live() (value []byte, ok bool) {
	if r.EntryCount() != 1 {
		return nil, false
	}
	_, value, _, ok = wire.NextEntry(r.Entries())
	return value, ok && len(value) > 0
}

// Latest returns the entry with the highest dot (sequence, then actor): the reading rule of
// single-writer keys (section 7.6). ok is false if there is no entry.
func (r Register) Latest() (dot wire.Dot, value []byte, ok bool) {
	for rest := r.Entries(); len(rest) > 0; {
		d, v, after, _ := wire.NextEntry(rest)
		if !ok || dotLess(dot, d) {
			dot, value, ok = d, v, true
		}
		rest = after
	}
	return dot, value, ok
}

// Deleted reports whether there are entries and all of them are tombstones.
func (r Register) Deleted() bool {
	return r.EntryCount() > 0 && r.entriesSize() == r.EntryCount()*wire.EntryHeaderSize
}

// Absent reports whether the register holds no value: all entries are tombstones, or there are none left
// because what superseded them is not held any more.
func (r Register) Absent() bool { return r.entriesSize() == r.EntryCount()*wire.EntryHeaderSize }

// Conflicted reports whether an operator has to decide: several entries under an operator key (SAFE-1,
// SAFE-2). Deletions that know nothing of each other agree: there is nothing to decide.
func (r Register) Conflicted() bool {
	return r.EntryCount() > 1 && r.Category() == state.Operator && !r.Absent()
}

// digestKey0 and digestKey1 key DotDigest. They are fixed: the digest is compared on the cell that made it.
const (
	digestKey0 = 0x636f6c6c6f69642d
	digestKey1 = 0x646f74646967657a
)

// DotDigest identifies the set of entries for optimistic writes (F55): it changes whenever a value is
// added or superseded. It is never 0 or 1, which have meanings of their own in the local protocol.
func (r Register) DotDigest() uint64 {
	digest := uint64(0)
	for rest := r.Entries(); len(rest) > 0; {
		// The sum of keyed hashes does not depend on a buffer for all dots together.
		digest += siphash.Hash(digestKey0, digestKey1, rest[:wire.DotSize])
		_, _, rest, _ = wire.NextEntry(rest)
	}
	if digest < 2 {
		digest += 2
	}
	return digest
}

// Fingerprint tells two contents of a register apart (entries with values, and context), so that a
// sender notices that a register changed between two of its frames.
func (r Register) Fingerprint() uint64 {
	return siphash.Hash(digestKey0, digestKey1, r.raw[registerHeader+len(r.Name()):r.size()])
}

// dotLess orders dots by sequence, then actor.
func dotLess(a, b wire.Dot) bool {
	if a.Sequence != b.Sequence {
		return a.Sequence < b.Sequence
	}
	return a.Actor < b.Actor
}

func putRegister(dst []byte, hash uint64, name []byte, category state.Category, entries []byte,
	entryCount int, context []byte) {
	binary.LittleEndian.PutUint64(dst, hash)
	binary.LittleEndian.PutUint32(dst[8:], uint32(len(entries)))
	binary.LittleEndian.PutUint16(dst[12:], uint16(entryCount))
	binary.LittleEndian.PutUint16(dst[14:], uint16(len(context)/wire.DotSize))
	dst[16], dst[17] = byte(len(name)), byte(category)
	rest := dst[registerHeader:]
	rest = rest[copy(rest, name):]
	rest = rest[copy(rest, entries):]
	copy(rest, context)
}
