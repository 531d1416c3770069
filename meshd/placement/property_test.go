package placement

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"colloid.net/meshd/wire"
	"colloid.net/workload"
)

// world is a changing input, as a cell sees it over time.
type world struct {
	cells     []Cell
	workloads []Workload
	ids       []wire.CellID // every cell that may ever exist
}

func drawWorld(t *rapid.T) *world {
	w := &world{}
	for i := range rapid.IntRange(0, 24).Draw(t, "cellCount") {
		w.ids = append(w.ids, wire.CellID(uint64(i+1)*0x9e3779b97f4a7c15))
	}
	slices.Sort(w.ids)
	for _, id := range w.ids {
		if rapid.IntRange(0, 3).Draw(t, "present") > 0 {
			w.cells = append(w.cells, drawCell(t, id))
		}
	}
	for i := range rapid.IntRange(0, 12).Draw(t, "workloadCount") {
		w.workloads = append(w.workloads, drawWorkload(t, uint64(i)*100+1, w.ids))
	}
	return w
}

// change makes one or more of the changes that happen to a cluster.
func (w *world) change(t *rapid.T) {
	for range rapid.IntRange(1, 3).Draw(t, "changes") {
		switch rapid.IntRange(0, 6).Draw(t, "change") {
		case 0:
			if len(w.cells) > 0 {
				i := rapid.IntRange(0, len(w.cells)-1).Draw(t, "dies")
				w.cells = slices.Delete(slices.Clone(w.cells), i, i+1)
			}
		case 1, 2:
			if len(w.ids) > 0 {
				cell := drawCell(t, rapid.SampledFrom(w.ids).Draw(t, "joins"))
				w.cells = slices.DeleteFunc(slices.Clone(w.cells), func(c Cell) bool { return c.ID == cell.ID })
				w.cells = sorted(append(w.cells, cell), func(c *Cell) uint64 { return uint64(c.ID) }, "cell")
			}
		case 3, 4:
			key := uint64(rapid.IntRange(0, 12).Draw(t, "applied"))*100 + 1
			same := func(x Workload) bool { return x.KeyHash == key }
			w.workloads = slices.DeleteFunc(slices.Clone(w.workloads), same)
			w.workloads = append(w.workloads, drawWorkload(t, key, w.ids))
			w.workloads = sorted(w.workloads, func(x *Workload) uint64 { return x.KeyHash }, "key hash")
		case 5:
			if len(w.workloads) > 0 {
				i := rapid.IntRange(0, len(w.workloads)-1).Draw(t, "deleted")
				w.workloads = slices.Delete(slices.Clone(w.workloads), i, i+1)
			}
		case 6:
			if len(w.workloads) > 0 {
				w.workloads = slices.Clone(w.workloads)
				i := rapid.IntRange(0, len(w.workloads)-1).Draw(t, "scaled")
				spec := *w.workloads[i].Spec
				spec.Replicas = uint16(rapid.IntRange(0, 20).Draw(t, "to"))
				w.workloads[i].Spec = &spec
			}
		}
	}
}

func planDifference(plan *Plan, w *world, want map[uint64][]Replica) string {
	for i := range w.workloads {
		key := w.workloads[i].KeyHash
		if got := plan.Of(key); !slices.Equal(got, want[key]) {
			return fmt.Sprintf("key %d: got %v, want %v", key, got, want[key])
		}
		missing, reason := plan.Unplaced(key)
		if missing != int(w.workloads[i].Spec.Replicas)-len(want[key]) || (missing > 0) != (reason != "") {
			return fmt.Sprintf("key %d: %d unplaced (%q), %d of %d placed", key, missing, reason, len(want[key]),
				w.workloads[i].Spec.Replicas)
		}
	}
	return ""
}

// The planner with all its caches, over a history of changes, equals the oracle that starts from
// nothing each time.
func TestF71F72F77F79_PlannerEqualsOracle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, p := drawWorld(t), NewPlanner(testKey0, testKey1)
		p.spare = rapid.IntRange(1, 3).Draw(t, "spare") // so that incomplete rankings are the rule
		for range rapid.IntRange(1, 8).Draw(t, "rounds") {
			plan := p.Compute(w.cells, w.workloads)
			truth := askOracle(w.cells, w.workloads)
			if d := cmp.Or(planDifference(plan, w, truth.plan), standbyDifference(plan, w, truth.standbys)); d != "" {
				t.Fatal(d)
			}
			checkRankings(t, p)
			w.change(t)
		}
	})
}

func TestF72_NoCellAboveCapacityAndNoCellTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		plan := NewPlanner(testKey0, testKey1).Compute(w.cells, w.workloads)
		onCell := map[wire.CellID][]*workload.Spec{}
		for i := range w.workloads {
			seen := map[wire.CellID]bool{}
			for rank, r := range plan.Of(w.workloads[i].KeyHash) {
				if seen[r.Cell] && !w.workloads[i].Spec.Oversubscribe {
					t.Fatalf("workload %d twice on cell %s", i, r.Cell)
				}
				if !w.workloads[i].Spec.Stateful && int(r.Rank) != rank {
					t.Fatalf("rank %d at position %d", r.Rank, rank)
				}
				seen[r.Cell] = true
				onCell[r.Cell] = append(onCell[r.Cell], w.workloads[i].Spec)
			}
		}
		for i := range w.cells {
			if v := violation(&w.cells[i], onCell[w.cells[i].ID]); v != "" {
				t.Fatalf("cell %s: %s", w.cells[i].ID, v)
			}
		}
	})
}

func TestF72_ShuffledInputGivesTheSamePlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		want := runOracle(w.cells, w.workloads)
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		shuffledCells, shuffledWorkloads := slices.Clone(w.cells), slices.Clone(w.workloads)
		random.Shuffle(len(shuffledCells), func(i, j int) {
			shuffledCells[i], shuffledCells[j] = shuffledCells[j], shuffledCells[i]
		})
		random.Shuffle(len(shuffledWorkloads), func(i, j int) {
			shuffledWorkloads[i], shuffledWorkloads[j] = shuffledWorkloads[j], shuffledWorkloads[i]
		})
		plan := NewPlanner(testKey0, testKey1).Compute(shuffledCells, shuffledWorkloads)
		if d := planDifference(plan, w, want); d != "" {
			t.Fatal(d)
		}
	})
}

// Explain agrees with the plan and leaves the planner as it was.
func TestF72_ExplainAgreesWithThePlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, p := drawWorld(t), NewPlanner(testKey0, testKey1)
		plan := p.Compute(w.cells, w.workloads)
		for i := range w.workloads {
			key := w.workloads[i].KeyHash
			lines := p.Explain(key)
			if len(lines) != len(w.cells) {
				t.Fatalf("%d lines for %d cells", len(lines), len(w.cells))
			}
			for j, line := range lines {
				holds := slices.ContainsFunc(plan.Of(key), func(r Replica) bool { return r.Cell == line.Cell })
				if line.Placed != holds || line.Verdict == "" || j > 0 && lines[j-1].Score < line.Score {
					t.Fatalf("key %d: %+v, holds %t", key, line, holds)
				}
				if _, standsBy := plan.StandsBy(key, line.Cell); line.StandsBy != standsBy {
					t.Fatalf("key %d: %+v, stands by %t", key, line, standsBy)
				}
			}
		}
		if d := planDifference(p.Compute(w.cells, w.workloads), w, runOracle(w.cells, w.workloads)); d != "" {
			t.Fatal(d)
		}
	})
}
