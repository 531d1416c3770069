package placement

import (
	"testing"

	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
	"colloid.net/workload"
)

// Each reason has its sentence, with the figure an operator needs (F72 T: EXPLAIN).
func TestF72_ExplainVerdicts(t *testing.T) {
	base := workload.Spec{
		Runtime: workload.RuntimeOCI, Replicas: 1, CPUMillicores: 500, MemoryMiB: 600, DiskMiB: 10,
		Ports: []workload.Port{{Host: 53, Container: 53, Protocol: workload.UDP}},
	}
	for want, change := range map[string]func(*Cell, *Workload, *workload.Spec){
		"placed": func(*Cell, *Workload, *workload.Spec) {},
		"runtime oci not offered: its runnerd runs none, or there is no runnerd": func(c *Cell, _ *Workload, _ *workload.Spec) { c.Flags = 0 },
		"architecture arm64 wanted, the cell is amd64": func(_ *Cell, _ *Workload, s *workload.Spec) {
			s.Architecture = "arm64"
		},
		"constraint zone!=a not met": func(c *Cell, _ *Workload, s *workload.Spec) {
			c.Labels = [][2]string{{"zone", "a"}}
			s.Constraints = []workload.Constraint{{Label: "zone", Value: "a", Negate: true}}
		},
		"its store is full": func(c *Cell, _ *Workload, _ *workload.Spec) { c.Flags |= state.FlagDegraded },
		"leaving":           func(c *Cell, _ *Workload, _ *workload.Spec) { c.NoNew = true },
		"cordoned": func(c *Cell, _ *Workload, _ *workload.Spec) {
			c.NoNew, c.Capacity.Cordoned = true, true
		},
		"refused there: image not listed": func(c *Cell, w *Workload, _ *workload.Spec) {
			w.Denied, w.DenialReasons = []wire.CellID{9, c.ID}, []string{"other", "image not listed"}
		},
		"cpu 400 millicores short": func(c *Cell, _ *Workload, _ *workload.Spec) { c.Capacity.CPUMillicores = 200 },
		"memory 512 MiB short":     func(c *Cell, _ *Workload, _ *workload.Spec) { c.Capacity.MemoryMiB = 88 },
		"disk 5 MiB short":         func(c *Cell, _ *Workload, _ *workload.Spec) { c.Capacity.DiskMiB = 5 },
		"all 1 instance slots taken": func(c *Cell, _ *Workload, _ *workload.Spec) {
			c.Capacity.InstancesMax = 1
		},
		"host port 80/tcp taken": func(_ *Cell, _ *Workload, s *workload.Spec) {
			s.Ports = append(s.Ports, workload.Port{Host: 80})
		},
		"not needed: scaled to zero": func(_ *Cell, _ *Workload, s *workload.Spec) { s.Replicas = 0 },
		"placed as replica 0, owns its volume": func(c *Cell, w *Workload, s *workload.Spec) {
			s.Stateful, w.Anchors = true, []wire.CellID{c.ID}
		},
	} {
		cell := Cell{ID: 7, Flags: state.FlagOCI | state.FlagProcess, Arch: "amd64"}
		spec := base
		w := Workload{KeyHash: 5, Spec: &spec}
		change(&cell, &w, &spec)
		// Served before, whatever w is: takes 100 millicores, an instance slot and port 80/tcp.
		first := Workload{KeyHash: 9, Spec: &workload.Spec{
			Runtime: workload.RuntimeProcess, Replicas: 1, Priority: 1, CPUMillicores: 100,
			Ports: []workload.Port{{Host: 80}},
		}}
		if want == "runtime oci not offered: its runnerd runs none, or there is no runnerd" {
			first.Spec = nil
		}
		p := NewPlanner(testKey0, testKey1)
		p.Compute([]Cell{cell}, []Workload{w, first})
		lines := p.Explain(5)
		if len(lines) != 1 || lines[0].Verdict != want || lines[0].Score != p.Score(5, 7, 0) {
			t.Errorf("got %+v, want %q", lines, want)
		}
	}
}

func TestExplainOfSpareCells(t *testing.T) {
	cells, list := benchmarkInput(5, 1, 3)
	p := NewPlanner(testKey0, testKey1)
	p.Compute(cells, list)
	for i, line := range p.Explain(list[0].KeyHash) {
		want := "placed"
		if i >= 3 {
			want = "not needed: 3 better cells hold the replicas"
		}
		if line.Verdict != want || line.Placed != (i < 3) {
			t.Errorf("line %d: %+v", i, line)
		}
	}
	if p.Explain(1) != nil {
		t.Error("explained a workload that does not exist")
	}
}

func TestExplainOfStatefulScores(t *testing.T) {
	cells, list := benchmarkInput(4, 1, 3)
	list[0].Spec.Stateful = true
	p := NewPlanner(testKey0, testKey1)
	plan, key := p.Compute(cells, list), list[0].KeyHash
	for _, line := range p.Explain(key) {
		index := uint16(0) // of a cell without a replica
		for _, r := range plan.Of(key) {
			if r.Cell == line.Cell {
				index = r.Slot
			}
		}
		if line.Score != p.Score(key, line.Cell, index) {
			t.Errorf("%+v: not the score of index %d", line, index)
		}
	}
}

// A cordoned cell may keep what it runs, if it still ranks for it.
func TestExplainOfKeepers(t *testing.T) {
	cells, list := benchmarkInput(3, 1, 1)
	p, key := NewPlanner(testKey0, testKey1), list[0].KeyHash
	p.Compute(cells, list)
	lines := p.Explain(key)
	for i := range cells {
		cells[i].NoNew = cells[i].ID != lines[1].Cell
	}
	list[0].Keepers = []wire.CellID{lines[2].Cell}
	plan := p.Compute(cells, list)
	for i, want := range []string{"leaving", "placed", "not needed: 1 better cell holds the replica"} {
		if got := p.Explain(key)[i]; got.Verdict != want {
			t.Errorf("%+v, want %q", got, want)
		}
	}
	list[0].Spec = &workload.Spec{Runtime: workload.RuntimeOCI, Replicas: 3}
	list[0].Keepers = append(list[0].Keepers, list[0].Keepers[0]) // listed twice, still one cell
	if n := p.Compute(cells, list).Len(); n != 2 {
		t.Errorf("%d replicas on 2 cells", n)
	}
	for _, c := range cells {
		if plan.TakesNew(c.ID) != (c.ID == lines[1].Cell) {
			t.Errorf("cell %s takes new: %t", c.ID, plan.TakesNew(c.ID))
		}
	}
}

// A volume whose owner has no room waits there and says so.
func TestF79_FullOwnerIsReported(t *testing.T) {
	cells, list := benchmarkInput(3, 1, 1)
	spec := *list[0].Spec
	spec.Stateful = true
	list[0].Spec, list[0].Anchors = &spec, []wire.CellID{cells[1].ID}
	cells[1].Capacity.MemoryMiB = 1
	p := NewPlanner(testKey0, testKey1)
	plan := p.Compute(cells, list)
	n, reason := plan.Unplaced(list[0].KeyHash)
	want := "no cell for 1 of 1 replicas: 1 waiting for memory on the owner of the volume (cell " +
		cells[1].ID.String() + ")"
	if n != 1 || reason != want || !plan.ShortOfRoom(list[0].KeyHash) {
		t.Errorf("%d, %q, want %q", n, reason, want)
	}
	for _, line := range p.Explain(list[0].KeyHash) {
		verdict := "not needed: a replica waits for room on the owner of its volume"
		if line.Cell == cells[1].ID {
			verdict = "memory 127 MiB short"
		}
		if line.Verdict != verdict {
			t.Errorf("%+v, want %q", line, verdict)
		}
	}
}
