package stream

import (
	"bytes"
	"io"
	"testing"
	"time"

	"colloid.net/meshd/wire"
	"pgregory.net/rapid"
)

// position is what a state means, in terms that the table does not use: whether both have agreed, how far
// this end's CLOSE is (0 not said, 1 said, 2 acknowledged), and whether the other end's has arrived.
type position struct {
	agreed, incoming, over bool
	local                  int
	remote                 bool
}

var positions = map[State]position{
	Opening:   {},
	Incoming:  {incoming: true},
	Open:      {agreed: true},
	LocalFin:  {agreed: true, local: 1},
	LocalDone: {agreed: true, local: 2},
	RemoteFin: {agreed: true, remote: true},
	Closing:   {agreed: true, local: 1, remote: true},
	Closed:    {over: true},
}

// expected says what an event leads to, from the rules of SPEC-REVIEW Part 1 section 16; ok is false for what
// cannot happen.
func expected(p position, e event) (position, bool) {
	over := position{over: true}
	switch e {
	case eventReset, eventTimeout:
		return over, true
	case eventAccept: // a repeated acceptance changes nothing
		if !p.over && !p.agreed {
			p = position{agreed: true}
		}
		return p, true
	}
	if p.over || !p.agreed {
		return p, false
	}
	switch e {
	case eventFinish:
		if p.local != 0 {
			return p, false
		}
		p.local = 1
	case eventFinished:
		if p.local != 1 {
			return p, false
		}
		p.local = 2
	case eventEnd:
		if p.remote {
			return p, false
		}
		p.remote = true
	}
	if p.local == 2 && p.remote {
		return over, true
	}
	return p, true
}

// Every state against every event.
func TestF152_StateMachineIsComplete(t *testing.T) {
	if len(positions) != int(stateCount) {
		t.Fatalf("%d positions for %d states", len(positions), stateCount)
	}
	for state, p := range positions {
		for e := range eventCount {
			want, ok := expected(p, e)
			got := transitions[state][e]
			if (got != invalid) != ok || ok && positions[got] != want {
				t.Errorf("%v, event %d: %v", state, e, got)
			}
			if panics := panics(func() { state.next(e) }); panics == ok {
				t.Errorf("%v, event %d: panics %v", state, e, panics)
			}
		}
		if state.writable() != (p.agreed && p.local == 0) || state.receiving() != (p.agreed && !p.remote) ||
			state.established() != p.agreed {
			t.Errorf("%v: writable %v, receiving %v", state, state.writable(), state.receiving())
		}
	}
}

func panics(f func()) (did bool) {
	defer func() { did = recover() != nil }()
	f()
	return false
}

// oracle is one direction of a stream as it should be: a list of bytes and its end.
type oracle struct {
	written, read []byte
	finished      bool // the writer said CLOSE
	eof           bool // the reader saw it
}

// actor is an end that does what the test draws.
type actor struct {
	s      *Stream
	out    *oracle // what it writes
	in     *oracle // what it reads
	closed bool
	reason Reason
}

func (a *actor) Accepted(*Stream) {}
func (a *actor) Readable(*Stream) {}
func (a *actor) Writable(*Stream) {}
func (a *actor) Closed(_ *Stream, r Reason) {
	if a.closed {
		panic("closed twice")
	}
	a.closed, a.reason = true, r
}

func (a *actor) write(t *rapid.T, p []byte) {
	n, err := a.s.Write(p)
	if refused := a.out.finished || a.s.State() == Closed; (err != nil) != refused {
		t.Fatalf("write in state %v, finished %v: %v", a.s.State(), a.out.finished, err)
	}
	a.out.written = append(a.out.written, p[:n]...)
}

func (a *actor) read(t *rapid.T, size int) {
	p := make([]byte, size)
	n, err := a.s.Read(p)
	if err == ErrClosed && a.s.State() == Closed {
		return // cut off
	}
	if err != nil && err != io.EOF {
		t.Fatal(err)
	}
	a.in.read = append(a.in.read, p[:n]...)
	if !bytes.HasPrefix(a.in.written, a.in.read) {
		t.Fatalf("read %d bytes that were not written", len(a.in.read))
	}
	if err == io.EOF {
		a.in.eof = true
		if !a.in.finished || len(a.in.read) != len(a.in.written) {
			t.Fatalf("the end after %d of %d bytes, CLOSE said: %v", len(a.in.read), len(a.in.written), a.in.finished)
		}
	}
}

// Whatever two ends do, over a network that loses, doubles and reorders: each reads a prefix of what the
// other wrote, the end comes exactly behind the last byte, an orderly end means that everything was read, and
// nothing is left over. The slow oracle is a list of bytes (F152, STREAM-4).
func TestF152_STREAM4_AnyScheduleAgainstAList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := link{
			delay:  time.Duration(rapid.IntRange(0, 50).Draw(t, "delay")) * time.Millisecond,
			jitter: time.Duration(rapid.SampledFrom([]int{0, 1, 30}).Draw(t, "jitter")) * time.Millisecond,
			loss:   rapid.SampledFrom([]float64{0, 0.02, 0.3}).Draw(t, "loss"),
		}
		b := newBench(t, rapid.Uint64().Draw(t, "seed"), l)
		up, down := &oracle{}, &oracle{}
		first := &actor{out: up, in: down}
		var second *actor
		b.add(1, nil)
		b.add(2, func(s *Stream) {
			if second == nil {
				second = &actor{s: s, out: down, in: up}
				s.Accept(second)
			}
		})
		target := wire.CellID(rapid.IntRange(1, 2).Draw(t, "target")) // 1: within the cell
		if target == 1 {
			b.cells[1].mux.options.Incoming = b.cells[2].mux.options.Incoming
		}
		s, err := b.cells[1].mux.Open(target, wire.StreamExec, name, nil, first)
		if err != nil {
			t.Fatal(err)
		}
		first.s = s
		reset := false
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			a := first
			if second != nil && rapid.Bool().Draw(t, "second") {
				a = second
			}
			switch rapid.IntRange(0, 9).Draw(t, "do") {
			case 0, 1, 2:
				size := rapid.SampledFrom([]int{1, 3, 1123, 1124, 1125, 20000, 150000}).Draw(t, "size")
				p := make([]byte, size)
				for i := range p {
					p[i] = byte(len(a.out.written) + i*7)
				}
				a.write(t, p)
			case 3, 4, 5:
				a.read(t, rapid.SampledFrom([]int{1, 1124, 5000, 2000000}).Draw(t, "read"))
			case 6:
				if rapid.IntRange(0, 2).Draw(t, "really") == 0 {
					a.s.CloseWrite()
					a.out.finished = true
				}
			case 7:
				if rapid.IntRange(0, 19).Draw(t, "reset") == 0 {
					a.s.Reset(ReasonCanceled)
					reset = true
				}
			default:
				b.run(time.Duration(rapid.IntRange(0, 400).Draw(t, "wait"))*time.Millisecond, nil)
			}
		}
		finishSchedule(t, b, first, &second, reset)
	})
}

// finishSchedule reads and closes everything and looks at what is left.
func finishSchedule(t *rapid.T, b *bench, first *actor, second **actor, reset bool) {
	ended := false
	for range 3000 {
		b.run(20*time.Millisecond, nil)
		ended = true
		for _, a := range []*actor{first, *second} {
			if a == nil {
				continue
			}
			a.read(t, 1<<20)
			a.s.CloseWrite()
			a.out.finished = true
			ended = ended && a.closed
		}
		if ended {
			break
		}
	}
	if !ended {
		t.Fatalf("the stream does not end: %v %v", first.s.State(), first.closed)
	}
	if !reset && first.reason == ReasonNone && *second != nil && (*second).reason == ReasonNone {
		for _, o := range []*oracle{first.out, first.in} {
			if !bytes.Equal(o.written, o.read) {
				t.Fatalf("%d bytes written, %d read, and an orderly end", len(o.written), len(o.read))
			}
		}
	}
	b.run(time.Minute, nil)
	for _, p := range b.order {
		if p.mux.Len() != 0 || p.mux.MemoryUsed() != 0 || len(p.mux.streams) != 0 {
			t.Fatalf("cell %d keeps %d streams, %d bytes", p.id, p.mux.Len(), p.mux.MemoryUsed())
		}
	}
}
