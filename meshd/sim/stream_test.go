package sim

import (
	"bytes"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/clock"
	"colloid.net/meshd/stream"
	"colloid.net/meshd/wire"
)

// talker is an endpoint that sends counted bytes and checks what comes.
type talker struct {
	t        *testing.T
	s        *stream.Stream
	left     int  // to be written
	hold     bool // do not end when all is written
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
	if !e.hold {
		e.s.CloseWrite()
	}
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
		if e.left == 0 && !e.hold {
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

// Who hosts a workload is known on the spot, by every cell, cut off from all others too, and asking sends nothing
// (STREAM-1).
func TestSTREAM1_HostsAreKnownWithoutAsking(t *testing.T) {
	w := form(t, Options{Seed: 1, Cells: 5})
	run(t, w, 15*time.Second)
	w.Node(0).Set("spread.web", Spec(3, "/bin/a"), uds.ExpectAny, nil)
	until(t, w, 20*time.Second, "3 replicas", func() bool { return running(w) == 3 })
	run(t, w, 5*time.Second)
	var want []wire.CellID
	for _, n := range w.Nodes() {
		if len(n.Running()) > 0 {
			want = append(want, n.ID())
		}
	}
	slices.Sort(want)
	before, _ := w.Traffic()
	steps := w.Steps
	for _, n := range w.Nodes() {
		w.Isolate(n)
		if got := n.cell.Hosts("spread.web"); !slices.Equal(got, want) || len(n.cell.Hosts("spread.none")) != 0 {
			t.Errorf("n%d knows %v, they are %v", n.Index, got, want)
		}
	}
	if after, _ := w.Traffic(); after != before || w.Steps != steps {
		t.Errorf("%d datagrams for questions", after-before)
	}
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
	}{{"0 %", 0, 64 << 20, 20}, {"1 %", 0.01, 16 << 20, 3}, {"5 %", 0.05, 8 << 20, 1}} {
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

// addressOf is where one cell thinks another is.
func addressOf(n, of *Node) netip.AddrPort {
	for i := range n.cell.Members().Len() {
		if m := n.cell.Members().At(i); m.ID == of.ID() {
			return m.Address
		}
	}
	return netip.AddrPort{}
}

// rebind gives a machine another address, as a router does that forgot it.
func (w *World) rebind(n *Node, port uint16) {
	delete(w.byAddr, n.Address)
	n.Address = netip.AddrPortFrom(n.Address.Addr(), port)
	w.byAddr[n.Address] = n
	w.disturb(n)
}

// Two cells that do not reach each other have a stream through others, which keep nothing of it; nobody learns
// anything about an address from it, and no datagram shows what was said (STREAM-3, STREAM-5, F155, F17).
func TestSTREAM3_STREAM5_F155_F17_RelayedStreamTeachesNothing(t *testing.T) {
	w := streamWorld(t, 3, 5, NetworkOptions{DelayMin: 2 * time.Millisecond, DelayMax: 3 * time.Millisecond})
	a, b := w.Node(0), w.Node(1)
	var before [5][5]netip.AddrPort
	for i, n := range w.Nodes() {
		for j, of := range w.Nodes() {
			before[i][j] = addressOf(n, of)
		}
	}
	secret := []byte("swordfish swordfish")
	streams := 0
	w.network.tap = func(from, to *Node, datagram []byte) {
		if bytes.Contains(datagram, secret[:9]) {
			t.Fatalf("n%d to n%d shows the secret", from.Index, to.Index)
		}
		if wire.Type(datagram[1]).Relayable() {
			streams++
		}
	}
	w.network.drop = func(from, to *Node, datagram []byte) bool { // of streams only: both live, for everybody
		return wire.Type(datagram[1]).Relayable() && from.Index < 2 && to.Index < 2
	}
	var heard []byte
	took := listen(t, b, wire.StreamExec)
	e := dial(t, a, b, wire.StreamExec, 0)
	e.s.Reset(stream.ReasonCanceled)
	e = &talker{t: t, left: 1}
	a.Input(func(clock.Instant) {
		e.s, _ = a.cell.Streams().Open(b.ID(), wire.StreamExec, []byte("spread.web"), nil, e)
		e.s.Write(secret)
	})
	w.Until(10*time.Second, func() bool { return len(*took) == 1 })
	(*took)[0].onRead = func(p []byte) { heard = append(heard, p...) }
	w.Until(10*time.Second, func() bool { return len(heard) == len(secret) })
	if !bytes.Equal(heard, secret) || e.s.Via() == b.ID() || streams < 6 {
		t.Fatalf("heard %q via %v, %d datagrams", heard, e.s.Via(), streams)
	}
	keys := b.cell.Store().Len()
	w.Run(20 * time.Second)
	if b.cell.Store().Len() != keys {
		t.Fatal("a stream left something in the store")
	}
	for i, n := range w.Nodes() {
		for j, of := range w.Nodes() {
			if now := addressOf(n, of); now != before[i][j] {
				t.Errorf("n%d has n%d at %v, before %v", i, j, now, before[i][j])
			}
		}
	}
	relays, memory := 0, 0
	for _, n := range w.Nodes()[2:] {
		relays += n.cell.Streams().Relays()
		memory += n.cell.Streams().MemoryUsed()
	}
	if relays == 0 || memory != 0 || e.s.State() != stream.Open {
		t.Fatalf("%d relays with %d bytes, stream %v", relays, memory, e.s.State())
	}
}

// Sources behind routers that change their ports every 5 seconds, all with the same stream numbers, through the
// same relays: each stream goes on (F149).
func TestF149_RebindingSources(t *testing.T) {
	w := streamWorld(t, 4, 16, NetworkOptions{DelayMin: 2 * time.Millisecond, DelayMax: 4 * time.Millisecond})
	target := w.Node(0)
	w.network.drop = func(from, to *Node, datagram []byte) bool {
		if !wire.Type(datagram[1]).Relayable() {
			return false
		}
		source := func(n *Node) bool { return n.Index >= 3 }
		return source(from) && to == target || source(to) && from == target || source(from) && source(to)
	}
	took := listen(t, target, wire.StreamLogs)
	const rounds, piece = 6, 60_000
	var ends []*talker
	for _, n := range w.Nodes()[3:] {
		e := &talker{t: t, hold: true}
		n.Input(func(clock.Instant) {
			e.s, _ = n.cell.Streams().Open(target.ID(), wire.StreamLogs, []byte("spread.web"), nil, e)
		})
		ends = append(ends, e)
	}
	all := func(done func(e *talker) bool) func() bool {
		return func() bool {
			return len(*took) == len(ends) && !slices.ContainsFunc(ends, func(e *talker) bool { return !done(e) })
		}
	}
	if _, ok := w.Until(20*time.Second, all(func(e *talker) bool { return e.accepted })); !ok {
		t.Fatalf("%d of %d streams", len(*took), len(ends))
	}
	for round := 1; round <= rounds; round++ {
		for i, n := range w.Nodes()[3:] {
			w.rebind(n, uint16(20000+100*round+i))
			n.Input(func(clock.Instant) {
				ends[i].left, ends[i].hold = piece, round < rounds
				ends[i].pump()
			})
		}
		w.Run(5 * time.Second)
	}
	w.Until(30*time.Second, all(func(e *talker) bool { return e.closed }))
	for i, e := range *took {
		if e.got != rounds*piece || !e.ended || e.reason != stream.ReasonNone {
			t.Errorf("stream %d: %d bytes, %v %v", i, e.got, e.closed, e.reason)
		}
	}
}

// size is how much a test moves, or 1 GB with COLLOID_SIM_LONG.
func size(usual int) int {
	if os.Getenv("COLLOID_SIM_LONG") != "" {
		return 1 << 30
	}
	return usual
}

// Much data through one relay of several, each of which dies when its turn has come: it goes on, and no byte is
// wrong. 16 MB, with COLLOID_SIM_LONG 1 GB.
func TestSTREAM3_MuchDataThroughDyingRelays(t *testing.T) {
	size := size(16 << 20)
	w := streamWorld(t, 5, 8, NetworkOptions{DelayMin: 2 * time.Millisecond, DelayMax: 3 * time.Millisecond})
	a, b := w.Node(0), w.Node(1)
	w.network.drop = func(from, to *Node, datagram []byte) bool {
		return wire.Type(datagram[1]).Relayable() && from.Index < 2 && to.Index < 2
	}
	took := listen(t, b, wire.StreamVolume)
	e := dial(t, a, b, wire.StreamVolume, size)
	for part := 1; part <= 4; part++ {
		w.Until(10*time.Minute, func() bool { return len(*took) == 1 && (*took)[0].got > part*size/6 || e.closed })
		for _, n := range w.Nodes()[2:] {
			if n.Up() && n.ID() == e.s.Via() {
				n.Kill()
				break
			}
		}
	}
	w.Until(10*time.Minute, func() bool { return e.closed && (*took)[0].closed })
	got := (*took)[0]
	if !e.closed || e.reason != got.reason || e.reason == stream.ReasonNone && got.got != size {
		t.Fatalf("%d of %d bytes, %v and %v", got.got, size, e.reason, got.reason)
	}
	if got.got != size {
		t.Errorf("the stream did not survive its relays: %v after %d bytes", e.reason, got.got)
	}
}

// Much data between two machines behind routers that can only be relayed, one of which talks to the machines 0 and
// 1 alone, the other to 2 and 3: every byte passes two relays, and in each part of the data one of these is killed,
// on this side or on that. 64 MB, with COLLOID_SIM_LONG 1 GB.
func TestSTREAM3_F36_MuchDataThroughTwoRelaysThatDie(t *testing.T) {
	const parts = 4
	size := size(64<<20) / parts * parts
	w := formBehind(t, 6, []NATKind{Public, Public, Public, Public, Symmetric, Symmetric},
		NetworkOptions{DelayMin: 2 * time.Millisecond, DelayMax: 3 * time.Millisecond})
	a, b := w.Node(4), w.Node(5)
	away := func(n, relay *Node) bool { return n == a && relay.Index/2 != 0 || n == b && relay.Index/2 != 1 }
	w.network.drop = func(from, to *Node, _ []byte) bool { return away(from, to) || away(to, from) }
	w.disturb(a)
	w.disturb(b)
	run(t, w, time.Minute)
	took := listen(t, b, wire.StreamVolume)
	e := &talker{t: t, hold: true}
	a.Input(func(clock.Instant) {
		e.s, _ = a.cell.Streams().Open(b.ID(), wire.StreamVolume, []byte("spread.web"), nil, e)
	})
	if _, ok := w.Until(30*time.Second, func() bool { return e.accepted }); !ok {
		t.Fatal("no stream between them")
	}
	end := (*took)[len(*took)-1]
	for part := range parts {
		before := relayedBytes(w)
		a.Input(func(clock.Instant) {
			e.left, e.hold = size/parts, part < parts-1
			e.pump()
		})
		reached := func(bytes int) {
			t.Helper()
			w.Until(10*time.Minute, func() bool { return end.got >= bytes || e.closed })
			if end.got < bytes {
				t.Fatalf("part %d: %d of %d bytes, then %v", part, end.got, size, e.reason)
			}
		}
		reached(part*size/parts + size/parts/3)
		var busy [2]*Node // the relay in use on either side
		for i, bytes := range relayedBytes(w) {
			if bytes > before[i]+uint64(size/parts/4) {
				busy[i/2] = w.Node(i)
			}
		}
		if busy[0] == nil || busy[1] == nil {
			t.Fatalf("part %d did not pass two relays: %v, before it %v", part, relayedBytes(w), before)
		}
		busy[part%2].Kill()
		killed := w.Now()
		reached((part + 1) * size / parts)
		// At the bound of a relay, after the time in which the others learn of the death and a look for a better way:
		// what relays carry of single datagrams would take minutes.
		bound := 15*time.Second + time.Duration(size/parts)*time.Second/(16<<20)
		if took := w.Now() - killed; took > bound {
			t.Errorf("part %d took %v after the death of a relay, want %v", part, took, bound)
		}
		busy[part%2].Boot()
		run(t, w, 20*time.Second)
	}
	w.Until(time.Minute, func() bool { return e.closed && end.closed })
	if end.got != size || e.reason != stream.ReasonNone || end.reason != stream.ReasonNone || !end.ended {
		t.Fatalf("%d of %d bytes, %v and %v", end.got, size, e.reason, end.reason)
	}
}

// relayedBytes is what the first four machines have passed on for others.
func relayedBytes(w *World) (bytes [4]uint64) {
	for i := range bytes {
		if n := w.Node(i); n.Up() {
			bytes[i] = n.cell.Streams().Stats().RelayedBytes
		}
	}
	return bytes
}

// A stream on which nothing moves, such as a shell, ends soon after the daemon of the other end was restarted, and says
// so: the cell hears that the other seals under another incarnation.
func TestF152_IdleStreamsHearOfRestarts(t *testing.T) {
	w := streamWorld(t, 1, 3, NetworkOptions{DelayMin: time.Millisecond, DelayMax: 2 * time.Millisecond})
	a, b := w.Node(0), w.Node(1)
	took := listen(t, b, wire.StreamExec)
	e := &talker{t: t, left: 100, hold: true}
	a.Input(func(clock.Instant) {
		var err error
		if e.s, err = a.cell.Streams().Open(b.ID(), wire.StreamExec, []byte("spread.web"), nil, e); err != nil {
			t.Fatal(err)
		}
		e.pump()
	})
	w.Until(time.Minute, func() bool { return len(*took) == 1 && (*took)[0].got == 100 })
	w.Run(2 * time.Second)
	b.Kill()
	w.Run(200 * time.Millisecond)
	b.Boot()
	begin := w.Now()
	if w.Until(15*time.Second, func() bool { return e.closed }); !e.closed || e.reason != stream.ReasonForgotten {
		t.Fatalf("closed %v: %v", e.closed, e.reason)
	}
	if took := (w.Now() - begin).Seconds(); took > 1.5 {
		t.Errorf("after %.1f s", took)
	}
}
