package placement

import (
	"fmt"
	"slices"
	"testing"

	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
	"colloid.net/workload"
)

func standbyDifference(plan *Plan, w *world, want map[uint64]map[wire.CellID]uint16) string {
	for i := range w.workloads {
		key := w.workloads[i].KeyHash
		for _, id := range w.ids {
			slot, ok := plan.StandsBy(key, id)
			if expected, wanted := want[key][id]; ok != wanted || slot != expected {
				return fmt.Sprintf("key %d: cell %v stands by: %t with slot %d, want %t with %d", key, id, ok, slot, wanted, expected)
			}
		}
	}
	return ""
}

// standbysOf lists the cells that stand by for a workload.
func standbysOf(plan *Plan, cells []Cell, key uint64) (list []wire.CellID) {
	for i := range cells {
		if _, ok := plan.StandsBy(key, cells[i].ID); ok {
			list = append(list, cells[i].ID)
		}
	}
	return list
}

// Whichever cell dies, the replica that it had comes to the cell that stood by for it.
func TestStandsBy_IsWhereAReplicaGoes(t *testing.T) {
	for _, replicas := range []int{1, 3} {
		cells, list := benchmarkInput(12, 40, replicas)
		p := NewPlanner(testKey0, testKey1)
		plan := p.Compute(cells, list)
		for i := range list {
			key := list[i].KeyHash
			next := standbysOf(plan, cells, key)
			if len(next) != 1 {
				t.Fatalf("%v stand by for a workload of %d replicas", next, replicas)
			}
			for _, lost := range plan.Of(key) {
				left := slices.DeleteFunc(slices.Clone(cells), func(c Cell) bool { return c.ID == lost.Cell })
				after := NewPlanner(testKey0, testKey1).Compute(left, list)
				if !slices.ContainsFunc(after.Of(key), func(r Replica) bool { return r.Cell == next[0] }) {
					t.Fatalf("%v died, %v stood by, and the plan is %v", lost.Cell, next[0], after.Of(key))
				}
			}
		}
	}
}

// A stateful replica goes to the cell that stood by for its index, unless another one's cell ranks before that: then what
// it needs is there.
func TestStandsBy_StatefulIsPreparedWherePlaced(t *testing.T) {
	cells, list := benchmarkInput(9, 40, 3)
	for i := range list {
		spec := *list[i].Spec
		spec.Stateful = true
		list[i].Spec = &spec
	}
	plan := NewPlanner(testKey0, testKey1).Compute(cells, list)
	for i := range list {
		key := list[i].KeyHash
		ready := standbysOf(plan, cells, key)
		for _, replica := range plan.Of(key) {
			ready = append(ready, replica.Cell)
		}
		for _, lost := range plan.Of(key) {
			left := slices.DeleteFunc(slices.Clone(cells), func(c Cell) bool { return c.ID == lost.Cell })
			for _, replica := range NewPlanner(testKey0, testKey1).Compute(left, list).Of(key) {
				if !slices.Contains(ready, replica.Cell) {
					t.Fatalf("%v died, slot %d comes to %v, prepared are %v", lost.Cell, replica.Slot, replica.Cell, ready)
				}
			}
		}
	}
}

// A refusal moves it on, down to a bound; a process, a workload that lacks a cell and one that is everywhere have nobody.
func TestStandsBy_MovesOnAndEnds(t *testing.T) {
	cells, list := benchmarkInput(30, 1, 2)
	key := list[0].KeyHash
	p := NewPlanner(testKey0, testKey1)
	seen := map[wire.CellID]bool{}
	for range standbyReach {
		plan := p.Compute(cells, list)
		next := standbysOf(plan, cells, key)
		if len(next) != 1 || seen[next[0]] {
			t.Fatalf("%v stand by after %v refused", next, list[0].Denied)
		}
		if placed := plan.Of(key); placed[0].Cell == next[0] || placed[1].Cell == next[0] {
			t.Fatalf("%v stands by for what it has", next[0])
		}
		seen[next[0]] = true
		list[0].Denied = append(slices.Clone(list[0].Denied), next[0])
		slices.Sort(list[0].Denied)
	}
	if next := standbysOf(p.Compute(cells, list), cells, key); len(next) != 0 {
		t.Errorf("%v stand by after %d refusals", next, standbyReach)
	}
	list[0].Denied = nil
	for name, change := range map[string]func(*workload.Spec){
		"process":   func(s *workload.Spec) { s.Runtime = workload.RuntimeProcess },
		"nothing":   func(s *workload.Spec) { s.Replicas = 0 },
		"all":       func(s *workload.Spec) { s.Replicas = uint16(len(cells)) },
		"more":      func(s *workload.Spec) { s.Replicas = uint16(len(cells) + 1) },
		"all round": func(s *workload.Spec) { s.Replicas, s.Oversubscribe = uint16(len(cells)+3), true },
	} {
		spec := *list[0].Spec
		change(&spec)
		changed := list[0]
		changed.Spec = &spec
		if next := standbysOf(p.Compute(cells, []Workload{changed}), cells, key); len(next) != 0 {
			t.Errorf("%s: %v stand by", name, next)
		}
	}
}

// One that is to be empty, leaves, or came back from the dead a moment ago stands by for nothing.
func TestF64_WhoIsHeldBackOrDrainedDoesNotStandBy(t *testing.T) {
	cells, list := benchmarkInput(3, 1, 1)
	key := list[0].KeyHash
	first := standbysOf(NewPlanner(testKey0, testKey1).Compute(cells, list), cells, key)
	for _, change := range []func(*Cell){
		func(c *Cell) { c.NoNew = true }, func(c *Cell) { c.HeldBack = true }, func(c *Cell) { c.Flags |= state.FlagDegraded },
	} {
		changed := slices.Clone(cells)
		for i := range changed {
			if changed[i].ID == first[0] {
				change(&changed[i])
			}
		}
		if next := standbysOf(NewPlanner(testKey0, testKey1).Compute(changed, list), changed, key); len(next) != 1 || next[0] == first[0] {
			t.Errorf("%v instead of %v", next, first)
		}
	}
}
