package sim

import (
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/cell"
)

// Bugs that random scenarios found, each in a world of its own that does not depend on the seed.

// A cell writes, leaves, and joins again through a member that missed the write: it has lost its own writes,
// so it must not tell the others that they are superseded (F45 i; sim seed 462).
func TestF45_F8_LeaverWhoReturnsDoesNotVouchForItsLostWrites(t *testing.T) {
	for _, seed := range seeds(5) {
		w := form(t, Options{Seed: seed, Cells: 3})
		run(t, w, 15*time.Second)
		missed, author, keeper := w.Node(0), w.Node(1), w.Node(2)
		w.Isolate(missed)
		run(t, w, 15*time.Second)
		author.Set("spread.b", spec(t, 1, "/bin/b"), uds.ExpectAny, nil)
		run(t, w, 10*time.Second)
		author.Command(cell.Request{Code: uds.CodeLeave, Payload: []byte{0, 5}}, func(cell.Response) {})
		until(t, w, 20*time.Second, "left", func() bool { return author.cell.ClusterID() != w.cluster })
		w.Isolate(keeper)
		run(t, w, time.Second)
		author.Connect(missed)
		until(t, w, 30*time.Second, "joined again", func() bool {
			return author.cell.ClusterID() == w.cluster && author.cell.Phase() == cell.Active
		})
		run(t, w, time.Second)
		w.Heal()
		until(t, w, 3*time.Minute, "equal state", func() bool { return w.Formed() && settled(w) })
		for _, n := range w.Nodes() {
			if _, got := value(n, "spread.b"); got != string(spec(t, 1, "/bin/b")) {
				t.Fatalf("seed %d: n%d has lost spread.b", seed, n.Index)
			}
		}
	}
}
