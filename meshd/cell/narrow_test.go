package cell_test

import (
	"strings"
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/cell"
	"colloid.net/meshd/clock"
	"colloid.net/meshd/sim"
)

// What one cell cannot send, every status shows; it ends with its cause (F30).
func TestF30_EveryCellShowsANarrowPath(t *testing.T) {
	w := cluster(t, sim.Options{Seed: 1, Cells: 3})
	w.Run(15 * time.Second)
	n := w.Node(1)
	shown := func() (count int) {
		for _, m := range w.Nodes() {
			m.Command(cell.Request{Code: uds.CodeStatus}, func(r cell.Response) {
				if strings.Contains(string(r.Payload), "unusable") {
					count++
				}
			})
		}
		return count
	}
	n.Input(func(now clock.Instant) { n.Cell().LinkTooNarrow(now, "eth0", 1100, 1228) })
	w.Run(5 * time.Second)
	if shown() != 3 {
		t.Errorf("a narrow link is shown by %d of 3", shown())
	}
	n.Input(func(now clock.Instant) { n.Cell().LinkTooNarrow(now, "", 0, 0) })
	w.Run(5 * time.Second)
	if shown() != 0 {
		t.Errorf("a link that is wide again is shown by %d", shown())
	}
	n.Input(func(now clock.Instant) { n.Cell().PathTooNarrow(now, w.Node(0).Address) })
	w.Run(5 * time.Second)
	if shown() != 3 {
		t.Errorf("a narrow path is shown by %d of 3", shown())
	}
	w.Run(62 * time.Minute)
	if shown() != 0 {
		t.Errorf("an hour later it is shown by %d", shown())
	}
}
