package antientropy

import (
	"fmt"
	"testing"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/wire"
)

func TestF25_EqualRootsCostTwoDatagrams(t *testing.T) {
	n := newNetwork(t, 1, 2)
	load(n.cells[1].store, 1000, 1)
	load(n.cells[2].store, 1000, 1)
	n.cells[1].store.RaiseStable(wire.AppendDot(nil, wire.Dot{Actor: 1000, Sequence: 5}))
	if a, b := n.session(1, 2); !a || !b {
		t.Fatalf("completed: initiator %v, responder %v", a, b)
	}
	if n.datagrams != 2 {
		t.Fatalf("%d datagrams, want 2", n.datagrams)
	}
	if n.cells[2].store.Stable(1000) != 5 {
		t.Fatal("the vector did not rise although nothing differs")
	}
}

func TestSessionRepairsBothDirections(t *testing.T) {
	n := newNetwork(t, 1, 2)
	load(n.cells[1].store, 5000, 1)
	load(n.cells[2].store, 5000, 1)
	for i := range 20 {
		n.cells[1].write(fmt.Sprintf("spread.one%d", i), "1")
		n.cells[2].write(fmt.Sprintf("spread.two%d", i), "2")
	}
	n.cells[1].write("spread.both", "of 1")
	n.cells[2].write("spread.both", "of 2")
	if a, b := n.session(1, 2); !a || !b {
		t.Fatalf("completed: initiator %v, responder %v", a, b)
	}
	n.equal()
	if n.cells[1].store.ConflictCount() != 1 || n.cells[2].store.ConflictCount() != 1 {
		t.Fatal("concurrent writes are not a conflict on both sides")
	}
	if n.cells[1].store.Stable(2) != 21 || n.cells[2].store.Stable(1) != 21 {
		t.Fatal("the vectors did not rise")
	}
}

func TestF52_TenDifferencesOf100kCostAtMost20KB(t *testing.T) {
	n := newNetwork(t, 1, 2)
	load(n.cells[1].store, 100_000, 1)
	load(n.cells[2].store, 100_000, 1)
	for i := range 5 {
		n.cells[1].write(fmt.Sprintf("health.%016x.cpu", i+1), "a value of thirty bytes or so")
		n.cells[2].write(fmt.Sprintf("health.%016x.cpu", i+100), "a value of thirty bytes or so")
	}
	start := n.now
	if a, b := n.session(1, 2); !a || !b {
		t.Fatalf("completed: initiator %v, responder %v", a, b)
	}
	n.equal()
	t.Logf("%d bytes in %d datagrams, %v", n.bytes, n.datagrams, n.now.Sub(start))
	if n.bytes > 20_000 {
		t.Fatalf("%d bytes, want at most 20000", n.bytes)
	}
}

func TestF53_BootstrapOf100kKeysTakesUnder10Seconds(t *testing.T) {
	n := newNetwork(t, 1, 2)
	load(n.cells[1].store, 100_000, 1)
	n.cells[2].write("health.0000000000000002.contact", "here")
	start, real := n.now, time.Now()
	if !n.cells[2].sessions.Start(n.now, 1, true) {
		t.Fatal("not started")
	}
	n.settle(time.Minute)
	n.equal()
	if n.cells[2].bootstrap != 1 || len(n.cells[1].completed) != 1 {
		t.Fatal("not completed on both sides")
	}
	t.Logf("%v virtual, %v real, %d datagrams, %d bytes",
		n.now.Sub(start), time.Since(real), n.datagrams, n.bytes)
	if took := n.now.Sub(start); took > 10*time.Second {
		t.Fatalf("took %v", took)
	}
}

// TestF53_Pace: at most 100 messages a second in steady state and 2000 at bootstrap, repetitions and
// comparisons included, acknowledgements apart; never more than 64 frames unacknowledged.
func TestF53_Pace(t *testing.T) {
	for _, bootstrap := range []bool{false, true} {
		n := newNetwork(t, 1, 2)
		n.loss = 0.1
		keys := 4000
		load(n.cells[1].store, keys, 1)
		load(n.cells[2].store, keys, 1_000_000) // everything differs, the same number of keys
		limit := 100
		if bootstrap {
			limit = 2000
		}
		sent := map[wire.CellID][]clock.Instant{}
		open := map[wire.CellID]map[uint32]bool{1: {}, 2: {}}
		n.tap = func(from, to wire.CellID, kind wire.Type, nonce uint32, payload []byte) bool {
			if kind == wire.TypeAEState {
				open[from][nonce] = true
			}
			payer := from
			switch kind {
			case wire.TypeDeltaAck:
				delete(open[to], nonce)
				return false
			case wire.TypeAEMerkleResp:
				payer = to // whoever asks paces the answers
			}
			if len(open[from]) > slotsMax {
				t.Fatalf("%d frames under way", len(open[from]))
			}
			at := append(sent[payer], n.now)
			for len(at) > 0 && at[0] <= n.now-clock.Instant(time.Second) {
				at = at[1:]
			}
			sent[payer] = at
			// The burst, and responses that come a round trip after they were paid for.
			if len(at) > limit+2*slotsMax {
				t.Fatalf("%d messages within a second, limit %d", len(at), limit)
			}
			return false
		}
		n.cells[1].sessions.Start(n.now, 2, bootstrap)
		n.settle(11 * time.Minute)
		if bootstrap && len(n.cells[1].completed) != 1 {
			t.Fatal("not completed")
		}
		n.equal()
	}
}

// TestF25_LossNeverLies: at 30 % loss with duplicates and reordering, a side that raised its vector
// has everything that the other one stated; if neither completed, no vector moved; most sessions complete.
func TestF25_LossNeverLies(t *testing.T) {
	both := 0
	const runs = 60
	for seed := range uint64(runs) {
		n := newNetwork(t, seed, 2)
		n.loss, n.duplicate = 0.3, 0.1
		load(n.cells[1].store, 300, 1)
		load(n.cells[2].store, 300, 1)
		for i := range 30 {
			n.cells[1].write(fmt.Sprintf("spread.one%d", i), "1")
			n.cells[2].write(fmt.Sprintf("spread.two%d", i), "2")
		}
		a, b := n.session(1, 2)
		if a && b {
			both++
			n.equal()
		}
		for _, side := range []struct {
			completed bool
			id, other wire.CellID
			prefix    string
		}{{a, 1, 2, "spread.two"}, {b, 2, 1, "spread.one"}} {
			p := n.cells[side.id]
			if raised := p.store.Stable(side.other) > 0; raised != side.completed {
				t.Fatalf("seed %d: cell %v completed %v, vector raised %v", seed, side.id, side.completed, raised)
			}
			for i := range 30 {
				if _, has := p.store.Get(fmt.Appendf(nil, "%s%d", side.prefix, i)); side.completed && !has {
					t.Fatalf("seed %d: cell %v raised its vector but lacks %s%d", seed, side.id, side.prefix, i)
				}
			}
		}
	}
	t.Logf("%d of %d sessions completed on both sides", both, runs)
	if both < runs*9/10 {
		t.Fatalf("only %d of %d sessions completed on both sides", both, runs)
	}
}

// TestF25_BrokenOffSessionChangesNoVector cuts the line after every number of datagrams.
func TestF25_BrokenOffSessionChangesNoVector(t *testing.T) {
	for cut := 1; ; cut++ {
		n := newNetwork(t, 1, 2)
		for i := range 12 {
			n.cells[1].write(fmt.Sprintf("spread.one%d", i), "1")
			n.cells[2].write(fmt.Sprintf("spread.two%d", i), "2")
		}
		count := 0
		n.tap = func(wire.CellID, wire.CellID, wire.Type, uint32, []byte) bool {
			count++
			return count > cut
		}
		a, b := n.session(1, 2)
		if raised := n.cells[1].store.Stable(2) > 0; raised != a {
			t.Fatalf("cut after %d: initiator completed %v, raised %v", cut, a, raised)
		}
		if raised := n.cells[2].store.Stable(1) > 0; raised != b {
			t.Fatalf("cut after %d: responder completed %v, raised %v", cut, b, raised)
		}
		if a && !b {
			t.Fatalf("cut after %d: the initiator is done before the responder", cut)
		}
		if count < cut {
			if !a || !b || cut < 10 {
				t.Fatalf("a whole session took %d datagrams, completed %v, %v", count, a, b)
			}
			return
		}
		n.tap = nil
		if a, b := n.session(2, 1); !a || !b {
			t.Fatal("the next session does not repair it")
		}
		n.equal()
	}
}

// TestF44_LongVectors: vectors of any length arrive completely or are not used.
func TestF44_LongVectors(t *testing.T) {
	for _, actors := range []int{1, 70, 71, 72, 142, 143, 144, 200, 1000} {
		for _, loss := range []float64{0, 0.2} {
			n := newNetwork(t, uint64(actors), 2)
			n.loss = loss
			var vector []byte
			for i := range actors {
				vector = wire.AppendDot(vector, wire.Dot{Actor: wire.CellID(100 + i), Sequence: uint64(i + 1)})
			}
			n.cells[1].store.RaiseStable(vector)
			n.cells[2].write("spread.x", "x")
			a, b := n.session(1, 2)
			if loss == 0 && (!a || !b) {
				t.Fatalf("%d actors: completed %v, %v", actors, a, b)
			}
			for i := range actors {
				got := n.cells[2].store.Stable(wire.CellID(100 + i))
				if b && got != uint64(i+1) || !b && got != 0 {
					t.Fatalf("%d actors, completed %v: actor %d at %d", actors, b, i, got)
				}
			}
		}
	}
}

// TestF44_GarbageIsCollectedAmong200 lets 200 actors write, and checks that tombstones go once every
// member has met enough others.
func TestF44_GarbageIsCollectedAmong200(t *testing.T) {
	n := newNetwork(t, 1, 4)
	for i := range 200 {
		one := newForeign(n, wire.CellID(1000+i))
		one.store.Write(fmt.Appendf(nil, "spread.key%d", i), []byte("v"), wire.Dot{Actor: one.id, Sequence: 1})
		one.store.Write(fmt.Appendf(nil, "spread.key%d", i), nil, wire.Dot{Actor: one.id, Sequence: 2})
		one.store.OwnStable(2)
		n.cells[one.id] = one
		n.ids = append(n.ids, one.id)
		n.session(one.id, 1)
		delete(n.cells, one.id)
		n.ids = n.ids[:len(n.ids)-1]
	}
	for _, p := range n.cells {
		p.sessions.SetMembers(n.ids)
	}
	for range 3 {
		for _, from := range n.ids {
			for _, to := range n.ids {
				if from != to {
					n.session(from, to)
				}
			}
		}
		for _, id := range n.ids {
			n.cells[id].sessions.Collect()
		}
	}
	n.equal()
	for _, id := range n.ids {
		if left := n.cells[id].store.Len(); left != 0 {
			t.Fatalf("cell %v still holds %d keys", id, left)
		}
	}
}

func newForeign(n *network, id wire.CellID) *peer {
	p := n.add(id)
	n.ids = n.ids[:len(n.ids)-1]
	delete(n.cells, id)
	return p
}

// A BEGIN that arrives twice is answered twice. The second answer finds no session any more; taken for a
// beginning it would be answered in turn, for ever.
func TestF25_RepeatedBeginEnds(t *testing.T) {
	for seed := range uint64(50) {
		n := newNetwork(t, seed, 2)
		n.duplicate, n.loss = 0.5, 0.05
		load(n.cells[1].store, 10, 1)
		load(n.cells[2].store, 10, 1)
		n.session(1, 2)
		n.session(2, 1)
		if n.datagrams > 200 {
			t.Fatalf("seed %d: %d datagrams for two sessions between equals", seed, n.datagrams)
		}
	}
}

// A BEGIN or END that arrives twice, or late, never starts an exchange that feeds on itself: what answers is
// not answered (found by the simulator: thousands of datagrams a second, for ever).
func TestF25_RepeatedMessagesComeToRest(t *testing.T) {
	for seed := range uint64(60) {
		n := newNetwork(t, seed, 2)
		n.duplicate, n.loss = 0.5, 0.1
		for round := range uint64(6) {
			load(n.cells[1].store, 10, 10*round+1)
			load(n.cells[2].store, 10, 10*round+5)
			n.session(1, 2)
			n.session(2, 1)
		}
		if n.datagrams > 2000 {
			t.Fatalf("seed %d: %d datagrams for twelve small sessions", seed, n.datagrams)
		}
	}
}

// A session without vectors, because nothing waits for collection, takes back nothing that was learnt before
// (F45).
func TestF45_WhatWasStatedStaysKnown(t *testing.T) {
	n := newNetwork(t, 1, 2)
	a := n.cells[1]
	a.write("spread.k", "v")
	n.session(1, 2)
	a.write("spread.k", "")
	n.session(1, 2)
	a.sessions.SetMembers([]wire.CellID{1, 2})
	n.session(2, 1) // b states what it has stably seen
	known := len(a.sessions.vectors[2])
	if known == 0 {
		t.Fatal("b has stated nothing")
	}
	s := &session{peer: 2}
	a.sessions.learn(s)
	if len(a.sessions.vectors[2]) != known {
		t.Errorf("%d bytes known of b after a session without a vector, %d before", len(a.sessions.vectors[2]), known)
	}
	if a.sessions.Collect() != 1 {
		t.Error("the tombstone that both have is not freed")
	}
}
