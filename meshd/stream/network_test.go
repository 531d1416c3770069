package stream

import (
	"bytes"
	"container/heap"
	"math/rand/v2"
	"testing"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/wire"
)

// bench is a network of Muxes in virtual time, without the rest of a cell.
type bench struct {
	t       fataler
	random  *rand.Rand
	now     clock.Instant
	queue   flights
	number  int
	cells   map[wire.CellID]*place
	order   []*place
	links   map[[2]wire.CellID]*link
	usual   link
	homes   map[wire.CellID]wire.CellID // of cells that only their home reaches
	strange map[wire.CellID]bool        // no members
	tap     func(from, to wire.CellID, raw []byte)
	drop    func(from, to wire.CellID, raw []byte) bool
}

// fataler is what a bench needs of a test; testing.TB and *rapid.T have it.
type fataler interface {
	Fatal(...any)
	Fatalf(string, ...any)
}

// link is one direction between two cells.
type link struct {
	delay  time.Duration
	jitter time.Duration
	loss   float64
	rate   float64 // bytes per second, 0 = unlimited
	queue  int     // bytes that wait for the rate
	cut    bool
	free   clock.Instant // when the wire is idle again
	neck   *link         // a narrow place that several links share, nil = none
}

// pass lets a datagram through the narrow place of a link. It returns when its last byte has passed, or false
// if the queue there is full.
func (l *link) pass(now clock.Instant, size int) (clock.Instant, bool) {
	if l.rate == 0 {
		return now, true
	}
	depart := max(now, l.free)
	if depart.Sub(now).Seconds()*l.rate > float64(l.queue) {
		return 0, false
	}
	l.free = depart.Add(time.Duration(float64(size) / l.rate * 1e9))
	return l.free, true
}

type place struct {
	bench  *bench
	id     wire.CellID
	mux    *Mux
	dead   bool
	next   func(target, source, previous wire.CellID) wire.CellID
	routes func(target wire.CellID, attempt int) wire.CellID
	armed  clock.Instant
	ticket int
	noise  noise
}

// noise is what a busy host does to a process: it does not run for a while, now and then, and each datagram
// takes its time.
type noise struct {
	every, atMost time.Duration // how long it runs and how long it then does not, drawn up to these
	cost          time.Duration // of a datagram
	from, until   clock.Instant // of the next stop
	free          clock.Instant
	waiting       []flight // what cannot be handled yet
}

// delayed returns when an event of now can be handled.
func (n *noise) delayed(random *rand.Rand, now clock.Instant) clock.Instant {
	now = max(now, n.free)
	if n.every == 0 {
		return now
	}
	for n.until <= now {
		n.from = n.until.Add(time.Duration(random.Int64N(int64(n.every))))
		if n.from < now-clock.Instant(time.Second) {
			n.from = now
		}
		n.until = n.from.Add(time.Duration(random.Int64N(int64(n.atMost))))
	}
	if n.from <= now {
		return n.until
	}
	return now
}

type flight struct {
	at     clock.Instant
	number int
	to     *place
	hop    wire.CellID
	raw    []byte // nil: a tick
	run    func()
	ticket int
	wake   bool
}

type flights []flight

func (f flights) Len() int { return len(f) }
func (f flights) Less(i, j int) bool {
	return f[i].at < f[j].at || f[i].at == f[j].at && f[i].number < f[j].number
}
func (f flights) Swap(i, j int) { f[i], f[j] = f[j], f[i] }
func (f *flights) Push(x any)   { *f = append(*f, x.(flight)) }
func (f *flights) Pop() any {
	last := len(*f) - 1
	x := (*f)[last]
	*f = (*f)[:last]
	return x
}

func newBench(t fataler, seed uint64, usual link) *bench {
	return &bench{
		t: t, random: rand.New(rand.NewPCG(seed, 1)), now: clock.Instant(time.Hour), usual: usual,
		cells: map[wire.CellID]*place{}, links: map[[2]wire.CellID]*link{},
		homes: map[wire.CellID]wire.CellID{}, strange: map[wire.CellID]bool{},
	}
}

func (b *bench) add(id wire.CellID, incoming func(s *Stream)) *place {
	p := &place{bench: b, id: id}
	random := rand.New(rand.NewPCG(uint64(id), 7))
	entropy := rand.New(rand.NewPCG(uint64(id), 9))
	p.routes = func(target wire.CellID, attempt int) wire.CellID { return target }
	p.next = func(target, _, _ wire.CellID) wire.CellID { return target }
	p.mux = New(Options{
		Self: id, Random: random, Secret: [32]byte{1, 2, 3},
		Entropy: func(raw []byte) {
			for i := range raw {
				raw[i] = byte(entropy.Uint32())
			}
		},
		Send: func(to wire.CellID, kind wire.Type, nonce uint32, payload []byte) {
			b.send(p, to, kind, id, nonce, payload)
		},
		SendOpen: func(to, originator wire.CellID, nonce uint32, payload []byte) {
			b.send(p, to, wire.TypeStreamOpen, originator, nonce, payload)
		},
		Forward: func(to wire.CellID, sealed []byte) { b.launch(p, to, bytes.Clone(sealed)) },
		Route:   func(target wire.CellID, attempt int) wire.CellID { return p.routes(target, attempt) },
		NextHop: func(target, source, previous wire.CellID) wire.CellID {
			return p.next(target, source, previous)
		},
		Home:     func(target, cell wire.CellID) bool { return b.homes[target] == cell },
		Member:   func(id wire.CellID) bool { return !b.strange[id] },
		Incoming: incoming,
	})
	b.cells[id] = p
	b.order = append(b.order, p)
	return p
}

func (b *bench) link(from, to wire.CellID) *link {
	l := b.links[[2]wire.CellID{from, to}]
	if l == nil {
		usual := b.usual
		l = &usual
		b.links[[2]wire.CellID{from, to}] = l
	}
	return l
}

// cut stops everything between two cells.
func (b *bench) cut(x, y wire.CellID) { b.link(x, y).cut, b.link(y, x).cut = true, true }

func (b *bench) send(p *place, to wire.CellID, kind wire.Type, sender wire.CellID, nonce uint32, payload []byte) {
	header := wire.Header{Version: wire.Version, Type: kind, PayloadLength: uint16(len(payload)), Sender: sender, Nonce: nonce}
	raw := append(wire.AppendHeader(make([]byte, 0, wire.DatagramMax), header), payload...)
	if len(raw)+wire.TrailerSize > wire.DatagramMax {
		b.t.Fatalf("a sealed datagram of %d bytes", len(raw)+wire.TrailerSize)
	}
	b.launch(p, to, raw)
}

func (b *bench) launch(p *place, to wire.CellID, raw []byte) {
	l := b.link(p.id, to)
	if b.tap != nil {
		b.tap(p.id, to, raw)
	}
	if p.dead || l.cut || b.random.Float64() < l.loss || b.drop != nil && b.drop(p.id, to, raw) {
		return
	}
	narrow := l
	if l.neck != nil {
		narrow = l.neck
	}
	depart, ok := narrow.pass(b.now, len(raw)+wire.TrailerSize+28)
	if !ok {
		return
	}
	delay := l.delay
	if l.jitter > 0 {
		delay += time.Duration(b.random.Int64N(int64(l.jitter)))
	}
	b.push(flight{at: depart.Add(delay), to: b.cells[to], hop: p.id, raw: raw})
}

func (b *bench) push(f flight) {
	b.number++
	f.number = b.number
	heap.Push(&b.queue, f)
}

func (b *bench) after(d time.Duration, run func()) { b.push(flight{at: b.now.Add(d), run: run}) }

// arm makes sure that a tick comes at a Mux's deadline.
func (b *bench) arm(p *place) {
	deadline := p.mux.Deadline()
	if deadline == clock.Never || p.dead {
		return
	}
	at := max(deadline, b.now)
	if p.armed != 0 && p.armed <= at {
		return
	}
	p.armed = at
	p.ticket++
	b.push(flight{at: at, to: p, ticket: p.ticket})
}

// run lets time pass until done or limit; it reports whether done came true.
func (b *bench) run(limit time.Duration, done func() bool) bool {
	until := b.now.Add(limit)
	for _, p := range b.order {
		b.arm(p)
	}
	for done == nil || !done() {
		if b.queue.Len() == 0 || b.queue[0].at > until {
			b.now = until
			return done == nil
		}
		b.step()
	}
	return true
}

// awake reports whether the place of an event can handle it now; if not, it waits in line. A wake-up takes
// the first in line instead of itself.
func (b *bench) awake(f *flight) bool {
	n, to := &f.to.noise, f.to
	at := n.delayed(b.random, b.now)
	switch {
	case f.wake && at == b.now:
		*f = n.waiting[0]
		n.waiting = n.waiting[1:]
	case f.wake:
	case at > b.now || len(n.waiting) > 0:
		if n.waiting = append(n.waiting, *f); len(n.waiting) > 1 {
			return false // a wake-up is on its way
		}
	}
	if at == b.now && f.raw != nil {
		n.free = b.now.Add(n.cost)
	}
	if len(n.waiting) > 0 {
		b.push(flight{at: max(at, n.free), to: to, wake: true})
	}
	return at == b.now
}

func (b *bench) step() {
	f := heap.Pop(&b.queue).(flight)
	b.now = f.at
	if f.to != nil && !b.awake(&f) {
		return
	}
	switch {
	case f.run != nil:
		f.run()
		for _, p := range b.order {
			b.arm(p)
		}
	case f.to == nil || f.to.dead:
	case f.raw == nil && f.ticket != f.to.ticket:
	case f.raw == nil:
		f.to.armed = 0
		if f.to.mux.Deadline() <= b.now {
			f.to.mux.Tick(b.now)
		}
		b.arm(f.to)
	default:
		header, payload, _, err := wire.ParseHeader(f.raw)
		if err != nil {
			b.t.Fatal(err)
		}
		f.to.mux.Receive(b.now, &Datagram{
			Header: header, Payload: payload, Hop: f.hop, Validated: true, Sealed: f.raw,
		})
		b.arm(f.to)
	}
}

// end is an Endpoint that writes a counted pattern and checks what it reads.
type end struct {
	t        fataler
	s        *Stream
	write    int // bytes still to be written
	wrote    int
	got      int
	half     bool // close when everything is written
	echo     bool
	pattern  uint64
	other    uint64 // pattern of what is read
	accepted bool
	eof      bool
	closed   bool
	reason   Reason
	block    bool // do not read
	read     func(n int)
}

func pattern(seed uint64, at int) byte {
	x := (uint64(at)>>3 + seed) * 0x9e3779b97f4a7c15
	return byte(x >> (8 * (at & 7)))
}

func (e *end) pump() {
	var buffer [4096]byte
	for e.write > 0 {
		piece := buffer[:min(len(buffer), e.write)]
		for i := range piece {
			piece[i] = pattern(e.pattern, e.wrote+i)
		}
		n, err := e.s.Write(piece)
		if err != nil {
			return
		}
		e.wrote += n
		e.write -= n
		if n < len(piece) {
			return
		}
	}
	if e.half {
		e.half = false
		e.s.CloseWrite()
	}
}

func (e *end) Accepted(s *Stream) { e.accepted = true; e.pump() }
func (e *end) Writable(s *Stream) { e.pump() }
func (e *end) Readable(s *Stream) {
	if e.block {
		return
	}
	for piece := s.Peek(); piece != nil; piece = s.Peek() {
		for i, c := range piece {
			if c != pattern(e.other, e.got+i) {
				e.t.Fatalf("byte %d is %d, want %d", e.got+i, c, pattern(e.other, e.got+i))
			}
		}
		e.got += len(piece)
		if e.echo {
			if n, err := s.Write(piece); err != nil || n != len(piece) {
				e.t.Fatalf("echo of %d bytes: %d, %v", len(piece), n, err)
			}
		}
		if e.read != nil {
			e.read(len(piece))
		}
		s.Discard(len(piece))
	}
	if s.End() && !e.eof {
		e.eof = true
		if e.echo {
			s.CloseWrite()
		}
	}
}
func (e *end) Closed(s *Stream, reason Reason) {
	if e.closed {
		e.t.Fatal("closed twice")
	}
	e.closed, e.reason = true, reason
}

// accepting takes every stream with what make returns for it.
func accepting(ends *[]*end, make func(s *Stream) *end) func(s *Stream) {
	return func(s *Stream) {
		e := make(s)
		e.s = s
		*ends = append(*ends, e)
		s.Accept(e)
	}
}

var name = []byte("spread.web")

func (b *bench) open(from, to wire.CellID, kind wire.StreamType, e *end) *Stream {
	s, err := b.cells[from].mux.Open(to, kind, name, nil, e)
	if err != nil {
		b.t.Fatal(err)
	}
	e.t, e.s = b.t, s
	b.arm(b.cells[from])
	return s
}

// throughput sends size bytes one way and returns bytes per second.
func throughput(t testing.TB, seed uint64, l link, size int) float64 {
	return noisyThroughput(t, seed, l, noise{}, size)
}

// noisyThroughput is throughput between two cells on busy hosts.
func noisyThroughput(t testing.TB, seed uint64, l link, n noise, size int) float64 {
	b := newBench(t, seed, l)
	var ends []*end
	b.add(1, nil).noise = n
	b.add(2, accepting(&ends, func(*Stream) *end { return &end{t: t} })).noise = n
	e := &end{write: size, half: true}
	b.open(1, 2, wire.StreamVolume, e)
	start := b.now
	if !b.run(10*time.Minute, func() bool { return len(ends) == 1 && ends[0].eof }) {
		t.Fatalf("not through: wrote %d, %+v", e.wrote, b.cells[1].mux.Stats())
	}
	if ends[0].got != size {
		t.Fatalf("%d of %d bytes arrived", ends[0].got, size)
	}
	return float64(size) / b.now.Sub(start).Seconds()
}
