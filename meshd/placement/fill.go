package placement

import (
	"math/bits"
	"slices"
)

// run fills the cells with the demands and returns the plan.
func (p *Planner) run() *Plan {
	plan := p.newPlan()
	p.startFill()
	for _, i := range p.sequence {
		p.placeDemand(plan, i)
	}
	plan.finish()
	return plan
}

// startFill empties all cells and gives the anchored replicas what they need, before anybody else.
func (p *Planner) startFill() {
	p.fill++
	for _, n := range p.order {
		p.rooms[n].reset(&p.nodes[n].cell.Capacity)
	}
	for _, i := range p.sequence {
		d := p.demands[i]
		d.anchored = d.anchored[:0]
		if d.stateful && len(d.w.Anchors) > 0 {
			p.placeAnchors(d)
		}
	}
}

// placeAnchors books the live anchors of a stateful workload (F79).
func (p *Planner) placeAnchors(d *demand) {
	for i := range d.replicas {
		d.anchored = append(d.anchored, anchorNone)
		if i >= len(d.w.Anchors) {
			continue
		}
		n, ok := p.lookup(d.w.Anchors[i])
		if !ok || d.denied(d.w.Anchors[i]) || !d.goesRound && slices.Contains(d.anchored[:i], n) {
			continue
		}
		switch d.class.refusal(&p.nodes[n].cell) {
		case blockNothing, blockNoNew, blockHeldBack:
		default:
			continue
		}
		if p.rooms[n].lacks(&d.ask) != blockNothing {
			d.anchored[i] = anchorWaits
			continue
		}
		p.rooms[n].take(&d.ask)
		d.anchored[i] = n
	}
}

// placeDemand places one workload and records what is missing.
func (p *Planner) placeDemand(plan *Plan, i int32) {
	d := p.demands[i]
	wanted := min(d.replicas, ReplicasMax-len(plan.replicas))
	start := len(plan.replicas)
	if d.stateful {
		p.placeStateful(plan, d, wanted)
	} else {
		p.placeSpread(plan, d, wanted)
	}
	p.placeLastResort(plan, d, start, wanted)
	plan.spans[i] = span{int32(start), int32(len(plan.replicas))}
	if d.fetches && len(plan.replicas)-start == d.replicas {
		p.findStandbys(plan, d, i)
	}
	if missing := d.replicas - (len(plan.replicas) - start); missing > 0 {
		plan.shortfalls = append(plan.shortfalls, p.shortfallOf(d, i, missing))
	}
	for _, n := range p.touched {
		p.counts[n] = 0
	}
	p.touched = p.touched[:0]
}

// put books one replica on a node that has room.
func (p *Planner) put(plan *Plan, d *demand, n int32, slot, rank int) {
	p.rooms[n].take(&d.ask)
	p.note(plan, n, slot, rank)
}

// note records a replica whose room is booked already.
func (p *Planner) note(plan *Plan, n int32, slot, rank int) {
	if p.counts[n] == 0 {
		p.touched = append(p.touched, n)
	}
	p.counts[n]++
	plan.replicas = append(plan.replicas, Replica{p.nodes[n].cell.ID, uint16(slot), uint16(rank)})
}

// hopeless reports that a request as large as this found every cell of the class full before.
func (p *Planner) hopeless(d *demand) bool {
	return d.class.fullFill == p.fill && len(d.w.Keepers) == 0 && d.ask.covers(&d.class.full)
}

// placeSpread places a spread or wasm workload (F71).
func (p *Planner) placeSpread(plan *Plan, d *demand, wanted int) {
	if wanted == 0 || p.hopeless(d) {
		return
	}
	start := len(plan.replicas)
	if len(d.w.Keepers) > 0 {
		p.placeRest(plan, d, wanted, 0)
	} else {
		p.rank(d, &d.first, 0)
		rank := 0
		for _, entry := range d.first.list {
			if rank == wanted {
				break
			}
			if p.rooms[entry.node].lacks(&d.ask) == blockNothing &&
				(len(d.w.Denied) == 0 || !d.denied(p.nodes[entry.node].cell.ID)) {
				p.put(plan, d, entry.node, 0, rank)
				rank++
			}
		}
		if rank < wanted && !d.first.complete {
			p.placeRest(plan, d, wanted, rank)
		}
	}
	if d.goesRound {
		p.goRound(plan, d, wanted, start)
	}
}

// goRound gives the cells that hold a replica another one each, best first, until all replicas are
// placed or nobody has room. Cells that had no room in the first round have none now.
func (p *Planner) goRound(plan *Plan, d *demand, wanted, start int) {
	holders := len(plan.replicas) - start
	for slot := 1; len(plan.replicas)-start < wanted; slot++ {
		before := len(plan.replicas)
		for i := start; i < start+holders && len(plan.replicas)-start < wanted; i++ {
			n, _ := p.lookup(plan.replicas[i].Cell)
			if int(p.counts[n]) == slot && p.rooms[n].lacks(&d.ask) == blockNothing {
				p.put(plan, d, n, slot, len(plan.replicas)-start)
			}
		}
		if len(plan.replicas) == before {
			return
		}
	}
}

// placeRest goes over all cells instead of the kept part of the ranking.
func (p *Planner) placeRest(plan *Plan, d *demand, wanted, rank int) {
	candidates := p.candidates(d, 0)
	slices.SortFunc(candidates, p.compareRanked)
	for _, entry := range candidates {
		if rank == wanted {
			break
		}
		p.put(plan, d, entry.node, 0, rank)
		rank++
	}
}

// candidates scores every cell that may take a replica of the workload now: eligible, not denied,
// with room, and without one unless the workload goes round. The result is valid until the next call.
func (p *Planner) candidates(d *demand, index uint16) []ranked {
	found := p.scratch[:0]
	first, last := absorbKey(p.k0, p.k1, d.w.KeyHash), indexBlock(index)
	consider := func(n int32) (hasRoom bool) {
		lack := p.rooms[n].lacks(&d.ask)
		if lack != blockNothing {
			return lack == blockPort
		}
		held := p.counts[n] > 0 && !(d.goesRound && d.stateful)
		if !held && !d.denied(p.nodes[n].cell.ID) {
			found = append(found, ranked{first.finish(p.blocks[n], last), n})
		}
		return true
	}
	anyRoom := false
	for i, word := range d.class.members {
		for ; word != 0; word &= word - 1 {
			if consider(int32(i<<6 + bits.TrailingZeros64(word))) {
				anyRoom = true
			}
		}
	}
	if !anyRoom {
		d.class.fullFill, d.class.full = p.fill, d.ask
	}
	for i, id := range d.w.Keepers {
		n, ok := p.lookup(id)
		if ok && !slices.Contains(d.w.Keepers[:i], id) && d.class.refusal(&p.nodes[n].cell) == blockNoNew {
			consider(n)
		}
	}
	p.scratch = found[:0]
	return found
}

// placeStateful places the indices of a stateful workload: the anchored ones first, then the others
// in ascending order (F71, F79).
func (p *Planner) placeStateful(plan *Plan, d *demand, wanted int) {
	for i, n := range d.anchored {
		if n >= 0 && i < wanted {
			p.note(plan, n, i, i)
		}
	}
	start := len(plan.replicas)
	for i := range wanted {
		if i < len(d.anchored) && d.anchored[i] != anchorNone {
			continue
		}
		if n, ok := p.choose(d, i); ok {
			p.put(plan, d, n, i, i)
		}
	}
	if start < len(plan.replicas) {
		replicas := plan.replicas[start-p.anchoredCount(d, wanted):]
		slices.SortFunc(replicas, func(a, b Replica) int { return int(a.Slot) - int(b.Slot) })
	}
}

func (p *Planner) anchoredCount(d *demand, wanted int) (count int) {
	for i, n := range d.anchored {
		if n >= 0 && i < wanted {
			count++
		}
	}
	return count
}

// choose finds the best cell for one index.
func (p *Planner) choose(d *demand, index int) (int32, bool) {
	if p.hopeless(d) {
		return 0, false
	}
	if len(d.w.Keepers) == 0 {
		for len(d.indexed) <= index {
			d.indexed = append(d.indexed, ranking{})
		}
		r := &d.indexed[index]
		p.rank(d, r, uint16(index))
		for _, entry := range r.list {
			if p.counts[entry.node] == 0 && p.rooms[entry.node].lacks(&d.ask) == blockNothing &&
				!d.denied(p.nodes[entry.node].cell.ID) {
				return entry.node, true
			}
		}
		if r.complete && !d.goesRound {
			return 0, false
		}
	}
	best, found := ranked{}, false
	for _, entry := range p.candidates(d, uint16(index)) {
		fewer := int(p.counts[entry.node]) - int(p.counts[best.node])
		if !found || fewer < 0 || fewer == 0 && p.precedes(entry, best) {
			best, found = entry, true
		}
	}
	return best.node, found
}
