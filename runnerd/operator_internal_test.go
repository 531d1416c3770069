package runnerd

import (
	"testing"

	"colloid.net/runnerd/image"
	"colloid.net/workload"
)

// An instance that waits for its next start has no root and needs its image all the same: prune removed it.
func TestF84_AnImageIsUsedBetweenTwoStartsToo(t *testing.T) {
	digest := image.Digest{1}
	one := func(runtime workload.Runtime, digest [32]byte, p phase) *instance {
		return &instance{spec: &workload.Spec{Runtime: runtime, ImageDigest: digest}, phase: p}
	}
	s := &Supervisor{instances: map[InstanceID]*instance{
		{Slot: 0}: one(workload.RuntimeOCI, digest, phaseRunning),
		{Slot: 1}: one(workload.RuntimeOCI, digest, phaseWaiting),
		{Slot: 2}: one(workload.RuntimeOCI, digest, phaseDenied),
		{Slot: 3}: one(workload.RuntimeOCI, image.Digest{2}, phaseRunning),
		{Slot: 4}: one(workload.RuntimeProcess, digest, phaseRunning),
	}}
	if n := len(s.instancesOf(digest)); n != 2 {
		t.Errorf("%d instances, want the one that runs and the one that waits", n)
	}
}
