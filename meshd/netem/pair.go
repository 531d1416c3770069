package netem

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"sync/atomic"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/cell"
	"colloid.net/meshd/daemon"
	"colloid.net/meshd/stream"
	"colloid.net/meshd/wire"
)

// Pair is two cells of this process that know each other. The second compares what streams of kind volume bring.
type Pair struct {
	cells  [2]*daemon.Daemon
	cancel context.CancelFunc
	done   chan error
	target wire.CellID
	sink   *sink
}

// joinPatience bounds how long two cells may take to find each other.
const joinPatience = time.Minute

// NewPair starts a cell at each end of a link, on a port, with its files below a directory.
func NewPair(l *Link, port uint16, directory string) (*Pair, error) {
	p := &Pair{done: make(chan error, 2), sink: &sink{done: make(chan error, 1)}}
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	for i := range p.cells {
		bind := netip.AddrPortFrom(Addresses[i], port)
		place := filepath.Join(directory, fmt.Sprintf("%d-%d", port, i))
		err := l.Enter(i, func() (err error) {
			p.cells[i], err = daemon.Open(daemon.Options{
				Directory: filepath.Join(place, "state"), Socket: filepath.Join(place, "run", "s"),
				Bind: bind, Advertise: []netip.AddrPort{bind}, Software: "netem", SupplyFD: -1, Quiet: true,
			})
			return err
		})
		if err != nil {
			return nil, errors.Join(err, p.Close())
		}
		if i == 1 {
			p.cells[i].Serve(wire.StreamVolume, func(s *stream.Stream) { s.Accept(p.sink) })
		}
		d := p.cells[i]
		go func() { p.done <- d.Run(ctx) }()
	}
	for deadline := time.Now().Add(joinPatience); !p.joined(netip.AddrPortFrom(Addresses[0], port)); {
		if time.Now().After(deadline) {
			return nil, errors.Join(fmt.Errorf("the cells do not know each other after %v", joinPatience), p.Close())
		}
		time.Sleep(100 * time.Millisecond)
	}
	return p, nil
}

func (p *Pair) joined(seed netip.AddrPort) bool {
	p.cells[1].Command(cell.Request{Code: uds.CodeConnect, Addresses: []netip.AddrPort{seed}})
	alive := 0
	p.cells[0].Inspect(func(c *cell.Cell) { alive = c.AliveCount() })
	p.cells[1].Inspect(func(c *cell.Cell) {
		alive += c.AliveCount()
		p.target = c.Self()
	})
	return alive == 4
}

// Close ends both cells.
func (p *Pair) Close() error {
	p.cancel()
	var failures []error
	for _, d := range p.cells {
		if d != nil {
			failures = append(failures, <-p.done)
		}
	}
	return errors.Join(failures...)
}

// Send sends for so long as fast as a stream takes it, and waits until all of it is there. It is an error
// if not every byte arrives as it was sent.
func (p *Pair) Send(ctx context.Context, howLong time.Duration) (Transfer, error) {
	p.sink.got.Store(0)
	p.sink.err = nil
	began := sample()
	from := &source{until: time.Now().Add(howLong)}
	var openErr error
	p.cells[0].Inspect(func(c *cell.Cell) {
		_, openErr = c.Streams().Open(p.target, wire.StreamVolume, []byte("spread.netem"), nil, from)
	})
	if openErr != nil {
		return Transfer{}, openErr
	}
	select {
	case err := <-p.sink.done:
		t := began.until(sample(), p.sink.got.Load())
		if sent := from.sent.Load(); err == nil && sent != t.Bytes {
			err = fmt.Errorf("%d bytes arrived of %d", t.Bytes, sent)
		}
		return t, err
	case <-ctx.Done():
		return Transfer{}, fmt.Errorf("%d bytes arrived of %d: %w", p.sink.got.Load(), from.sent.Load(), ctx.Err())
	}
}

// Arrived is how much of what is being sent has arrived.
func (p *Pair) Arrived() int64 { return p.sink.got.Load() }

// pattern is what is sent, again and again. Its length is a prime, so that a piece at the wrong place differs.
var pattern = func() []byte {
	block := make([]byte, 65521)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(block)
	return block
}()

// at gives the pattern from a place in the stream on.
func at(place int64) []byte { return pattern[place%int64(len(pattern)):] }

// source writes as fast as the stream takes it.
type source struct {
	until time.Time
	sent  atomic.Int64
}

func (e *source) Accepted(s *stream.Stream) { e.Writable(s) }
func (e *source) Writable(s *stream.Stream) {
	for time.Now().Before(e.until) {
		piece := at(e.sent.Load())
		n, err := s.Write(piece)
		e.sent.Add(int64(n))
		if err != nil || n < len(piece) {
			return
		}
	}
	s.CloseWrite()
}
func (e *source) Readable(*stream.Stream)              {}
func (e *source) Closed(*stream.Stream, stream.Reason) {}

// sink compares.
type sink struct {
	got  atomic.Int64
	err  error
	done chan error
}

func (e *sink) Accepted(*stream.Stream) {}
func (e *sink) Writable(*stream.Stream) {}
func (e *sink) Readable(s *stream.Stream) {
	for p := s.Peek(); p != nil; p = s.Peek() {
		place := e.got.Load()
		for left := p; len(left) > 0 && e.err == nil; {
			want := at(place)
			n := min(len(want), len(left))
			if !bytes.Equal(left[:n], want[:n]) {
				e.err = fmt.Errorf("what arrived at byte %d is not what was sent", place)
			}
			left, place = left[n:], place+int64(n)
		}
		e.got.Add(int64(len(p)))
		s.Discard(len(p))
	}
	if s.End() {
		s.CloseWrite()
	}
}
func (e *sink) Closed(s *stream.Stream, reason stream.Reason) { e.done <- e.err }
