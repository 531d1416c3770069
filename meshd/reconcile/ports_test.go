package reconcile

import (
	"testing"

	"colloid.net/workload"
)

// What is frozen keeps its port, wherever it runs; who wants it waits, and does not ask for what cannot be (F57, F77).
func TestF57_F77_StartWaitsForThePortOfWhatIsFrozen(t *testing.T) {
	b := newBench(t, self)
	b.spec(func(s *workload.Spec) { s.Ports = []workload.Port{{Host: 80, Container: 80}} })
	raw, err := workload.Encode(&workload.Spec{
		Runtime: workload.RuntimeProcess, Replicas: 1, Image: "/bin/x", Ports: []workload.Port{{Host: 80, Container: 80}},
	})
	if err != nil {
		t.Fatal(err)
	}
	frozen := instance(5, Ready, 80)
	frozen.ID.KeyHash, frozen.Spec = 99, raw
	b.actual = []Actual{frozen}
	b.frozenKey = 99
	b.expect()
	b.wait(SurplusMax)
	b.expect()
	b.spec(func(s *workload.Spec) { s.Ports = []workload.Port{{Host: 80, Container: 80, Protocol: workload.UDP}} })
	b.expect(start(1)) // the same number, another port
	b.wait(RepeatInterval)
	b.spec(func(s *workload.Spec) { s.Ports = []workload.Port{{Host: 80, Container: 80}} })
	b.actual[0].Spec = nil // of an unknown one the number counts
	b.expect()
	b.actual[0].Ports = []uint16{443}
	b.expect(start(1))
}

// An older instance keeps its port until the new one of its slot is ready; whom the plan gives the port waits for that
// (F77, simulator, seed 160).
func TestF77_StartWaitsForThePortOfAnOlderInstance(t *testing.T) {
	b := newBench(t, self)
	b.spec(func(s *workload.Spec) { s.Ports = []workload.Port{{Host: 80, Container: 80}} })
	next := b.workloads[0]
	next.Key, next.KeyHash = "spread.next", b.workloads[0].KeyHash+1
	next.Spec = &workload.Spec{Runtime: workload.RuntimeProcess, Replicas: 1, Image: "/bin/next"}
	b.workloads = append(b.workloads, next)
	old := instance(9, Ready, 80)
	old.ID.KeyHash = next.KeyHash
	current := old
	current.ID.Digest, current.State, current.Ports = next.Digest, Starting, nil
	b.actual = []Actual{old}
	for _, action := range b.r.Run(b.now, b.input()) {
		if action.Kind == Start && action.ID.KeyHash == b.workloads[0].KeyHash {
			t.Fatalf("started beside what has its port: %+v", action)
		}
	}
	b.actual = []Actual{current}
	b.wait(RepeatInterval)
	started := false
	for _, action := range b.r.Run(b.now, b.input()) {
		started = started || action.Kind == Start && action.ID.KeyHash == b.workloads[0].KeyHash
	}
	if !started {
		t.Error("the port is free, and nothing starts")
	}
}
