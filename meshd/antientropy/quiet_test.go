package antientropy

import (
	"testing"
	"time"

	"colloid.net/meshd/wire"
)

// TestF25_EndedSessionsFallSilent: whatever is repeated of a session that is over, the two cells do not
// keep answering each other.
func TestF25_EndedSessionsFallSilent(t *testing.T) {
	for seed := range uint64(20) {
		n := newNetwork(t, seed, 2)
		n.cells[1].write("spread.a", "x")
		n.cells[2].write("spread.b", "y")
		var ends []wire.CellID
		for _, p := range n.cells {
			send := p.sessions.Send
			self := p.id
			p.sessions.Send = func(to wire.CellID, kind wire.Type, nonce uint32, payload []byte) {
				send(to, kind, nonce, payload)
				if kind == wire.TypeAEEnd && len(ends) < 10 {
					ends = append(ends, self)
					send(to, kind, nonce, payload) // the network duplicates it
				}
			}
		}
		n.cells[1].sessions.Start(n.now, 2, false)
		n.settle(time.Minute)
		if len(ends) < 2 {
			t.Fatalf("seed %d: the session did not end: %v", seed, ends)
		}
		if n.datagrams > 60 {
			t.Fatalf("seed %d: %d datagrams for one session", seed, n.datagrams)
		}
	}
}
