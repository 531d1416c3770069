package reconcile

import (
	"testing"

	"colloid.net/meshd/placement"
	"colloid.net/meshd/state"
	"colloid.net/workload"
)

// F72: what only stays because no cell may run its workload ends also where nothing is to start, once the cell has less
// than what is here takes; the lowest priority first, and no more than is needed.
func TestF72_WhatNobodyMayRunLeavesASmallerCell(t *testing.T) {
	for name, test := range map[string]struct {
		capacity state.CellCapacity
		stops    []uint64 // key hashes
	}{
		"no limit":        {state.CellCapacity{}, nil},
		"just enough":     {state.CellCapacity{MemoryMiB: 300, InstancesMax: 3}, nil},
		"one too many":    {state.CellCapacity{MemoryMiB: 299}, []uint64{21}},
		"two instances":   {state.CellCapacity{InstancesMax: 2}, []uint64{21}},
		"room for itself": {state.CellCapacity{MemoryMiB: 100}, []uint64{21, 20}},
	} {
		b := newBench(t, self)
		b.cells = b.cells[:1]
		b.cells[0].Capacity = test.capacity
		b.spec(func(s *workload.Spec) { s.MemoryMiB = 100 })
		placed := b.workloads[0]
		b.workloads, b.actual = []placement.Workload{placed}, []Actual{instance(1, Ready)}
		b.actual[0].MemoryMiB = 100
		for i := range uint64(2) {
			spec := *placed.Spec
			spec.Priority = -int8(i)
			spec.Constraints = []workload.Constraint{{Label: "zone", Value: "nowhere"}}
			w := placed
			w.Key, w.KeyHash, w.Spec = "spread.stays", 20+i, &spec
			b.workloads = append(b.workloads, w)
			b.actual = append(b.actual, Actual{ID: InstanceID{20 + i, 0, 1}, Key: w.Key, State: Ready, MemoryMiB: 100})
		}
		in := b.input()
		in.Capacity = test.capacity
		got := b.r.Run(b.now, in)
		wrong := len(got) != len(test.stops)
		for i := range got {
			wrong = wrong || got[i].Kind != Stop || got[i].ID.KeyHash != test.stops[i]
		}
		if wrong {
			t.Errorf("%s: %+v, want stops of %v", name, got, test.stops)
		}
	}
}
