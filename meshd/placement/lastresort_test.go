package placement

import (
	"slices"
	"strings"
	"testing"

	"colloid.net/meshd/wire"
	"pgregory.net/rapid"
)

// holders lists the cells that hold a workload, sorted.
func holders(plan *Plan, keyHash uint64) []wire.CellID {
	var ids []wire.CellID
	for _, replica := range plan.Of(keyHash) {
		ids = append(ids, replica.Cell)
	}
	slices.Sort(ids)
	return ids
}

// A cell that is held back takes what nobody else takes, and nothing else (F64): while there are enough other
// cells the plan is the one without it; where replicas are missing, those and only those are on it.
func TestF64_HeldBackIsTheLastResort(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cells, workloads := benchmarkInput(rapid.IntRange(1, 8).Draw(t, "cells"), rapid.IntRange(1, 6).Draw(t, "workloads"),
			rapid.IntRange(1, 6).Draw(t, "replicas"))
		for i := range workloads {
			spec := *workloads[i].Spec
			spec.Stateful = rapid.Bool().Draw(t, "stateful")
			spec.MemoryMiB = rapid.Uint32Range(1, 1<<18).Draw(t, "memory")
			workloads[i].Spec = &spec
		}
		held := map[wire.CellID]bool{}
		var others []Cell
		for i := range cells {
			if cells[i].HeldBack = rapid.Bool().Draw(t, "held"); cells[i].HeldBack {
				held[cells[i].ID] = true
			} else {
				others = append(others, cells[i])
			}
		}
		with := NewPlanner(1, 2).Compute(cells, workloads)
		without := NewPlanner(1, 2).Compute(others, workloads)
		for i := range workloads {
			key := workloads[i].KeyHash
			kept := slices.DeleteFunc(holders(with, key), func(id wire.CellID) bool { return held[id] })
			if !slices.Equal(kept, holders(without, key)) {
				t.Fatalf("others hold %v, without held cells %v", kept, holders(without, key))
			}
			missing, _ := without.Unplaced(key)
			onHeld := len(with.Of(key)) - len(kept)
			still, _ := with.Unplaced(key)
			if onHeld+still != missing {
				t.Fatalf("%d were missing, %d are on held cells and %d still missing", missing, onHeld, still)
			}
			seen := map[wire.CellID]bool{}
			for _, replica := range with.Of(key) {
				if seen[replica.Cell] {
					t.Fatalf("two replicas of one workload on %v", replica.Cell)
				}
				seen[replica.Cell] = true
			}
		}
		// What was planned before does not matter (EXEC-2).
		again := NewPlanner(1, 2)
		again.Compute(others, workloads)
		if got := again.Compute(cells, workloads); !slices.Equal(got.replicas, with.replicas) {
			t.Fatalf("planned %v after another plan, %v alone", got.replicas, with.replicas)
		}
	})
}

// All cells of a cluster are held back: everything is placed on them, once around if the workload allows it.
func TestF64_OnlyHeldBackCells(t *testing.T) {
	cells, workloads := benchmarkInput(2, 1, 5)
	for i := range cells {
		cells[i].HeldBack = true
	}
	plan := NewPlanner(1, 2).Compute(cells, workloads)
	missing, reason := plan.Unplaced(workloads[0].KeyHash)
	if missing != 3 || !strings.Contains(reason, "2 hold one already") {
		t.Fatalf("%d missing: %s", missing, reason)
	}
	if plan.TakesNew(cells[0].ID) {
		t.Fatal("a cell that is held back is said to take new replicas")
	}
	spec := *workloads[0].Spec
	spec.Oversubscribe = true
	workloads[0].Spec = &spec
	planner := NewPlanner(1, 2)
	plan = planner.Compute(cells, workloads)
	slots := map[Replica]bool{}
	for _, replica := range plan.Of(workloads[0].KeyHash) {
		slots[Replica{Cell: replica.Cell, Slot: replica.Slot}] = true
	}
	if len(slots) != 5 {
		t.Fatalf("placed %v", plan.Of(workloads[0].KeyHash))
	}
	for _, line := range planner.Explain(workloads[0].KeyHash) {
		if !line.Placed {
			t.Fatalf("%+v", line)
		}
	}
}
