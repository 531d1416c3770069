package swim

import (
	"testing"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// answerAll answers what was asked, but for the one that is silent.
func (b *bench) answerAll(silent wire.CellID) {
	for _, m := range b.take() {
		switch {
		case m.to == silent:
		case m.kind == wire.TypePing:
			b.receive(m.to, wire.TypePong, m.nonce, wire.AppendPing(nil, addressOf(selfID)))
		case m.kind == wire.TypePingReq:
			ack := wire.PingReqAck{Target: silent}
			b.receive(m.to, wire.TypePingReqAck, m.nonce, wire.AppendPingReqAck(nil, ack))
		}
	}
}

func (b *bench) pass(d time.Duration, silent wire.CellID) {
	for end := b.now.Add(d); b.Deadline() < end; {
		b.now = max(b.Deadline(), b.now)
		b.Tick(b.now)
		b.answerAll(silent)
	}
}

// While the cell takes itself for the one that is cut off it claims nothing, and forgets nothing either: what
// it knows is what tells it so. When it does not any more, what is overdue is claimed at once (F64, F66).
func TestF66_MutedVerdictsKeepTheirEvidence(t *testing.T) {
	b := newBench(peerA, peerB, peerC)
	muted := true
	b.options.Muted = func(clock.Instant) bool { return muted }
	b.pass(30*time.Second, peerB)
	if len(b.claims) != 0 || !b.Suspected(peerB) {
		t.Fatalf("muted: claims %v, suspected %t", b.claims, b.Suspected(peerB))
	}
	since := b.Doubted()
	if since == 0 || b.now.Sub(since) < 20*time.Second {
		t.Errorf("the doubt began %v ago", b.now.Sub(since))
	}
	if m := b.members.Get(peerB); !Silent(b.now, since, m) || m.Answered != 0 {
		t.Errorf("answered at %v, awaited since %v", m.Answered, m.Awaited)
	}
	for _, id := range []wire.CellID{peerA, peerC} {
		if m := b.members.Get(id); Silent(b.now, since, m) || m.Answered < since {
			t.Errorf("%v: answered at %v, doubt since %v", id, m.Answered, since)
		}
	}
	muted = false
	b.pass(2*time.Second, peerB)
	if n := len(b.claims); n == 0 || b.claims[n-1].status.Life != state.Dead || b.claims[n-1].target != peerB {
		t.Errorf("no longer muted: claims %v", b.claims)
	}
}

// A DEAD cell is probed now and then, but not at an address where another one answers: that one would take it
// for its own (F26).
func TestF26_NobodyWritesToTheSuccessorOfADeadCell(t *testing.T) {
	probes := func(taken bool) (count int) {
		b := newBench(peerA, peerB, peerC)
		b.pass(5*time.Second, 0)
		if taken {
			b.members.Get(peerA).Address = addressOf(peerB)
		}
		b.members.Get(peerB).Life = state.Dead
		for range 60 {
			b.now = b.Deadline()
			b.Tick(b.now)
			for _, m := range b.sent {
				if m.to == peerB && m.kind == wire.TypePing {
					count++
				}
			}
			b.answerAll(peerB)
		}
		return count
	}
	if n := probes(false); n == 0 {
		t.Error("a DEAD cell is never probed")
	}
	if n := probes(true); n != 0 {
		t.Errorf("%d probes of a DEAD cell at the address of another", n)
	}
}
