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

// Two members whose logs were damaged reach each other and nobody else. What is left of the state says of each that it
// lives, but neither has all of it, so they do not take each other's word, however long nobody else answers (F5, F157).
// One that has everything makes both whole; without such a one an operator's word does.
func TestF5_F157_TwoThatLostStateDoNotVouchForEachOther(t *testing.T) {
	for _, seed := range seeds(5) {
		for _, comes := range []bool{true, false} {
			w := form(t, Options{Seed: seed, Cells: 3})
			run(t, w, 30*time.Second) // snapshots
			w.Node(0).Set("spread.a", Spec(3, "/bin/a"), uds.ExpectAny, nil)
			run(t, w, 5*time.Second)
			for _, n := range w.Nodes() {
				n.Kill()
			}
			lost := w.Nodes()[:2]
			for _, n := range lost {
				n.disk.writes, n.disk.lost = nil, "writes.log damaged"
				n.Boot()
			}
			run(t, w, 10*time.Minute)
			for _, n := range lost {
				if n.cell.Phase() != cell.Booting {
					t.Fatalf("seed %d: n%d is %s", seed, n.Index, n.cell.Phase())
				}
			}
			if comes {
				w.Node(2).Boot()
			} else {
				command(t, w, lost[1], cell.Request{Code: uds.CodeAcceptLoss})
			}
			until(t, w, 2*time.Minute, "active again", func() bool {
				return lost[0].cell.Phase() == cell.Active && lost[1].cell.Phase() == cell.Active
			})
			if entries, _ := value(lost[0], "spread.a"); comes && entries != 1 {
				t.Errorf("seed %d: what the third one knows is not there", seed)
			}
		}
	}
}
