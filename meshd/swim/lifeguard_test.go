package swim

import (
	"testing"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/overlay"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// A cell that doubts itself waits longer before it says that others are dead: everything but the one
// extension grows with its multiplier (F62 e).
func TestF62_PatienceGrowsWithTheDoubtInOneself(t *testing.T) {
	b := newBench(peerA, peerB, peerC)
	p := b.peer(peerA)
	for doubt := 1; doubt <= healthMax; doubt++ {
		factor := time.Duration(doubt)
		if b.Health() != doubt {
			t.Fatalf("multiplier %d, want %d", b.Health(), doubt)
		}
		p.accusers, p.extended = 0, false
		if got := b.patience(p); got != factor*suspicionTimeout {
			t.Errorf("multiplier %d: %v alone", doubt, got)
		}
		p.extended = true
		if got := b.patience(p); got != factor*suspicionTimeout+extension {
			t.Errorf("multiplier %d: %v with the extension", doubt, got)
		}
		p.accusers, p.extended = suspicionAccusers-1, false
		if got := b.patience(p); got != factor*suspicionTimeout {
			t.Errorf("multiplier %d: %v with too few accusers", doubt, got)
		}
		p.accusers = suspicionAccusers
		if got := b.patience(p); got != factor*suspicionFloor {
			t.Errorf("multiplier %d: %v with enough accusers", doubt, got)
		}
		b.health.worsen()
	}
	if b.Health() != healthMax {
		t.Errorf("multiplier %d, at most %d", b.Health(), healthMax)
	}
}

// A loop that ran late costs trust in oneself, and every scheduled probe that is answered gives some back
// (F62 e).
func TestF62_LateTicksCostTrust(t *testing.T) {
	b := newBench(peerA)
	answered := func() {
		ping := b.probe(t)
		b.receive(peerA, wire.TypePong, ping.nonce, wire.AppendPing(nil, addressOf(selfID)))
	}
	answered()
	if b.Health() != 1 {
		t.Fatalf("multiplier %d while all is well", b.Health())
	}
	b.now = b.Deadline().Add(lateMin)
	b.Tick(b.now)
	if b.Health() != 1 {
		t.Errorf("multiplier %d after a tick that is just in time", b.Health())
	}
	for range 3 {
		b.now = b.Deadline().Add(lateMin + time.Millisecond)
		b.Tick(b.now)
		for _, m := range b.take() { // in time, so only the tick was late
			if m.kind == wire.TypePing {
				b.outstanding.take(b.now, m.to, m.nonce)
				b.reached(b.now, b.members.Get(m.to))
			}
		}
	}
	worst := b.Health()
	if worst != 4 {
		t.Errorf("multiplier %d after three late ticks, want 4", worst)
	}
	for i := range 3 {
		answered()
		if b.Health() != worst-1-i {
			t.Errorf("multiplier %d after %d answers", b.Health(), i+1)
		}
	}
}

// Whom this cell has no way to, through no fault of theirs, it accuses of nothing (F36).
func TestF36_OutOfReachBehindARouterProvesNothing(t *testing.T) {
	b := newBench(peerA, peerB, peerC)
	b.options.MayAccuse = func(_ clock.Instant, m *overlay.Member) bool { return m.ID != peerB }
	b.pass(time.Minute, peerB)
	if len(b.claims) != 0 {
		t.Fatalf("claims %v", b.claims)
	}
	b.options.MayAccuse = nil
	b.pass(time.Minute, peerB)
	if len(b.claims) < 2 || b.claims[1].status.Life != state.Dead {
		t.Errorf("without the excuse: claims %v", b.claims)
	}
}
