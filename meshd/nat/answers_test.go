package nat

import (
	"testing"
	"time"

	"colloid.net/meshd/wire"
)

// Two cells that answer each other's PUNCH_SYN stop after a few, however many rendezvous are under way at once: both
// may have begun, and each may have asked several coordinators (F14, F35). When there were none for a while, those of
// the next attempt are answered again.
func TestF35_SynsDoNotGoRoundForEver(t *testing.T) {
	for _, rendezvous := range []int{1, 2, 6, 1000} {
		b := newBench("192.168.1.10:12421")
		m := b.member(2, "203.0.113.2:1", wire.ReachPunched, 1)
		from := at("203.0.113.2:2000")
		answers := func(count int) int {
			for i := range count {
				b.now = b.now.Add(time.Millisecond)
				b.guard.Received(b.now, from, 48)
				b.Receive(b.now, m, from, wire.Header{Type: wire.TypePunchSyn},
					wire.AppendPunchSyn(nil, uint64(5+i%rendezvous)))
			}
			return len(b.take())
		}
		if n := answers(2000); n > answersMax {
			t.Errorf("%d rendezvous: %d answers, at most %d", rendezvous, n, answersMax)
		}
		if len(b.checked) == 0 {
			t.Error("the address was not checked")
		}
		b.now = b.now.Add(answersQuiet)
		if n := answers(len(synOffsets)); n != len(synOffsets) {
			t.Errorf("%d rendezvous: %d of the next %d are answered", rendezvous, n, len(synOffsets))
		}
	}
}
