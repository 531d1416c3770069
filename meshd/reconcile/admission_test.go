package reconcile

import (
	"testing"

	"colloid.net/workload"
)

// D2, F75: what serves does not end for a successor that the host refuses, and is not asked about more than now and then.
func TestF75_WhatServesOutlivesARefusedSuccessor(t *testing.T) {
	for _, change := range []func(*workload.Spec){
		func(s *workload.Spec) { s.Ports = []workload.Port{{Host: 80, Container: 80}} },
		func(s *workload.Spec) { s.Volumes = []workload.Volume{{Name: "v", MountPath: "/v"}} },
		func(s *workload.Spec) { s.Stateful = true },
	} {
		b := newBench(t, self)
		b.spec(change)
		b.actual = []Actual{instance(7, Ready)}
		b.expect(check(1))
		b.wait(AdmissionPatience / 2)
		b.expect()
		b.actual = append(b.actual, instance(1, Denied))
		for range 10 {
			b.wait(RepeatInterval)
			b.expect()
		}
		// The cell is not in the plan any more, and nobody else is.
		b.workloads[0].Denied = append(b.workloads[0].Denied, self, other)
		b.expect(stop(1)) // which withdraws the refusal from the list, and not from the cluster
		b.actual = b.actual[:1]
		for range 10 {
			b.wait(SurplusMax)
			b.expect()
		}
	}
}

// What does not serve is replaced without asking: there is nothing to lose.
func TestF75_WhatDoesNotServeIsReplacedUnasked(t *testing.T) {
	b := newBench(t, self)
	b.spec(func(s *workload.Spec) { s.Ports = []workload.Port{{Host: 80, Container: 80}} })
	b.actual = []Actual{instance(7, Backoff)}
	b.expect(stop(7))
}

func start(digest uint64) Action { return Action{Kind: Start, ID: InstanceID{10, 0, digest}} }
func stop(digest uint64) Action  { return Action{Kind: Stop, ID: InstanceID{10, 0, digest}} }
func prepare(digest uint64) Action {
	return Action{Kind: Prepare, ID: InstanceID{10, 0, digest}}
}
func check(digest uint64) Action { return Action{Kind: Check, ID: InstanceID{10, 0, digest}} }
