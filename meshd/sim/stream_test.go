package sim

import (
	"bytes"
	"testing"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/stream"
	"colloid.net/meshd/wire"
)

// talker is an endpoint that sends counted bytes and checks what comes.
type talker struct {
	t        *testing.T
	s        *stream.Stream
	left     int // to be written
	wrote    int
	got      int
	accepted bool
	ended    bool
	closed   bool
	reason   stream.Reason
	onRead   func(piece []byte)
}

func fill(p []byte, at int) {
	for i := range p {
		p[i] = byte((at+i)>>10 ^ (at + i))
	}
}

func (e *talker) pump() {
	var piece [1 << 14]byte
	for e.left > 0 {
		p := piece[:min(len(piece), e.left)]
		fill(p, e.wrote)
		n, err := e.s.Write(p)
		if err != nil {
			return
		}
		e.wrote += n
		e.left -= n
		if n < len(p) {
			return
		}
	}
	e.s.CloseWrite()
}

func (e *talker) Accepted(*stream.Stream) { e.accepted = true }
func (e *talker) Writable(*stream.Stream) { e.pump() }
func (e *talker) Readable(s *stream.Stream) {
	var want [1200]byte
	for p := s.Peek(); p != nil; p = s.Peek() {
		if e.onRead != nil {
			e.onRead(p)
		} else {
			fill(want[:len(p)], e.got)
			if !bytes.Equal(want[:len(p)], p) {
				e.t.Fatalf("bytes from %d on are not what was sent", e.got)
			}
		}
		e.got += len(p)
		s.Discard(len(p))
	}
	if s.End() && !e.ended {
		e.ended = true
		if e.left == 0 {
			s.CloseWrite()
		}
	}
}
func (e *talker) Closed(_ *stream.Stream, reason stream.Reason) { e.closed, e.reason = true, reason }

// listen makes a node take streams of one kind and remembers their ends.
func listen(t *testing.T, n *Node, kind wire.StreamType) *[]*talker {
	var list []*talker
	n.cell.Serve(kind, func(s *stream.Stream) {
		e := &talker{t: t, s: s}
		list = append(list, e)
		s.Accept(e)
	})
	return &list
}

func dial(t *testing.T, from, to *Node, kind wire.StreamType, bytes int) *talker {
	t.Helper()
	e := &talker{t: t, left: bytes}
	from.Input(func(clock.Instant) {
		s, err := from.cell.Streams().Open(to.ID(), kind, []byte("spread.web"), nil, e)
		if err != nil {
			t.Fatal(err)
		}
		e.s = s
		e.pump()
	})
	return e
}

func streamWorld(t *testing.T, seed uint64, cells int, network NetworkOptions) *World {
	t.Helper()
	w := New(Options{Seed: seed, Cells: cells})
	if err := w.Form(time.Minute); err != nil {
		t.Fatal(err)
	}
	w.Run(2 * time.Second)
	w.SetNetwork(network)
	return w
}

// A stream between two cells of a cluster, over their sealed datagrams, with nothing of it in the store
// (STREAM-2, STREAM-4, STREAM-5).
func TestSTREAM2_STREAM4_F151_BetweenCells(t *testing.T) {
	delay := 25 * time.Millisecond
	for _, c := range []struct {
		name string
		loss float64
		size int
		want float64
	}{{"0 %", 0, 128 << 20, 20}, {"1 %", 0.01, 32 << 20, 3}, {"5 %", 0.05, 8 << 20, 1}} {
		t.Run(c.name, func(t *testing.T) {
			w := streamWorld(t, 1, 2, NetworkOptions{DelayMin: delay, DelayMax: delay, Loss: c.loss})
			a, b := w.Node(0), w.Node(1)
			took := listen(t, b, wire.StreamVolume)
			begin := w.Now()
			e := dial(t, a, b, wire.StreamVolume, c.size)
			w.Until(5*time.Minute, func() bool { return len(*took) == 1 && (*took)[0].ended })
			if len(*took) != 1 || (*took)[0].got != c.size {
				t.Fatalf("accepted %d, wrote %d, %+v", len(*took), e.wrote, a.cell.Streams().Stats())
			}
			rate := float64(c.size) / (w.Now() - begin).Seconds() / 1e6
			t.Logf("%.1f MB/s", rate)
			if rate < c.want {
				t.Errorf("%.1f MB/s, want %.0f", rate, c.want)
			}
			if w.Until(10*time.Second, func() bool { return e.closed && (*took)[0].closed }); !e.closed {
				t.Fatal("the stream did not end")
			}
			if a.cell.Streams().Len() != 0 || b.cell.Streams().Len() != 0 || b.cell.Streams().MemoryUsed() != 0 {
				t.Fatal("something of the stream is left")
			}
		})
	}
}
