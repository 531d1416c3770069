package sim

import (
	"testing"
	"time"
)

// polled is until for questions that are asked of many cells: they are asked ten times a second, not after every step.
func polled(t *testing.T, w *World, limit time.Duration, what string, done func() bool) {
	t.Helper()
	for begin := w.Now(); !done(); run(t, w, 100*time.Millisecond) {
		if w.Now()-begin >= limit {
			t.Fatalf("seed %d: %s: not within %v", w.options.Seed, what, limit)
		}
	}
}

// declared is how many of the others a machine has declared dead.
func declared(t *testing.T, n *Node) int { return int(metric(t, n, "colloid_deaths_declared_total")) }

// A few that are cut off together, as by a switch that fails, reach each other and so are not deaf. Each of them has
// asked only some of the others when its first verdict is due, however large the cluster is. They accuse nobody; the
// others find out about them as always, and all are one cluster again at once when the cut ends (F64, F66).
func TestF64_F66_AFewThatAreCutOffTogetherAccuseNobody(t *testing.T) {
	for _, size := range []struct{ cells, few int }{{7, 2}, {12, 2}, {20, 4}, {40, 5}} {
		for _, seed := range seeds(2) {
			w := form(t, Options{Seed: seed, Cells: size.cells})
			run(t, w, 30*time.Second)
			w.Partition(func(i int) int { return min(i/size.few, 1) })
			polled(t, w, 15*time.Second, "the others know who is missing", func() bool {
				for _, n := range w.Nodes()[size.few:] {
					if n.cell.AliveCount() != size.cells-size.few {
						return false
					}
				}
				return true
			})
			run(t, w, 75*time.Second)
			for _, n := range w.Nodes()[:size.few] {
				if dead := declared(t, n); dead > 0 {
					t.Errorf("seed %d: %d of %d are cut off, and n%d declares %d dead", seed, size.few, size.cells, n.Index, dead)
				}
			}
			w.Unite()
			polled(t, w, 20*time.Second, "whole again", w.Formed)
		}
	}
}

// Neighbours behind a router that is off reach each other alone. Most of the others are behind routers themselves: that
// nobody here accuses them, since only their homes may (F36), does not mean that they answer. Once right after the
// cluster has formed, when hardly anybody has answered anybody, and once after a while.
func TestF66_F36_NeighboursBehindARouterThatIsOffAccuseNobody(t *testing.T) {
	kinds := []NATKind{Public, Public, NoHairpin, NoHairpin, PortRestricted, FullCone, PortRestricted, Blocked, Symmetric, DoubleNAT}
	for _, seed := range seeds(6) {
		for _, wait := range []time.Duration{0, time.Minute} {
			w := form(t, Options{Seed: seed, Cells: len(kinds), NAT: kinds})
			run(t, w, wait)
			before := declared(t, w.Node(2)) + declared(t, w.Node(3))
			w.Node(2).setRouters(true)
			run(t, w, 55*time.Second)
			if dead := declared(t, w.Node(2)) + declared(t, w.Node(3)) - before; dead > 0 {
				t.Errorf("seed %d, %v after forming: two behind a router that is off declare %d others dead", seed, wait, dead)
			}
			w.Node(2).setRouters(false)
			polled(t, w, 90*time.Second, "whole again", w.Formed)
		}
	}
}

// However many die at once, as long as they are fewer than half: what keeps a few that are cut off from accusing anybody
// does not keep the rest from finding out (F62, F66).
func TestF62_F66_ManyThatDieAtOnceAreFound(t *testing.T) {
	for _, size := range []struct{ cells, die int }{{3, 1}, {5, 2}, {7, 3}, {20, 8}, {30, 13}} {
		for _, seed := range seeds(2) {
			w := form(t, Options{Seed: seed, Cells: size.cells, Network: NetworkOptions{Loss: 0.05, DelayMax: 5 * time.Millisecond}})
			run(t, w, 15*time.Second)
			rest := w.Nodes()[size.die:]
			for _, n := range w.Nodes()[:size.die] {
				n.PowerOff()
			}
			polled(t, w, 12*time.Second, "all deaths are known", func() bool {
				for _, n := range rest {
					if n.cell.AliveCount() != len(rest) {
						return false
					}
				}
				return true
			})
		}
	}
}
