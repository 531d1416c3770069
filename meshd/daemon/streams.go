package daemon

import (
	"fmt"
	"sync/atomic"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/control"
	"colloid.net/meshd/stream"
	"colloid.net/meshd/wire"
)

// clientStream joins a stream of the cell to a client of the command socket. The stream and everything not
// marked otherwise belong to the reactor's goroutine. In neither direction more than one frame of the client
// and the buffer of control.Sink is kept: what does not fit stays in the stream, whose window closes.
type clientStream struct {
	daemon *Daemon
	sink   control.Sink
	stream *stream.Stream // nil until opened, and when it could not be
	up     []byte         // of the client's frame, not yet taken
	taken  chan struct{}  // yields when up is empty
	fin    bool           // the client closes its direction after up
	ended  bool           // the other end's direction was reported as ended
	over   bool           // Closed was called

	resuming atomic.Bool // a Resume is on its way
}

// openStream implements control.Options.OpenStream, on a client's goroutine.
func (d *Daemon) openStream(open uds.StreamOpen, _ uint32, sink control.Sink) control.Handle {
	s := &clientStream{daemon: d, sink: sink, taken: make(chan struct{}, 1)}
	d.inbox.post(func() { s.open(open) })
	return s
}

func (s *clientStream) open(open uds.StreamOpen) {
	c := s.daemon.cell
	target := wire.CellID(open.Cell)
	if target == 0 {
		hosts := c.Hosts(open.Name)
		if len(hosts) == 0 {
			s.close(uds.ErrorInvalid, fmt.Sprintf("%s: no cell runs it: see `colloid explain`", open.Name))
			return
		}
		target = hosts[0]
		for _, host := range hosts {
			if host == c.Self() {
				target = host
			}
		}
	}
	opened, err := c.Streams().Open(target, wire.StreamType(open.Kind), []byte(open.Name), open.Grant, s)
	if err != nil {
		s.close(uds.ErrorBusy, fmt.Sprintf("%s on cell %v: %v", open.Name, target, err))
		return
	}
	s.stream = opened
}

func (s *clientStream) close(errno uint16, text string) {
	if s.over {
		return
	}
	s.over = true
	s.release()
	s.sink.Closed(errno, text)
}

// release lets a waiting Write go.
func (s *clientStream) release() {
	if s.up != nil || s.over {
		s.up = nil
		select {
		case s.taken <- struct{}{}:
		default:
		}
	}
}

// Write implements control.Handle, on the client's goroutine.
func (s *clientStream) Write(p []byte) <-chan struct{} {
	select { // left by a stream that ended
	case <-s.taken:
	default:
	}
	s.daemon.inbox.post(func() {
		s.up = p
		s.flush()
	})
	return s.taken
}

// flush writes what the stream takes.
func (s *clientStream) flush() {
	if s.stream == nil || s.over {
		s.release()
		return
	}
	if len(s.up) > 0 {
		n, err := s.stream.Write(s.up)
		if s.up = s.up[n:]; err != nil {
			s.up = s.up[:0] // the end is reported by Closed
		}
	}
	if len(s.up) == 0 {
		s.release()
		if s.fin {
			s.stream.CloseWrite()
		}
	}
}

// CloseWrite implements control.Handle.
func (s *clientStream) CloseWrite() {
	s.daemon.inbox.post(func() {
		s.fin = true
		s.flush()
	})
}

// Cancel implements control.Handle.
func (s *clientStream) Cancel() {
	s.daemon.inbox.post(func() {
		if s.stream != nil && !s.over {
			s.stream.Reset(stream.ReasonCanceled)
		}
	})
}

// Resume implements control.Handle.
func (s *clientStream) Resume() {
	if s.resuming.Swap(true) {
		return
	}
	s.daemon.inbox.post(func() {
		s.resuming.Store(false)
		if s.stream != nil && !s.over {
			s.Readable(s.stream)
		}
	})
}

// Accepted implements stream.Endpoint.
func (s *clientStream) Accepted(*stream.Stream) { s.sink.Opened() }

// Writable implements stream.Endpoint.
func (s *clientStream) Writable(*stream.Stream) { s.flush() }

// Readable implements stream.Endpoint.
func (s *clientStream) Readable(from *stream.Stream) {
	for piece := from.Peek(); piece != nil; piece = from.Peek() {
		if !s.sink.Data(piece) {
			return // Resume follows
		}
		from.Discard(len(piece))
	}
	if from.End() && !s.ended && !s.over {
		s.ended = true
		s.sink.Fin()
	}
}

// Closed implements stream.Endpoint.
func (s *clientStream) Closed(from *stream.Stream, reason stream.Reason) {
	if reason == stream.ReasonNone {
		s.close(0, "")
		return
	}
	errno := uds.ErrorIO
	switch reason {
	case stream.ReasonRefused:
		errno = uds.ErrorPermission
	case stream.ReasonNotFound, stream.ReasonKind:
		errno = uds.ErrorInvalid
	case stream.ReasonBusy:
		errno = uds.ErrorBusy
	case stream.ReasonTimeout:
		errno = uds.ErrorTimeout
	case stream.ReasonNoRoute, stream.ReasonHops, stream.ReasonLoop, stream.ReasonForgotten:
		errno = uds.ErrorUnreachable
	}
	why := reason.String()
	if reason == stream.ReasonBusy {
		why = fmt.Sprintf("busy: a cell takes %d streams, %d of them from one other: end some that are open (logs -f, exec, top) "+
			"and try again", stream.StreamsMax, stream.PeerStreamsMax)
	}
	s.close(errno, fmt.Sprintf("stream to %s on cell %v: %s", from.Name(), from.Peer(), why))
}

// Serve names who takes the streams of one kind that are opened to this cell; see cell.Cell.Serve. It must be
// called before Run.
func (d *Daemon) Serve(kind wire.StreamType, service func(s *stream.Stream)) {
	d.cell.Serve(kind, service)
}
