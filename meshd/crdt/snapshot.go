package crdt

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"

	"colloid.net/meshd/wire"
)

// A snapshot is the whole state, with the vector C that describes it (F45 vi):
//
//	0   magic "colloids"   8
//	8   version            2
//	10  self               8
//	18  actors of C        4
//	22  registers          4
//	26  length             8   of the whole snapshot
//	34  vector C, then per register: name length 1, entry count 2, context count 2, entries size 4,
//	    name, entries, context
//	    CRC-32C of all before  4
//
// All numbers are big-endian. Key hashes are not stored: the hash key may change (F16).
const (
	snapshotVersion = 1
	snapshotHead    = 34
	snapshotLine    = 9
	snapshotTail    = 4
)

var (
	snapshotMagic = [8]byte{'c', 'o', 'l', 'l', 'o', 'i', 'd', 's'}
	castagnoli    = crc32.MakeTable(crc32.Castagnoli)
)

// Errors of LoadSnapshot.
var (
	// ErrSnapshotDamaged means that the file is not a snapshot or that bytes changed or are missing:
	// load an older generation.
	ErrSnapshotDamaged = errors.New("crdt: snapshot is damaged, use an older one")
	// ErrSnapshotVersion means that a newer program wrote it.
	ErrSnapshotVersion = errors.New("crdt: snapshot has a newer format, install the newer version again")
	// ErrSnapshotFull means that it does not fit within the limits of the store.
	ErrSnapshotFull = errors.New("crdt: snapshot exceeds the limits of the store, raise the key limit")
)

// AppendSnapshot appends the whole state in the order of the key hashes.
func (s *Store) AppendSnapshot(dst []byte) []byte {
	start := len(dst)
	dst = slices.Grow(dst, s.snapshotSize())
	dst = append(dst, snapshotMagic[:]...)
	dst = binary.BigEndian.AppendUint16(dst, snapshotVersion)
	dst = binary.BigEndian.AppendUint64(dst, uint64(s.self))
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(s.stable)/wire.DotSize))
	dst = binary.BigEndian.AppendUint32(dst, uint32(s.index.count))
	dst = append(dst, make([]byte, 8)...)
	dst = append(dst, s.stable...)
	for i := range s.index.slots {
		if s.index.slots[i].reference == 0 {
			continue
		}
		r := s.at(i)
		dst = append(dst, r.raw[16])
		dst = binary.BigEndian.AppendUint16(dst, uint16(r.EntryCount()))
		dst = binary.BigEndian.AppendUint16(dst, uint16(r.ContextCount()))
		dst = binary.BigEndian.AppendUint32(dst, uint32(r.entriesSize()))
		dst = append(dst, r.raw[registerHeader:r.size()]...)
	}
	binary.BigEndian.PutUint64(dst[start+26:], uint64(len(dst)-start+snapshotTail))
	return binary.BigEndian.AppendUint32(dst, crc32.Checksum(dst[start:], castagnoli))
}

// snapshotSize returns the length of the snapshot that is made now. To look at every register twice is
// cheaper than to move what is there already each time the room runs out.
func (s *Store) snapshotSize() int {
	size := snapshotHead + len(s.stable) + snapshotTail
	for i := range s.index.slots {
		if s.index.slots[i].reference != 0 {
			size += snapshotLine + s.at(i).size() - registerHeader
		}
	}
	return size
}

// LoadSnapshot replaces everything in the store by what AppendSnapshot wrote. After an error the
// store is empty. No View may be held.
func (s *Store) LoadSnapshot(data []byte) error {
	s.reset(0)
	err := s.load(data)
	if err != nil {
		s.reset(0)
	}
	return err
}

func (s *Store) load(data []byte) error {
	if len(data) < snapshotHead+snapshotTail || [8]byte(data[:8]) != snapshotMagic {
		return ErrSnapshotDamaged
	}
	if version := binary.BigEndian.Uint16(data[8:]); version > snapshotVersion {
		return fmt.Errorf("%w (format %d, this program knows %d)", ErrSnapshotVersion, version, snapshotVersion)
	}
	body := data[:len(data)-snapshotTail]
	if binary.BigEndian.Uint64(data[26:]) != uint64(len(data)) || binary.BigEndian.Uint16(data[8:]) == 0 ||
		crc32.Checksum(body, castagnoli) != binary.BigEndian.Uint32(data[len(body):]) {
		return ErrSnapshotDamaged
	}
	actors, registers := binary.BigEndian.Uint32(data[18:]), binary.BigEndian.Uint32(data[22:])
	rest := body[snapshotHead:]
	if uint64(actors)*wire.DotSize > uint64(len(rest)) || actors > StableActorsMax ||
		wire.CheckVector(rest[:actors*wire.DotSize]) != nil {
		return ErrSnapshotDamaged
	}
	vector := rest[:actors*wire.DotSize]
	rest = rest[len(vector):]
	// The count is checked against what can lie in the file before it sizes anything.
	if uint64(registers)*(snapshotLine+1+wire.DotSize) > uint64(len(rest)) {
		return ErrSnapshotDamaged
	}
	if int(registers) > s.keysMax {
		return ErrSnapshotFull
	}
	s.index.initialise(int(registers))
	for range registers {
		var err error
		if rest, err = s.loadRegister(rest); err != nil {
			return err
		}
	}
	if len(rest) != 0 {
		return ErrSnapshotDamaged
	}
	// C comes last: while it is empty no entry of the snapshot can look superseded.
	s.stable = append(s.stable[:0], vector...)
	return nil
}

func (s *Store) loadRegister(raw []byte) ([]byte, error) {
	if len(raw) < snapshotLine {
		return nil, ErrSnapshotDamaged
	}
	nameSize := int(raw[0])
	entryCount := int(binary.BigEndian.Uint16(raw[1:]))
	contextSize := wire.DotSize * int(binary.BigEndian.Uint16(raw[3:]))
	entriesSize := int(binary.BigEndian.Uint32(raw[5:]))
	raw = raw[snapshotLine:]
	if nameSize+entriesSize+contextSize > len(raw) {
		return nil, ErrSnapshotDamaged
	}
	name := raw[:nameSize]
	record := wire.Record{KeyHash: s.Hash(name), Name: name, EntryCount: entryCount,
		Entries: raw[nameSize : nameSize+entriesSize],
		Context: raw[nameSize+entriesSize : nameSize+entriesSize+contextSize]}
	before := s.index.count
	outcome := s.Merge(&record)
	switch {
	case outcome.Full:
		return nil, ErrSnapshotFull
	case outcome.Rejected || s.index.count != before+1:
		return nil, ErrSnapshotDamaged // malformed, or a key twice
	}
	return raw[nameSize+entriesSize+contextSize:], nil
}
