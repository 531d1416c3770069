package gossip

import "colloid.net/meshd/clock"

// The heap orders slots by due time; each slot knows its place, so that it can be moved or removed.

// first returns the slot due earliest, or none.
func (p *pending) first() int32 {
	if len(p.heap) == 0 {
		return none
	}
	return p.heap[0]
}

func (p *pending) push(at int32) {
	p.heap = append(p.heap, at)
	p.slots[at].heapAt = int32(len(p.heap) - 1)
	p.up(len(p.heap) - 1)
}

func (p *pending) pull(at int32) {
	i, last := int(p.slots[at].heapAt), len(p.heap)-1
	p.swap(i, last)
	p.heap = p.heap[:last]
	p.slots[at].heapAt = none
	if i < last {
		p.fix(i)
	}
}

func (p *pending) reschedule(at int32, due clock.Instant) {
	p.slots[at].due = due
	p.fix(int(p.slots[at].heapAt))
}

func (p *pending) fix(i int) {
	if !p.down(i) {
		p.up(i)
	}
}

func (p *pending) less(i, j int) bool { return p.slots[p.heap[i]].due < p.slots[p.heap[j]].due }

func (p *pending) swap(i, j int) {
	p.heap[i], p.heap[j] = p.heap[j], p.heap[i]
	p.slots[p.heap[i]].heapAt, p.slots[p.heap[j]].heapAt = int32(i), int32(j)
}

func (p *pending) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !p.less(i, parent) {
			return
		}
		p.swap(i, parent)
		i = parent
	}
}

func (p *pending) down(i int) (moved bool) {
	for {
		child := 2*i + 1
		if child >= len(p.heap) {
			return moved
		}
		if child+1 < len(p.heap) && p.less(child+1, child) {
			child++
		}
		if !p.less(child, i) {
			return moved
		}
		p.swap(i, child)
		i, moved = child, true
	}
}
