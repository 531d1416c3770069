package sim

import (
	"net/netip"
	"time"
)

// event is one thing that will happen: a function, the arrival of a datagram, or a tick of a cell.
type event struct {
	run      func()
	datagram []byte
	source   netip.AddrPort
	from     int // index of the sender, -1 = no machine of this world
	node     *Node
	socket   int    // of the node that a datagram is for
	number   uint64 // of the tick; older ones are void
}

// events is a queue ordered by time, then by when an event was pushed, so that equal times have one order.
// The heap holds small keys; the events themselves lie still in slots.
type events struct {
	heap  []eventKey
	slots []event
	free  []int32
	order uint64
}

type eventKey struct {
	at    time.Duration
	order uint64
	slot  int32
}

func (k eventKey) before(other eventKey) bool {
	return k.at < other.at || k.at == other.at && k.order < other.order
}

func (e *events) len() int { return len(e.heap) }

func (e *events) next() time.Duration { return e.heap[0].at }

func (e *events) push(at time.Duration, what event) {
	slot := int32(len(e.slots))
	if last := len(e.free) - 1; last >= 0 {
		slot = e.free[last]
		e.free = e.free[:last]
		e.slots[slot] = what
	} else {
		e.slots = append(e.slots, what)
	}
	e.order++
	key := eventKey{at, e.order, slot}
	e.heap = append(e.heap, key)
	i := len(e.heap) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if !key.before(e.heap[parent]) {
			break
		}
		e.heap[i] = e.heap[parent]
		i = parent
	}
	e.heap[i] = key
}

func (e *events) pop() (time.Duration, event) {
	top := e.heap[0]
	last := e.heap[len(e.heap)-1]
	e.heap = e.heap[:len(e.heap)-1]
	n, i := len(e.heap), 0
	for n > 0 {
		child := 2*i + 1
		if child >= n {
			break
		}
		if child+1 < n && e.heap[child+1].before(e.heap[child]) {
			child++
		}
		if !e.heap[child].before(last) {
			break
		}
		e.heap[i] = e.heap[child]
		i = child
	}
	if n > 0 {
		e.heap[i] = last
	}
	what := e.slots[top.slot]
	e.slots[top.slot] = event{}
	e.free = append(e.free, top.slot)
	return top.at, what
}
