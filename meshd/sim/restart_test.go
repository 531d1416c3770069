package sim

import (
	"slices"
	"testing"
	"time"
)

// A restarted meshd is back in step within a moment: a cell that restarts under load must not be missed
// for an anti-entropy interval (F4, F5).
func TestF4_RestartedCellIsActiveWithinASecond(t *testing.T) {
	var times []time.Duration
	for _, seed := range seeds(8) {
		w := form(t, Options{Seed: seed, Cells: 3})
		run(t, w, 12*time.Second)
		for round := range 9 {
			n := w.Node(round % 3)
			n.Kill()
			run(t, w, time.Duration(50+round*150)*time.Millisecond)
			n.Boot()
			times = append(times, until(t, w, 40*time.Second, "active", func() bool { return phases(w) == 3 }))
			run(t, w, time.Duration(round)*2*time.Second)
		}
	}
	slices.Sort(times)
	t.Logf("median %v, p90 %v, max %v", times[len(times)/2], times[len(times)*9/10], times[len(times)-1])
	if times[len(times)-1] > time.Second {
		t.Errorf("slowest restart took %v", times[len(times)-1])
	}
}
