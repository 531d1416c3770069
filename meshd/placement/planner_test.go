package placement

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
	"colloid.net/workload"
)

func benchmarkInput(cellCount, workloadCount, replicas int) ([]Cell, []Workload) {
	random := rand.New(rand.NewPCG(1, 2))
	cells := make([]Cell, cellCount)
	for i := range cells {
		cells[i] = Cell{
			ID: wire.CellID(random.Uint64()), Flags: state.FlagOCI | state.FlagProcess, Arch: "amd64",
			Capacity: state.CellCapacity{CPUMillicores: 64000, MemoryMiB: 1 << 18, InstancesMax: 1000},
		}
	}
	cells = sorted(cells, func(c *Cell) uint64 { return uint64(c.ID) }, "cell")
	workloads := make([]Workload, workloadCount)
	for i := range workloads {
		workloads[i] = Workload{
			Key: "spread.w", KeyHash: random.Uint64(), Digest: 1,
			Spec: &workload.Spec{Runtime: workload.RuntimeOCI, Replicas: uint16(replicas), CPUMillicores: 100,
				MemoryMiB: 128},
		}
	}
	workloads = sorted(workloads, func(w *Workload) uint64 { return w.KeyHash }, "key hash")
	return cells, workloads
}

// pairs is the set of (workload, cell) of a plan.
func pairs(plan *Plan, list []Workload) map[[2]uint64]bool {
	set := map[[2]uint64]bool{}
	for i := range list {
		for _, r := range plan.Of(list[i].KeyHash) {
			set[[2]uint64{list[i].KeyHash, uint64(r.Cell)}] = true
		}
	}
	return set
}

func difference(a, b map[[2]uint64]bool) (list [][2]uint64) {
	for pair := range a {
		if !b[pair] {
			list = append(list, pair)
		}
	}
	return list
}

// The class of runtime decides which cells can run a workload, and nothing else: on cells that can run all, the same
// workload is placed alike whatever it is made of (EXEC-4).
func TestEXEC4_EveryRuntimeIsPlacedAlike(t *testing.T) {
	cells, workloads := benchmarkInput(40, 60, 3)
	flags := map[workload.Runtime]uint32{
		workload.RuntimeOCI: state.FlagOCI, workload.RuntimeWasm: state.FlagWasm, workload.RuntimeProcess: state.FlagProcess,
	}
	var first map[[2]uint64]bool
	for runtime, own := range flags {
		for i := range cells {
			cells[i].Flags = state.FlagOCI | state.FlagWasm | state.FlagProcess
		}
		for i := range workloads {
			spec := *workloads[i].Spec
			spec.Runtime = runtime
			workloads[i].Spec = &spec
		}
		placed := pairs(NewPlanner(1, 2).Compute(cells, workloads), workloads)
		if first == nil {
			first = placed
		}
		if list := difference(first, placed); len(list) > 0 || len(first) != len(placed) {
			t.Errorf("runtime %v: %d replicas elsewhere", runtime, len(list))
		}
		for i := range cells {
			if cells[i].Flags = own; i%2 == 0 {
				cells[i].Flags = (state.FlagOCI | state.FlagWasm | state.FlagProcess) &^ own
			}
		}
		plan := NewPlanner(1, 2).Compute(cells, workloads)
		for i := range cells {
			for j := range workloads {
				for _, r := range plan.Of(workloads[j].KeyHash) {
					if r.Cell == cells[i].ID && cells[i].Flags&own == 0 {
						t.Fatalf("runtime %v is placed on a cell that does not offer it", runtime)
					}
				}
			}
		}
	}
}

// Without shortage a death moves the dead cell's replicas and nothing else, and a join moves replicas
// to the new cell only, over long histories that use up the kept rankings and grow complete ones.
func TestEXEC3_MinimalMovement(t *testing.T) {
	for _, spare := range []int{1, spareLength} {
		cells, list := benchmarkInput(60, 200, 3)
		all, p, random := slices.Clone(cells), NewPlanner(testKey0, testKey1), rand.New(rand.NewPCG(3, 4))
		p.spare = spare
		if spare == 1 {
			cells = cells[:4]
		}
		before := pairs(p.Compute(cells, list), list)
		for step := range 400 {
			changed := all[random.IntN(len(all))]
			at, died := slices.BinarySearchFunc(cells, changed.ID, func(c Cell, id wire.CellID) int {
				return cmp.Compare(c.ID, id)
			})
			if died && len(cells) == 4 {
				continue
			} else if died {
				cells = slices.Delete(slices.Clone(cells), at, at+1)
			} else {
				cells = slices.Insert(slices.Clone(cells), at, changed)
			}
			after := pairs(p.Compute(cells, list), list)
			checkMovement(t, before, after, changed.ID, died)
			if step%20 == 0 {
				checkRankings(t, p)
			}
			before = after
		}
		if len(p.nodes) > len(all)+1 {
			t.Errorf("%d nodes kept for at most %d cells", len(p.nodes), len(all))
		}
	}
}

func checkMovement(t *testing.T, before, after map[[2]uint64]bool, changed wire.CellID, died bool) {
	t.Helper()
	lost, gained := difference(before, after), difference(after, before)
	if len(before) != 600 || len(after) != 600 || len(lost) != len(gained) {
		t.Fatalf("lost %d, gained %d, have %d", len(lost), len(gained), len(after))
	}
	moved := gained // a join: only the new cell gains; a death: only the dead cell loses
	if died {
		moved = lost
	}
	for _, pair := range moved {
		if wire.CellID(pair[1]) != changed {
			t.Fatalf("cell %016x changed when %s did", pair[1], changed)
		}
	}
}

// The owner of a volume keeps its index whatever its score, for as long as it is in H.
func TestF79_OwnerNeverChangesWhileInH(t *testing.T) {
	random, draws := rand.New(rand.NewPCG(5, 6)), 0
	for draws < 1_000_000 {
		cells, list := benchmarkInput(2+random.IntN(9), 5000, 1)
		owners := make([]wire.CellID, len(list))
		for i := range list {
			spec := *list[i].Spec
			spec.Stateful, spec.CPUMillicores, spec.MemoryMiB = true, 0, 0
			owners[i] = cells[random.IntN(len(cells))].ID
			list[i].Spec, list[i].Anchors, list[i].KeyHash = &spec, owners[i:i+1], random.Uint64()
		}
		for i := range cells {
			cells[i].Capacity = state.CellCapacity{}
		}
		list = sorted(list, func(w *Workload) uint64 { return w.KeyHash }, "key hash")
		p := NewPlanner(random.Uint64(), random.Uint64())
		for len(cells) > 1 {
			plan := p.Compute(cells, list)
			for i := range list {
				owner := list[i].Anchors[0]
				alive := slices.ContainsFunc(cells, func(c Cell) bool { return c.ID == owner })
				if got := plan.Of(list[i].KeyHash); len(got) != 1 || alive && got[0].Cell != owner {
					t.Fatalf("owner %s alive %t, placed %v", owner, alive, got)
				}
			}
			draws += len(list) * len(cells)
			cells = slices.Delete(slices.Clone(cells), 0, 1)
		}
	}
}

// The death of a stateful workload's owner moves that index only.
func TestF71_AnchoredDeathMovesOneIndex(t *testing.T) {
	cells, list := benchmarkInput(9, 300, 3)
	p := NewPlanner(testKey0, testKey1)
	for i := range list {
		spec := *list[i].Spec
		spec.Stateful = true
		list[i].Spec = &spec
	}
	plan := p.Compute(cells, list)
	for i := range list {
		for _, r := range plan.Of(list[i].KeyHash) {
			list[i].Anchors = append(list[i].Anchors, r.Cell)
		}
	}
	dead := cells[4].ID
	plan = p.Compute(slices.Delete(slices.Clone(cells), 4, 5), list)
	for i := range list {
		for index, r := range plan.Of(list[i].KeyHash) {
			anchor := list[i].Anchors[index]
			if int(r.Slot) != index || anchor != dead && r.Cell != anchor {
				t.Fatalf("index %d: anchor %s, placed on %s", index, anchor, r.Cell)
			}
		}
	}
}

func TestF78_MoreReplicasThanCells(t *testing.T) {
	cells, list := benchmarkInput(3, 1, 5)
	p := NewPlanner(testKey0, testKey1)
	plan := p.Compute(cells, list)
	n, reason := plan.Unplaced(list[0].KeyHash)
	if want := "no cell for 2 of 5 replicas: 3 hold one already"; plan.Len() != 3 || n != 2 || reason != want {
		t.Errorf("%d placed, %d unplaced: %q", plan.Len(), n, reason)
	}
	if plan.ShortOfRoom(list[0].KeyHash) {
		t.Error("room is not what is missing")
	}
	list[0].Spec = &workload.Spec{Runtime: workload.RuntimeOCI, Replicas: 5, Oversubscribe: true}
	for i := range cells {
		cells[i].Capacity.InstancesMax = 1
	}
	plan = NewPlanner(testKey0, testKey1).Compute(cells, list)
	n, reason = plan.Unplaced(list[0].KeyHash)
	if want := "no cell for 2 of 5 replicas: 3 without a free instance slot"; n != 2 || reason != want {
		t.Errorf("oversubscribed: %d, %q", n, reason)
	}
	n, reason = p.Compute(nil, list).Unplaced(list[0].KeyHash)
	if n != 5 || !strings.HasSuffix(reason, "no cell is healthy") {
		t.Errorf("without cells: %d, %q", n, reason)
	}
	list[0].Spec = &workload.Spec{Runtime: workload.RuntimeOCI}
	if n, reason = p.Compute(cells, list).Unplaced(list[0].KeyHash); n != 0 || reason != "" {
		t.Errorf("scaled to zero: %d, %q", n, reason)
	}
	list[0].Spec = nil
	if p.Compute(cells, list).Len() != 0 || plan.Of(123) != nil || plan.Len() != 3 {
		t.Error("a nil specification asks for something, or an old plan changed")
	}
}

func TestF73_FlagsAndLabelsDecide(t *testing.T) {
	cells, list := benchmarkInput(2, 1, 1)
	p, key := NewPlanner(testKey0, testKey1), list[0].KeyHash
	place := func(change func(*Cell, *workload.Spec)) bool {
		cell, spec := cells[0], workload.Spec{Runtime: workload.RuntimeOCI, Replicas: 1}
		change(&cell, &spec)
		list[0].Spec = &spec
		return p.Compute([]Cell{cell}, list).Len() == 1
	}
	zone := func(value string, negate bool) []workload.Constraint {
		return []workload.Constraint{{Label: "zone", Value: value, Negate: negate}}
	}
	for name, test := range map[string]struct {
		want   bool
		change func(*Cell, *workload.Spec)
	}{
		"plain": {true, func(*Cell, *workload.Spec) {}},
		"no flag": {false, func(c *Cell, _ *workload.Spec) {
			c.Flags = state.FlagGateway | state.FlagWasm
		}},
		"process": {true, func(_ *Cell, s *workload.Spec) { s.Runtime = workload.RuntimeProcess }},
		"wasm":    {false, func(_ *Cell, s *workload.Spec) { s.Runtime = workload.RuntimeWasm }},
		"unknown runtime": {false, func(c *Cell, s *workload.Spec) {
			c.Flags, s.Runtime = ^uint32(state.FlagDegraded), 9
		}},
		"degraded":         {false, func(c *Cell, _ *workload.Spec) { c.Flags |= state.FlagDegraded }},
		"leaving":          {false, func(c *Cell, _ *workload.Spec) { c.NoNew = true }},
		"architecture":     {false, func(_ *Cell, s *workload.Spec) { s.Architecture = "arm64" }},
		"own architecture": {true, func(_ *Cell, s *workload.Spec) { s.Architecture = "amd64" }},
		"label absent":     {false, func(_ *Cell, s *workload.Spec) { s.Constraints = zone("a", false) }},
		"label negated":    {true, func(_ *Cell, s *workload.Spec) { s.Constraints = zone("a", true) }},
		"label equal": {true, func(c *Cell, s *workload.Spec) {
			c.Labels, s.Constraints = [][2]string{{"arch", "x"}, {"zone", "a"}}, zone("a", false)
		}},
		"label equal negated": {false, func(c *Cell, s *workload.Spec) {
			c.Labels, s.Constraints = [][2]string{{"zone", "a"}}, zone("a", true)
		}},
	} {
		if got := place(test.change); got != test.want {
			t.Errorf("%s: placed %t", name, got)
		}
	}
	list[0].Denied = []wire.CellID{cells[0].ID}
	if place(func(*Cell, *workload.Spec) {}) {
		t.Error("D2: placed on a cell that denies it")
	}
	if n, _ := p.Compute(cells, list).Unplaced(key); n != 0 {
		t.Error("D2: the other cell does not take it")
	}
}

// One mistaken specification must not exhaust the memory of every cell.
func TestPlanIsBounded(t *testing.T) {
	cells, list := benchmarkInput(2, 20, 1)
	for i := range cells {
		cells[i].Capacity = state.CellCapacity{}
	}
	for i := range list {
		list[i].Spec = &workload.Spec{Runtime: workload.RuntimeOCI, Replicas: 65535, Oversubscribe: true}
	}
	plan := NewPlanner(testKey0, testKey1).Compute(cells, list)
	if n, reason := plan.Unplaced(list[19].KeyHash); plan.Len() != ReplicasMax || n != 65535 || reason == "" {
		t.Errorf("%d replicas, %d of the last unplaced: %q", plan.Len(), n, reason)
	}
}

func TestComputeRejectsDuplicates(t *testing.T) {
	cells, list := benchmarkInput(2, 2, 1)
	for name, f := range map[string]func(){
		"cell":     func() { NewPlanner(1, 2).Compute(append(cells, cells[0]), list) },
		"workload": func() { NewPlanner(1, 2).Compute(cells, append(list, list[1])) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s listed twice: no panic", name)
				}
			}()
			f()
		}()
	}
}

func benchmarkScratch(b *testing.B, workloads, replicas int) {
	cells, list := benchmarkInput(1000, workloads, replicas)
	for b.Loop() {
		if plan := NewPlanner(1, 2).Compute(cells, list); plan.Len() != workloads*replicas {
			b.Fatal(plan.Len())
		}
	}
}

func BenchmarkScratch_100kReplicas_33kWorkloads(b *testing.B)  { benchmarkScratch(b, 33334, 3) }
func BenchmarkScratch_100kReplicas_100kWorkloads(b *testing.B) { benchmarkScratch(b, 100000, 1) }
func BenchmarkScratch_100kReplicas_10kWorkloads(b *testing.B)  { benchmarkScratch(b, 10000, 10) }

func benchmarkDeath(b *testing.B, workloads, replicas int) {
	cells, list := benchmarkInput(1000, workloads, replicas)
	p := NewPlanner(1, 2)
	p.Compute(cells, list)
	for b.Loop() {
		b.StopTimer()
		if len(cells) < 900 {
			cells, list = benchmarkInput(1000, workloads, replicas)
			p.Compute(cells, list)
		}
		cells = append(cells[:len(cells)/2:len(cells)/2], cells[len(cells)/2+1:]...)
		b.StartTimer()
		p.Compute(cells, list)
	}
}

func BenchmarkDeath_100kReplicas_33kWorkloads(b *testing.B)  { benchmarkDeath(b, 33334, 3) }
func BenchmarkDeath_100kReplicas_100kWorkloads(b *testing.B) { benchmarkDeath(b, 100000, 1) }

// A cluster in which half of the replicas, or a few of them, find no room, recomputed after a death.
func benchmarkShort(b *testing.B, instancesPerCell uint32) {
	cells, list := benchmarkInput(1000, 33334, 3)
	for i := range cells {
		cells[i].Capacity.InstancesMax = instancesPerCell
	}
	p := NewPlanner(1, 2)
	p.Compute(cells, list)
	for i := 0; b.Loop(); i++ {
		p.Compute(slices.Delete(slices.Clone(cells), i%1000, i%1000+1), list)
	}
}

func BenchmarkDeath_HalfUnplaced(b *testing.B) { benchmarkShort(b, 50) }
func BenchmarkDeath_BarelyEnough(b *testing.B) { benchmarkShort(b, 101) }
func BenchmarkDeath_SomeUnplaced(b *testing.B) { benchmarkShort(b, 99) }
func BenchmarkExplain_100kReplicas(b *testing.B) {
	cells, list := benchmarkInput(1000, 33334, 3)
	p := NewPlanner(1, 2)
	p.Compute(cells, list)
	for b.Loop() {
		p.Explain(list[len(list)/2].KeyHash)
	}
}
