package main

import (
	"context"
	"log"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/cell"
	"colloid.net/meshd/daemon"
	"colloid.net/meshd/stream"
	"colloid.net/meshd/wire"
)

// pair is two cells of this process; the second swallows streams of kind volume and echoes those of kind exec.
type pair struct {
	directory string
	cells     [2]*daemon.Daemon
	cancel    context.CancelFunc
	done      chan error
	target    wire.CellID
	sink      *sink
}

// newPair opens each cell through its enter function, which runs what it is given in a network namespace.
func newPair(first, second string, enter ...func(func())) *pair {
	directory, err := os.MkdirTemp("", "colloid-bench-stream-")
	must(err)
	p := &pair{directory: directory, done: make(chan error, 2), sink: &sink{done: make(chan int, 1)}}
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	binds := []netip.AddrPort{p.address(first), p.address(second)}
	for i := range p.cells {
		open := func() {
			place := filepath.Join(directory, string(rune('a'+i)))
			p.cells[i], err = daemon.Open(daemon.Options{
				Directory: filepath.Join(place, "state"), Socket: filepath.Join(place, "run", "s"),
				Bind: binds[i], Advertise: []netip.AddrPort{binds[i]}, Software: "bench", SupplyFD: -1, Quiet: true,
			})
		}
		if enter[i] != nil {
			enter[i](open)
		} else {
			open()
		}
		must(err)
		if i == 1 {
			p.cells[1].Serve(wire.StreamVolume, func(s *stream.Stream) { s.Accept(p.sink) })
			p.cells[1].Serve(wire.StreamExec, func(s *stream.Stream) { s.Accept(&echo{}) })
		}
		d := p.cells[i]
		go func() { p.done <- d.Run(ctx) }()
	}
	for !p.joined(binds[0]) {
		time.Sleep(50 * time.Millisecond)
	}
	time.Sleep(300 * time.Millisecond)
	return p
}

// address picks a free port where none is given.
func (p *pair) address(text string) netip.AddrPort {
	address := netip.MustParseAddrPort(text)
	if address.Port() != 0 {
		return address
	}
	socket, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(address))
	must(err)
	defer socket.Close()
	return socket.LocalAddr().(*net.UDPAddr).AddrPort()
}

func (p *pair) joined(seed netip.AddrPort) bool {
	p.cells[1].Command(cell.Request{Code: uds.CodeConnect, Addresses: []netip.AddrPort{seed}})
	alive := 0
	p.cells[0].Inspect(func(c *cell.Cell) { alive = c.AliveCount() })
	p.cells[1].Inspect(func(c *cell.Cell) {
		alive += c.AliveCount()
		p.target = c.Self()
	})
	return alive == 4
}

func (p *pair) close() {
	p.cancel()
	for range p.cells {
		if err := <-p.done; err != nil {
			log.Print(err)
		}
	}
	os.RemoveAll(p.directory)
}

// open starts a stream from the first cell to the second.
func (p *pair) open(kind wire.StreamType, endpoint stream.Endpoint) (opened *stream.Stream) {
	p.cells[0].Inspect(func(c *cell.Cell) {
		var err error
		opened, err = c.Streams().Open(p.target, kind, []byte("spread.bench"), nil, endpoint)
		must(err)
	})
	return opened
}

// send brings so many bytes to the second cell.
func (p *pair) send(bytes int) {
	p.open(wire.StreamVolume, &source{left: bytes, piece: make([]byte, 64<<10)})
	if got := <-p.sink.done; got != bytes {
		log.Fatalf("%d of %d bytes arrived", got, bytes)
	}
}

// source writes as fast as the stream takes it.
type source struct {
	left  int
	piece []byte
}

func (e *source) Accepted(s *stream.Stream) { e.Writable(s) }
func (e *source) Writable(s *stream.Stream) {
	for e.left > 0 {
		piece := e.piece[:min(len(e.piece), e.left)]
		n, err := s.Write(piece)
		if err != nil {
			return
		}
		if e.left -= n; n < len(piece) {
			return
		}
	}
	s.CloseWrite()
}
func (e *source) Readable(*stream.Stream)              {}
func (e *source) Closed(*stream.Stream, stream.Reason) {}

// sink counts and forgets.
type sink struct {
	got  int
	done chan int
}

func (e *sink) Accepted(*stream.Stream) {}
func (e *sink) Writable(*stream.Stream) {}
func (e *sink) Readable(s *stream.Stream) {
	for p := s.Peek(); p != nil; p = s.Peek() {
		e.got += len(p)
		s.Discard(len(p))
	}
	if s.End() {
		s.CloseWrite()
	}
}
func (e *sink) Closed(*stream.Stream, stream.Reason) {
	e.done <- e.got
	e.got = 0
}

// echo gives back what it reads.
type echo struct{}

func (*echo) Accepted(*stream.Stream)   {}
func (e *echo) Writable(*stream.Stream) {}
func (e *echo) Readable(s *stream.Stream) {
	for p := s.Peek(); p != nil; p = s.Peek() {
		s.Write(p)
		s.Discard(len(p))
	}
}
func (*echo) Closed(*stream.Stream, stream.Reason) {}
