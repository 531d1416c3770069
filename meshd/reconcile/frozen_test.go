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
