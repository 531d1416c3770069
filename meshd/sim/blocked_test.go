package sim

import (
	"testing"
	"time"

	"colloid.net/meshd/cell"
)

// A machine whose filter lets it reach one cell only is back soon after a restart, however many others it knows of and asks in vain
// (F4, F36).
func TestF4_F36_BlockedCellJoinsALargeCluster(t *testing.T) {
	count := 3
	if long() {
		count = 40
	}
	for _, seed := range seeds(count) {
		w := formBehind(t, seed, behindAll(2), NetworkOptions{})
		run(t, w, 20*time.Second)
		w.options.NAT = append(w.options.NAT, Blocked)
		n := w.AddNode()
		n.Boot()
		w.rejoin(n)
		took := until(t, w, 2*time.Minute, "the blocked cell to be active", func() bool {
			return n.cell.Phase() == cell.Active && n.cell.AliveCount() == len(w.Nodes())
		})
		t.Logf("seed %d: joined after %v", seed, took)
		n.Kill()
		run(t, w, 5*time.Second)
		n.Boot()
		took = until(t, w, 10*time.Second, "the blocked cell to be active again", func() bool { return n.cell.Phase() == cell.Active })
		t.Logf("seed %d: back after %v", seed, took)
	}
}
