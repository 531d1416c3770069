package placement

import (
	"cmp"
	"fmt"
	"slices"

	"colloid.net/meshd/wire"
)

// node is a cell with the index under which rankings and classes know it. The index stays with the
// cell for as long as it is listed; it is reused only after every ranking has forgotten it.
type node struct {
	cell Cell
	live bool
}

// Planner computes plans and keeps what the next one can reuse: the classes, and per workload the
// best part of its ranking. The zero value is not usable.
type Planner struct {
	k0, k1 uint64
	spare  int    // spareLength; tests shorten it
	round  uint64 // number of the present Compute

	nodes  []node
	blocks []uint64 // per node, cellBlock of its id
	rooms  []room   // per node
	ids    []wire.CellID
	order  []int32 // node of ids[i]
	free   []int32
	// heldBack are the nodes of cells of this kind.
	heldBack []int32

	classes  []*class
	byName   map[string]*class
	demands  []*demand // sorted by key hash
	previous []*demand // scratch: the slice of the round before
	sequence []int32   // demands in the order in which they are served

	fill    uint64   // number of the present fill
	counts  []uint16 // per node, replicas of the workload being placed
	touched []int32  // nodes with a count
	scratch []ranked
	scores  []uint64
	text    []byte
}

// NewPlanner returns a planner for the cluster's hash key (seal.HashKey).
func NewPlanner(k0, k1 uint64) *Planner {
	return &Planner{k0: k0, k1: k1, spare: spareLength, byName: make(map[string]*class)}
}

// Score is the weight of a cell for one replica of a workload; the greatest wins, equal scores go to
// the lower cell id. Spread and wasm workloads use index 0 only (F71, F80).
func (p *Planner) Score(keyHash uint64, cell wire.CellID, index uint16) uint64 {
	return absorbKey(p.k0, p.k1, keyHash).finish(cellBlock(cell), indexBlock(index))
}

// Compute places the workloads on the cells. Cells are expected sorted by ID and workloads by
// KeyHash; other orders cost a sorted copy and give the same plan. A cell or key hash listed twice is
// a broken invariant of the caller and panics.
func (p *Planner) Compute(cells []Cell, workloads []Workload) *Plan {
	cells = sorted(cells, func(c *Cell) uint64 { return uint64(c.ID) }, "cell")
	workloads = sorted(workloads, func(w *Workload) uint64 { return w.KeyHash }, "key hash")
	p.round++
	p.updateCells(cells)
	p.updateDemands(workloads)
	p.finishClasses()
	return p.run()
}

// sorted returns list in ascending order of key without duplicates.
func sorted[T any](list []T, key func(*T) uint64, noun string) []T {
	for i := 1; i < len(list); i++ {
		if key(&list[i-1]) >= key(&list[i]) {
			list = slices.Clone(list)
			slices.SortStableFunc(list, func(a, b T) int { return cmp.Compare(key(&a), key(&b)) })
			break
		}
	}
	for i := 1; i < len(list); i++ {
		if key(&list[i-1]) == key(&list[i]) {
			panic(fmt.Sprintf("placement: %s %016x is listed twice", noun, key(&list[i])))
		}
	}
	return list
}

// updateCells brings nodes and classes in line with the list by merging it with the present one.
func (p *Planner) updateCells(cells []Cell) {
	ids, order := make([]wire.CellID, 0, len(cells)), make([]int32, 0, len(cells))
	p.heldBack = p.heldBack[:0]
	var dropped []int32
	old := 0
	for i := range cells {
		cell := &cells[i]
		for old < len(p.ids) && p.ids[old] < cell.ID {
			dropped = append(dropped, p.order[old])
			old++
		}
		var n int32
		if old < len(p.ids) && p.ids[old] == cell.ID {
			n = p.order[old]
			old++
			changed := !sameOffer(&p.nodes[n].cell, cell)
			p.nodes[n].cell = *cell
			if changed {
				p.classify(n)
			}
		} else {
			n = p.newNode(cell)
			p.classify(n)
		}
		if cell.HeldBack {
			p.heldBack = append(p.heldBack, n)
		}
		ids, order = append(ids, cell.ID), append(order, n)
	}
	dropped = append(dropped, p.order[old:]...)
	p.ids, p.order = ids, order
	for _, n := range dropped {
		p.nodes[n] = node{}
		p.classify(n)
	}
	// Only now may an index be used again: all rankings of this round were purged of it before the
	// next call of newNode.
	p.free = append(p.free, dropped...)
}

func (p *Planner) newNode(cell *Cell) int32 {
	if last := len(p.free) - 1; last >= 0 {
		n := p.free[last]
		p.free = p.free[:last]
		p.nodes[n], p.blocks[n] = node{*cell, true}, cellBlock(cell.ID)
		return n
	}
	p.nodes = append(p.nodes, node{*cell, true})
	p.blocks = append(p.blocks, cellBlock(cell.ID))
	p.rooms = append(p.rooms, room{})
	p.counts = append(p.counts, 0)
	return int32(len(p.nodes) - 1)
}

// classify updates the membership of one node in every class.
func (p *Planner) classify(n int32) {
	for _, c := range p.classes {
		for len(c.members) <= int(n>>6) {
			c.members = append(c.members, 0)
		}
		c.set(n, p.nodes[n].live && c.refusal(&p.nodes[n].cell) == blockNothing)
	}
}

// lookup finds the node of a cell, or reports false when the cell is not in H.
func (p *Planner) lookup(id wire.CellID) (int32, bool) {
	i, ok := slices.BinarySearch(p.ids, id)
	if !ok {
		return 0, false
	}
	return p.order[i], true
}

// updateDemands merges the workloads into the demands kept from the last round.
func (p *Planner) updateDemands(workloads []Workload) {
	next, old := p.previous[:0], 0
	for i := range workloads {
		w := &workloads[i]
		for old < len(p.demands) && p.demands[old].w.KeyHash < w.KeyHash {
			old++
		}
		var d *demand
		if old < len(p.demands) && p.demands[old].w.KeyHash == w.KeyHash {
			d = p.demands[old]
		} else {
			d = &demand{}
		}
		p.updateDemand(d, w)
		next = append(next, d)
	}
	p.previous, p.demands = p.demands, next
	clear(p.previous)
	p.sortSequence()
}

// sortSequence orders the demands by (incumbent, priority descending, key hash) with a counting sort.
func (p *Planner) sortSequence() {
	const priorities = 256
	var ends [2*priorities + 1]int32
	bucket := func(d *demand) int {
		b := priorities - 1 - (int(d.priority) + priorities/2)
		if !d.w.Incumbent {
			b += priorities
		}
		return b
	}
	for _, d := range p.demands {
		ends[bucket(d)+1]++
	}
	for i := 1; i < len(ends); i++ {
		ends[i] += ends[i-1]
	}
	p.sequence = slices.Grow(p.sequence[:0], len(p.demands))[:len(p.demands)]
	for i, d := range p.demands {
		b := bucket(d)
		p.sequence[ends[b]] = int32(i)
		ends[b]++
	}
}

// finishClasses forgets the changes that all rankings have seen, and the classes nobody uses.
func (p *Planner) finishClasses() {
	kept := p.classes[:0]
	for _, c := range p.classes {
		c.shrunk, c.added = false, c.added[:0]
		if c.used == p.round {
			kept = append(kept, c)
		} else {
			delete(p.byName, c.name)
		}
	}
	clear(p.classes[len(kept):])
	p.classes = kept
}
