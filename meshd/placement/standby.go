package placement

import (
	"cmp"
	"math/bits"
	"slices"

	"colloid.net/meshd/wire"
	"colloid.net/workload"
)

// A cell stands by for a workload when a replica would come to it if one cell that has one died. Whoever stands by
// fetches ahead what the replica needs, so that a death costs no pull. Like the plan it follows from what Compute is given,
// so all cells know who does. A cell that has a replica stands by for none: what it needs is there already.

// standbyReach is how many cells of a ranking, behind as many as there are replicas, may stand by. It bounds the work of a
// plan in a cluster that is nearly full, and the refusals in one where few hosts admit a workload: each that is asked to
// prepare it and refuses writes that down for all. Behind them nobody stands by.
const standbyReach = 4

// standby is a cell that stands by for a stateful workload, and the slot that its replica would have.
type standby struct {
	cell  wire.CellID
	index int32 // of the workload, in keys
	slot  uint16
}

// Fetches reports whether an instance needs anything that must be fetched or compiled before its first start on a host.
// The file of a process is there or is not.
func Fetches(spec *workload.Spec) bool {
	return spec != nil && (spec.Runtime == workload.RuntimeOCI || spec.Runtime == workload.RuntimeWasm)
}

// StandsBy reports whether a cell is where a replica of the workload would go if one cell that has one died, and the slot
// that it would have there. Of a stateful workload several cells may stand by, each for another index; one that does so
// for several is told the first. Nobody does while a replica is unplaced, or for a process (see Fetches).
func (plan *Plan) StandsBy(keyHash uint64, cell wire.CellID) (slot uint16, ok bool) {
	i, found := slices.BinarySearch(plan.keys, keyHash)
	if !found || plan.standby == nil {
		return 0, false
	}
	if plan.standby[i] == cell {
		return 0, true
	}
	at, _ := slices.BinarySearchFunc(plan.standbys, int32(i), func(b standby, index int32) int { return cmp.Compare(b.index, index) })
	for _, b := range plan.standbys[at:] {
		if b.index != int32(i) {
			break
		}
		if b.cell == cell {
			return b.slot, true
		}
	}
	return 0, false
}

// findStandbys notes who stands by for a workload all of whose replicas were placed a moment ago: room is what those
// served before it left, as it will be when its turn comes in the next plan.
func (p *Planner) findStandbys(plan *Plan, d *demand, index int32) {
	if !d.stateful {
		if n, ok := p.nextFree(d, &d.first, 0); ok {
			plan.standby[index] = p.cellOf(n)
		}
		return
	}
	first := len(plan.standbys)
	for len(d.indexed) < d.replicas {
		d.indexed = append(d.indexed, ranking{})
	}
	for i := range d.replicas {
		n, ok := p.nextFree(d, &d.indexed[i], uint16(i))
		if !ok {
			continue
		}
		id := p.cellOf(n)
		if !slices.ContainsFunc(plan.standbys[first:], func(b standby) bool { return b.cell == id }) {
			plan.standbys = append(plan.standbys, standby{id, index, uint16(i)})
		}
	}
}

// cellOf is the id of a node, from a table that is a tenth of all that is known of the nodes.
func (p *Planner) cellOf(n int32) wire.CellID { return wire.CellID(bits.ReverseBytes64(p.blocks[n])) }

// nextFree finds the best cell in reach that has no replica of the workload and could take one.
func (p *Planner) nextFree(d *demand, r *ranking, index uint16) (int32, bool) {
	if p.hopeless(d) {
		return 0, false
	}
	p.rank(d, r, index)
	for _, entry := range r.list[:min(len(r.list), d.need())] { // no more, for what is kept depends on the past
		if p.counts[entry.node] == 0 && p.rooms[entry.node].lacks(&d.ask) == blockNothing &&
			(len(d.w.Denied) == 0 || !d.denied(p.nodes[entry.node].cell.ID)) {
			return entry.node, true
		}
	}
	return 0, false
}
