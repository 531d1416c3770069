package stream

import (
	"testing"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/wire"
)

// Two streams that share a narrow link get within 2x of each other, also when one comes later, and together
// they use it (F151).
func TestF151_TwoFlowsShare(t *testing.T) {
	for name, later := range map[string]time.Duration{"together": 0, "one later": 3 * time.Second} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, 5, link{delay: 25 * time.Millisecond})
			var got []*end
			b.add(1, nil)
			b.add(2, discard(t, &got))
			*b.link(1, 2) = link{delay: 25 * time.Millisecond, rate: 4e6, queue: 300e3}
			b.open(1, 2, wire.StreamVolume, &end{write: 1 << 40})
			b.run(later, nil)
			b.open(1, 2, wire.StreamVolume, &end{write: 1 << 40})
			b.run(6*time.Second, nil)
			from := [2]int{got[0].got, got[1].got}
			b.run(8*time.Second, nil)
			x, y := float64(got[0].got-from[0])/8e6, float64(got[1].got-from[1])/8e6
			t.Logf("%.2f and %.2f MB/s", x, y)
			if max(x, y) > 2*min(x, y) || x+y < 3.2 {
				t.Error("not shared")
			}
		})
	}
}

// A keystroke comes back within 2 ms more than the round trip while a bulk stream uses up the same path,
// whether the path has a narrow place with a deep queue or not.
func TestF151_KeystrokesOvertakeBulk(t *testing.T) {
	for name, l := range map[string]link{
		"wide":   {delay: 25 * time.Millisecond},
		"narrow": {delay: 25 * time.Millisecond, rate: 6e6, queue: 1e6},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, 7, link{delay: 25 * time.Millisecond})
			var got []*end
			b.add(1, nil)
			b.add(2, accepting(&got, func(s *Stream) *end { return &end{t: t, echo: s.Kind() == wire.StreamExec} }))
			*b.link(1, 2) = l
			var sent clock.Instant
			var waits []time.Duration
			keys := &end{read: func(int) { waits = append(waits, b.now.Sub(sent)) }}
			s := b.open(1, 2, wire.StreamExec, keys)
			b.run(time.Second, nil)
			b.open(1, 2, wire.StreamVolume, &end{write: 1 << 40})
			b.run(2*time.Second, nil)
			for range 30 {
				sent = b.now
				waits = waits[:len(waits):len(waits)]
				s.Write([]byte{pattern(0, keys.got)})
				b.arm(b.cells[1])
				b.run(57*time.Millisecond, nil)
			}
			worst, sum := time.Duration(0), time.Duration(0)
			for _, w := range waits {
				worst, sum = max(worst, w), sum+w
			}
			average := sum / time.Duration(max(len(waits), 1))
			t.Logf("%d keys: %v on average, %v at most", len(waits), average, worst)
			if len(waits) != 30 || worst > 52*time.Millisecond {
				t.Error("keystrokes wait")
			}
			if bulk := got[1].got; bulk < 14e6 {
				t.Errorf("the bulk stream brought only %d MB", bulk/1000000)
			}
		})
	}
}

// One datagram from Write to Read, its acknowledgement and everything about them allocates nothing (RES-1).
func TestRES1_F151_NothingIsAllocatedPerDatagram(t *testing.T) {
	a, b, s, peer := joined(t)
	now := clock.Instant(2 * time.Hour)
	piece := make([]byte, 8*dataMax)
	round := func() {
		if n, err := s.Write(piece); n == 0 || err != nil {
			t.Fatal(n, err)
		}
		for range 10 {
			now = now.Add(time.Millisecond)
			a.mux.Tick(now)
			a.flush(now, b)
			b.mux.Tick(now)
			for p := peer.Peek(); p != nil; p = peer.Peek() {
				peer.Discard(len(p))
			}
			b.flush(now, a)
		}
	}
	for range 500 {
		round()
	}
	before := a.mux.Stats().Sent
	if n := testing.AllocsPerRun(200, round); n != 0 {
		t.Errorf("%v allocations per 8 datagrams and their acknowledgements", n)
	}
	if sent := a.mux.Stats().Sent - before; sent < 8*200 {
		t.Fatalf("only %d datagrams", sent)
	}
}

// wired is a Mux whose datagrams lie in a fixed buffer until they are handed over.
type wired struct {
	mux   *Mux
	id    wire.CellID
	queue [][]byte
	used  int
	d     Datagram
}

func (w *wired) send(_ wire.CellID, kind wire.Type, nonce uint32, payload []byte) {
	header := wire.Header{Version: wire.Version, Type: kind, PayloadLength: uint16(len(payload)), Sender: w.id, Nonce: nonce}
	if w.used == len(w.queue) {
		w.queue = append(w.queue, make([]byte, 0, wire.DatagramMax))
	}
	w.queue[w.used] = append(wire.AppendHeader(w.queue[w.used][:0], header), payload...)
	w.used++
}

func (w *wired) flush(now clock.Instant, to *wired) {
	for _, raw := range w.queue[:w.used] {
		header, payload, _, _ := wire.ParseHeader(raw)
		to.d = Datagram{Header: header, Payload: payload, Hop: w.id, Validated: true}
		to.mux.Receive(now, &to.d)
	}
	w.used = 0
}

func joined(t testing.TB) (a, b *wired, s, peer *Stream) {
	bench := newBench(t, 1, link{})
	a, b = &wired{id: 1}, &wired{id: 2}
	a.mux = bench.add(1, nil).mux
	b.mux = bench.add(2, func(got *Stream) { peer = got; got.Accept(&quiet{}) }).mux
	a.mux.options.Send, b.mux.options.Send = a.send, b.send
	s, err := a.mux.Open(2, wire.StreamVolume, name, nil, &quiet{})
	if err != nil {
		t.Fatal(err)
	}
	now := clock.Instant(time.Hour)
	a.mux.Tick(now)
	a.flush(now, b)
	b.mux.Tick(now.Add(time.Millisecond))
	b.flush(now.Add(time.Millisecond), a)
	if s.State() != Open {
		t.Fatal(s.State())
	}
	return a, b, s, peer
}

type quiet struct{}

func (*quiet) Accepted(*Stream)       {}
func (*quiet) Readable(*Stream)       {}
func (*quiet) Writable(*Stream)       {}
func (*quiet) Closed(*Stream, Reason) {}

// A reader that stops costs a window, and all together cost what was agreed; others go on (F152, bounds).
func TestF152_MemoryIsBounded(t *testing.T) {
	b := newBench(t, 1, link{delay: time.Millisecond})
	var got []*end
	b.add(1, nil)
	b.add(2, accepting(&got, func(*Stream) *end { return &end{t: t, block: true} }))
	for _, id := range []wire.CellID{1, 2} {
		b.cells[id].mux.pool.max = 8 << 20 / chunkSize
	}
	for range 24 {
		b.open(1, 2, wire.StreamVolume, &end{write: 1 << 30})
	}
	b.run(4*time.Second, nil)
	for _, p := range b.order {
		if used := p.mux.MemoryUsed(); used > 8<<20 || used < 4<<20 {
			t.Errorf("cell %d uses %d bytes", p.id, used)
		}
	}
	// One of them begins to read: its data flows.
	got[3].block = false
	got[3].Readable(got[3].s)
	b.arm(b.cells[2])
	b.run(2*time.Second, func() bool { return got[3].got >= 4<<20 })
	got[3].block = true // what it would read until the end costs the test its time
	if got[3].got < 4<<20 {
		t.Errorf("%d bytes after the reader went on: %+v", got[3].got, b.cells[2].mux.Stats())
	}
	if _, err := b.cells[1].mux.Open(2, 0, name, nil, &quiet{}); err != ErrName {
		t.Error(err)
	}
	for range PeerStreamsMax {
		b.open(1, 2, wire.StreamLogs, &end{})
	}
	b.run(4*time.Second, nil)
	if len(got) != PeerStreamsMax || b.cells[2].mux.Len() != PeerStreamsMax {
		t.Errorf("%d streams of one cell", len(got))
	}
	for b.cells[1].mux.Len() < StreamsMax {
		b.open(1, 2, wire.StreamLogs, &end{})
	}
	if _, err := b.cells[1].mux.Open(2, wire.StreamLogs, name, nil, &quiet{}); err != ErrStreams {
		t.Error(err)
	}
}

// Whatever a member sends, nothing breaks, and no stream of others is harmed beyond what dropping would do.
func FuzzReceive(f *testing.F) {
	f.Add([]byte{0x11, 3, 1, 2, 3}, uint64(1))
	f.Add(wire.AppendStreamAck(nil, wire.StreamAck{Stream: 1, Sequence: 3, Credit: 9, Selective: 5}), uint64(2))
	f.Add(wire.AppendStreamClose(nil, wire.StreamClose{Stream: 1, Sequence: 3}), uint64(3))
	f.Add(wire.AppendStreamData(nil, wire.StreamData{Stream: 1, Sequence: 9, Data: make([]byte, 40)}), uint64(4))
	f.Add(wire.AppendStreamOpen(nil, wire.StreamOpen{Stream: 2, Target: 2, Type: 1, Name: name}), uint64(5))
	kinds := []wire.Type{0x10, 0x11, 0x12, 0x13, 0x14, 0x20, 0x21, 0x22}
	f.Fuzz(func(t *testing.T, raw []byte, choice uint64) {
		a, b, s, peer := joined(t)
		now := clock.Instant(2 * time.Hour)
		s.Write(make([]byte, 20000))
		a.mux.Tick(now)
		for i, to := range []*wired{a, b} {
			payload := append([]byte(nil), raw...)
			if choice&1 != 0 && len(payload) >= 4 { // of the stream that there is
				payload[0], payload[1], payload[2], payload[3] =
					byte(s.id>>24), byte(s.id>>16), byte(s.id>>8), byte(s.id)
			}
			nonce := uint32(to.id)
			if choice&2 != 0 {
				nonce = s.id
			}
			to.mux.Receive(now, &Datagram{
				Header:  wire.Header{Type: kinds[choice>>3&7], Sender: wire.CellID(2 - i), Nonce: nonce},
				Payload: payload, Hop: wire.CellID(2 - i + int(choice>>6&1)), Validated: true,
			})
			to.mux.Tick(now)
			to.mux.Deadline()
		}
		for range 40 {
			now = now.Add(300 * time.Millisecond)
			a.mux.Tick(now)
			a.flush(now, b)
			b.mux.Tick(now)
			b.flush(now, a)
			peer.Discard(len(peer.Peek()))
		}
		if a.mux.Len() > 3 || b.mux.Len() > 3 {
			t.Fatalf("%d and %d streams", a.mux.Len(), b.mux.Len())
		}
		if _, err := a.mux.Open(2, wire.StreamLogs, name, nil, &quiet{}); err != nil {
			t.Fatalf("no stream opens any more: %v", err)
		}
	})
}
