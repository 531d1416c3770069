package sim

import (
	"testing"
	"time"

	"colloid.net/meshd/wire"
)

// Whoever can send datagrams in the name of a dead cell does not keep it alive with them (F67): neither with what it
// once said, played again, nor with new ones under a seal that does not fit. No counter of the kernel, which could not
// check the seal, cancels a probe or a suspicion; what meshd could open is the only sign of life.
func TestF67_ForgedTrafficKeepsNoDeadCellAlive(t *testing.T) {
	for _, seed := range seeds(3) {
		w := form(t, Options{Seed: seed, Cells: 5})
		victim := w.Node(2)
		said := map[wire.Type][]byte{} // the latest of each kind
		var kinds []wire.Type
		w.network.tap = func(from, _ *Node, datagram []byte) {
			kind := wire.Type(datagram[1])
			if from != victim {
				return
			}
			if said[kind] == nil {
				kinds = append(kinds, kind)
			}
			said[kind] = append(said[kind][:0], datagram...)
		}
		run(t, w, 20*time.Second)
		victim.PowerOff()
		w.network.tap = nil
		if len(kinds) < 2 {
			t.Fatalf("seed %d: only %d kinds of datagrams were seen", seed, len(kinds))
		}
		var forge func()
		forge = func() {
			for _, kind := range kinds {
				forged := append([]byte(nil), said[kind]...)
				forged[len(forged)-1]++
				for _, n := range w.Nodes() {
					if n != victim {
						w.Inject(victim.Address, n, append([]byte(nil), said[kind]...))
						w.Inject(victim.Address, n, append([]byte(nil), forged...))
					}
				}
			}
			w.After(100*time.Millisecond, forge)
		}
		forge()
		took := until(t, w, 12*time.Second, "dead everywhere", func() bool {
			for _, n := range w.Nodes() {
				if n != victim && !believesDead(n, victim) {
					return false
				}
			}
			return true
		})
		t.Logf("seed %d: known everywhere after %v", seed, took)
	}
}
