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

// The following take the leaves first <= leaf < last, 0 <= first < last <= Leaves, a word of 64 at a time: a
// cell that joins exchanges all leaves there are.

// part returns which bits of the word at an index stand for leaves of the range.
func part(at, first, last int) uint64 {
	mask := ^uint64(0)
	if at == first>>6 {
		mask <<= first & 63
	}
	if at == last>>6 {
		mask &= 1<<(last&63) - 1
	}
	return mask
}

// put replaces a word.
func (b *LeafSet) put(at int, word uint64) {
	b.words[at] = word
	if word != 0 {
		b.summary[at>>6] |= 1 << (at & 63)
	} else {
		b.summary[at>>6] &^= 1 << (at & 63)
	}
}

// Add adds the leaves of a range that are not members of except, which may be nil.
func (b *LeafSet) Add(first, last int, except *LeafSet) {
	for at := first >> 6; at <= (last-1)>>6; at++ {
		word := part(at, first, last)
		if except != nil {
			word &^= except.words[at]
		}
		if word != 0 {
			b.put(at, b.words[at]|word)
		}
	}
}

// Remove takes the leaves of a range out.
func (b *LeafSet) Remove(first, last int) {
	for at := first >> 6; at <= (last-1)>>6; at++ {
		if word := part(at, first, last); b.words[at]&word != 0 {
			b.put(at, b.words[at]&^word)
		}
	}
}

// Move takes the leaves of a range out and adds those that were members to another set.
func (b *LeafSet) Move(first, last int, to *LeafSet) {
	for at := first >> 6; at <= (last-1)>>6; at++ {
		if word := part(at, first, last) & b.words[at]; word != 0 {
			to.put(at, to.words[at]|word)
			b.put(at, b.words[at]&^word)
		}
	}
}

// Holds reports whether all leaves of a range are members.
func (b *LeafSet) Holds(first, last int) bool {
	for at := first >> 6; at <= (last-1)>>6; at++ {
		if word := part(at, first, last); b.words[at]&word != word {
			return false
		}
	}
	return true
}

// Reset takes all leaves out. It costs what is in the set.
func (b *LeafSet) Reset() {
	for i, summary := range b.summary {
		for ; summary != 0; summary &= summary - 1 {
			b.words[i<<6+bits.TrailingZeros64(summary)] = 0
		}
		b.summary[i] = 0
	}
}
