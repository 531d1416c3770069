package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
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

// statusVersion can never change: a replica that ranked a status of version 2 as malformed would join
// differently from one that knows it. New facts about a cell go into its contact.
const statusVersion = 1

var errStatus = errors.New("state: malformed cell status")

// AppendCellStatus encodes s: version 1, life 1, incarnation 4, count 1, claimants 8 each. Claimants are
// sorted and doubles dropped. It panics on more than ClaimantsMax of them, on reserved ids and on an
// unknown life: such a value would lose against every other. It does not allocate beyond dst.
func AppendCellStatus(dst []byte, s CellStatus) []byte {
	if len(s.Claimants) > ClaimantsMax || s.Life < Alive || s.Life > Gone {
		panic(fmt.Sprintf("state: status %d with %d claimants", s.Life, len(s.Claimants)))
	}
	var sorted [ClaimantsMax]wire.CellID
	claimants := append(sorted[:0], s.Claimants...)
	slices.Sort(claimants)
	dst = append(dst, statusVersion, byte(s.Life))
	dst = binary.BigEndian.AppendUint32(dst, s.Incarnation)
	return appendClaimantList(dst, slices.Compact(claimants))
}

func appendClaimantList(dst []byte, claimants []wire.CellID) []byte {
	dst = append(dst, byte(len(claimants)))
	for _, c := range claimants {
		if !c.Valid() {
			panic("state: status claimed by reserved cell " + c.String())
		}
		dst = binary.BigEndian.AppendUint64(dst, uint64(c))
	}
	return dst
}

// ParseCellStatus decodes what AppendCellStatus wrote and nothing else.
func ParseCellStatus(value []byte) (CellStatus, error) {
	if statusRank(value) == 0 {
		return CellStatus{}, errStatus
	}
	s := CellStatus{Life: Life(value[1]), Incarnation: binary.BigEndian.Uint32(value[2:])}
	s.Claimants = appendClaimants(s.Claimants, value)
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
	return appendClaimantList(dst, all)
}

// statusRank orders values by (incarnation, life); 0 means malformed. What it lets pass must be exactly
// what AppendCellStatus writes: the join of a value with itself must be that value, and that does not
// hold for claimants out of order.
func statusRank(value []byte) uint64 {
	if len(value) < 7 || value[0] != statusVersion || value[1] < byte(Alive) || value[1] > byte(Gone) ||
		value[6] > ClaimantsMax || len(value) != 7+8*int(value[6]) {
		return 0
	}
	last := wire.CellID(0)
	for raw := value[7:]; len(raw) > 0; raw = raw[8:] {
		c := wire.CellID(binary.BigEndian.Uint64(raw))
		if c <= last || !c.Valid() {
			return 0
		}
		last = c
	}
	return uint64(binary.BigEndian.Uint32(value[2:]))<<8 | uint64(value[1])
}

func appendClaimants(dst []wire.CellID, value []byte) []wire.CellID {
	for raw := value[7:]; len(raw) > 0; raw = raw[8:] {
		dst = append(dst, wire.CellID(binary.BigEndian.Uint64(raw)))
	}
	return dst
}
