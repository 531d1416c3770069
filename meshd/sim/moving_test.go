package sim

import (
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/cell"
	"colloid.net/meshd/seal"
)

// F4: a cell that has decided to move waits for its disk, however long that takes. Giving up would leave it in one
// cluster while its directory says another: what it acknowledged from then on would be gone with the process.
func TestF4_ASlowDiskDoesNotSplitAMove(t *testing.T) {
	w := world(t, Options{Seed: 3, Cells: 2})
	seed, joiner := w.Node(0), w.Node(1)
	seed.Boot()
	joiner.Boot()
	run(t, w, time.Second)
	joiner.disk.latency = 400 * time.Millisecond
	var replies []cell.Response
	joiner.connect(seed, false, func(r cell.Response) { replies = append(replies, r) })
	run(t, w, 100*time.Millisecond)
	joiner.disk.latency = 10 * time.Minute // what the cell asks for from now on
	until(t, w, 20*time.Minute, "the directory says the new cluster", func() bool {
		return seal.ClusterID(joiner.disk.cluster.Key) == seed.cell.ClusterID()
	})
	if joiner.cell.ClusterID() != seed.cell.ClusterID() {
		t.Fatalf("the directory of n1 is in cluster %x, n1 in %x: %+v", seed.cell.ClusterID(), joiner.cell.ClusterID(), replies)
	}
	joiner.disk.latency = 2 * time.Millisecond
	until(t, w, 2*time.Minute, "the join ends", func() bool { return len(replies) == 1 })
	if replies[0].Status != uds.OK {
		t.Errorf("%+v", replies[0])
	}
}
