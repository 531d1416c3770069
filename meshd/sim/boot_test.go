package sim

import (
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/cell"
)

// All are killed at once, and a write that all had seen is on the disk of its author alone. Two that boot together and
// know only what was before do not take each other's word for the state while the author is still on its way: an
// operator who writes then would have to resolve a conflict that need not be (F5, F69). If the author never comes,
// the two go on after the hold.
func TestF5_F69_CellsThatBootTogetherWaitForTheOthers(t *testing.T) {
	for _, seed := range seeds(40) {
		for _, comes := range []bool{true, false} {
			w := form(t, Options{Seed: seed, Cells: 3})
			run(t, w, 15*time.Second)
			w.Node(0).Set("spread.web", spec(t, 1, "/bin/a"), uds.ExpectAny, nil)
			run(t, w, 30*time.Second) // snapshots
			w.Node(2).Set("spread.web", spec(t, 1, "/bin/b"), uds.ExpectAny, nil)
			until(t, w, 5*time.Second, "all know of the second write", func() bool {
				for _, n := range w.Nodes() {
					if _, seen := value(n, "spread.web"); seen != string(spec(t, 1, "/bin/b")) {
						return false
					}
				}
				return true
			})
			for _, n := range w.Nodes() {
				n.PowerOff()
			}
			for _, n := range w.Nodes()[:2] {
				n.Boot()
			}
			w.After(3*time.Second, func() {
				if comes {
					w.Node(2).Boot()
				}
			})
			author := w.Node(0)
			took := until(t, w, 15*time.Second, "active again", func() bool { return author.cell.Phase() == cell.Active })
			if _, seen := value(author, "spread.web"); comes && seen != string(spec(t, 1, "/bin/b")) {
				t.Errorf("seed %d: n0 is active %v after its start and knows nothing of the last write", seed, took)
			}
			author.Set("spread.web", spec(t, 1, "/bin/c"), uds.ExpectAny, func(r cell.Response) {
				if r.Status != uds.OK {
					t.Errorf("seed %d: write refused: %s", seed, r.Text)
				}
			})
			run(t, w, 30*time.Second)
			if found := w.conflicts(); comes && len(found) > 0 {
				t.Errorf("seed %d: %v in CONFLICT", seed, found)
			}
		}
	}
}
