package placement

import (
	"slices"
)

// spareLength is how many cells a ranking holds beyond the replicas. Each death of a ranked cell uses
// one up; a ranking that has become too short is computed anew. With 8 that happens to a workload
// after 5 deaths among its best cells, and the memory for 100,000 workloads stays at some 20 MB.
const spareLength = 8

// indexedMax bounds the ranking of one index of a stateful workload, of which all but one cell are
// only needed when siblings or a lack of room take the better ones.
const indexedMax = 16

// sortedInsertMax is the longest ranking built by insertion; longer ones are sorted.
const sortedInsertMax = 64

type ranked struct {
	score uint64
	node  int32
}

// ranking is the best part of the order of the class's members for one (workload, index), best first.
// It depends on nothing but the membership: room and denials are looked at when it is used.
type ranking struct {
	list     []ranked
	floor    uint64 // every member with a greater score is in list
	valid    bool
	complete bool // list holds every member
}

// precedes is the order of rankings.
func (p *Planner) precedes(a, b ranked) bool {
	if a.score != b.score {
		return a.score > b.score
	}
	return p.nodes[a.node].cell.ID < p.nodes[b.node].cell.ID
}

func (p *Planner) compareRanked(a, b ranked) int {
	if p.precedes(a, b) {
		return -1
	}
	return 1
}

// repair brings a ranking in line with the changes of its class.
func (p *Planner) repair(d *demand, r *ranking, index uint16) {
	if !r.valid {
		return
	}
	c := d.class
	if len(c.added) > c.count/2 {
		r.valid = false
		return
	}
	if c.shrunk {
		kept := r.list[:0]
		for _, entry := range r.list {
			if c.has(entry.node) {
				kept = append(kept, entry)
			}
		}
		r.list = kept
	}
	if len(c.added) == 0 {
		return
	}
	first, last := absorbKey(p.k0, p.k1, d.w.KeyHash), indexBlock(index)
	for _, n := range c.added {
		entry := ranked{first.finish(p.blocks[n], last), n}
		switch {
		case r.complete || entry.score > r.floor:
			r.list = p.insert(r.list, entry)
		case entry.score == r.floor:
			r.valid = false // the order of equals depends on a cell that may have left the list
		}
	}
	if longest := 2 * p.keep(d); len(r.list) > longest {
		r.cut(longest)
	}
}

// keep is the length to which a ranking is built.
func (p *Planner) keep(d *demand) int { return max(d.usual()+p.spare, d.need()+1) }

// need is the length below which a ranking is computed anew: the cells of the replicas and those that may stand by.
func (d *demand) need() int {
	if d.fetches {
		return d.usual() + standbyReach
	}
	return d.usual()
}

// usual is how many cells of a ranking are enough where nothing is short.
func (d *demand) usual() int {
	if d.stateful {
		return min(d.replicas, indexedMax)
	}
	return d.replicas
}

func (r *ranking) cut(length int) {
	r.list, r.complete = r.list[:length], false
	r.floor = r.list[length-1].score
}

// insert puts entry at its place in the sorted list.
func (p *Planner) insert(list []ranked, entry ranked) []ranked {
	list = append(list, entry)
	i := len(list) - 1
	for ; i > 0 && p.precedes(entry, list[i-1]); i-- {
		list[i] = list[i-1]
	}
	list[i] = entry
	return list
}

// rank makes sure that the ranking is valid and, unless complete, long enough for the replicas.
func (p *Planner) rank(d *demand, r *ranking, index uint16) {
	if r.valid && (r.complete || len(r.list) >= d.need()) {
		return
	}
	length, c := p.keep(d), d.class
	best := p.scratch[:0]
	c.gather(p.blocks)
	p.scores = absorbKey(p.k0, p.k1, d.w.KeyHash).finishAll(p.scores[:0], c.blocks, indexBlock(index))
	floor := uint64(0)
	for i, score := range p.scores {
		if score < floor {
			continue
		}
		if length > sortedInsertMax {
			best = append(best, ranked{score, c.list[i]})
			continue
		}
		best = p.insert(best, ranked{score, c.list[i]})
		if len(best) > length {
			best = best[:length]
			floor = best[length-1].score
		}
	}
	if length > sortedInsertMax {
		slices.SortFunc(best, p.compareRanked)
	}
	p.scratch = best[:0]
	best = best[:min(len(best), length)]
	*r = ranking{list: append(r.list[:0], best...), valid: true, complete: len(best) == c.count}
	if len(best) > 0 {
		r.floor = best[len(best)-1].score
	}
}
