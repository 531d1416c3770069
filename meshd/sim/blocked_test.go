package sim

import (
	"slices"
	"testing"
	"time"

	"colloid.net/meshd/cell"
)

// A machine whose filter lets it reach one cell only joins a large cluster, and is back soon after a restart, however many
// others it knows of and asks in vain, and however far away they are (F4, F36). What it is told to connect to must be the cell
// that it reaches.
func TestF4_F36_BlockedCellJoinsALargeCluster(t *testing.T) {
	count := 3
	if long() {
		count = 40
	}
	for name, weather := range map[string]NetworkOptions{
		"near":  {},
		"far":   {DelayMin: 40 * time.Millisecond, DelayMax: 150 * time.Millisecond},
		"lossy": {DelayMin: 5 * time.Millisecond, DelayMax: 60 * time.Millisecond, Loss: 0.05, Duplicate: 0.01},
	} {
		t.Run(name, func(t *testing.T) {
			var joined, back []time.Duration
			for _, seed := range seeds(count) {
				w := formBehind(t, seed, behindAll(2), NetworkOptions{})
				run(t, w, 20*time.Second)
				w.SetNetwork(weather)
				w.options.NAT = append(w.options.NAT, Blocked)
				n := w.AddNode()
				n.Boot()
				w.join(n, w.Node(0))
				joined = append(joined, until(t, w, time.Minute, "the blocked cell to be active", func() bool {
					return n.cell.Joined() && n.cell.Phase() == cell.Active && n.cell.AliveCount() == len(w.Nodes())
				}))
				n.Kill()
				run(t, w, 5*time.Second)
				n.Boot()
				back = append(back, until(t, w, time.Minute, "the blocked cell to be active again",
					func() bool { return n.cell.Phase() == cell.Active }))
			}
			slices.Sort(joined)
			slices.Sort(back)
			t.Logf("joined after %v, at most %v; back after %v, at most %v", joined[len(joined)/2], joined[len(joined)-1],
				back[len(back)/2], back[len(back)-1])
			if joined[len(joined)-1] > 10*time.Second || back[len(back)-1] > 10*time.Second {
				t.Errorf("joined after up to %v, back after up to %v", joined[len(joined)-1], back[len(back)-1])
			}
		})
	}
}
