package nat

import (
	"net/netip"
	"testing"
	"time"

	"colloid.net/meshd/overlay"
	"colloid.net/meshd/wire"
)

// These hold what makes the first attempt of a pair the only one: an attempt is one exchange of addresses under one
// number, and the window in which both send.

// classed is a cell behind a router that keeps one port, with two members that anybody reaches, of which the first is
// its home.
func classed() (b *bench, home *overlay.Member) {
	b = newBench("192.168.1.10:12421")
	b.class[globalV4], b.views[globalV4].at = wire.ReachPunched, b.now
	b.views[globalV4].observed = at("203.0.113.1:12421")
	b.views[globalV4].agreed = 3
	home = b.member(1, "198.51.100.1:12421", wire.ReachPublic)
	b.member(9, "198.51.100.9:12421", wire.ReachPublic)
	for _, m := range []string{"198.51.100.1:12421", "198.51.100.9:12421"} {
		b.Contacted(b.now, at(m))
	}
	b.homes = append(b.homes, 1)
	b.wasRestricted = true
	return b, home
}

// hear delivers a PUNCH_REQ.
func (b *bench) hear(from *overlay.Member, what uint8, about wire.CellID, address string, reach wire.Reach, rendezvous uint64) {
	b.Receive(b.now, from, from.Address, wire.Header{Type: wire.TypePunchReq}, wire.AppendPunchReq(nil, wire.PunchReq{
		Target: wire.Contact{ID: about, Address: at(address), Reach: reach, Flags: what}, Rendezvous: rendezvous}))
}

// said counts what was sent since the last look: PUNCH_REQ of a kind, the number of the last one, and PUNCH_SYN.
func (b *bench) said(what uint8) (requests, syns int, rendezvous uint64) {
	for _, m := range b.take() {
		switch m.kind {
		case wire.TypePunchSyn:
			syns++
		case wire.TypePunchReq:
			if r, err := wire.ParsePunchReq(m.payload, wire.Options{}); err == nil && r.Target.Flags == what {
				requests, rendezvous = requests+1, r.Rendezvous
			}
		}
	}
	return requests, syns, rendezvous
}

func (b *bench) pass(d time.Duration) {
	for end := b.now.Add(d); b.now < end; b.now = b.now.Add(10 * time.Millisecond) {
		b.Tick(b.now)
	}
}

// Who asks sends nothing before the other one takes part, and repeats the question under the same number; when the
// answer comes, that is one attempt, however often something was lost (F35).
func TestF35_NobodyPunchesBeforeTheOtherTakesPart(t *testing.T) {
	b, home := classed()
	m := b.member(2, "203.0.113.2:2000", wire.ReachPunched, 1)
	b.Route(b.now, m)
	b.Tick(b.now)
	asked, syns, number := b.said(wire.PunchAsk)
	if asked != 1 || syns != 0 {
		t.Fatalf("%d questions, %d PUNCH_SYN", asked, syns)
	}
	b.now = b.now.Add(coordinatorWait)
	b.Tick(b.now)
	again, syns, second := b.said(wire.PunchAsk)
	if again != 1 || syns != 0 || second != number || b.paths[2].Attempts != 0 {
		t.Fatalf("%d questions under %x after %x, %d PUNCH_SYN, %d attempts", again, second, number, syns, b.paths[2].Attempts)
	}
	b.hear(home, wire.PunchStart, 2, "203.0.113.2:2000", wire.ReachPunched, number+1)
	if _, syns, _ = b.said(0); syns != 0 {
		t.Error("it punches under a number that it did not ask under")
	}
	b.hear(home, wire.PunchStart, 2, "203.0.113.2:2000", wire.ReachPunched, number)
	b.pass(time.Second)
	if _, syns, _ = b.said(0); syns != len(synOffsets) || b.paths[2].Attempts != 1 {
		t.Errorf("%d PUNCH_SYN, %d attempts", syns, b.paths[2].Attempts)
	}
	for range 20 { // whoever repeats the answer gains little
		b.hear(home, wire.PunchStart, 2, "203.0.113.2:2000", wire.ReachPunched, number)
		b.pass(500 * time.Millisecond)
	}
	if _, syns, _ = b.said(0); syns > (coordinatorsMax-1)*len(synOffsets) {
		t.Errorf("%d PUNCH_SYN for an answer that was repeated", syns)
	}
}

// Who is asked says so to the coordinator, each time, since what it said may be lost; it is one attempt. When its window
// is over it does not begin another one because it wanted one before (F35).
func TestF35_WhoIsAskedSaysItTakesPart(t *testing.T) {
	b, home := classed()
	m := b.member(2, "203.0.113.2:2000", wire.ReachPunched, 1)
	b.Route(b.now, m) // wants one, too
	for range 2 {
		b.hear(home, wire.PunchGo, 2, "203.0.113.2:2000", wire.ReachPunched, 7)
		if accepted, _, number := b.said(wire.PunchAccept); accepted != 1 || number != 7 {
			t.Errorf("accepted %d times under %d", accepted, number)
		}
		b.pass(time.Second)
	}
	if b.paths[2].Attempts != 1 {
		t.Errorf("%d attempts", b.paths[2].Attempts)
	}
	b.take()
	b.pass(punchWait + time.Second)
	if asked, _, _ := b.said(wire.PunchAsk); asked != 0 || b.paths[2].attempt != nil {
		t.Errorf("another attempt at once: %d questions", asked)
	}
}

// A cell that is kept unknown to the router, to find out its class (F31), is not punched to, and nobody is told that it
// would be; the other side waits (F35).
func TestF31_F35_AReservedCellIsNotPunchedTo(t *testing.T) {
	b, home := classed()
	b.member(2, "203.0.113.2:2000", wire.ReachUnknown, 1)
	b.reserved, b.reserveUntil = 2, b.now.Add(reserveFor)
	b.views[globalV4].refuted, b.views[globalV4].confirmed = 0, false
	b.hear(home, wire.PunchGo, 2, "203.0.113.2:2000", wire.ReachUnknown, 7)
	if accepted, syns, _ := b.said(wire.PunchAccept); accepted != 0 || syns != 0 {
		t.Errorf("%d accepted, %d PUNCH_SYN", accepted, syns)
	}
	b.hear(home, wire.PunchGo, 3, "203.0.113.3:2001", wire.ReachPunched, 8) // nor to one that is no member
	if accepted, syns, _ := b.said(wire.PunchAccept); accepted != 0 || syns != 0 {
		t.Errorf("a stranger: %d accepted, %d PUNCH_SYN", accepted, syns)
	}
	b.reserveUntil = b.now
	b.hear(home, wire.PunchGo, 2, "203.0.113.2:2000", wire.ReachUnknown, 9)
	if accepted, syns, _ := b.said(wire.PunchAccept); accepted != 1 || syns != 1 {
		t.Errorf("afterwards: %d accepted, %d PUNCH_SYN", accepted, syns)
	}
}

// As long as one of the two is finding out its class nobody punches, unless anybody reaches the other one; and not for
// ever. The time counts anew from the second observer on: one cannot tell what a router does (F32, F35).
func TestF32_F35_ClassesComeFirst(t *testing.T) {
	b, home := classed()
	b.class[globalV4] = wire.ReachUnknown
	b.views[globalV4].agreed = 0
	other := b.members.Get(9)
	other.Heard = 0
	m := b.member(2, "203.0.113.2:2000", wire.ReachPunched, 1)
	wanted := func() bool {
		b.hear(home, wire.PunchGo, 2, "203.0.113.2:2000", wire.ReachPunched, 7)
		accepted, _, _ := b.said(wire.PunchAccept)
		b.Route(b.now, m)
		return accepted != 0 || b.path(2).wanted
	}
	step := func(d time.Duration) {
		b.Tick(b.now)
		for end := b.now.Add(d); b.now < end; b.now = b.now.Add(time.Second) {
			home.Heard = b.now
			b.Heard(b.now, home)
			b.views[globalV4].missed = 0
			b.tickPatience(b.now)
		}
	}
	step(15 * time.Second)
	if wanted() {
		t.Error("it punches before it knows its class")
	}
	other.Heard = b.now
	step(classPatience - 5*time.Second)
	if wanted() {
		t.Error("it punches before a second observer had the time to say anything")
	}
	step(6 * time.Second)
	if !wanted() {
		t.Error("it waits for ever")
	}

	b, _ = classed()
	m = b.member(2, "203.0.113.2:2000", wire.ReachUnknown, 1)
	for _, c := range []struct {
		class wire.Reach
		after time.Duration
		want  bool
	}{{wire.ReachPunched, 0, false}, {wire.ReachRelayed, 0, false}, {wire.ReachPublic, 0, true}, {wire.ReachPunched, classPatience, true}} {
		b.class[globalV4] = c.class
		b.now = b.now.Add(c.after)
		if p := b.path(2); b.mayPunch(b.now, p, m) != c.want {
			t.Errorf("%v after %v to one whose class is not known: want %v", c.class, c.after, c.want)
		}
	}
}

// While one observer is all there was, another one is asked where it sees this cell, and no longer than it is of use (F32).
func TestF32_ASecondObserverIsAsked(t *testing.T) {
	b, home := classed()
	v := &b.views[globalV4]
	b.class[globalV4], v.agreed, v.observer, b.begun = wire.ReachUnknown, 0, home.Address.Addr(), b.now
	pings := func() (to []netip.AddrPort) {
		b.seekObserver(b.now, v)
		for _, m := range b.take() {
			if m.kind == wire.TypePing {
				to = append(to, m.address)
			}
		}
		return to
	}
	if to := pings(); len(to) != 1 || to[0] != at("198.51.100.9:12421") {
		t.Fatalf("asked %v", to)
	}
	b.Pong(b.now, b.members.Get(9), at("198.51.100.9:12421"), b.question.nonce, wire.AppendPing(nil, at("203.0.113.1:12421")))
	if v.agreed != 1 {
		t.Errorf("its answer does not count: %+v", v)
	}
	if to := pings(); len(to) != 0 {
		t.Errorf("asked %v although two agree", to)
	}
	v.agreed, b.now = 0, b.now.Add(classPatience)
	asked := 0
	for range 600 { // ten minutes
		asked += len(pings())
		b.now = b.now.Add(time.Second)
	}
	if asked == 0 || asked > 20 {
		t.Errorf("asked %d times in ten minutes", asked)
	}
}

// Another observer is asked though dial-backs have settled that nobody gets through: what the router does with ports is
// another question (F31, F32).
func TestF32_SettledCallsDoNotKeepFromAsking(t *testing.T) {
	b, home := classed()
	v := &b.views[globalV4]
	b.class[globalV4], v.agreed, v.observer = wire.ReachUnknown, 0, home.Address.Addr()
	v.missed, v.refuted = 3, dialsProve
	b.dial.next, b.dial.widest = b.now.Add(dialSettled), globalV4
	asked := 0
	for range 50 {
		b.pass(100 * time.Millisecond)
		for _, m := range b.take() {
			if m.kind == wire.TypePing && m.address == at("198.51.100.9:12421") && b.question.id == 9 {
				asked++
			}
		}
	}
	if asked == 0 {
		t.Error("nobody was asked within five seconds")
	}
}

// A cell with private addresses alone is not public because acquaintances got through before anybody told it where it is
// seen: it must be behind a router (F31).
func TestF31_NotPublicBeforeAnybodySawIt(t *testing.T) {
	b := newBench("192.168.1.10:12421")
	b.views[globalV4].dialled(true, false)
	b.views[globalV4].dialled(true, false)
	b.judge(b.now)
	if b.class[globalV4] == wire.ReachPublic {
		t.Error("it calls itself public")
	}
	b = newBench("198.51.100.7:12421")
	b.views[globalV4].dialled(true, false)
	b.views[globalV4].dialled(true, false)
	b.judge(b.now)
	if b.class[globalV4] != wire.ReachPublic {
		t.Error("with a global address it is not public")
	}
}

// A cell that many ask at once, as all do when a cluster forms, takes part in all: each of them is told (F35).
func TestF35_ManyAreIntroducedAtOnce(t *testing.T) {
	b := newBench("198.51.100.1:12421")
	target := b.member(2, "203.0.113.2:2000", wire.ReachPunched, self)
	for i := range 40 {
		b.member(wire.CellID(1000+i), "203.0.113.9:1000", wire.ReachPunched, self)
		b.hear(target, wire.PunchAccept, wire.CellID(1000+i), "203.0.113.9:1000", wire.ReachPunched, uint64(1+i))
	}
	if told, _, _ := b.said(wire.PunchStart); told != 40 {
		t.Errorf("%d of 40 are told", told)
	}
	for i := range 1000 {
		b.hear(target, wire.PunchAccept, 1000, "203.0.113.9:1000", wire.ReachPunched, uint64(1+i))
	}
	if told, _, _ := b.said(wire.PunchStart); told > punchesBurst {
		t.Errorf("%d are told at once because of one cell", told)
	}
}

// The two sides of a search agree through a relay: without one there is nothing to begin, and the hour in which no other
// may follow is not used up (F35).
func TestF35_NoSearchWithoutARelay(t *testing.T) {
	b, _ := classed()
	b.class[globalV4] = wire.ReachRelayed
	m := b.member(2, "203.0.113.2:2000", wire.ReachPunched, 1)
	p := b.path(2)
	p.failed, p.used = b.now, b.now
	b.options.OpenSocket = func(int) bool { return true }
	b.Traversal.options.OpenSocket = b.options.OpenSocket
	if !b.maySearch(b.now, p, m) {
		t.Fatal("the test does not test")
	}
	b.members.Get(1).Reach = wire.ReachUnknown // this cell has missed its contact; the member that has it for a home knows better
	if !b.maySearch(b.now, p, m) || b.relayFor(b.now, p, m) != 1 {
		t.Error("a home of the other one is no relay")
	}
	b.members.Get(1).Homes = []wire.CellID{9} // it needs help itself
	if b.maySearch(b.now, p, m) {
		t.Error("it searches without a relay")
	}
}

// What a neighbour on the own network showed settles nothing about the router: as soon as somebody beyond it is known, the
// cell has itself called again, and until then it does not punch (F31, F35).
func TestF31_F35_ANeighbourSettlesNothing(t *testing.T) {
	b := newBench("192.168.1.10:12421")
	lan := b.member(1, "192.168.1.11:12421", wire.ReachUnknown)
	b.Heard(b.now, lan)
	for range dialsProve {
		b.views[privateV4].dialled(true, false)
	}
	b.judge(b.now)
	for range 20 {
		b.Tick(b.now)
		b.now = b.now.Add(500 * time.Millisecond)
	}
	far := b.member(2, "203.0.113.2:2000", wire.ReachRelayed, 3)
	if b.Class() != wire.ReachPublic || !b.pending(b.now, far) {
		t.Fatalf("%v, pending %v", b.Class(), b.pending(b.now, far))
	}
	home := b.member(3, "198.51.100.3:12421", wire.ReachPublic)
	b.Contacted(b.now, home.Address)
	b.take()
	b.Observed(b.now, home, at("203.0.113.7:40001"))
	for end := b.now.Add(dialInterval); b.now < end; b.now = b.now.Add(100 * time.Millisecond) {
		home.Heard = b.now
		b.Tick(b.now)
	}
	if dialled, _, _ := b.said(wire.PunchDial); dialled == 0 {
		t.Error("nobody is asked to call")
	}
}
