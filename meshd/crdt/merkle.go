package crdt

import (
	"encoding/binary"

	"github.com/dchest/siphash"

	"colloid.net/meshd/wire"
)

// The Merkle tree has 65,536 leaves, one per value of the top 16 bits of the key hash (section 8.7).
// Leaves lie in blocks of 128; a tree over the 512 blocks is kept, nodes inside a block are hashed
// when asked for. A node over empty leaves only is 0, no other node ever is.

// Leaves is the number of Merkle leaves; Depth is the depth of the tree.
const (
	Depth  = 16
	Leaves = 1 << Depth

	leafBits   = Depth
	blockBits  = 7
	blockDepth = Depth - blockBits
	blockCount = 1 << blockDepth
)

func leafOf(hash uint64) int { return int(hash >> (64 - leafBits)) }

// LeafOf returns the Merkle leaf of a key hash.
func LeafOf(hash uint64) int { return leafOf(hash) }

// block is 128 leaf digests, shared between the store and its views (copy on write).
type block struct {
	leaves     [1 << blockBits]uint64
	references int
}

// tree is what the store and a view have in common.
type tree struct {
	blocks [blockCount]*block
	nodes  [2 * blockCount]uint64 // heap order from 1: node n has children 2n and 2n+1
	key0   uint64
	key1   uint64
}

type merkle struct {
	tree
	dirty   LeafSet
	spare   []*block // memory of blocks that no view holds any more
	views   []*View  // for use again
	held    int      // blocks in existence
	scratch []byte
}

func (m *merkle) reset() {
	views := m.views
	*m = merkle{views: views}
}

func (m *merkle) touch(leaf int) { m.dirty.Set(leaf) }

func (m *merkle) memoryBytes() int {
	const blockBytes = 8<<blockBits + 8
	return m.held*blockBytes + 16*blockCount + 8*blockCount + Leaves/8
}

// rehash brings all digests up to date. Merging only marks leaves, so a flood of writes to one key
// costs one hash (F18).
func (s *Store) rehash() {
	m := &s.merkle
	m.key0, m.key1 = s.hashKey0, s.hashKey1
	leaf, ok := m.dirty.Next(0)
	for ok {
		number := leaf >> blockBits
		for ok && leaf>>blockBits == number {
			m.put(leaf, s.leafDigest(leaf))
			m.dirty.Clear(leaf)
			leaf, ok = m.dirty.Next(leaf + 1)
		}
		m.climb(number)
	}
}

// put stores the digest of a leaf, copying the block first if a view holds it.
func (m *merkle) put(leaf int, digest uint64) {
	at := &m.blocks[leaf>>blockBits]
	if *at == nil {
		if digest == 0 {
			return
		}
		*at = m.newBlock()
	} else if (*at).references > 1 {
		fresh := m.newBlock()
		fresh.leaves = (*at).leaves
		(*at).references--
		*at = fresh
	}
	(*at).leaves[leaf&(1<<blockBits-1)] = digest
}

func (m *merkle) newBlock() *block {
	if n := len(m.spare); n > 0 {
		b := m.spare[n-1]
		m.spare = m.spare[:n-1]
		*b = block{references: 1}
		return b
	}
	m.held++
	return &block{references: 1}
}

func (m *merkle) climb(number int) {
	n := blockCount + number
	m.nodes[n] = m.inner(blockDepth, number)
	for n >>= 1; n > 0; n >>= 1 {
		m.nodes[n] = m.combine(m.nodes[2*n], m.nodes[2*n+1])
	}
}

func (t *tree) combine(left, right uint64) uint64 {
	if left|right == 0 {
		return 0
	}
	var raw [16]byte
	binary.BigEndian.PutUint64(raw[:], left)
	binary.BigEndian.PutUint64(raw[8:], right)
	return nonZero(siphash.Hash(t.key0, t.key1, raw[:]))
}

func nonZero(digest uint64) uint64 {
	if digest == 0 {
		return 1
	}
	return digest
}

// inner hashes a node at or below the depth of the blocks.
func (t *tree) inner(depth, prefix int) uint64 {
	b := t.blocks[prefix>>(depth-blockDepth)]
	if b == nil {
		return 0
	}
	width := 1 << (Depth - depth) // leaves below the node
	first := prefix * width & (1<<blockBits - 1)
	var row [1 << blockBits]uint64
	copy(row[:width], b.leaves[first:first+width])
	for ; width > 1; width /= 2 {
		for i := 0; i < width/2; i++ {
			row[i] = t.combine(row[2*i], row[2*i+1])
		}
	}
	return row[0]
}

func (t *tree) node(depth, prefix int) uint64 {
	if depth <= blockDepth {
		return t.nodes[1<<depth+prefix]
	}
	return t.inner(depth, prefix)
}

func (t *tree) level(depth, prefix, levels int, dst []uint64) []uint64 {
	if depth < 0 || levels < 0 || depth+levels > Depth || prefix < 0 || prefix >= 1<<depth {
		panic("crdt: no such node in the Merkle tree")
	}
	first := prefix << levels
	for i := range 1 << levels {
		dst = append(dst, t.node(depth+levels, first+i))
	}
	return dst
}

// leafDigest hashes all registers of a leaf in order: name hash, sorted dots with the hash of their
// values, sorted context (F52). Registers without entries stay out (F45 v). 0 means none.
func (s *Store) leafDigest(leaf int) uint64 {
	buffer := s.merkle.scratch[:0]
	first := uint64(leaf) << (64 - leafBits)
	last := first | (1<<(64-leafBits) - 1)
	for i := s.index.seek(tagOf(first)); i < len(s.index.slots); i++ {
		at := s.index.slots[i]
		if at.reference == 0 {
			if i >= s.index.home(tagOf(last)) {
				break
			}
			continue
		}
		if at.tag < tagOf(first) {
			continue
		}
		if at.tag > tagOf(last) {
			break
		}
		r := s.at(i)
		if r.EntryCount() == 0 {
			continue
		}
		buffer = binary.BigEndian.AppendUint64(buffer, r.KeyHash())
		for rest := r.Entries(); len(rest) > 0; {
			_, value, after, _ := wire.NextEntry(rest)
			buffer = append(buffer, rest[:wire.DotSize]...)
			buffer = binary.BigEndian.AppendUint64(buffer, siphash.Hash(s.hashKey0, s.hashKey1, value))
			rest = after
		}
		buffer = append(buffer, r.Context()...)
	}
	s.merkle.scratch = buffer
	if len(buffer) == 0 {
		return 0
	}
	return nonZero(siphash.Hash(s.hashKey0, s.hashKey1, buffer))
}

// Root returns the digest of the whole state. Equal states have equal roots whatever the order in
// which they came about.
func (s *Store) Root() uint64 {
	s.rehash()
	return s.merkle.nodes[1]
}

// Level appends the digests of the 2^levels nodes that lie levels below the node (depth, prefix).
// It panics if there is no such node.
func (s *Store) Level(depth, prefix, levels int, dst []uint64) []uint64 {
	s.rehash()
	return s.merkle.level(depth, prefix, levels, dst)
}
