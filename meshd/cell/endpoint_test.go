package cell_test

import (
	"fmt"
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/sim"
	"colloid.net/meshd/state"
)

// Where replicas answer is said by their own cell alone, so churn never makes a CONFLICT, every cell reads
// the same, and what is gone is withdrawn (F101).
func TestF101_EndpointsNeverConflict(t *testing.T) {
	for seed := uint64(1); seed <= 3; seed++ {
		w := cluster(t, sim.Options{Seed: seed, Cells: 10})
		w.Run(15 * time.Second)
		digest(t, ask(t, w, w.Node(0), write(uds.CodeSet, "spread.web", spec(t, 10), uds.ExpectAny)))
		w.Run(5 * time.Second)
		for round := range 8 {
			n := w.Node(1 + round%9)
			n.PowerOff()
			w.Run(time.Duration(1+round) * time.Second)
			n.Boot()
			w.Run(3 * time.Second)
			digest(t, ask(t, w, w.Node(0), write(uds.CodeSet, "spread.web", spec(t, 7+round%4), uds.ExpectAny)))
			w.Run(4 * time.Second)
		}
		digest(t, ask(t, w, w.Node(0), write(uds.CodeSet, "spread.web", spec(t, 2), uds.ExpectAny)))
		w.Run(3 * time.Minute)
		var first string
		for _, n := range w.Nodes() {
			ready, conflicts := "", 0
			for _, m := range w.Nodes() {
				register, found := n.Cell().Store().Get([]byte(state.EndpointKey(m.ID(), "web")))
				if !found {
					continue
				}
				if register.EntryCount() > 1 {
					conflicts++
				}
				if _, value, ok := register.Latest(); ok && len(value) > 0 {
					endpoint, err := state.ParseCellEndpoint(value)
					if err != nil {
						t.Fatal(err)
					}
					for _, instance := range endpoint.Instances {
						ready += fmt.Sprintf("%v:%v ", m.ID(), instance.State)
					}
				}
			}
			if conflicts > 0 {
				t.Errorf("seed %d: n%d holds %d endpoint keys in conflict", seed, n.Index, conflicts)
			}
			if first == "" {
				first = ready
			}
			if ready != first {
				t.Errorf("seed %d: n%d reads %q, another cell %q", seed, n.Index, ready, first)
			}
		}
		running := 0
		for _, n := range w.Nodes() {
			running += len(n.Running())
		}
		if running != 2 {
			t.Errorf("seed %d: %d replicas run, 2 wanted; endpoints %q", seed, running, first)
		}
	}
}
