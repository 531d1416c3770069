package daemon

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/cell"
	"colloid.net/meshd/reactor"
	"colloid.net/meshd/stream"
	"colloid.net/meshd/wire"
)

// blast writes as fast as the stream takes it.
type blast struct {
	left  int
	piece []byte
}

func (e *blast) Accepted(s *stream.Stream) { e.Writable(s) }
func (e *blast) Writable(s *stream.Stream) {
	for e.left > 0 {
		piece := e.piece[:min(len(e.piece), e.left)]
		n, err := s.Write(piece)
		if err != nil {
			return
		}
		e.left -= n
		if n < len(piece) {
			return
		}
	}
	s.CloseWrite()
}
func (e *blast) Readable(s *stream.Stream)                     {}
func (e *blast) Closed(_ *stream.Stream, reason stream.Reason) {}

// echo gives back what it reads.
type echo struct{ held []byte }

func (e *echo) Accepted(*stream.Stream)   {}
func (e *echo) Writable(s *stream.Stream) { e.Readable(s) }
func (e *echo) Readable(s *stream.Stream) {
	for p := s.Peek(); p != nil; p = s.Peek() {
		n, err := s.Write(p)
		if err != nil || n == 0 {
			return
		}
		s.Discard(n)
	}
	if s.End() {
		s.CloseWrite()
	}
}
func (e *echo) Closed(*stream.Stream, stream.Reason) {}

// pair is two daemons that see each other; the second has the services of these tests, which no product has.
func pair(t testing.TB, driver string) (a, b *running, target wire.CellID) {
	a, b = launch(t, driver), launch(t, driver)
	b.join(a)
	eventually(t, "two cells see each other", allSee([]*running{a, b}, 2))
	b.inspect(func(c *cell.Cell) {
		target = c.Self()
		c.Serve(wire.StreamExec, func(s *stream.Stream) { s.Accept(&echo{}) })
		c.Serve(wire.StreamVolume, func(s *stream.Stream) { s.Reject(stream.ReasonRefused) })
		c.Serve(wire.StreamLogs, func(s *stream.Stream) {
			source := &blast{left: sourceSize, piece: make([]byte, 64<<10)}
			s.Accept(source)
			source.Writable(s)
		})
	})
	return a, b, target
}

const sourceSize = 24 << 20

func dialStreams(t testing.TB, r *running) *uds.StreamConnection {
	t.Helper()
	c, err := uds.DialStreams(r.options.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetReadDeadline(time.Now().Add(30 * time.Second))
	return c
}

func next(t testing.TB, c *uds.StreamConnection) uds.StreamEvent {
	t.Helper()
	event, err := c.Next()
	if err != nil {
		t.Fatal(err)
	}
	return event
}

// A client of one cell has a stream with another, in both directions, to the orderly end.
func TestF152_ClientsStreamBothWays(t *testing.T) {
	for _, driver := range []string{reactor.DriverAuto, reactor.DriverEpoll} {
		a, _, target := pair(t, driver)
		c := dialStreams(t, a)
		const size = 3 << 20
		open := uds.StreamOpen{Handle: 7, Kind: uds.StreamExec, Cell: uint64(target), Name: "spread.web"}
		if err := c.Open(open); err != nil {
			t.Fatal(err)
		}
		sent := make([]byte, size)
		for i := range sent {
			sent[i] = byte(i>>8 ^ i)
		}
		go func() {
			c.Write(7, sent)
			c.CloseWrite(7)
		}()
		var got []byte
		opened, fin := false, false
		for {
			event := next(t, c)
			if event.Handle != 7 || event.Err != nil {
				t.Fatalf("%+v", event)
			}
			opened = opened || event.Opened
			fin = fin || event.Fin
			got = append(got, event.Data...)
			if event.Closed {
				break
			}
		}
		if !opened || !fin || !bytes.Equal(got, sent) {
			t.Fatalf("opened %v, end %v, %d of %d bytes, equal %v", opened, fin, len(got), size, bytes.Equal(got, sent))
		}
	}
}

// Refusals come back with their reason; the connection goes on (F152).
func TestF152_RefusalsHaveReasons(t *testing.T) {
	a, _, target := pair(t, reactor.DriverAuto)
	c := dialStreams(t, a)
	for i, open := range []uds.StreamOpen{
		{Kind: uds.StreamVolume, Cell: uint64(target), Name: "spread.web"},
		{Kind: 99, Cell: uint64(target), Name: "spread.web"},
		{Kind: uds.StreamLogs, Name: "spread.nobody"},
		{Kind: uds.StreamLogs, Cell: ^uint64(0), Name: "spread.web"},
	} {
		open.Handle = uint32(i)
		if err := c.Open(open); err != nil {
			t.Fatal(err)
		}
		event := next(t, c)
		if !event.Closed || event.Err == nil || event.Handle != open.Handle {
			t.Fatalf("%+v: %+v", open, event)
		}
		t.Log(event.Err)
	}
	if err := c.Open(uds.StreamOpen{Handle: 9, Kind: uds.StreamExec, Cell: uint64(target), Name: "spread.web"}); err != nil {
		t.Fatal(err)
	}
	if event := next(t, c); !event.Opened {
		t.Fatalf("%+v", event)
	}
	if err := c.Cancel(9); err != nil {
		t.Fatal(err)
	}
	if event := next(t, c); !event.Closed || event.Err == nil {
		t.Fatalf("%+v", event)
	}
}

// Who finds a cell full hears what is full, and what to do (F152).
func TestF152_BusyCellsSayWhatIsFull(t *testing.T) {
	a, _, target := pair(t, reactor.DriverAuto)
	var clients []*uds.StreamConnection
	for range stream.PeerStreamsMax/48 + 1 { // 64 streams of one client are its bound too
		clients = append(clients, dialStreams(t, a))
	}
	for i := range uint32(stream.PeerStreamsMax + 1) {
		c := clients[i/48]
		if err := c.Open(uds.StreamOpen{Handle: i, Kind: uds.StreamExec, Cell: uint64(target), Name: "spread.web"}); err != nil {
			t.Fatal(err)
		}
		event := next(t, c)
		if i < stream.PeerStreamsMax && !event.Opened {
			t.Fatalf("%d: %+v", i, event)
		}
		if i == stream.PeerStreamsMax && (event.Err == nil || !strings.Contains(event.Err.Error(), "64 of them from one other: end some")) {
			t.Fatalf("%+v", event)
		}
	}
}

// A client that does not read stops the source, in another cell, and nothing piles up on the way. The cells
// go on with everything else meanwhile.
func TestF152_SlowClientsHoldTheSourceBack(t *testing.T) {
	a, b, target := pair(t, reactor.DriverAuto)
	c := dialStreams(t, a)
	if err := c.Open(uds.StreamOpen{Kind: uds.StreamLogs, Cell: uint64(target), Name: "spread.web"}); err != nil {
		t.Fatal(err)
	}
	var before, after uint64
	memory, still := 0, 0
	for limit := time.Now().Add(30 * time.Second); still < 5 && time.Now().Before(limit); {
		time.Sleep(50 * time.Millisecond)
		before = after
		a.inspect(func(c *cell.Cell) {
			after = c.Streams().Stats().ReceivedBytes
			memory = max(memory, c.Streams().MemoryUsed())
		})
		b.inspect(func(c *cell.Cell) { memory = max(memory, c.Streams().MemoryUsed()) })
		if still++; after != before || after == 0 {
			still = 0
		}
	}
	if still < 5 || after > 4<<20 || memory > 4<<20 {
		t.Fatalf("%d bytes came, %d of them in the last 50 ms; buffers of %d bytes", after, after-before, memory)
	}
	writeEverywhere(t, []*running{a, b}, "spread.meanwhile")
	got := 0
	for {
		event := next(t, c)
		got += len(event.Data)
		if event.Fin {
			break
		}
	}
	if got != sourceSize {
		t.Fatalf("%d of %d bytes", got, sourceSize)
	}
	c.Close()
	eventually(t, "the streams are gone", func() bool {
		left := 0
		for _, r := range []*running{a, b} {
			r.inspect(func(c *cell.Cell) { left += c.Streams().Len() + c.Streams().MemoryUsed() })
		}
		return left == 0
	})
}
