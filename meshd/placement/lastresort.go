package placement

import (
	"cmp"
	"slices"
)

// Cells that are held back after a death (F64) receive a replica only when no other cell of H takes it: a
// replica on a cell that may die again is worth more than none. Like everything else here that is a function
// of what Compute is given, so cells that hold the same ones back plan the same (EXEC-2).

// placeLastResort gives the replicas of a workload that found no cell to those that are held back. start is
// where the workload begins in the plan.
func (p *Planner) placeLastResort(plan *Plan, d *demand, start, wanted int) {
	if len(p.heldBack) == 0 || len(plan.replicas)-start >= wanted {
		return
	}
	if !d.stateful {
		for len(plan.replicas)-start < wanted {
			n, ok := p.bestHeldBack(d, 0)
			if !ok {
				return
			}
			p.put(plan, d, n, int(p.counts[n]), len(plan.replicas)-start)
		}
		return
	}
	placed := make([]bool, wanted)
	for _, replica := range plan.replicas[start:] {
		placed[replica.Slot] = true
	}
	for i := range wanted {
		if placed[i] || i < len(d.anchored) && d.anchored[i] == anchorWaits {
			continue
		}
		if n, ok := p.bestHeldBack(d, uint16(i)); ok {
			p.put(plan, d, n, i, i)
		}
	}
	slices.SortFunc(plan.replicas[start:], func(a, b Replica) int { return cmp.Compare(a.Slot, b.Slot) })
}

// bestHeldBack finds the best of the cells that are held back and could take a replica now: of those with the
// fewest replicas of the workload the one that ranks first.
func (p *Planner) bestHeldBack(d *demand, index uint16) (int32, bool) {
	first, last := absorbKey(p.k0, p.k1, d.w.KeyHash), indexBlock(index)
	best, found := ranked{}, false
	for _, n := range p.heldBack {
		if p.blockerOf(d, n) != blockNothing {
			continue
		}
		entry := ranked{first.finish(p.blocks[n], last), n}
		fewer := int(p.counts[n]) - int(p.counts[best.node])
		if !found || fewer < 0 || fewer == 0 && p.precedes(entry, best) {
			best, found = entry, true
		}
	}
	return best.node, found
}
