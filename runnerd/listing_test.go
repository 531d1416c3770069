package runnerd_test

import (
	"testing"

	"colloid.net/ipc/message"
	"colloid.net/runnerd"
	"colloid.net/runnerd/runnerdtest"
)

// TestWhatIsGoneIsToldToAMeshdThatDidNotRead: more instances end than runnerd remembers to tell. meshd, once it reads
// again, knows none that does not exist.
func TestWhatIsGoneIsToldToAMeshdThatDidNotRead(t *testing.T) {
	h := newHost(t)
	h.writePolicy("instances 1\n")
	client := runnerdtest.Attach(t, h.open())
	m := runnerdtest.StartOf(t, "spread.many", 0, runnerdtest.Spec(h.binary, "sleep"))
	next := uint32(0)
	start := func(count int) (sequence uint64) {
		for range count {
			m.Id.Slot, m.Id.KeyHash = next, uint64(next)<<32
			next++
			sequence = client.Send(&message.Command{Body: &message.Command_Start{Start: m}})
		}
		return sequence
	}
	client.AwaitAcknowledged(start(257)) // one runs, 256 are refused
	client.Reading.Lock()
	sequence := start(6000) // each makes it forget one, of which it remembers 1024
	client.Reading.Unlock()
	client.AwaitAcknowledged(sequence)
	client.AwaitCount(1 + 256)
	if client.Instance(runnerd.InstanceID{Digest: m.Id.Digest}) == nil {
		t.Error("the one that runs is not known")
	}
}
