package crdt

import "math/bits"

// LeafSet is a set of Merkle leaves with a summary, so that finding the next member is cheap. The
// zero value is empty. It takes 8 KiB.
type LeafSet struct {
	words   [Leaves / 64]uint64
	summary [Leaves / 64 / 64]uint64
}

// Set adds a leaf, 0 <= leaf < Leaves.
func (b *LeafSet) Set(leaf int) {
	b.words[leaf>>6] |= 1 << (leaf & 63)
	b.summary[leaf>>12] |= 1 << (leaf >> 6 & 63)
}

// Clear takes a leaf out.
func (b *LeafSet) Clear(leaf int) {
	b.words[leaf>>6] &^= 1 << (leaf & 63)
	if b.words[leaf>>6] == 0 {
		b.summary[leaf>>12] &^= 1 << (leaf >> 6 & 63)
	}
}

// Has reports whether the leaf is a member.
func (b *LeafSet) Has(leaf int) bool { return b.words[leaf>>6]>>(leaf&63)&1 != 0 }

// Next returns the first member at or after leaf.
func (b *LeafSet) Next(leaf int) (int, bool) {
	if leaf >= Leaves {
		return 0, false
	}
	if word := b.words[leaf>>6] >> (leaf & 63); word != 0 {
		return leaf + bits.TrailingZeros64(word), true
	}
	for at := leaf>>6 + 1; at < len(b.words); {
		word := b.summary[at>>6] >> (at & 63)
		if word == 0 {
			at = (at>>6 + 1) << 6
			continue
		}
		at += bits.TrailingZeros64(word)
		return at<<6 + bits.TrailingZeros64(b.words[at]), true
	}
	return 0, false
}
