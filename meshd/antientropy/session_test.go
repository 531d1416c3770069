package antientropy

import (
	"fmt"
	"testing"
	"time"

	"colloid.net/meshd/wire"
)

func TestF25_EqualRootsCostTwoDatagrams(t *testing.T) {
	n := newNetwork(t, 1, 2)
	load(n.cells[1].store, 1000, 1)
	load(n.cells[2].store, 1000, 1)
	if a, b := n.session(1, 2); !a || !b {
		t.Fatalf("completed: initiator %v, responder %v", a, b)
	}
	if n.datagrams != 2 {
		t.Fatalf("%d datagrams, want 2", n.datagrams)
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
	if n.cells[2].bootstrap != 1 {
		t.Fatal("bootstrap was not reported as completed")
	}
	t.Logf("%v virtual, %v real, %d datagrams, %d bytes", n.now.Sub(start), time.Since(real), n.datagrams, n.bytes)
	_ = wire.DotSize
}
