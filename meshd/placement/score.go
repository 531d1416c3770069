package placement

import (
	"math/bits"

	"colloid.net/meshd/wire"
)

// The score is SipHash-2-4 with the cluster's hash key over 18 bytes (F80):
//
//	offset 0         8        16
//	       key_hash  cell_id  index      all big-endian, as everywhere on the wire
//
// A ranking needs one score per cell, so 100,000 workloads on 1000 cells are 10^8 of them. The 18
// bytes fall into the blocks of SipHash such that the first holds only the key hash: its two rounds
// are done once per workload, and a cell costs the remaining eight instead of ten.

// scoreSize is the length of the hashed message.
const scoreSize = 18

// sipState is SipHash after the block with the key hash.
type sipState struct{ v0, v1, v2, v3 uint64 }

// absorbKey hashes the first block.
func absorbKey(k0, k1, keyHash uint64) sipState {
	v0 := k0 ^ 0x736f6d6570736575
	v1 := k1 ^ 0x646f72616e646f6d
	v2 := k0 ^ 0x6c7967656e657261
	v3 := k1 ^ 0x7465646279746573
	m := bits.ReverseBytes64(keyHash)
	v3 ^= m
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	return sipState{v0 ^ m, v1, v2, v3}
}

// cellBlock is the second block: the cell id as SipHash reads it.
func cellBlock(cell wire.CellID) uint64 { return bits.ReverseBytes64(uint64(cell)) }

// indexBlock is the last block: two bytes of index and the length.
func indexBlock(index uint16) uint64 {
	return scoreSize<<56 | uint64(bits.ReverseBytes16(index))
}

// finish hashes the two remaining blocks.
func (s sipState) finish(cell, index uint64) uint64 {
	v0, v1, v2, v3 := s.v0, s.v1, s.v2, s.v3^cell
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0 ^= cell
	v3 ^= index
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0 ^= index
	v2 ^= 0xff
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	return v0 ^ v1 ^ v2 ^ v3
}

// finishAll appends the scores of many cells for one index.
func (s sipState) finishAll(dst, cells []uint64, index uint64) []uint64 {
	for _, cell := range cells {
		dst = append(dst, s.finish(cell, index))
	}
	return dst
}

// sipRound is small enough for the compiler to inline.
func sipRound(v0, v1, v2, v3 uint64) (uint64, uint64, uint64, uint64) {
	v0 += v1
	v2 += v3
	v1 = bits.RotateLeft64(v1, 13) ^ v0
	v3 = bits.RotateLeft64(v3, 16) ^ v2
	v0 = bits.RotateLeft64(v0, 32)
	v2 += v1
	v0 += v3
	v1 = bits.RotateLeft64(v1, 17) ^ v2
	v3 = bits.RotateLeft64(v3, 21) ^ v0
	return v0, v1, bits.RotateLeft64(v2, 32), v3
}
