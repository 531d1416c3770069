package nat

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/overlay"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

const self = wire.CellID(100)

// bench is a Traversal with members at known addresses and everything it sends.
type bench struct {
	*Traversal
	now     clock.Instant
	members *overlay.Members
	guard   *overlay.Guard
	sent    []message
	checked []netip.AddrPort
	called  []message
}

type message struct {
	to      wire.CellID
	address netip.AddrPort
	kind    wire.Type
	nonce   uint32
	payload []byte
}

func at(text string) netip.AddrPort { return netip.MustParseAddrPort(text) }

func newBench(own string) *bench {
	random := rand.New(rand.NewPCG(1, 2))
	b := &bench{now: clock.Instant(time.Hour), members: overlay.NewMembers(self), guard: overlay.NewGuard(random)}
	b.Traversal = New(Options{
		Self: self, Random: random, Members: b.members, Guard: b.guard,
		Own:   []state.Candidate{{Address: at(own)}},
		Nonce: random.Uint32,
		Send: func(to wire.CellID, kind wire.Type, nonce uint32, payload []byte) {
			b.sent = append(b.sent, message{to: to, kind: kind, nonce: nonce, payload: append([]byte(nil), payload...)})
		},
		SendTo: func(_ wire.CellID, to netip.AddrPort, kind wire.Type, nonce uint32, payload []byte) {
			b.sent = append(b.sent, message{address: to, kind: kind, nonce: nonce, payload: append([]byte(nil), payload...)})
		},
		SendAlternate: func(_ wire.CellID, to netip.AddrPort, kind wire.Type, nonce uint32, payload []byte) {
			b.called = append(b.called, message{address: to, kind: kind, nonce: nonce})
		},
		Check: func(_ wire.CellID, address netip.AddrPort) { b.checked = append(b.checked, address) },
	})
	return b
}

func (b *bench) member(id wire.CellID, address string, reach wire.Reach, homes ...wire.CellID) *overlay.Member {
	m := b.members.Upsert(id)
	m.Address, m.Reach, m.Homes, m.Life = at(address), reach, homes, state.Alive
	m.Candidates = []state.Candidate{{Address: at(address)}}
	m.Heard = b.now
	return m
}

func (b *bench) take() []message {
	sent := b.sent
	b.sent = nil
	return sent
}

// Reports of observers beyond a router and of those on this side of it are never compared (F32): a home with
// another cell in it and a friend far away is no symmetric router.
func TestF32_LANAndWANObserversAreNoSymmetricRouter(t *testing.T) {
	b := newBench("192.168.1.10:12421")
	lan, wan := b.member(1, "192.168.1.11:12421", wire.ReachUnknown), b.member(2, "198.51.100.2:12421", wire.ReachPublic)
	for range 10 {
		b.Observed(b.now, lan, at("192.168.1.10:12421"))
		b.Observed(b.now, wan, at("203.0.113.7:40001"))
		b.now = b.now.Add(time.Second)
	}
	if f := b.Finding(); f.Reach != wire.ReachUnknown || f.Mapping == "per-destination" || !f.Translated {
		t.Errorf("one observer on each side: %+v", f)
	}
	other := b.member(3, "198.51.100.3:12421", wire.ReachPublic)
	for i := range 4 {
		b.Observed(b.now, wan, at("203.0.113.7:40001"))
		b.Observed(b.now, other, netip.AddrPortFrom(netip.MustParseAddr("203.0.113.7"), uint16(50000+i)))
		b.now = b.now.Add(time.Second)
	}
	if f := b.Finding(); f.Reach != wire.ReachRelayed {
		t.Errorf("two global observers differ: %+v", f)
	}
}

// A router that got another address is not taken for one that uses another port for everybody (F32).
func TestF32_ANewAddressIsNoSymmetricRouter(t *testing.T) {
	b := newBench("192.168.1.10:12421")
	first, second := b.member(1, "198.51.100.1:12421", wire.ReachPublic), b.member(2, "198.51.100.2:12421", wire.ReachPublic)
	for i := range 20 {
		observed := at("203.0.113.7:40001")
		if i >= 10 {
			observed = at("203.0.113.99:5000")
		}
		b.Observed(b.now, []*overlay.Member{first, second}[i%2], observed)
		b.now = b.now.Add(time.Second)
		if f := b.Finding(); f.Reach == wire.ReachRelayed {
			t.Fatalf("after %d reports: %+v", i+1, f)
		}
	}
	if b.Recovered() == 0 {
		t.Error("the move was not noticed")
	}
}

// PUBLIC takes two calls, and a call from an address this cell never sent to is worth more than others (F31).
func TestF31_StrangersDecide(t *testing.T) {
	var v view
	v.dialled(true, false)
	if v.class(wire.ReachUnknown, false) != wire.ReachUnknown {
		t.Error("one call is enough")
	}
	v.dialled(true, false)
	if v.class(wire.ReachUnknown, false) != wire.ReachPublic {
		t.Error("two calls are not enough")
	}
	if v.class(wire.ReachUnknown, true) == wire.ReachPublic || v.class(wire.ReachPublic, true) == wire.ReachPublic {
		t.Error("a restricted cone that only met acquaintances calls itself public")
	}
	v.dialled(false, true)
	v.dialled(false, true)
	v.dialled(true, false)
	v.dialled(true, false)
	if v.class(wire.ReachUnknown, false) == wire.ReachPublic {
		t.Error("strangers do not get through, and the cell calls itself public")
	}
	v.dialled(true, true)
	v.dialled(true, true)
	if v.class(wire.ReachUnknown, true) != wire.ReachPublic {
		t.Error("strangers get through again")
	}
}

// Both sides send five PUNCH_SYN at 0, 50, 100, 200 and 400 ms (F35).
func TestF35_FiveSynsAtTheirMoments(t *testing.T) {
	b := newBench("192.168.1.10:12421")
	b.class[globalV4], b.views[globalV4].at = wire.ReachPunched, b.now
	home := b.member(1, "198.51.100.1:12421", wire.ReachPublic)
	b.member(2, "192.168.7.7:12421", wire.ReachPunched, 1)
	goes := wire.PunchReq{Target: wire.Contact{ID: 2, Address: at("203.0.113.2:2000"), Flags: wire.PunchGo}, Rendezvous: 9}
	begin := b.now
	b.Receive(b.now, home, home.Address, wire.Header{Type: wire.TypePunchReq}, wire.AppendPunchReq(nil, goes))
	var moments []time.Duration
	for b.now.Sub(begin) < 3*time.Second {
		for _, m := range b.take() {
			if m.kind == wire.TypePunchSyn && m.address == at("203.0.113.2:2000") {
				moments = append(moments, b.now.Sub(begin))
			}
		}
		b.now = b.now.Add(10 * time.Millisecond)
		b.Tick(b.now)
	}
	if len(moments) != 5 || moments[4] < 400*time.Millisecond || moments[4] > 420*time.Millisecond {
		t.Errorf("PUNCH_SYN at %v", moments)
	}
}

// An open path that nobody answers on is doubted after a second and given up after five; meanwhile everything
// goes both ways (F36).
func TestF36_SilentPathIsDoubtedThenLost(t *testing.T) {
	b := newBench("192.168.1.10:12421")
	b.member(1, "198.51.100.1:12421", wire.ReachPublic)
	m := b.member(2, "203.0.113.2:2000", wire.ReachPunched, 1)
	b.Contacted(b.now, at("198.51.100.1:12421")) // it is no stranger to be kept apart
	if r := b.Route(b.now, m); r.Direct || r.Relay != 1 {
		t.Fatalf("before any contact: %+v", r)
	}
	b.Confirmed(b.now, m)
	if r := b.Route(b.now, m); !r.Direct || r.Relay != 0 {
		t.Fatalf("open: %+v", r)
	}
	b.Sent(b.now, 2, Route{Direct: true}, true)
	b.now = b.now.Add(1100 * time.Millisecond)
	if r := b.Route(b.now, m); !r.Direct || r.Relay != 1 {
		t.Fatalf("in doubt: %+v", r)
	}
	b.Heard(b.now, m)
	if r := b.Route(b.now, m); !r.Direct || r.Relay != 0 {
		t.Fatalf("heard again: %+v", r)
	}
	b.Sent(b.now, 2, Route{Direct: true}, true)
	for range 13 {
		b.now = b.now.Add(500 * time.Millisecond)
		b.Tick(b.now)
	}
	if r := b.Route(b.now, m); r.Direct || r.Relay != 1 {
		t.Fatalf("6.5 s of silence: %+v", r)
	}
}

// Of a cell that needs help only its homes tell whether it is dead, or anybody once they are gone (F36).
func TestF36_WhoMayAccuse(t *testing.T) {
	b := newBench("198.51.100.9:12421")
	first, second := b.member(1, "198.51.100.1:12421", wire.ReachPublic), b.member(2, "198.51.100.2:12421", wire.ReachPublic)
	m := b.member(3, "203.0.113.2:2000", wire.ReachRelayed, 1, 2)
	if b.MayAccuse(b.now, m) {
		t.Error("a third cell may accuse while the homes live")
	}
	first.Life = state.Dead
	if b.MayAccuse(b.now, m) {
		t.Error("a third cell may accuse while one home lives")
	}
	second.Life = state.Dead
	if !b.MayAccuse(b.now, m) {
		t.Error("nobody may accuse")
	}
	m.Homes = []wire.CellID{1, self}
	if first.Life = state.Alive; !b.MayAccuse(b.now, m) {
		t.Error("a home may not accuse")
	}
}

// Candidates: own network first if the routers are the same, never a private address of somebody else's
// network when they differ (F33).
func TestF33_WhichCandidateIsDialled(t *testing.T) {
	list := func(texts ...string) (out []state.Candidate) {
		for _, text := range texts {
			out = append(out, state.Candidate{Address: at(text)})
		}
		return out
	}
	any := func(netip.AddrPort) bool { return true }
	for _, test := range []struct {
		name        string
		own, theirs []state.Candidate
		want        string
	}{
		{"one network", list("10.0.0.1:1"), list("10.0.0.2:2"), "10.0.0.2:2"},
		{"same router", list("203.0.113.1:9", "192.168.1.2:1"), list("203.0.113.1:8", "192.168.1.3:2"), "192.168.1.3:2"},
		{"other router, same prefix", list("203.0.113.1:9", "192.168.1.2:1"), list("203.0.113.2:8", "192.168.1.3:2"), "203.0.113.2:8"},
		{"public and private", list("198.51.100.1:1"), list("203.0.113.2:8", "192.168.1.3:2"), "203.0.113.2:8"},
		{"no version 6 here", list("10.0.0.1:1"), list("[2001:db8::1]:1", "203.0.113.2:8"), "203.0.113.2:8"},
		{"order decides", list("198.51.100.1:1", "[2001:db8::1]:1"), list("203.0.113.2:8", "[2001:db8::2]:1"), "203.0.113.2:8"},
	} {
		if got := Choose(test.own, test.theirs, any); got != at(test.want) {
			t.Errorf("%s: %v, want %s", test.name, got, test.want)
		}
	}
}

// What is passed on for one origin is limited, whatever the others do (F36, F14).
func TestF36_RelayingIsLimitedPerOrigin(t *testing.T) {
	var l Limiter
	now := clock.Instant(time.Hour)
	passed := 0
	for range 10 * relayPerSecond {
		if l.Allow(now, 7) {
			passed++
		}
		now = now.Add(100 * time.Microsecond)
	}
	if want := relayBurst + relayPerSecond/2 + 1; passed > want || passed < want-5 {
		t.Errorf("%d of %d in half a second, want about %d", passed, 10*relayPerSecond, want)
	}
	if !l.Allow(now, 8) {
		t.Error("another origin is refused")
	}
}

// Any bytes may come as PUNCH_REQ or PUNCH_SYN: nothing is sent to addresses that no cell can have, and no
// more than a few messages for one datagram.
func FuzzReceive(f *testing.F) {
	for flags := range uint8(5) {
		f.Add(uint8(wire.TypePunchReq), wire.AppendPunchReq(nil, wire.PunchReq{
			Target: wire.Contact{ID: 2, Address: at("203.0.113.2:2000"), Flags: flags}, Rendezvous: 3}))
	}
	f.Add(uint8(wire.TypePunchSyn), wire.AppendPunchSyn(nil, 4))
	f.Fuzz(func(t *testing.T, kind uint8, payload []byte) {
		b := newBench("192.168.1.10:12421")
		m := b.member(1, "198.51.100.1:12421", wire.ReachPublic)
		b.Heard(b.now, b.member(2, "203.0.113.2:2000", wire.ReachPunched, 1))
		b.guard.Received(b.now, m.Address, 48)
		b.Receive(b.now, m, m.Address, wire.Header{Type: wire.Type(kind)}, payload)
		for _, s := range append(b.take(), b.called...) {
			if s.to == 0 && !usableFrom(s.address, wire.Options{}) {
				t.Fatalf("sent to %v", s.address)
			}
		}
	})
}

// The way of a datagram is looked up for each one that is sent: no allocations.
func TestRouteDoesNotAllocate(t *testing.T) {
	b := newBench("192.168.1.10:12421")
	b.member(1, "198.51.100.1:12421", wire.ReachPublic)
	direct, relayed := b.members.Get(1), b.member(2, "203.0.113.2:2000", wire.ReachPunched, 1)
	if n := testing.AllocsPerRun(1000, func() {
		b.Sent(b.now, 1, b.Route(b.now, direct), true)
		b.Sent(b.now, 2, b.Route(b.now, relayed), true)
		b.Contacted(b.now, direct.Address)
		b.Heard(b.now, direct)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// A PING that says that this cell is seen elsewhere makes it ask its sender at once, not more often than four times
// a second, and only the answer to the nonce counts (F32, F36).
func TestF36_HintsAreCheckedBeforeTheyCount(t *testing.T) {
	b := newBench("192.168.1.10:12421")
	by := b.member(1, "198.51.100.1:12421", wire.ReachPublic)
	b.Observed(b.now, by, at("203.0.113.7:40001"))
	b.take()
	b.Hinted(b.now, by, by.Address, at("203.0.113.7:40001"))
	b.Hinted(b.now, by, at("198.51.100.1:999"), at("203.0.113.7:5"))
	b.Hinted(b.now, by, by.Address, at("192.168.1.10:12421"))
	b.Hinted(b.now, by, by.Address, netip.AddrPort{})
	if sent := b.take(); len(sent) != 0 {
		t.Fatalf("asks without a reason: %+v", sent)
	}
	for i := range 100 {
		b.Hinted(b.now, by, by.Address, netip.AddrPortFrom(netip.MustParseAddr("203.0.113.7"), uint16(1+i)))
		b.now = b.now.Add(10 * time.Millisecond)
	}
	sent := b.take()
	if len(sent) == 0 || len(sent) > 5 || sent[0].address != by.Address || sent[0].kind != wire.TypePing {
		t.Fatalf("100 hints in a second: %+v", sent)
	}
	last := sent[len(sent)-1]
	b.Pong(b.now, by, by.Address, last.nonce+1, wire.AppendPing(nil, at("203.0.113.7:50001")))
	b.Pong(b.now, by, at("198.51.100.1:999"), last.nonce, wire.AppendPing(nil, at("203.0.113.7:50001")))
	if f := b.Finding(); f.Observed != at("203.0.113.7:40001") || b.Recovered() != 0 {
		t.Fatalf("a hint alone counts: %+v", f)
	}
	b.Pong(b.now, by, by.Address, last.nonce, wire.AppendPing(nil, at("203.0.113.7:50001")))
	if f := b.Finding(); f.Observed != at("203.0.113.7:50001") || b.Recovered() != by.ID {
		t.Fatalf("the answer does not count: %+v", f)
	}
}

// A move that follows another one at once is announced, too, when the pause is over (F36).
func TestF36_AMoveAfterAMoveIsAnnounced(t *testing.T) {
	b := newBench("192.168.1.10:12421")
	by := b.member(1, "198.51.100.1:12421", wire.ReachUnknown)
	announced := 0
	count := func() {
		for _, m := range b.take() {
			if m.kind == wire.TypePing && m.address == by.Address {
				announced++
			}
		}
	}
	for i := range 3 { // the first is no move
		b.Observed(b.now, by, netip.AddrPortFrom(netip.MustParseAddr("203.0.113.7"), uint16(1000+i)))
	}
	if count(); announced != 1 {
		t.Fatalf("%d announcements at once", announced)
	}
	for range 30 {
		b.Tick(b.now)
		b.now = b.now.Add(100 * time.Millisecond)
	}
	if count(); announced != 2 {
		t.Fatalf("%d announcements after the pause", announced)
	}
}

// A member that has been taken over can name any address as the one where another cell is, as a coordinator does:
// what that makes this cell send stays small, and what honest coordinators say is heard (F14, F37).
func TestF14_F37_ForgedCoordinationIsNoFlood(t *testing.T) {
	b := newBench("192.168.1.10:12421")
	hostile := b.member(1, "198.51.100.1:12421", wire.ReachPublic)
	honest := b.member(2, "198.51.100.2:12421", wire.ReachPublic)
	for id := wire.CellID(1000); id < 1400; id++ {
		b.member(id, "203.0.113.2:2000", wire.ReachPunched, 1)
	}
	victim := at("203.0.113.99:53")
	say := func(from *overlay.Member, about wire.CellID, rendezvous uint64) {
		goes := wire.PunchReq{Target: wire.Contact{ID: about, Address: victim, Flags: wire.PunchGo}, Rendezvous: rendezvous}
		b.Receive(b.now, from, from.Address, wire.Header{Type: wire.TypePunchReq}, wire.AppendPunchReq(nil, goes))
	}
	count := func() (n int) {
		for _, m := range b.take() {
			if m.address == victim {
				n++
			}
		}
		return n
	}
	for i := range 1000 {
		say(hostile, 1000, uint64(1+i)) // over and over for one cell
	}
	if n := count(); n > 1 {
		t.Errorf("1000 words about one cell at once: %d datagrams", n)
	}
	sent, received := 0, 0
	for i := range 10000 { // ten seconds, about all of them
		say(hostile, wire.CellID(1000+i%400), uint64(5000+i))
		received++
		b.now = b.now.Add(time.Millisecond)
		b.Tick(b.now)
		sent += count()
	}
	if limit := len(synOffsets) * (punchesBurst + 11*punchesPerSecond); sent > limit || sent > received/10 {
		t.Errorf("%d datagrams to an address that a member named, %d words, at most %d", sent, received, limit)
	}
	b.now = b.now.Add(classPatience / 2)
	for range 20 {
		b.Tick(b.now)
		b.now = b.now.Add(500 * time.Millisecond)
	}
	b.take()
	say(honest, 1399, 9)
	if count() != 1 {
		t.Error("an honest coordinator is not heard")
	}
}

// A member that needs no help is sent to straight, but the path is called direct only once something came back: an
// IPv4 address that a cell without IPv4 has read in a contact is no path.
func TestF36_APathThatNothingCameBackOnIsUnproven(t *testing.T) {
	b := newBench("[2600::1]:12421")
	m := b.member(1, "198.51.100.2:12421", wire.ReachPublic)
	if r := b.Report(b.now, m); r.Kind != KindUnproven || r.Kind.String() != "unproven" {
		t.Errorf("before any answer: %v", r.Kind)
	}
	m.Validated = b.now
	if r := b.Report(b.now, m); r.Kind != KindDirect {
		t.Errorf("after one: %v", r.Kind)
	}
}

// What was observed at an address that the host no longer has says nothing about the next one (F32): the cell is
// neither translated nor behind a filter.
func TestF32_AnotherOwnAddressBeginsAnew(t *testing.T) {
	b := newBench("10.0.0.2:12421")
	other, third := b.member(1, "10.0.0.1:12421", wire.ReachUnknown), b.member(2, "10.0.0.3:12421", wire.ReachUnknown)
	observed := func(address string) {
		for range 4 {
			b.Observed(b.now, other, at(address))
			b.Observed(b.now, third, at(address))
			b.now = b.now.Add(time.Second)
		}
	}
	observed("10.0.0.22:12421") // the others follow first
	if !b.Finding().Translated {
		t.Fatal("the test does not test: the cell does not take itself for translated")
	}
	b.SetOwn(b.now, []state.Candidate{{Address: at("10.0.0.22:12421")}})
	observed("10.0.0.22:12421")
	if f := b.Finding(); f.Translated || f.Mapping != "none" || b.Restricted() {
		t.Errorf("%+v", f)
	}
	if list := b.Candidates(nil); len(list) != 1 || list[0].Address != at("10.0.0.22:12421") {
		t.Errorf("candidates %v", list)
	}
}
