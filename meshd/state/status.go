package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"

	"colloid.net/meshd/wire"
)

// Life is the state of a cell; its code is its rank within one incarnation (F47).
type Life uint8

// Lives of a cell.
const (
	Alive   Life = 1
	Leaving Life = 2
	Suspect Life = 3
	Dead    Life = 4
	Gone    Life = 5
)

var lifeNames = [...]string{"unknown", "alive", "leaving", "suspect", "dead", "gone"}

// String returns the name used in status output.
func (l Life) String() string {
	if int(l) < len(lifeNames) {
		return lifeNames[l]
	}
	return "invalid"
}

// ClaimantsMax bounds the accusers kept in a status. The greatest ids are kept, which makes the
// truncated union associative, commutative and idempotent.
const ClaimantsMax = 4

// CellStatus is the value of health.<id>.status: who says what about which run of a cell.
// Claimants are sorted ascending and unique; a cell's own statement has itself as the claimant.
type CellStatus struct {
	Life        Life
	Incarnation uint32 // of the cell's status, raised only by the cell itself
	Claimants   []wire.CellID
}

const statusVersion = 1

var errStatus = errors.New("state: malformed cell status")

// AppendCellStatus encodes s: version 1, life 1, incarnation 4, count 1, claimants 8 each.
func AppendCellStatus(dst []byte, s CellStatus) []byte {
	if len(s.Claimants) > ClaimantsMax {
		panic("state: too many claimants")
	}
	dst = append(dst, statusVersion, byte(s.Life))
	dst = binary.BigEndian.AppendUint32(dst, s.Incarnation)
	dst = append(dst, byte(len(s.Claimants)))
	for _, c := range s.Claimants {
		dst = binary.BigEndian.AppendUint64(dst, uint64(c))
	}
	return dst
}

// ParseCellStatus decodes what AppendCellStatus wrote and nothing else.
func ParseCellStatus(value []byte) (CellStatus, error) {
	if len(value) < 7 || value[0] != statusVersion || value[1] < byte(Alive) || value[1] > byte(Gone) ||
		value[6] > ClaimantsMax || len(value) != 7+8*int(value[6]) {
		return CellStatus{}, errStatus
	}
	s := CellStatus{Life: Life(value[1]), Incarnation: binary.BigEndian.Uint32(value[2:])}
	for raw := value[7:]; len(raw) > 0; raw = raw[8:] {
		c := wire.CellID(binary.BigEndian.Uint64(raw))
		if n := len(s.Claimants); n > 0 && s.Claimants[n-1] >= c {
			return CellStatus{}, errStatus
		}
		s.Claimants = append(s.Claimants, c)
	}
	return s, nil
}

// Outranks compares two statuses by (incarnation, life) and reports whether s is the greater.
func (s CellStatus) Outranks(other CellStatus) bool {
	if s.Incarnation != other.Incarnation {
		return s.Incarnation > other.Incarnation
	}
	return s.Life > other.Life
}

// JoinStatusValues merges two encoded statuses into dst (usually dst[:0] of a scratch buffer): the
// greater (incarnation, life) wins; equal ones unite their claimants. The result is the least upper
// bound of both, whatever the order of merging. A malformed value ranks below every valid one; of
// two malformed ones the bytewise greater is kept, so that the join stays total. It does not
// allocate beyond dst.
func JoinStatusValues(dst, a, b []byte) []byte {
	rankA, rankB := statusRank(a), statusRank(b)
	switch {
	case rankA > rankB:
		return append(dst, a...)
	case rankB > rankA:
		return append(dst, b...)
	case rankA == 0:
		if bytes.Compare(a, b) >= 0 {
			return append(dst, a...)
		}
		return append(dst, b...)
	}
	var united [2 * ClaimantsMax]wire.CellID
	all := appendClaimants(appendClaimants(united[:0], a), b)
	slices.Sort(all)
	all = slices.Compact(all)
	if len(all) > ClaimantsMax {
		all = all[len(all)-ClaimantsMax:]
	}
	dst = append(dst, a[:6]...)
	dst = append(dst, byte(len(all)))
	for _, c := range all {
		dst = binary.BigEndian.AppendUint64(dst, uint64(c))
	}
	return dst
}

// statusRank orders values by (incarnation, life); 0 means malformed.
func statusRank(value []byte) uint64 {
	if len(value) < 7 || value[0] != statusVersion || value[1] < byte(Alive) || value[1] > byte(Gone) ||
		value[6] > ClaimantsMax || len(value) != 7+8*int(value[6]) {
		return 0
	}
	return uint64(binary.BigEndian.Uint32(value[2:]))<<8 | uint64(value[1])
}

func appendClaimants(dst []wire.CellID, value []byte) []wire.CellID {
	for raw := value[7:]; len(raw) >= 8; raw = raw[8:] {
		dst = append(dst, wire.CellID(binary.BigEndian.Uint64(raw)))
	}
	return dst
}
