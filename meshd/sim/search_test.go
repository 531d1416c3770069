package sim

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/nat"
	"colloid.net/meshd/wire"
)

// searchPair is a symmetric router and another kind, with two public cells.
func searchPair(t *testing.T, options Options, kind NATKind) (w *World, hard, easy *Node) {
	t.Helper()
	options.NAT = []NATKind{Public, Public, Symmetric, kind}
	options.Cells = len(options.NAT)
	w = New(options)
	if err := w.Form(2 * time.Minute); err != nil {
		t.Fatal(err)
	}
	return w, w.Node(2), w.Node(3)
}

// bySearch reports whether two cells reach each other both ways over a path that a search has found.
func bySearch(a, b *Node) bool {
	ab, _ := a.cell.PathTo(b.ID())
	ba, _ := b.cell.PathTo(a.ID())
	return ab.Kind == nat.KindPunched && ba.Kind == nat.KindPunched && ab.Searched && ba.Searched
}

// missChance is the probability that none of some probes to different ports meets one of some open ports.
func missChance(sockets, probes int) float64 {
	log := 0.0
	for i := range probes {
		log += math.Log1p(-float64(sockets) / float64(65536-1024-i))
	}
	return math.Exp(log)
}

// A cell behind a router that uses another port for each destination and one behind a filter by address and port find
// a way by several sockets, with the first search, but for a few in a million; then the sockets that did not meet are closed,
// and what the cells say to each other goes straight (F35).
func TestF35_SearchBySeveralSockets(t *testing.T) {
	if chance := missChance(256, 3072); chance > 0.00001 {
		t.Errorf("a search misses with probability %v", chance)
	}
	kinds := []NATKind{PortRestricted, DoubleNAT, NoHairpin, Firewall}
	weathers := []NetworkOptions{{}, {DelayMin: 5 * time.Millisecond, DelayMax: 60 * time.Millisecond, Loss: 0.02, Duplicate: 0.01}}
	tries, found, first := 0, 0, 0
	var took []time.Duration
	var probes []int
	count := 24
	if long() {
		count = 1500
	}
	for _, weather := range weathers {
		for _, seed := range seeds(count) {
			kind := kinds[int(seed)%len(kinds)]
			w, hard, easy := searchPair(t, Options{Seed: seed, Network: weather}, kind)
			tries++
			at, ok := w.Until(90*time.Second, func() bool { return bySearch(hard, easy) })
			run(t, w, 2*time.Second) // datagrams that are under way
			stats := hard.cell.Traversal()
			if !ok {
				report, _ := hard.cell.PathTo(easy.ID())
				t.Logf("%v, seed %d: %+v, %+v, %d probes", kind, seed, report, stats, easy.cell.Traversal().Probes)
				continue
			}
			found++
			took = append(took, at)
			probes = append(probes, int(easy.cell.Traversal().Probes))
			if stats.Searches == 1 {
				first++
			}
			if len(hard.sockets) > 1 || len(easy.sockets) != 0 || easy.cell.Traversal().Probes > 3072*stats.Searches {
				t.Errorf("%v, seed %d: %d and %d sockets open, %d probes", kind, seed, len(hard.sockets), len(easy.sockets),
					easy.cell.Traversal().Probes)
			}
			if seed > 100 {
				continue // enough of what follows
			}
			begin, relayed := w.Now(), 0
			w.network.tap = func(from, _ *Node, datagram []byte) {
				if wire.IsRelay(datagram) && (from == hard || from == easy) {
					relayed++
				}
			}
			hard.Set("spread.a", Spec(0, "/bin/a"), uds.ExpectAny, nil)
			until(t, w, 3*time.Second, "a write of the hard side", func() bool { n, _ := value(easy, "spread.a"); return n == 1 })
			easy.Set("spread.b", Spec(0, "/bin/a"), uds.ExpectAny, nil)
			until(t, w, 3*time.Second, "a write of the easy side", func() bool { n, _ := value(hard, "spread.b"); return n == 1 })
			run(t, w, 10*time.Minute) // keepalives keep the path, however idle
			if !bySearch(hard, easy) && weather.Loss == 0 {
				t.Errorf("%v, seed %d: lost without a reason", kind, seed)
			}
			if rate := float64(relayed) / (w.Now() - begin).Seconds(); rate > 0.01 && weather.Loss == 0 {
				t.Errorf("%v, seed %d: %.2f datagrams a second still take the relay", kind, seed, rate)
			}
		}
	}
	slices.Sort(took)
	slices.Sort(probes)
	t.Logf("%d of %d found, %d by the first search (expected %.2f %%); after forming %v, at most %v; probes %d, at most %d",
		found, tries, first, 100*(1-missChance(256, 3072)), took[len(took)/2], took[len(took)-1], probes[len(probes)/2],
		probes[len(probes)-1])
	if found*20 < tries*19 || first*20 < tries*19 {
		t.Errorf("only %d of %d found, %d by the first search", found, tries, first)
	}
}

// A router that forgets breaks a path that a search has found: it is relayed again as soon as any other, no socket stays
// open, and the way is searched for again, after a minute at the earliest, then after four and so on (F35, F36). So a
// path that was found and lost is found again, and a router that forgets all the time is not searched all the time.
func TestF35_F36_LostSearchedPathIsSearchedAgain(t *testing.T) {
	for _, seed := range seeds(4) {
		for _, forgetful := range []int{2, 3} {
			w, hard, easy := searchPair(t, Options{Seed: seed}, PortRestricted)
			if _, ok := w.Until(90*time.Second, func() bool { return bySearch(hard, easy) }); !ok {
				t.Errorf("seed %d: not found", seed)
				continue
			}
			run(t, w, 10*time.Second)
			searches := hard.cell.Traversal().Searches
			for round, limit := range []time.Duration{2 * time.Minute, 6 * time.Minute, 20 * time.Minute} {
				w.Node(forgetful).Rebind()
				key := fmt.Sprintf("spread.r%d-%d", forgetful, round)
				hard.Set(key, Spec(0, "/bin/a"), uds.ExpectAny, nil)
				took := until(t, w, 10*time.Second, key+" everywhere", func() bool { return heldBy(w, key) == 4 })
				until(t, w, 40*time.Second, "the path to be lost", func() bool { return !bySearch(hard, easy) })
				again, ok := w.Until(limit, func() bool { return bySearch(hard, easy) })
				if now := hard.cell.Traversal().Searches; !ok || now != searches+1 || len(hard.sockets) != 1 {
					t.Errorf("seed %d: round %d: found: %v, %d searches, then %d, %d sockets", seed, round, ok, searches, now,
						len(hard.sockets))
				}
				searches = hard.cell.Traversal().Searches
				t.Logf("seed %d, router of n%d forgot: write there after %v, found again after %v", seed, forgetful, took, again)
			}
			w.Node(forgetful).Rebind()
			until(t, w, 40*time.Second, "the socket to be closed", func() bool { return len(hard.sockets) == 0 })
			before := easy.cell.Traversal().Probes
			run(t, w, 40*time.Minute)
			if after := easy.cell.Traversal(); after.Probes != before || hard.cell.Traversal().Searches != searches {
				t.Errorf("seed %d: %d probes, %d searches within the hour", seed, after.Probes-before, hard.cell.Traversal().Searches)
			}
			if report, _ := hard.cell.PathTo(easy.ID()); report.Kind != nat.KindRelayed {
				t.Errorf("seed %d: %+v", seed, report)
			}
			until(t, w, 50*time.Minute, "the way to be found after an hour", func() bool { return bySearch(hard, easy) })
		}
	}
}

// A search pair whose question stays without an answer has not lost its path: it is asked again by what is always
// answered before it is given up (F35).
func TestF35_AnUnansweredQuestionIsNoLostPath(t *testing.T) {
	for _, seed := range seeds(6) {
		w, hard, easy := searchPair(t, Options{Seed: seed}, PortRestricted)
		if _, ok := w.Until(90*time.Second, func() bool { return bySearch(hard, easy) }); !ok {
			t.Fatalf("seed %d: not found", seed)
		}
		// Nothing but keepalives and echoes gets through between the two, as if nobody had time for more.
		w.network.drop = func(from, to *Node, datagram []byte) bool {
			if wire.IsRelay(datagram) || from != hard && from != easy || to != hard && to != easy {
				return false
			}
			return datagram[1] != byte(wire.TypePing) && datagram[1] != byte(wire.TypePong)
		}
		lost := hard.cell.Traversal().Lost + easy.cell.Traversal().Lost
		for i := range 10 {
			key := fmt.Sprintf("spread.k%d", i)
			hard.Set(key, Spec(0, "/bin/a"), uds.ExpectAny, nil)
			run(t, w, 10*time.Second)
		}
		if now := hard.cell.Traversal().Lost + easy.cell.Traversal().Lost; now != lost || !bySearch(hard, easy) {
			t.Errorf("seed %d: lost %d paths without a reason", seed, now-lost)
		}
	}
}

// Cells that were told not to search open no socket and send to no port that was drawn, whichever of the two it is; nor
// do two cells of which each is behind a symmetric router. All stay relayed.
func TestF35_NoSearch(t *testing.T) {
	for off := 2; off <= 3; off++ {
		w := New(Options{Seed: 1, Cells: 4, NAT: []NATKind{Public, Public, Symmetric, PortRestricted}})
		w.Node(off).noSearch = true
		if err := w.Form(2 * time.Minute); err != nil {
			t.Fatal(err)
		}
		run(t, w, 5*time.Minute)
		report, _ := w.Node(2).cell.PathTo(w.Node(3).ID())
		if stats := w.Node(2).cell.Traversal(); report.Kind != nat.KindRelayed || stats.Searches != 0 || w.Node(3).cell.Traversal().Probes != 0 {
			t.Errorf("off on n%d: %+v, %+v", off, report, stats)
		}
	}
	w, a, b := searchPair(t, Options{Seed: 1}, Symmetric)
	run(t, w, 5*time.Minute)
	report, _ := a.cell.PathTo(b.ID())
	if report.Kind != nat.KindRelayed || a.cell.Traversal().Searches+b.cell.Traversal().Searches != 0 {
		t.Errorf("two symmetric routers: %+v", report)
	}
}

// Where descriptors are short a search makes do with fewer sockets, and with very few does not begin to send.
func TestF35_FewSockets(t *testing.T) {
	for _, few := range []int{100, 40} {
		w, hard, easy := searchPair(t, Options{Seed: 2, SocketsMax: few}, PortRestricted)
		_, ok := w.Until(3*time.Minute, func() bool { return bySearch(hard, easy) })
		if probes := easy.cell.Traversal().Probes; ok != (few >= 64) || (probes > 0) != (few >= 64) {
			t.Errorf("%d sockets: found %v, %d probes", few, ok, probes)
		}
		run(t, w, 20*time.Second)
		if len(hard.sockets) > 1 {
			t.Errorf("%d sockets stay open", len(hard.sockets))
		}
	}
}

// One cell behind a symmetric router among many behind port filters: it searches for one after the other, keeps a bounded
// number of sockets, and no cell sends more probes in an hour than its budget. The rest stays relayed, and nobody is
// taken for dead meanwhile.
func TestF35_SearchesAreBounded(t *testing.T) {
	kinds := []NATKind{Public, Public, Public, Symmetric}
	for range 20 {
		kinds = append(kinds, PortRestricted)
	}
	for range 3 {
		kinds = append(kinds, Symmetric)
	}
	w := formBehind(t, 1, kinds, NetworkOptions{})
	deaths := countDeaths(w)
	most := 0
	for range 60 {
		run(t, w, 10*time.Second)
		for _, n := range w.Nodes() {
			most = max(most, len(n.sockets))
		}
	}
	direct := 0
	for _, a := range w.Nodes() {
		if a.NAT == Symmetric && len(a.sockets) > 16 {
			t.Errorf("n%d keeps %d sockets", a.Index, len(a.sockets))
		}
		if probes := a.cell.Traversal().Probes; a.NAT == Symmetric && probes != 0 || probes > 16384 {
			t.Errorf("n%d (%v) sent %d probes", a.Index, a.NAT, probes)
		}
		for _, b := range w.Nodes() {
			if a.NAT == Symmetric && b.NAT == PortRestricted && bySearch(a, b) {
				direct++
			}
		}
	}
	t.Logf("%d pairs direct of %d, at most %d sockets of one cell", direct, 4*20, most)
	if direct < 4*16 || direct > 4*17 || // a drawn port may be that of a cell's own socket
		most > nat.SocketsMax || len(*deaths) != 0 {
		t.Errorf("%d pairs direct, %d sockets, deaths %v", direct, most, *deaths)
	}
}

// Once a way is found, the two need no third cell: with every public one gone they still write to each other (AVAIL-5).
func TestAVAIL5_F35_SearchedPathOutlivesTheRelays(t *testing.T) {
	for _, seed := range seeds(4) {
		w, hard, easy := searchPair(t, Options{Seed: seed}, PortRestricted)
		if _, ok := w.Until(90*time.Second, func() bool { return bySearch(hard, easy) }); !ok {
			t.Errorf("seed %d: not found", seed)
			continue
		}
		w.Node(0).PowerOff()
		w.Node(1).PowerOff()
		run(t, w, 5*time.Minute)
		for i, n := range []*Node{hard, easy} {
			key := fmt.Sprintf("spread.k%d", i)
			n.Set(key, Spec(0, "/bin/a"), uds.ExpectAny, nil)
			until(t, w, 3*time.Second, key+" on both", func() bool { return heldBy(w, key) == 2 })
		}
		if !bySearch(hard, easy) {
			t.Errorf("seed %d: lost with the relays", seed)
		}
	}
}
