package sim

import (
	"testing"
	"time"

	"colloid.net/ipc/uds"
)

func TestBig(t *testing.T) {
	w := New(Options{Seed: 1, Cells: 128})
	begin := time.Now()
	for _, n := range w.nodes {
		n.Boot()
	}
	w.Run(10 * time.Millisecond)
	for _, n := range w.nodes[1:] {
		n.Connect(w.nodes[0])
	}
	done := func() int {
		k := 0
		for _, n := range w.nodes {
			if n.cell.AliveCount() == 128 {
				k++
			}
		}
		return k
	}
	for i := range 12 {
		w.Run(250 * time.Millisecond)
		d, _ := w.Traffic()
		active := phases(w)
		if i < 12 || i%4 == 0 {
			t.Logf("%v active=%d full=%d datagrams=%d steps=%d", w.now, active, done(), d, w.Steps)
		}
	}
	for i, n := range w.nodes { if i % 16 == 0 { t.Log(i, n.cell.ClusterID(), n.cell.Debug()) } }
	t.Log(time.Since(begin))
	d0, _ := w.Traffic()
	s0 := w.now
	w.Node(5).Set("spread.x", spec(t, 0, "/bin/x"), uds.ExpectAny, nil)
	took, ok := w.Until(10*time.Second, func() bool {
		for _, n := range w.nodes {
			if e, _ := value(n, "spread.x"); e == 0 {
				return false
			}
		}
		return true
	})
	w.Run(2 * time.Second)
	d1, _ := w.Traffic()
	t.Log("write", took, ok, d1-d0, w.now-s0)
}
