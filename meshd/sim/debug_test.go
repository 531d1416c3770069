package sim

import (
	"testing"
	"time"
)

func TestDebug(t *testing.T) {
	w := world(t, Options{Seed: 5, Cells: 3})
	w.Form(3*time.Second)
	for i, n := range w.Nodes() {
		var l []string
		for _, m := range w.Nodes() {
			e, _ := value(n, "health."+m.ID().String()+".contact")
			f, _ := value(n, "health."+m.ID().String()+".status")
			l = append(l, []string{"-","c"}[e]+[]string{"-","s"}[f])
		}
		t.Log(i, l, n.cell.AliveCount(), n.cell.Debug())
	}
	t.Fail()
}
