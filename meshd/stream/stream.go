package stream

import (
	"errors"
	"io"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/wire"
)

// Errors of a stream's methods.
var (
	// ErrClosed: this direction is closed, or the whole stream is.
	ErrClosed = errors.New("stream: closed")
	// ErrStreams: the cell, or this target, has as many streams as it may have.
	ErrStreams = errors.New("stream: too many streams")
	// ErrName: the name or an extension does not fit.
	ErrName = errors.New("stream: name or grant does not fit into one datagram")
)

// Endpoint is what uses a stream. Its methods run on the cell's goroutine, never inside a call of the
// stream's own methods, and may call these.
type Endpoint interface {
	// Accepted: the other end has taken the stream; only for the one that opened it.
	Accepted(s *Stream)
	// Readable: there is something to read that was not there before, or the end.
	Readable(s *Stream)
	// Writable: a Write took less than it was given, and now there is room.
	Writable(s *Stream)
	// Closed comes once and last: everything was read and both directions have ended (ReasonNone), or
	// the stream was cut off.
	Closed(s *Stream, reason Reason)
}

// pending are the calls that an endpoint is owed.
type pending uint8

const (
	pendingAccepted pending = 1 << iota
	pendingReadable
	pendingWritable
	pendingClosed
	pendingQueued // it is in the mux's list
)

const (
	// openTries and openInterval: STREAM_OPEN is sent up to five times before the target counts as silent.
	openTries    = 5
	openInterval = 500 * time.Millisecond
	// refusalsQuick relays that refuse are followed by the next after refusalPause.
	refusalsQuick = 4
	refusalPause  = 20 * time.Millisecond
	// keepInterval is how often an idle stream shows that it lives; relays forget it after relayIdle.
	keepInterval  = 5 * time.Second
	probeInterval = 700 * time.Millisecond
	// improveInterval is how often a better way is looked for. The pause doubles, up to improvePauseMax,
	// after one that does not answer, or fails within improveProof.
	improveInterval = 5 * time.Second
	improvePauseMax = 5 * time.Minute
	improveProof    = 10 * time.Second
	probesMax       = 9
	// silenceMax is how long the end that did not open the stream waits for a sign of the other.
	silenceMax = 10 * time.Second
	idleMax    = 30 * time.Second
	// acceptLimit is how long a service may think about a stream (F153).
	acceptLimit = 5 * time.Second
)

// Stream is one end of a stream. All methods belong to the cell's goroutine.
type Stream struct {
	mux       *Mux
	peer      wire.CellID
	id        uint32
	kind      wire.StreamType
	class     int
	initiator bool
	name      []byte
	grant     []byte
	state     State
	reason    Reason
	via       wire.CellID // next hop; the peer itself on a direct stream
	endpoint  Endpoint
	pair      *Stream // the other end, on a stream within the cell
	keys      keys
	control   congestion
	out       outgoing
	in        incoming

	pending   pending
	wantWrite bool
	told      bool // Closed has been or is being delivered
	cut       bool // it ended by RST or silence

	heard    clock.Instant // last authentic sign of the other end
	openDue  clock.Instant // next STREAM_OPEN, of the initiator
	openSent clock.Instant
	tries    int    // STREAM_OPENs without answer
	route    int    // number of the way in use
	refusal  Reason // of the last relay that did not take it
	refusals int
	expires  clock.Instant // of an Incoming that nobody accepts
	greet    bool          // STREAM_ACK 0 is to be sent

	improveAt    clock.Instant // next look for a better way, of the initiator
	improvePause time.Duration // until the one after it
	improvedAt   clock.Instant // when one was taken that has not proven itself, 0 = none
	candidate    wire.CellID   // a better way from which an answer is awaited, 0 = none
}

// Peer returns the other cell.
func (s *Stream) Peer() wire.CellID { return s.peer }

// ID returns the number of the stream, unique among those that its initiator has with its target.
func (s *Stream) ID() uint32 { return s.id }

// Kind returns what the stream carries.
func (s *Stream) Kind() wire.StreamType { return s.kind }

// Name returns the key of the workload or volume that the initiator named. Relays can read it.
func (s *Stream) Name() string { return string(s.name) }

// Grant returns the operator's grant that came with STREAM_OPEN, nil if none (F137).
func (s *Stream) Grant() []byte { return s.grant }

// State returns where the stream stands.
func (s *Stream) State() State { return s.state }

// Via returns the next hop, which is the peer unless the stream is relayed.
func (s *Stream) Via() wire.CellID { return s.via }

// Local reports whether both ends are in this cell.
func (s *Stream) Local() bool { return s.pair != nil }

// Reason says why the stream ended.
func (s *Stream) Reason() Reason { return s.reason }

// RTT returns the smoothed round trip, 0 before it is known.
func (s *Stream) RTT() time.Duration { return s.control.srtt }

// Accept takes an Incoming stream; endpoint hears of what follows. Nothing that the initiator said so far
// is proof against a replay: a service must not act before it has read something (F13).
func (s *Stream) Accept(endpoint Endpoint) {
	if s.state != Incoming {
		return // the initiator gave up meanwhile; Closed was not owed
	}
	s.endpoint = endpoint
	s.move(eventAccept)
	s.mux.kick()
	if s.pair != nil {
		s.pair.move(eventAccept)
		if s.pair.out.finished {
			s.pair.move(eventFinish)
		}
		s.pair.raise(pendingAccepted)
		s.pair.localFlush()
		return
	}
	s.keys.draw(s.mux.options.Entropy)
	s.keys.chosen = s.keys.offered & s.mux.ciphers & cipherAES
	if s.keys.agree(s.mux.options.Secret[:], s.transcript(), false) != nil {
		s.Reset(ReasonProtocol)
		return
	}
	s.greet = true
}

// Reject refuses an Incoming stream.
func (s *Stream) Reject(reason Reason) {
	if s.state == Incoming {
		s.Reset(reason)
	}
}

// Write takes as much of p as there is room for, possibly nothing. After a short write Writable follows.
// On a stream that is still opening the bytes wait for the answer.
func (s *Stream) Write(p []byte) (int, error) {
	if s.out.finished || !s.state.writable() && s.state != Opening {
		return 0, ErrClosed
	}
	if s.out.end >= sequenceMax { // nonces must not repeat: 4.8 TB are enough for one stream
		s.Reset(ReasonFailed)
		return 0, ErrClosed
	}
	n := s.write(p)
	s.wantWrite = n < len(p)
	if s.wantWrite && s.out.room() { // there is no memory, not no window
		s.mux.starved = true
	}
	s.mux.stats.WrittenBytes += uint64(n)
	if s.pair != nil {
		s.localFlush()
	}
	s.mux.kick()
	return n, nil
}

// CloseWrite ends this direction after what was written; the other goes on (half-close).
func (s *Stream) CloseWrite() { s.closeWrite(ReasonNone) }

func (s *Stream) closeWrite(reason Reason) {
	if s.out.finished || !s.state.writable() && s.state != Opening {
		return
	}
	slot := s.out.append()
	slot.flags, slot.reason = slotFin, reason
	s.out.finished = true
	if s.state != Opening {
		s.move(eventFinish)
	}
	if s.pair != nil {
		s.localFlush()
	}
	s.mux.kick()
}

// Reset ends the stream at once, in both directions; what is under way is lost. Closed follows.
func (s *Stream) Reset(reason Reason) {
	if s.state == Closed {
		if !s.told { // the network part is over, and nobody will read the rest, which is then no orderly end
			s.reason, s.cut = reason, true
			s.in.release(&s.mux.pool)
			s.raise(pendingClosed)
			s.mux.kick()
		}
		return
	}
	if s.pair != nil {
		pair := s.pair
		s.end(eventReset, reason)
		if pair.state != Closed {
			pair.end(eventReset, reason)
		}
		s.mux.kick()
		return
	}
	if s.via != 0 && s.peer != 0 {
		s.mux.sendReset(s.via, s.peer, s.id, reason)
	}
	s.end(eventReset, reason)
	s.mux.kick()
}

// Peek returns bytes that can be read now, without copying; they are valid until Discard. It is nil if there
// are none, see End.
func (s *Stream) Peek() []byte { return s.in.peek() }

// Discard consumes n bytes of what Peek returned.
func (s *Stream) Discard(n int) {
	if n > 0 {
		s.discard(n)
		s.finishReading()
	}
}

// Read copies what is there, up to len(p): 0 and no error if nothing is, io.EOF at the end, ErrClosed when
// the stream was cut off before it.
func (s *Stream) Read(p []byte) (int, error) {
	total := 0
	for total < len(p) {
		piece := s.in.peek()
		if piece == nil {
			break
		}
		n := copy(p[total:], piece)
		s.discard(n)
		total += n
	}
	s.finishReading()
	if total == 0 && len(p) > 0 && s.End() {
		if s.cut {
			return 0, ErrClosed
		}
		return 0, io.EOF
	}
	return total, nil
}

// End reports whether the other end's CLOSE has been reached by the reader, or nothing can come any more
// because the stream was cut off; then Closed follows with a reason, and Readable does not come.
func (s *Stream) End() bool {
	return s.in.fin != 0 && s.in.read == s.in.fin || s.state == Closed && s.in.peek() == nil
}

// finishReading delivers Closed once the reader has seen everything.
func (s *Stream) finishReading() {
	if s.state == Closed && !s.told && s.End() {
		s.raise(pendingClosed)
		s.mux.kick()
	}
}

// raise queues a call for the endpoint.
func (s *Stream) raise(p pending) {
	if p == pendingClosed {
		s.told = true
	}
	s.pending |= p
	if s.pending&pendingQueued == 0 {
		s.pending |= pendingQueued
		s.mux.events = append(s.mux.events, s)
	}
}

// move applies an event and does what leaving the network means.
func (s *Stream) move(e event) {
	s.state = s.state.next(e)
	if s.state == Closed {
		if s.in.ackNow && s.pair == nil { // the other end would wait for it until it repeats its CLOSE
			s.sendAck()
		}
		s.mux.remove(s)
		s.finishReading()
	}
}

// end cuts the stream off.
func (s *Stream) end(e event, reason Reason) {
	s.reason, s.cut = reason, true
	s.state = s.state.next(e)
	s.in.release(&s.mux.pool)
	s.mux.remove(s)
	if !s.told {
		s.raise(pendingClosed)
	}
}

func (s *Stream) heardNow(now clock.Instant) {
	s.heard = now
	s.tries = 0
	s.out.unanswered = 0
}
