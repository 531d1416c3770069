package sim

import (
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/cell"
)

// A write that was still on its way to the disk when a snapshot was taken is in neither, if the snapshot
// covers the log up to it: the cell waits with the snapshot (F157).
func TestF157_AcknowledgedWritesOutliveEveryCrash(t *testing.T) {
	for _, seed := range seeds(60) {
		w := form(t, Options{Seed: seed, Cells: 1})
		n := w.Node(0)
		run(t, w, 9*time.Second+time.Duration(w.Random().Int64N(int64(2*time.Second))))
		n.disk.latency = 200 * time.Millisecond
		var acknowledged []string
		write := func(key string) {
			n.Set(key, Spec(0, "/bin/a"), uds.ExpectAny, func(r cell.Response) {
				if r.Status == uds.OK {
					acknowledged = append(acknowledged, key)
				}
			})
		}
		for i := range 20 {
			write("spread.w" + string(rune('a'+i)))
			run(t, w, time.Duration(w.Random().Int64N(int64(800*time.Millisecond))))
		}
		n.PowerOff()
		n.Boot()
		run(t, w, time.Second)
		for _, key := range acknowledged {
			if entries, _ := value(n, key); entries != 1 {
				t.Fatalf("seed %d: %s was acknowledged and is lost", seed, key)
			}
		}
	}
}
