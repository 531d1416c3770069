package netem

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/cell"
	"colloid.net/meshd/daemon"
	"colloid.net/meshd/stream"
	"colloid.net/meshd/wire"
)

// End is where one cell of a Pair runs.
type End struct {
	Bind netip.AddrPort
	// Enter calls a function where sockets shall be opened, nil = here.
	Enter func(func() error) error
}

// Ends gives the ends of a link, with a port for the cells.
func (l *Link) Ends(port uint16) [2]End {
	var ends [2]End
	for i := range ends {
		ends[i] = End{
			Bind:  netip.AddrPortFrom(Addresses[i], port),
			Enter: func(f func() error) error { return l.Enter(i, f) },
		}
	}
	return ends
}

// Loopback gives two ends on loopback, with ports that were free.
func Loopback() ([2]End, error) {
	var ends [2]End
	for i := range ends {
		socket, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			return ends, err
		}
		defer socket.Close()
		ends[i].Bind = socket.LocalAddr().(*net.UDPAddr).AddrPort()
	}
	return ends, nil
}

// Pair is two cells of this process that know each other. The second compares what streams of kind volume
// bring, and says back what those of kind exec bring.
type Pair struct {
	cells  [2]*daemon.Daemon
	cancel context.CancelFunc
	done   chan error
	target wire.CellID
	sink   *Sink
}

// joinPatience bounds how long two cells may take to find each other.
const joinPatience = time.Minute

// NewPair starts a cell at each end, with its files below a directory.
func NewPair(ends [2]End, directory string) (*Pair, error) {
	p := &Pair{done: make(chan error, 2), sink: NewSink()}
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	for i, end := range ends {
		if err := p.start(ctx, i, end, directory); err != nil {
			return nil, errors.Join(err, p.Close())
		}
	}
	for deadline := time.Now().Add(joinPatience); !p.joined(ends[0].Bind); {
		if time.Now().After(deadline) {
			return nil, errors.Join(fmt.Errorf("the cells do not know each other after %v", joinPatience), p.Close())
		}
		time.Sleep(100 * time.Millisecond)
	}
	return p, nil
}

func (p *Pair) start(ctx context.Context, i int, end End, directory string) error {
	place := filepath.Join(directory, fmt.Sprintf("%d-%d", end.Bind.Port(), i))
	var d *daemon.Daemon
	open := func() (err error) {
		d, err = daemon.Open(daemon.Options{
			Directory: filepath.Join(place, "state"), Socket: filepath.Join(place, "run", "s"),
			Bind: end.Bind, Advertise: []netip.AddrPort{end.Bind}, Software: "netem", SupplyFD: -1, Quiet: true,
		})
		return err
	}
	enter := end.Enter
	if enter == nil {
		enter = func(f func() error) error { return f() }
	}
	if err := enter(open); err != nil {
		return err
	}
	if i == 1 {
		d.Serve(wire.StreamVolume, func(s *stream.Stream) { s.Accept(p.sink) })
		d.Serve(wire.StreamExec, func(s *stream.Stream) { s.Accept(Echo{}) })
	}
	p.cells[i] = d
	go func() { p.done <- d.Run(ctx) }()
	return nil
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

// Do calls a function on the goroutine of the first cell, to which its streams belong.
func (p *Pair) Do(f func()) { p.cells[0].Inspect(func(*cell.Cell) { f() }) }

// Open starts a stream from the first cell to the second.
func (p *Pair) Open(kind wire.StreamType, endpoint stream.Endpoint) (s *stream.Stream, err error) {
	p.cells[0].Inspect(func(c *cell.Cell) {
		s, err = c.Streams().Open(p.target, kind, []byte("spread.netem"), nil, endpoint)
	})
	return s, err
}

// Send sends for so long as fast as a stream takes it, and waits until all of it is there. It is an error
// if not every byte arrives as it was sent.
func (p *Pair) Send(ctx context.Context, howLong time.Duration) (Transfer, error) {
	return p.send(ctx, &Source{until: time.Now().Add(howLong)})
}

// SendBytes is Send for an amount.
func (p *Pair) SendBytes(ctx context.Context, amount int64) (Transfer, error) {
	return p.send(ctx, NewSource(amount))
}

func (p *Pair) send(ctx context.Context, from *Source) (Transfer, error) {
	p.sink.got.Store(0)
	p.sink.err = nil
	began := sample()
	if _, err := p.Open(wire.StreamVolume, from); err != nil {
		return Transfer{}, err
	}
	select {
	case err := <-p.sink.Done:
		t := began.until(sample(), p.sink.Got())
		if sent := from.sent.Load(); err == nil && sent != t.Bytes {
			err = fmt.Errorf("%d bytes arrived of %d", t.Bytes, sent)
		}
		return t, err
	case <-ctx.Done():
		return Transfer{}, fmt.Errorf("%d bytes arrived of %d: %w", p.sink.Got(), from.sent.Load(), ctx.Err())
	}
}

// Arrived is how much of what is being sent has arrived.
func (p *Pair) Arrived() int64 { return p.sink.Got() }

// Done tells of each stream of kind volume that ended at the second cell.
func (p *Pair) Done() <-chan error { return p.sink.Done }
