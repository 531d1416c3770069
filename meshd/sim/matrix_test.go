package sim

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"colloid.net/meshd/nat"
	"colloid.net/meshd/wire"
)

// theory says whether two machines can talk without a relay.
func theory(w *World, a, b *Node) bool {
	if a.NAT == Blocked || b.NAT == Blocked {
		return a == w.Node(0) || b == w.Node(0)
	}
	return a.NAT != Symmetric || b.NAT != Symmetric
}

// searched says whether the way between two machines takes a search by several sockets.
func searched(a, b *Node) bool {
	narrow := func(k NATKind) bool { return k == PortRestricted || k == NoHairpin || k == DoubleNAT || k == Firewall }
	return a.NAT == Symmetric && narrow(b.NAT) || b.NAT == Symmetric && narrow(a.NAT)
}

// matrixWorld is two machines of each kind. What is different from seed to seed is how far they are from each other,
// and whether they come all at once or one by one in any order.
func matrixWorld(t *testing.T, seed uint64, loss float64) *World {
	t.Helper()
	w, _ := matrixHistory(t, seed, loss)
	return w
}

// matrixHistory is matrixWorld with what its cells log about paths.
func matrixHistory(t *testing.T, seed uint64, loss float64) (*World, *histories) {
	t.Helper()
	h := &histories{lines: make(map[*Node][]string)}
	weather := NetworkOptions{Loss: loss}
	switch seed % 3 {
	case 1:
		weather.DelayMin, weather.DelayMax = 5*time.Millisecond, 60*time.Millisecond
	case 2:
		weather.DelayMin, weather.DelayMax = 40*time.Millisecond, 150*time.Millisecond
	}
	kinds := behindAll(2)
	if seed%2 == 1 {
		w := New(Options{Seed: seed, Cells: len(kinds), NAT: kinds, Network: weather, Debug: h.note})
		if err := w.Form(2 * time.Minute); err != nil {
			t.Fatal(err)
		}
		return w, h
	}
	w := New(Options{Seed: seed, Network: weather, NAT: kinds, Debug: h.note})
	w.Random().Shuffle(len(kinds)-2, func(i, j int) { kinds[i+2], kinds[j+2] = kinds[j+2], kinds[i+2] })
	for range kinds {
		w.AddNode().Boot()
	}
	w.cluster = w.Node(0).cell.ClusterID()
	spread := time.Duration(1+seed%5) * 5 * time.Second
	for _, n := range w.Nodes()[1:] {
		delay := time.Duration(w.Random().Int64N(int64(spread)))
		if n.NAT == Blocked {
			delay = 0 // of the whole cluster it can get the state from the first machine alone, and asks all in turn
		}
		w.After(delay, func() { w.rejoin(n) })
	}
	run(t, w, spread)
	until(t, w, 3*time.Minute, "all machines to be there", w.Formed)
	return w, h
}

// pathsSettle runs until all pairs are as theory has it, and a little longer.
func pathsSettle(t *testing.T, w *World, limit time.Duration) {
	t.Helper()
	w.Until(limit, func() bool {
		for _, a := range w.Nodes() {
			for _, b := range w.Nodes() {
				if a == b {
					continue
				}
				r, _ := a.cell.PathTo(b.ID())
				if direct := r.Kind == nat.KindDirect || r.Kind == nat.KindPunched; direct != theory(w, a, b) ||
					!direct && r.Kind != nat.KindRelayed {
					return false
				}
			}
		}
		return true
	})
	run(t, w, 45*time.Second)
}

// Every pair of kinds: those that can talk directly do after the first attempt, or the first search where that takes
// several sockets, the others through a relay (F33, F35, F36). No pair that a hole would do for stays with its relay (STREAM-6).
// An attempt is what docs/networking.md says: one exchange and the window in which both send, whoever began.
func TestSTREAM6_F35_F36_EveryPairOfRouters(t *testing.T) {
	count := 4
	if long() {
		count = 300
	}
	for _, seed := range seeds(count) {
		w, h := matrixHistory(t, seed, 0)
		pathsSettle(t, w, 2*time.Minute)
		var table strings.Builder
		again := 0
		for _, a := range w.Nodes() {
			fmt.Fprintf(&table, "%-16s", a.NAT)
			if reach := a.cell.Finding().Reach; a.NAT == RestrictedCone && reach != wire.ReachPunched {
				t.Errorf("seed %d: n%d, a restricted cone, calls itself %v", seed, a.Index, reach)
			}
			for _, b := range w.Nodes() {
				if a == b {
					table.WriteString("  -")
					continue
				}
				report, known := a.cell.PathTo(b.ID())
				seen := report.Kind == nat.KindDirect || report.Kind == nat.KindPunched
				mark := "dprnu"[report.Kind]
				if report.Searched {
					mark = 's'
				}
				fmt.Fprintf(&table, "  %c", mark)
				if want := theory(w, a, b); !known || seen != want || report.Kind == nat.KindNone {
					table.WriteString("!")
					t.Errorf("seed %d: %v to %v: %v, can be direct: %v", seed, a.NAT, b.NAT, report.Kind, want)
				}
				if report.Searched != searched(a, b) {
					t.Errorf("seed %d: %v to %v found by a search: %v", seed, a.NAT, b.NAT, report.Searched)
				}
				if theory(w, a, b) && report.Attempts > 1 {
					again++
					t.Logf("seed %d: %v to %v took %d attempts\n%s", seed, a.NAT, b.NAT, report.Attempts, h.of(a, b))
				}
			}
			table.WriteString("\n")
		}
		if again > 0 {
			t.Errorf("seed %d: %d pairs took more than one attempt", seed, again)
		}
		t.Logf("seed %d (d direct, p punched, s punched by search, r relayed)\n%s", seed, table.String())
		for _, n := range w.Nodes() {
			if stats := n.cell.Traversal(); n.NAT == Symmetric && stats.Searches > 8 || len(n.sockets) > 8 {
				t.Errorf("seed %d: n%d (%v): %+v, %d sockets", seed, n.Index, n.NAT, stats, len(n.sockets))
			}
		}
	}
}

// Where datagrams are lost, those of an attempt are sent again in the same attempt: hardly any pair takes a second one
// (F35). Pairs that search are not counted: a search may miss.
func TestF35_LostDatagramsAreNoSecondAttempt(t *testing.T) {
	count := 2
	if long() {
		count = 60
	}
	for _, loss := range []float64{0.01, 0.02} {
		pairs, again := 0, 0
		for _, seed := range seeds(count) {
			w := matrixWorld(t, seed, loss)
			pathsSettle(t, w, 2*time.Minute)
			for _, a := range w.Nodes() {
				for _, b := range w.Nodes() {
					report, _ := a.cell.PathTo(b.ID())
					if a == b || !theory(w, a, b) || searched(a, b) || report.Attempts == 0 {
						continue
					}
					pairs++
					if report.Attempts > 1 {
						again++
						t.Logf("seed %d: %v to %v took %d attempts", seed, a.NAT, b.NAT, report.Attempts)
					}
				}
			}
		}
		t.Logf("%v %% lost: %d of %d paths took more than one attempt", 100*loss, again, pairs)
		if again*100 > pairs {
			t.Errorf("%v %% lost: %d of %d paths took more than one attempt", 100*loss, again, pairs)
		}
	}
}
