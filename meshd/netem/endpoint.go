package netem

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"colloid.net/meshd/stream"
)

// pattern is what is sent, again and again. Its length is a prime, so that a piece at the wrong place
// differs.
var pattern = func() []byte {
	block := make([]byte, 65521)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(block)
	return block
}()

// at gives the pattern from a place in the stream on.
func at(place int64) []byte { return pattern[place%int64(len(pattern)):] }

// Source writes the pattern as fast as its stream takes it: an amount of it, or until a time.
type Source struct {
	until  time.Time // zero: an amount
	amount int64
	sent   atomic.Int64
}

// NewSource returns a source of so many bytes.
func NewSource(amount int64) *Source { return &Source{amount: amount} }

// left is how much is still to be written.
func (e *Source) left() int64 {
	if e.until.IsZero() {
		return e.amount - e.sent.Load()
	}
	if time.Now().Before(e.until) {
		return math.MaxInt64
	}
	return 0
}

// Accepted begins.
func (e *Source) Accepted(s *stream.Stream) { e.Writable(s) }

// Writable goes on.
func (e *Source) Writable(s *stream.Stream) {
	for left := e.left(); left > 0; left = e.left() {
		piece := at(e.sent.Load())
		piece = piece[:min(int64(len(piece)), left)]
		n, err := s.Write(piece)
		e.sent.Add(int64(n))
		if err != nil || n < len(piece) {
			return
		}
	}
	s.CloseWrite()
}

// Readable expects nothing.
func (e *Source) Readable(*stream.Stream) {}

// Closed leaves it to the other end to tell.
func (e *Source) Closed(*stream.Stream, stream.Reason) {}

// Sink compares what it reads with the pattern.
type Sink struct {
	Done chan error // of each stream that ended, nil if all was as it was sent; it must be read
	got  atomic.Int64
	err  error
}

// NewSink returns a sink that has read nothing.
func NewSink() *Sink { return &Sink{Done: make(chan error, 1)} }

// Got is how many bytes were read.
func (e *Sink) Got() int64 { return e.got.Load() }

// Accepted does not come.
func (e *Sink) Accepted(*stream.Stream) {}

// Writable does not come.
func (e *Sink) Writable(*stream.Stream) {}

// Readable reads and compares.
func (e *Sink) Readable(s *stream.Stream) {
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

// Closed tells Done.
func (e *Sink) Closed(*stream.Stream, stream.Reason) { e.Done <- e.err }

// Echo says back what it reads, as long as that is little.
type Echo struct{}

// Accepted waits for something to read.
func (Echo) Accepted(*stream.Stream) {}

// Writable does not come where little is written.
func (Echo) Writable(*stream.Stream) {}

// Readable says it back.
func (Echo) Readable(s *stream.Stream) {
	for p := s.Peek(); p != nil; p = s.Peek() {
		_, _ = s.Write(p)
		s.Discard(len(p))
	}
}

// Closed needs nothing.
func (Echo) Closed(*stream.Stream, stream.Reason) {}
