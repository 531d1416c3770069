package placement

import (
	"slices"

	"colloid.net/meshd/wire"
	"colloid.net/workload"
)

// demand is a workload with what the planner derived from it and keeps between rounds.
type demand struct {
	w         Workload
	spec      *workload.Spec // from which the fields below were derived
	class     *class
	ask       request
	replicas  int
	priority  int8
	stateful  bool
	goesRound bool // oversubscribe
	fetches   bool // Fetches, and it has replicas

	first   ranking   // of a spread or wasm workload
	indexed []ranking // of a stateful one, per index, as far as needed

	// Of the present fill: per index the node of a live anchor, or one of the values below. Empty when
	// the workload has no anchors.
	anchored []int32
}

const (
	anchorNone  = -1 // no anchor, or one that cannot run the workload
	anchorWaits = -2 // the anchor can run it but has no room
)

// nothing stands in for a nil Spec.
var nothing workload.Spec

func (p *Planner) updateDemand(d *demand, w *Workload) {
	d.w = *w
	spec := w.Spec
	if spec == nil {
		spec = &nothing
	}
	if d.spec != spec {
		if d.class == nil || !d.class.matches(spec) {
			d.class = p.classOf(spec)
			d.first, d.indexed = ranking{}, nil
		}
		d.spec, d.ask = spec, requestOf(spec)
		d.replicas, d.priority = int(spec.Replicas), spec.Priority
		d.stateful, d.goesRound = spec.Stateful, spec.Oversubscribe
		d.fetches = Fetches(spec) && spec.Replicas > 0
		if len(d.indexed) > d.replicas {
			d.indexed = slices.Clip(d.indexed[:d.replicas])
		}
	}
	d.class.used = p.round
	if d.class.shrunk || len(d.class.added) > 0 {
		p.repair(d, &d.first, 0)
		for i := range d.indexed {
			p.repair(d, &d.indexed[i], uint16(i))
		}
	}
}

func (p *Planner) classOf(spec *workload.Spec) *class {
	p.text = className(p.text[:0], spec)
	if c, ok := p.byName[string(p.text)]; ok {
		return c
	}
	c := &class{
		name: string(p.text), runtime: spec.Runtime, architecture: spec.Architecture,
		constraints: slices.Clone(spec.Constraints),
		members:     make([]uint64, (len(p.nodes)+63)/64),
	}
	for _, n := range p.order {
		c.set(n, c.refusal(&p.nodes[n].cell) == blockNothing)
	}
	c.shrunk, c.added = false, c.added[:0]
	p.classes = append(p.classes, c)
	p.byName[c.name] = c
	return c
}

func (d *demand) denied(cell wire.CellID) bool {
	for _, id := range d.w.Denied {
		if id == cell {
			return true
		}
	}
	return false
}
