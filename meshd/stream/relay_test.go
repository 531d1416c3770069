package stream

import (
	"bytes"
	"testing"
	"time"

	"colloid.net/meshd/wire"
)

var near = link{delay: 5 * time.Millisecond}

func discard(t *testing.T, ends *[]*end) func(*Stream) {
	return accepting(ends, func(*Stream) *end { return &end{t: t} })
}

// 50 sources that all use the same number have a stream each with one target through two relays in a row, and
// every byte comes to where it belongs, in both directions (F149).
func TestF149_EqualNumbersThroughTwoRelays(t *testing.T) {
	b := newBench(t, 1, near)
	const target = wire.CellID(0x1000)
	var got []*end
	b.add(target, accepting(&got, func(s *Stream) *end {
		return &end{t: t, other: uint64(s.Peer()), pattern: uint64(s.Peer()) + 1000, write: 30000, half: true}
	}))
	for id := wire.CellID(0x1001); id <= 0x1008; id++ { // nearer to the target than what follows
		b.add(id, nil)
		b.cut(id, 0x3000)
	}
	for id := wire.CellID(0x2001); id <= 0x2008; id++ {
		b.add(id, nil)
		chosen := id - 0x1000
		b.cells[id].next = func(_, _, _ wire.CellID) wire.CellID { return chosen }
	}
	var ends []*end
	for i := range 50 {
		id := wire.CellID(0x3001 + i)
		relay := wire.CellID(0x2001 + i%8)
		p := b.add(id, nil)
		p.routes = func(wire.CellID, int) wire.CellID { return relay }
		p.mux.nextID, p.mux.drawn = 7, true
		e := &end{pattern: uint64(id), other: uint64(id) + 1000, write: 50000, half: true}
		s := b.open(id, target, wire.StreamExec, e)
		if s.ID()&^(1<<31) != 8 {
			t.Fatalf("stream %d", s.ID())
		}
		ends = append(ends, e)
	}
	if !b.run(30*time.Second, func() bool {
		for _, e := range got { // the responder's pump begins with the first byte
			if e.wrote == 0 {
				e.pump()
			}
		}
		for _, e := range ends {
			if !e.closed {
				return false
			}
		}
		return len(got) == len(ends)
	}) {
		t.Fatalf("%d accepted", len(got))
	}
	for _, e := range ends {
		if e.got != 30000 || e.reason != ReasonNone {
			t.Fatalf("%d bytes back, %v", e.got, e.reason)
		}
	}
	for _, e := range got {
		if e.got != 50000 || e.s.Via() < 0x1001 || e.s.Via() > 0x1008 {
			t.Fatalf("%d bytes, via %v", e.got, e.s.Via())
		}
	}
}

// What relays choose is checked by the one that chooses and by the one that is chosen: the target, its home,
// or strictly nearer. Circles, detours and long ways are refused, and the source finds the way that is left
// (F150).
func TestF150_AdversarialNextHops(t *testing.T) {
	type choice = func(target, source, previous wire.CellID) wire.CellID
	fixed := func(id wire.CellID) choice {
		return func(_, _, _ wire.CellID) wire.CellID { return id }
	}
	for name, c := range map[string]struct {
		next   map[wire.CellID]choice
		home   wire.CellID
		reason Reason // of the failure; ReasonNone: it works
	}{
		"straight":           {map[wire.CellID]choice{0x40: fixed(0x10)}, 0, ReasonNone},
		"nearer, then there": {map[wire.CellID]choice{0x40: fixed(0x30), 0x30: fixed(0x10)}, 0, ReasonNone},
		"farther":            {map[wire.CellID]choice{0x30: fixed(0x40), 0x40: fixed(0x10)}, 0, ReasonTimeout},
		"farther, but home":  {map[wire.CellID]choice{0x30: fixed(0x40), 0x40: fixed(0x10)}, 0x40, ReasonNone},
		"back to the source": {map[wire.CellID]choice{0x30: fixed(0x80)}, 0, ReasonTimeout},
		"home and back":      {map[wire.CellID]choice{0x30: fixed(0x40), 0x40: fixed(0x30)}, 0x40, ReasonTimeout},
		"nowhere":            {map[wire.CellID]choice{0x40: fixed(0)}, 0, ReasonTimeout},
		"itself":             {map[wire.CellID]choice{0x30: fixed(0x30)}, 0, ReasonTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, 1, near)
			var got []*end
			b.add(0x10, discard(t, &got))
			for _, id := range []wire.CellID{0x30, 0x40, 0x50} {
				p := b.add(id, nil)
				if c.next[id] != nil {
					p.next = c.next[id]
				}
			}
			if c.home != 0 {
				b.homes[0x10] = c.home
			}
			source := b.add(0x80, nil)
			first := wire.CellID(0x40)
			if c.next[0x30] != nil && name != "nearer, then there" {
				first = 0x30
			}
			source.routes = func(wire.CellID, int) wire.CellID { return first }
			opens := 0
			b.tap = func(_, _ wire.CellID, raw []byte) {
				if wire.Type(raw[1]) == wire.TypeStreamOpen {
					opens++
				}
			}
			e := &end{write: 5000, half: true}
			b.open(0x80, 0x10, wire.StreamLogs, e)
			b.run(20*time.Second, func() bool { return e.closed || e.accepted })
			if e.accepted != (c.reason == ReasonNone) || (e.reason != ReasonNone) == e.accepted {
				t.Fatalf("accepted %v, %v", e.accepted, e.reason)
			}
			if opens > 4*(openTries+refusalsQuick) {
				t.Fatalf("%d STREAM_OPEN were sent", opens)
			}
		})
	}
}

// A relay that is lied to about reachability does not forward what comes from a hop that had no right to
// choose it, nor more than eight hops (F150).
func TestF150_HopsAreCounted(t *testing.T) {
	b := newBench(t, 1, near)
	var got []*end
	b.add(1<<20, discard(t, &got))
	// Each of them is nearer to the target than the one before.
	count := 12
	for i := range count {
		id := wire.CellID(1<<20 | 1<<(count-i))
		next := wire.CellID(1<<20 | 1<<(count-i-1))
		if i == count-1 {
			next = 1 << 20
		}
		b.add(id, nil).next = func(_, _, _ wire.CellID) wire.CellID { return next }
	}
	for length, works := range map[int]bool{8: true, 9: false} {
		source := b.add(wire.CellID(5+length), nil)
		first := wire.CellID(1<<20 | 1<<length)
		if length == 8 {
			first = 1<<20 | 1<<8
		}
		source.routes = func(wire.CellID, int) wire.CellID { return first }
		e := &end{write: 10, half: true}
		b.open(source.id, 1<<20, wire.StreamLogs, e)
		b.run(15*time.Second, func() bool { return e.closed || e.accepted })
		// 1<<8 is followed by 1<<7 ... 1<<1 and the target: eight relays.
		if e.accepted != works {
			t.Fatalf("%d relays: accepted %v", length, e.accepted)
		}
	}
}

// Floods: strangers and unproven addresses get nothing, one source gets 8 entries, the last quarter is kept
// for volumes and exec with a grant, half-open entries go after 5 s, and honest streams go on (F153).
func TestF153_FloodsLeaveRoom(t *testing.T) {
	b := newBench(t, 1, near)
	relay := b.add(0x100, nil)
	var got []*end
	b.add(0x101, discard(t, &got))
	b.add(0x1ff, nil).dead = true // a target that never answers
	b.strange[0x900] = true
	open := func(source wire.CellID, id uint32, kind wire.StreamType, grant bool, validated bool, target wire.CellID) {
		ext := wire.AppendExtension(nil, wire.ExtensionHops, []byte{0})
		ext = wire.AppendExtension(ext, wire.ExtensionKey, make([]byte, 32))
		if grant {
			ext = wire.AppendExtension(ext, wire.ExtensionGrant, []byte{1})
		}
		payload := wire.AppendStreamOpen(nil, wire.StreamOpen{
			Stream: id, Target: target, Type: kind, Name: name, Extensions: ext,
		})
		if b.cells[source] == nil {
			b.add(source, nil)
		}
		relay.mux.Receive(b.now, &Datagram{
			Header:  wire.Header{Type: wire.TypeStreamOpen, Sender: source, Nonce: low(target)},
			Payload: payload, Hop: source, Validated: validated,
		})
	}
	expect := func(what string, n int) {
		t.Helper()
		if relay.mux.Relays() != n {
			t.Fatalf("%s: %d entries, want %d", what, relay.mux.Relays(), n)
		}
	}
	open(0x900, 1, wire.StreamLogs, false, true, 0x1ff)
	expect("a stranger", 0)
	open(0x901, 1, wire.StreamLogs, false, false, 0x1ff)
	expect("an unproven address", 0)
	for id := range uint32(300) {
		open(0x902, id, wire.StreamVolume, false, true, 0x1ff)
	}
	expect("one source", RelaysPerSource)
	for source := wire.CellID(0xa00); source < 0xb00; source++ {
		for id := range uint32(20) {
			open(source, id, wire.StreamLogs, false, true, 0x1ff)
		}
	}
	expect("many sources", RelaysMax*3/4)
	open(0xc00, 1, wire.StreamExec, false, true, 0x1ff)
	expect("exec without a grant", RelaysMax*3/4)
	open(0xc00, 1, wire.StreamExec, true, true, 0x1ff)
	open(0xc01, 1, wire.StreamVolume, false, true, 0x1ff)
	expect("the reserve", RelaysMax*3/4+2)
	for source := wire.CellID(0xd00); source < 0xe00; source++ {
		open(source, 1, wire.StreamVolume, false, true, 0x1ff)
	}
	expect("everything", RelaysMax)

	honest := b.add(0x110, nil)
	honest.routes = func(wire.CellID, int) wire.CellID { return 0x100 }
	e := &end{write: 100000, half: true}
	b.open(0x110, 0x101, wire.StreamLogs, e)
	b.run(9*time.Second, func() bool { return e.accepted })
	if !e.accepted || b.cells[0x100].mux.Relays() > 10 {
		t.Fatalf("after the flood: accepted %v, %d entries", e.accepted, relay.mux.Relays())
	}
	b.run(30*time.Second, func() bool { return len(got) == 1 && got[0].eof })
	if len(got) != 1 || got[0].got != 100000 {
		t.Fatal("the honest stream is not through")
	}
	expect("while it lasts", 1)
	e.s.Reset(ReasonCanceled)
	b.run(time.Second, nil)
	expect("after its end", 0)
}

// A relay limits the bytes of one stream (F151, F153).
func TestF153_RelaysLimitBytes(t *testing.T) {
	b := newBench(t, 1, near)
	var got []*end
	b.add(0x10, discard(t, &got))
	b.add(0x20, nil).mux.relays.limits.StreamPerSecond = 2 << 20
	b.add(0x80, nil).routes = func(wire.CellID, int) wire.CellID { return 0x20 }
	e := &end{write: 20 << 20, half: true}
	b.open(0x80, 0x10, wire.StreamVolume, e)
	begin := b.now
	if !b.run(time.Minute, func() bool { return len(got) == 1 && got[0].eof }) {
		t.Fatal("not through")
	}
	rate := float64(20<<20) / b.now.Sub(begin).Seconds() / (1 << 20)
	if rate > 2.1 || rate < 1 {
		t.Fatalf("%.2f MiB/s through a relay that gives 2", rate)
	}
}

// Relays die one after the other while data flows: the stream finds another way and no byte is wrong or
// missing.
func TestSTREAM3_F150_RelaysDieOnTheWay(t *testing.T) {
	b := newBench(t, 3, link{delay: 5 * time.Millisecond, loss: 0.001})
	const size = 16 << 20
	var got []*end
	b.add(0x10, discard(t, &got))
	relays := []wire.CellID{0x21, 0x22, 0x23, 0x24, 0x25, 0x26}
	for _, id := range relays {
		b.add(id, nil)
	}
	source := b.add(0x80, nil)
	b.cut(0x80, 0x10)
	source.routes = func(target wire.CellID, attempt int) wire.CellID {
		if attempt == 0 {
			return target
		}
		return relays[attempt%len(relays)]
	}
	e := &end{write: size, half: true}
	s := b.open(0x80, 0x10, wire.StreamVolume, e)
	killed := 0
	for at := 1; at <= 5; at++ {
		b.run(time.Minute, func() bool { return len(got) == 1 && got[0].got > at*size/7 || e.closed })
		b.cells[s.Via()].dead = true
		killed++
	}
	b.run(2*time.Minute, func() bool { return e.closed && got[0].closed })
	if len(got) != 1 || got[0].got != size || !got[0].eof || e.reason != ReasonNone || killed != 5 {
		t.Fatalf("%+v, rerouted %d", e.reason, source.mux.Stats().Rerouted)
	}
	// And when the last one dies, both ends learn that it is over.
	for _, id := range relays {
		b.cells[id].dead = false
	}
	e2 := &end{write: size, half: true}
	s = b.open(0x80, 0x10, wire.StreamVolume, e2)
	b.run(time.Minute, func() bool { return len(got) == 2 && got[1].got > size/4 })
	for _, id := range relays {
		b.cells[id].dead = true
	}
	b.run(time.Minute, func() bool { return e2.closed && got[1].closed })
	if !e2.closed || !got[1].closed || e2.reason != ReasonTimeout || got[1].eof || s.State() != Closed {
		t.Fatalf("closed %v %v, %v", e2.closed, got[1].closed, e2.reason)
	}
}

// Nothing that relays or the network see contains what was said, not even to a relay that has the cluster's
// key: here nothing is sealed hop by hop, so the tap sees what a relay sees (F17, F154).
func TestF17_F154_RelaysSeeNoPlaintext(t *testing.T) {
	b := newBench(t, 1, near)
	secret := []byte("the password is swordfish")
	var heard []byte
	take := &talk{read: func(p []byte) { heard = append(heard, p...) }}
	b.add(0x10, func(s *Stream) { take.s = s; s.Accept(take) })
	b.add(0x20, nil)
	b.add(0x80, nil).routes = func(wire.CellID, int) wire.CellID { return 0x20 }
	seen := 0
	b.tap = func(from, to wire.CellID, raw []byte) {
		seen++
		if bytes.Contains(raw, secret[:8]) {
			t.Fatalf("%v to %v: %q", from, to, raw)
		}
	}
	e := &talk{}
	s, err := b.cells[0x80].mux.Open(0x10, wire.StreamExec, name, nil, e)
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		s.Write(secret)
	}
	s.CloseWrite()
	if !b.run(10*time.Second, func() bool { return len(heard) == 100*len(secret) }) || seen < 6 {
		t.Fatalf("%d bytes heard, %d datagrams", len(heard), seen)
	}
	if !bytes.Equal(heard, bytes.Repeat(secret, 100)) {
		t.Fatal("not what was said")
	}
}

// talk is an endpoint that hands on what it reads.
type talk struct {
	s      *Stream
	read   func([]byte)
	closed bool
	reason Reason
}

func (e *talk) Accepted(s *Stream) {}
func (e *talk) Writable(s *Stream) {}
func (e *talk) Readable(s *Stream) {
	for p := s.Peek(); p != nil; p = s.Peek() {
		if e.read != nil {
			e.read(p)
		}
		s.Discard(len(p))
	}
}
func (e *talk) Closed(_ *Stream, r Reason) { e.closed, e.reason = true, r }

// A relay that has the cluster's key cannot change, invent, cut or end what it passes on without being
// noticed: changed data and made-up ends are dropped (F17).
func TestF17_RelaysCannotAlterOrTruncate(t *testing.T) {
	b := newBench(t, 1, near)
	var got []*end
	b.add(0x10, discard(t, &got))
	b.add(0x20, nil)
	b.add(0x80, nil).routes = func(wire.CellID, int) wire.CellID { return 0x20 }
	e := &end{write: 1 << 20, half: true}
	s := b.open(0x80, 0x10, wire.StreamVolume, e)
	altered := 0
	b.drop = func(from, to wire.CellID, raw []byte) bool {
		if from != 0x20 || to != 0x10 {
			return false
		}
		if wire.Type(raw[1]) == wire.TypeStreamData && b.random.IntN(5) == 0 {
			raw[len(raw)-1-b.random.IntN(50)] ^= 1
			altered++
		}
		if b.random.IntN(50) == 0 { // an end that the source did not say
			payload := wire.AppendStreamClose(nil, wire.StreamClose{Stream: s.ID(), Sequence: uint32(s.out.next)})
			b.cells[0x10].mux.Receive(b.now, &Datagram{
				Header:  wire.Header{Type: wire.TypeStreamClose, Sender: 0x80, Nonce: 0x10},
				Payload: payload, Hop: 0x20, Validated: true,
			})
		}
		return false
	}
	if !b.run(time.Minute, func() bool { return len(got) == 1 && got[0].eof }) {
		t.Fatal("not through")
	}
	if got[0].got != 1<<20 || altered == 0 || b.cells[0x10].mux.Stats().Forged < uint64(altered) {
		t.Fatalf("%d bytes, %d altered, %+v", got[0].got, altered, b.cells[0x10].mux.Stats())
	}
}

// RELAY_OFFERs and refusals by cells that have nothing to do with a stream change nothing (F154).
func TestF154_VolunteersAttractNothing(t *testing.T) {
	b := newBench(t, 1, near)
	var got []*end
	b.add(0x10, discard(t, &got))
	b.add(0x66, nil)
	b.add(0x80, nil)
	e := &end{write: 1 << 20, half: true}
	s := b.open(0x80, 0x10, wire.StreamExec, e)
	b.tap = func(from, to wire.CellID, _ []byte) {
		if from == 0x66 || to == 0x66 {
			t.Fatalf("%v to %v", from, to)
		}
	}
	for range 200 {
		b.run(time.Millisecond, nil)
		offer := wire.AppendRelayOffer(nil, wire.RelayOffer{Stream: s.ID(), Source: 0x80, Target: 0x10})
		reset := wire.AppendStreamClose(nil, wire.StreamClose{Stream: s.ID(), Reset: true, Reason: 2})
		for kind, payload := range map[wire.Type][]byte{wire.TypeRelayOffer: offer, wire.TypeStreamClose: reset} {
			b.cells[0x80].mux.Receive(b.now, &Datagram{
				Header:  wire.Header{Type: kind, Sender: 0x66, Nonce: 0x80},
				Payload: payload, Hop: 0x66, Validated: true,
			})
		}
	}
	if !b.run(time.Minute, func() bool { return len(got) == 1 && got[0].eof && got[0].got == 1<<20 }) {
		t.Fatalf("not through: %v", e.reason)
	}
	if b.cells[0x80].mux.Stats().RelayOffers != 200 || s.Via() != 0x10 {
		t.Fatalf("%+v via %v", b.cells[0x80].mux.Stats(), s.Via())
	}
}

// Two volumes of one follower at once, their chunks as VOL_REPL messages, direct and through a relay (F24).
func TestF24_TwoVolumesAtOnce(t *testing.T) {
	for _, relay := range []wire.CellID{0, 0x20} {
		b := newBench(t, 1, near)
		var got []*end
		owner := b.add(0x10, accepting(&got, func(s *Stream) *end {
			return &end{t: t, pattern: uint64(s.ID()), write: 300000, half: true}
		}))
		b.add(0x20, nil)
		follower := b.add(0x80, nil)
		if relay != 0 {
			follower.routes = func(wire.CellID, int) wire.CellID { return relay }
		}
		// The owner answers with VOL_REPL_CHUNK and VOL_REPL_DONE, which carry the stream in the nonce.
		plain := owner.mux.options.Send
		owner.mux.options.Send = func(to wire.CellID, kind wire.Type, nonce uint32, payload []byte) {
			switch kind {
			case wire.TypeStreamData:
				data, _ := wire.ParseStreamData(payload)
				kind, nonce = wire.TypeVolumeChunk, data.Stream
			case wire.TypeStreamClose:
				end, _ := wire.ParseStreamClose(payload)
				kind, nonce = wire.TypeVolumeDone, end.Stream
			}
			plain(to, kind, nonce, payload)
		}
		var ends []*end
		for range 2 {
			e := &end{}
			s := b.open(0x80, 0x10, wire.StreamVolume, e)
			e.other = uint64(s.ID())
			ends = append(ends, e)
		}
		b.run(time.Second, func() bool { return len(got) == 2 })
		for i, e := range got {
			request := wire.AppendVolumeRequest(nil, wire.VolumeRequest{VolumeHash: uint64(i), Generation: 1})
			b.send(follower, follower.mux.list[i].via, wire.TypeVolumeRequest, 0x80, follower.mux.list[i].id, request)
			e.pump()
		}
		b.arm(owner)
		if !b.run(20*time.Second, func() bool { return ends[0].eof && ends[1].eof }) {
			t.Fatalf("relay %v: %d and %d bytes", relay, ends[0].got, ends[1].got)
		}
		if ends[0].got != 300000 || ends[1].got != 300000 {
			t.Fatal("bytes are missing")
		}
	}
}
