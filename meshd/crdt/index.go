package crdt

// index finds registers by key hash. It is linear probing with the entries kept in order: a slot's
// home is given by the top bits of the hash, and no entry stands before one with a smaller
// (hash, name). So the table is at once the sorted list of keys that Merkle leaves, Walk and
// snapshots need. There is no wrap-around; runs at the end spill into slack slots.
type index struct {
	slots []slot // the last one is always empty
	bits  uint
	count int
}

// slot holds the top half of the key hash and where the register is; reference 0 is an empty slot.
type slot struct {
	tag       uint32
	reference reference
}

const (
	indexBitsMin = 6
	indexBitsMax = 31
	indexSlack   = 16
)

func (x *index) initialise(count int) {
	x.bits = indexBitsMin
	for x.bits < indexBitsMax && full(count, x.bits) {
		x.bits++
	}
	x.slots = make([]slot, 1<<x.bits+indexSlack)
	x.count = 0
}

// full keeps the load at 85 %: an unsuccessful search then looks at four slots on average.
func full(count int, bits uint) bool { return count > 1<<bits*85/100 }

func (x *index) home(tag uint32) int { return int(tag >> (32 - x.bits)) }

func tagOf(hash uint64) uint32 { return uint32(hash >> 32) }

// seek returns the first position whose tag is at least tag, or an empty slot before it. From the home
// slot on, "occupied by a smaller tag" is first true and then false for good, because an entry with a
// smaller tag has its home no later, and everything between home and place is occupied. So it can
// search in growing steps, which matters when keys arrive in the order of their hashes, as in a
// bootstrap: then the runs are long until the table has grown.
func (x *index) seek(tag uint32) int {
	low := x.home(tag)
	if !x.before(low, tag) {
		return low
	}
	step := 1
	for x.before(low+step, tag) {
		low += step
		step *= 2
	}
	for high := low + step; high-low > 1; {
		middle := int(uint(low+high) >> 1)
		if x.before(middle, tag) {
			low = middle
		} else {
			high = middle
		}
		step = high - low
	}
	return low + step
}

func (x *index) before(i int, tag uint32) bool {
	return i < len(x.slots) && x.slots[i].reference != 0 && x.slots[i].tag < tag
}

// insert puts an entry at position i as found by a search, moving its successors.
func (x *index) insert(i int, tag uint32, ref reference) {
	end := i
	for x.slots[end].reference != 0 {
		end++
	}
	if end == len(x.slots)-1 {
		x.slots = append(x.slots, make([]slot, 2*indexSlack)...)
	}
	copy(x.slots[i+1:end+1], x.slots[i:end])
	x.slots[i] = slot{tag, ref}
	x.count++
	if full(x.count, x.bits) && x.bits < indexBitsMax {
		x.grow()
	}
}

func (x *index) grow() {
	old := x.slots
	x.bits++
	x.slots = make([]slot, 1<<x.bits+indexSlack)
	next := 0
	for _, s := range old {
		if s.reference == 0 {
			continue
		}
		next = max(next, x.home(s.tag))
		if next >= len(x.slots)-1 {
			x.slots = append(x.slots, make([]slot, next-len(x.slots)+2+indexSlack)...)
		}
		x.slots[next] = s
		next++
	}
}

// remove empties position i and closes the gap.
func (x *index) remove(i int) {
	end := i + 1
	for x.slots[end].reference != 0 && x.home(x.slots[end].tag) < end {
		end++
	}
	copy(x.slots[i:end-1], x.slots[i+1:end])
	x.slots[end-1] = slot{}
	x.count--
}
