package cell_test

import (
	"strings"
	"testing"
	"time"

	"colloid.net/meshd/cell"
	"colloid.net/meshd/clock"
	"colloid.net/meshd/sim"
)

// F64, F66: a cell that is cut off says so before anything else and waits for a person; whom it does not reach it marks,
// and what they said of their load is left out.
func TestF66_ACutOffCellSaysSoFirst(t *testing.T) {
	w := cluster(t, sim.Options{Seed: 1, Cells: 6})
	w.Run(10 * time.Second)
	for range 20 {
		for i := range 6 {
			n := w.Node(i)
			n.Input(func(now clock.Instant) { n.Cell().Load(now, cell.HostLoad{CPU: 5000, Memory: 5000, Disk: 5000}) })
		}
		w.Run(5 * time.Second)
	}
	n := w.Node(5)
	figures := func() (known int) {
		for _, c := range statusOf(t, w, n).Cells {
			if c.CPUPercent != nil {
				known++
			}
		}
		return known
	}
	if s := statusOf(t, w, n); figures() != 6 || s.NeedsHuman || s.Cell.CutOff != "" {
		t.Fatalf("%d figures before, %+v", figures(), s.Alarms)
	}
	w.Isolate(n)
	w.Run(16 * time.Second)
	s := statusOf(t, w, n)
	if !strings.HasPrefix(s.Cell.CutOff, "this cell is cut off: it reaches 0 of the 5 other cells") ||
		len(s.Alarms) == 0 || s.Alarms[0].Text != s.Cell.CutOff || s.Alarms[0].Severity != "critical" || !s.NeedsHuman {
		t.Errorf("%q, %+v", s.Cell.CutOff, s.Alarms)
	}
	for _, c := range s.Cells {
		if c.Unreached == c.Self {
			t.Errorf("cell %s: unreached %v", c.ID, c.Unreached)
		}
	}
	if figures() != 1 {
		t.Errorf("%d cells have figures of their load", figures())
	}
	w.Unite()
	w.Run(30 * time.Second)
	if s := statusOf(t, w, n); s.Cell.CutOff != "" || s.NeedsHuman || figures() != 6 {
		t.Errorf("united: %q, %d figures, %+v", s.Cell.CutOff, figures(), s.Alarms)
	}
}
