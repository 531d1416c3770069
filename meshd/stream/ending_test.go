package stream

import (
	"testing"
	"time"

	"colloid.net/meshd/wire"
)

// The end of a stream takes a round trip or two, and no timeout: whoever closes last is told that this
// arrived, also where the stream is over for the other with it. Both orders, and both ends at the same time.
func TestF152_EndsTakeNoTimeout(t *testing.T) {
	const delay = 10 * time.Millisecond
	for _, c := range []struct {
		name     string
		up, down int           // bytes each way
		later    time.Duration // after which the other end closes
	}{
		{"one way", 100_000, 0, 0},
		{"both ways", 100_000, 100_000, 0},
		{"the other later", 10, 10, time.Second},
		{"nothing", 0, 0, 0},
		{"at the same time", 0, 0, delay},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, 1, link{delay: delay})
			b.add(1, nil)
			var second *end
			b.add(2, func(s *Stream) {
				second = &end{t: t, s: s, write: c.down}
				s.Accept(second)
				second.pump()
			})
			first := &end{write: c.up}
			s := b.open(1, 2, wire.StreamVolume, first)
			b.run(5*time.Second, func() bool {
				return second != nil && second.got == c.up && first.got == c.down && first.accepted
			})
			begin := b.now
			b.after(0, s.CloseWrite)
			b.after(c.later, func() { second.s.CloseWrite() })
			if !b.run(10*time.Second, func() bool { return first.closed && second.closed }) {
				t.Fatalf("not over: %v and %v", s.State(), second.s.State())
			}
			if took := b.now.Sub(begin); took > c.later+5*delay {
				t.Errorf("the end took %v", took)
			}
			if first.reason != ReasonNone || second.reason != ReasonNone {
				t.Errorf("ended with %v and %v", first.reason, second.reason)
			}
			for _, p := range b.order {
				if stats := p.mux.Stats(); stats.Timeouts != 0 || stats.Retransmitted != 0 {
					t.Errorf("cell %d: %+v", p.id, stats)
				}
			}
		})
	}
}
