package reconcile

import (
	"testing"

	"colloid.net/meshd/placement"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
	"colloid.net/workload"
)

// steady is a cell of 10 with 1000 workloads of 3 replicas whose own part runs as wanted.
func steady(t testing.TB) (*Reconciler, *Input) {
	var cells []placement.Cell
	for i := range 10 {
		cells = append(cells, placement.Cell{ID: wire.CellID(i + 1), Flags: state.FlagProcess})
	}
	var workloads []placement.Workload
	for i := range 1000 {
		workloads = append(workloads, placement.Workload{
			Key: "spread.w", KeyHash: uint64(i+1) << 40, Digest: 1,
			Spec: &workload.Spec{Runtime: workload.RuntimeProcess, Replicas: 3},
		})
	}
	in := &Input{
		Self: self, Authoritative: true, Workloads: workloads,
		Plan:     placement.NewPlanner(1, 2).Compute(cells, workloads),
		Ready:    func(uint64, wire.CellID, uint16, uint64) bool { return true },
		ReadyOld: func(uint64, wire.CellID, uint16) bool { return true },
		Frozen:   func(uint64) bool { return false },
	}
	for _, w := range workloads {
		for _, r := range in.Plan.Of(w.KeyHash) {
			if r.Cell == self {
				in.Actual = append(in.Actual, Actual{ID: InstanceID{w.KeyHash, r.Slot, 1}, State: Ready})
			}
		}
	}
	if len(in.Actual) < 100 {
		t.Fatal("the cell has hardly anything to do")
	}
	return New(self), in
}

func TestRunAllocatesNothingWhenNothingChanged(t *testing.T) {
	r, in := steady(t)
	if n := testing.AllocsPerRun(20, func() {
		if len(r.Run(1e9, in)) != 0 {
			t.Fatal("action without a reason")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkRun_1000WorkloadsUnchanged(b *testing.B) {
	r, in := steady(b)
	for b.Loop() {
		r.Run(1e9, in)
	}
}
