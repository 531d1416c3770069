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

// F7: after a crash just after a move the log still has the writes of the cluster before. They are no state of this
// one, so a cell that finds nobody must not act on them as if they were a snapshot (F4, F5).
func TestF7_WritesOfTheClusterBeforeAreNoState(t *testing.T) {
	w := world(t, Options{Seed: 3, Cells: 2})
	seed, joiner := w.Node(0), w.Node(1)
	seed.Boot()
	joiner.Boot()
	run(t, w, time.Second)
	joiner.Set("spread.old", Spec(1, "/bin/old"), uds.ExpectAny, nil)
	run(t, w, time.Second)
	joiner.connect(seed, true, nil)
	until(t, w, time.Minute, "the directory says the new cluster", func() bool {
		return seal.ClusterID(joiner.disk.cluster.Key) == seed.cell.ClusterID()
	})
	joiner.Kill()
	seed.Kill()
	if len(joiner.disk.writes) == 0 {
		t.Fatal("the log has no write: the test shows nothing")
	}
	joiner.Boot()
	run(t, w, 10*time.Minute)
	if joiner.cell.Phase() != cell.Booting {
		t.Errorf("alone and without any state of its cluster, the cell is %v", joiner.cell.Phase())
	}
	seed.Boot()
	until(t, w, 5*time.Minute, "the key arrives", func() bool { entries, _ := value(seed, "spread.old"); return entries == 1 })
}
