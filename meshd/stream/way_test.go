package stream

import (
	"testing"
	"time"

	"colloid.net/meshd/wire"
)

// A stream that began through a relay goes straight once its ends reach each other, and loses nothing by it.
// Where the way that looks better is none, it goes on as it was.
func TestSTREAM3_StreamsFindTheBetterWay(t *testing.T) {
	for name, works := range map[string]bool{"straight": true, "not so": false} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, 4, link{delay: 5 * time.Millisecond, rate: 1e6, queue: 100e3})
			var got []*end
			b.add(0x10, discard(t, &got))
			b.add(0x20, nil)
			source := b.add(0x80, nil)
			b.cut(0x80, 0x10)
			straight := false
			source.routes = func(target wire.CellID, attempt int) wire.CellID {
				if straight && attempt%2 == 0 {
					return target
				}
				return 0x20
			}
			e := &end{write: 1 << 40}
			s := b.open(0x80, 0x10, wire.StreamVolume, e)
			b.run(8*time.Second, nil)
			straight = true
			if works {
				b.link(0x80, 0x10).cut, b.link(0x10, 0x80).cut = false, false
			}
			before, tried := got[0].got, 0
			b.tap = func(from, to wire.CellID, raw []byte) {
				if from == 0x80 && to == 0x10 && wire.Type(raw[1]) == wire.TypeStreamOpen {
					tried++
				}
			}
			b.run(30*time.Second, nil)
			stats := source.mux.Stats()
			want := wire.CellID(0x20)
			if works {
				want = 0x10
			}
			if rate := float64(got[0].got-before) / 30e6; rate < 0.85 || s.Via() != want || e.closed {
				t.Errorf("%.2f MB/s of 1, via %v, improved %d times", rate, s.Via(), stats.Improved)
			}
			if tried < 1 || tried > 3 {
				t.Errorf("the better way was tried %d times", tried)
			}
			if stats.Timeouts != 0 || works != (stats.Improved == 1) {
				t.Errorf("improved %d times, %d timeouts", stats.Improved, stats.Timeouts)
			}
		})
	}
}

// The second of two relays dies, and the first one passes the stream on through another as soon as it knows.
func TestSTREAM3_F150_RelaysChooseAnew(t *testing.T) {
	b := newBench(t, 5, near)
	var got []*end
	b.add(0x10, discard(t, &got))
	b.add(0x11, nil)
	b.add(0x12, nil)
	first, source := b.add(0x20, nil), b.add(0x80, nil)
	b.cut(0x80, 0x10)
	b.cut(0x20, 0x10)
	source.routes = func(wire.CellID, int) wire.CellID { return 0x20 }
	next := wire.CellID(0x11)
	first.next = func(_, _, _ wire.CellID) wire.CellID { return next }
	const size = 4 << 20
	e := &end{write: size, half: true}
	b.open(0x80, 0x10, wire.StreamVolume, e)
	b.run(time.Minute, func() bool { return len(got) == 1 && got[0].got > size/4 })
	b.cells[0x11].dead = true
	b.after(3*time.Second, func() { next = 0x12 })
	begin := b.now
	if !b.run(time.Minute, func() bool { return got[0].eof }) || e.closed || got[0].got != size {
		t.Fatalf("%d of %d bytes, %v", got[0].got, size, e.reason)
	}
	if took := b.now.Sub(begin); took > 6*time.Second {
		t.Errorf("on after %v", took)
	}
}

// A relay, which has the cluster's key and so can speak as either end, resets a stream and calls it orderly:
// the reader does not take what it has for everything (F17).
func TestF17_F152_AResetIsNoOrderlyEnd(t *testing.T) {
	b := newBench(t, 1, near)
	var got []*end
	b.add(0x10, discard(t, &got))
	b.add(0x80, nil)
	s := b.open(0x80, 0x10, wire.StreamVolume, &end{write: 1 << 20, half: true})
	b.run(time.Minute, func() bool { return len(got) == 1 && got[0].got > 1<<19 })
	target := b.cells[0x10].mux
	target.Receive(b.now, &Datagram{
		Header:  wire.Header{Type: wire.TypeStreamClose, Sender: 0x80, Nonce: 0x10},
		Payload: wire.AppendStreamClose(nil, wire.StreamClose{Stream: s.ID(), Reset: true}), Hop: 0x80, Validated: true,
	})
	if e := got[0]; e.eof || !e.closed || e.reason == ReasonNone {
		t.Fatalf("after %d of %d bytes: end %v, closed %v with %v", e.got, 1<<20, e.eof, e.closed, e.reason)
	}
	if _, err := got[0].s.Read(make([]byte, 1)); err != ErrClosed {
		t.Errorf("reading on gives %v", err)
	}
}

// The daemon of the other end was restarted: the stream ends with that as its reason, and soon.
func TestF152_RestartsAreTold(t *testing.T) {
	b := newBench(t, 1, near)
	var got []*end
	b.add(0x10, discard(t, &got))
	b.add(0x80, nil)
	e := &end{write: 1 << 40}
	b.open(0x80, 0x10, wire.StreamVolume, e)
	b.run(time.Minute, func() bool { return len(got) == 1 && got[0].got > 1<<19 })
	place := b.cells[0x10]
	place.mux = New(place.mux.options)
	if !b.run(time.Second, func() bool { return e.closed }) || e.reason != ReasonForgotten {
		t.Fatalf("%v %v", e.closed, e.reason)
	}
}

// The same after an outage in which the end that opened the stream began to ask: its STREAM_OPEN begins a
// stream in the other's new life, with another key. That is no sign of life of the old one (it held `cp` for
// a minute).
func TestF152_RestartsAreToldAlsoToWhoAsked(t *testing.T) {
	for _, c := range []struct {
		name   string
		outage time.Duration
		busy   bool
	}{
		{"writing, 100 ms", 100 * time.Millisecond, true}, {"writing, 300 ms", 300 * time.Millisecond, true},
		{"writing, 500 ms", 500 * time.Millisecond, true}, {"writing, 900 ms", 900 * time.Millisecond, true},
		{"writing, 2 s", 2 * time.Second, true}, {"idle", 100 * time.Millisecond, false}, {"idle, 3 s", 3 * time.Second, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			for seed := range uint64(4) {
				b := newBench(t, seed, near)
				var got []*end
				b.add(0x10, discard(t, &got))
				b.add(0x80, nil)
				e := &end{write: 1}
				if c.busy {
					e.write = 1 << 40
				}
				b.open(0x80, 0x10, wire.StreamVolume, e)
				b.run(time.Minute, func() bool { return len(got) == 1 && got[0].got >= min(e.write, 1<<19) })
				b.run(time.Duration(b.random.Int64N(int64(100*time.Millisecond))), func() bool { return false })
				p := b.cells[0x10]
				down := true
				b.drop = func(from, to wire.CellID, _ []byte) bool { return down }
				b.run(c.outage, func() bool { return false })
				down = false
				p.mux = New(p.mux.options)
				if !c.busy { // the cell hears at once that the other seals under another incarnation
					b.cells[0x80].mux.Suspect(b.now, 0x10)
				}
				if !b.run(time.Second, func() bool { return e.closed }) || e.reason != ReasonForgotten {
					t.Fatalf("seed %d: %v %v", seed, e.closed, e.reason)
				}
			}
		})
	}
}
