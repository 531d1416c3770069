package nat

import (
	"slices"
	"testing"
	"time"

	"colloid.net/meshd/overlay"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// observed has some observers report one after the other, for a while, and returns how often the class changed.
func (b *bench) observed(rounds int, reports map[*overlay.Member]string, order ...*overlay.Member) (changes int) {
	for range rounds {
		for _, m := range order {
			before := b.Class()
			b.Observed(b.now, m, at(reports[m]))
			b.now = b.now.Add(700 * time.Millisecond)
			if b.Class() != before {
				changes++
			}
		}
	}
	return changes
}

// refuted makes a bench whose router is known to let no strangers in, with five observers.
func refuted() (b *bench, o [5]*overlay.Member) {
	b = newBench("192.168.1.10:12421")
	for i, address := range []string{"198.51.100.1:1", "198.51.100.2:1", "198.51.100.3:1", "198.51.100.4:1", "198.51.100.5:1"} {
		o[i] = b.member(wire.CellID(1+i), address, wire.ReachPublic)
		b.Contacted(b.now, o[i].Address)
	}
	for range dialsRefute {
		b.views[globalV4].dialled(false, true)
	}
	return b, o
}

// Two machines of one port behind a router such as Linux makes are seen at two ports each, if they met the others in different
// order. That is no router which draws a port for each destination: the class is PUNCHED and stays so, whoever reports next, and
// both places are published, since what the cell begins may leave by either (F32, F33).
func TestF32_F33_TwoPortsOfOneRouterAreNoSymmetricRouter(t *testing.T) {
	b, o := refuted()
	reports := map[*overlay.Member]string{o[0]: "203.0.113.7:12421", o[1]: "203.0.113.7:40001", o[2]: "203.0.113.7:40001",
		o[3]: "203.0.113.7:12421", o[4]: "203.0.113.7:40001"}
	b.observed(2, reports, o[0], o[1], o[2], o[3], o[4])
	if f := b.Finding(); f.Reach != wire.ReachPunched || f.Mapping != "one-port" {
		t.Fatalf("%+v", f)
	}
	b.Changed()
	b.Recovered()
	changes := b.observed(100, reports, o[1], o[0], o[3], o[2], o[0], o[4], o[3])
	if changes != 0 || b.Changed() || b.Recovered() != 0 {
		t.Errorf("the class changed %d times, or something else did", changes)
	}
	var addresses []string
	for _, c := range b.Candidates(make([]state.Candidate, 0, state.CandidatesMax)) {
		if c.Reach == wire.ReachPunched {
			addresses = append(addresses, c.Address.String())
		}
	}
	if !slices.Equal(addresses, []string{"203.0.113.7:40001", "203.0.113.7:12421"}) {
		t.Errorf("published %v", addresses)
	}
	for m := range reports { // then the router forgets all and keeps one port
		reports[m] = "203.0.113.7:5000"
	}
	b.observed(2, reports, o[0], o[1], o[2], o[3], o[4])
	if f, shown := b.Finding(), b.shown(); f.Reach != wire.ReachPunched || shown != at("203.0.113.7:5000") || b.views[globalV4].other.IsValid() {
		t.Errorf("%+v, shown at %v and %v", f, shown, b.views[globalV4].other)
	}
}

// A router that draws a port for each destination is one, even if two of many observers see the same by chance (F32).
func TestF32_ASymmetricRouterStaysOne(t *testing.T) {
	b, o := refuted()
	reports := map[*overlay.Member]string{o[0]: "203.0.113.7:1001", o[1]: "203.0.113.7:1002", o[2]: "203.0.113.7:1003",
		o[3]: "203.0.113.7:1004", o[4]: "203.0.113.7:1005"}
	b.observed(20, reports, o[0], o[1], o[2], o[3], o[4])
	if f := b.Finding(); f.Reach != wire.ReachRelayed || len(b.Candidates(make([]state.Candidate, 0, state.CandidatesMax))) != 2 {
		t.Errorf("%+v", f)
	}
	more := []*overlay.Member{o[0], o[1], o[2], o[3], o[4]}
	for i := range 5 {
		m := b.member(wire.CellID(20+i), []string{"198.51.100.21:1", "198.51.100.22:1", "198.51.100.23:1", "198.51.100.24:1", "198.51.100.25:1"}[i],
			wire.ReachPublic)
		reports[m] = []string{"203.0.113.7:2001", "203.0.113.7:2002", "203.0.113.7:2003", "203.0.113.7:2004", "203.0.113.7:1005"}[i]
		more = append(more, m)
	}
	if changes := b.observed(20, reports, more...); changes != 0 || b.Class() != wire.ReachRelayed {
		t.Errorf("%d changes, %v", changes, b.Class())
	}
}

// A search goes to both places that the easy side publishes, and keeps the one that answers (F35).
func TestF35_ASearchTriesBothPortsOfTheEasySide(t *testing.T) {
	s := newSearcher(wire.ReachRelayed)
	told, other := at("203.0.113.99:7777"), at("203.0.113.99:12421")
	s.partner.Candidates = []state.Candidate{{Address: other, Reach: wire.ReachPunched}, {Address: told, Reach: wire.ReachPunched}}
	s.Confirmed(s.now, s.home)
	s.path(2).used = s.now
	s.run(time.Second, func(message) {})
	s.says(s.home, wire.PunchSearchGo, 2, told.String())
	s.says(s.partner, wire.PunchSearchReady, self, "203.0.113.7:40001")
	syns := map[string]int{}
	s.run(knockWait+time.Second, func(m message) {
		if m.kind == wire.TypePunchSyn {
			syns[m.address.String()]++
		}
	})
	if syns[told.String()] != searchSockets+len(synOffsets) || syns[other.String()] != syns[told.String()] || len(syns) != 2 {
		t.Errorf("sent %v", syns)
	}
	if s.Arrived(s.now, 7, 2, at("203.0.113.99:7")) || !s.Arrived(s.now, 7, 2, other) || s.SocketFor(other) != 7 || len(s.open) != 1 {
		t.Error("the other port is not heard")
	}
	s.partner.Address = other
	s.Confirmed(s.now, s.partner)
	if r := s.Report(s.now, s.partner); !r.Searched || s.search != nil {
		t.Errorf("%+v", r)
	}
}

// The easy side says itself where else its router has it, since its contact may be older; what it says of another address
// counts for nothing (F14, F35).
func TestF14_F35_TheEasySideNamesItsOtherPort(t *testing.T) {
	for said, want := range map[string]string{"203.0.113.99:4000": "203.0.113.99:4000", "203.0.113.98:4000": "", "203.0.113.99:7777": ""} {
		s := newSearcher(wire.ReachRelayed)
		s.Confirmed(s.now, s.home)
		s.path(2).used = s.now
		s.run(time.Second, func(message) {})
		s.says(s.partner, wire.PunchSearchReady, self, said)
		s.says(s.home, wire.PunchSearchGo, 2, "203.0.113.99:7777")
		if s.search == nil || !s.search.begun || s.search.other.IsValid() != (want != "") || want != "" && s.search.other != at(want) {
			t.Errorf("said %s: %+v", said, s.search)
		}
	}
	s := newSearcher(wire.ReachPunched)
	v := &s.views[globalV4]
	v.most, v.other = at("203.0.113.7:40001"), at("203.0.113.7:12421")
	s.says(s.home, wire.PunchSearchGo, 2, "203.0.113.99:5555")
	named := false
	for _, m := range s.take() {
		if r, err := wire.ParsePunchReq(m.payload, wire.Options{}); m.kind == wire.TypePunchReq && err == nil && r.Target.Flags == wire.PunchSearchReady {
			named = r.Target.Address == v.other
		}
	}
	if !named {
		t.Error("the easy side does not say where else it is")
	}
}

// A PUNCH_SYN that comes when the five of this side have been sent is answered: they may all have come before the other
// side's filter was open. So is one of a cell whose newest contact does not say yet that it needs help (F35).
func TestF35_ALateSynIsAnswered(t *testing.T) {
	for _, plain := range []bool{false, true} {
		b, home := classed()
		m := b.member(2, "203.0.113.2:1", wire.ReachPunched, 1)
		from := at("203.0.113.2:2000")
		b.hear(home, wire.PunchGo, 2, from.String(), wire.ReachPunched, 7)
		syn := func() (answers int) {
			b.guard.Received(b.now, from, 48)
			b.Receive(b.now, m, from, wire.Header{Type: wire.TypePunchSyn}, wire.AppendPunchSyn(nil, 7))
			_, answers, _ = b.said(0)
			return answers
		}
		b.said(0)
		if n := syn(); n != 0 || len(b.checked) == 0 {
			t.Errorf("%d answers while the five are sent, checked %v", n, b.checked)
		}
		b.pass(time.Second)
		b.said(0)
		if plain {
			b.class[globalV4], m.Reach, m.Homes, b.homes = wire.ReachPublic, wire.ReachUnknown, nil, nil
		}
		b.checked = nil
		if n := syn(); n != 1 || len(b.checked) == 0 {
			t.Errorf("needs no help %t: %d answers afterwards, checked %v", plain, n, b.checked)
		}
	}
}

// When the class of the other one becomes another, what was in vain is tried again at once (F35).
func TestF35_ANewClassIsTriedAtOnce(t *testing.T) {
	b, _ := classed()
	m := b.member(2, "203.0.113.2:2000", wire.ReachUnknown, 1)
	p := b.path(2)
	b.pass(time.Second)
	p.again, p.tries = b.now.Add(againMax), 9
	b.pass(time.Second)
	if p.again < b.now.Add(againMax/2) {
		t.Fatal("the test does not test")
	}
	m.Reach = wire.ReachPunched
	b.pass(time.Second)
	if p.again > b.now || p.tries != 0 {
		t.Errorf("again in %v, after %d tries", p.again.Sub(b.now), p.tries)
	}
}

// When two observers have seen this cell leave a place, what three others said of it before counts no more (F32, F36).
func TestF36_WhatWasSeenBeforeAMoveIsOutdated(t *testing.T) {
	b, o := refuted()
	reports := map[*overlay.Member]string{o[0]: "203.0.113.7:12421", o[1]: "203.0.113.7:40001", o[2]: "203.0.113.7:40001",
		o[3]: "203.0.113.7:40001", o[4]: "203.0.113.7:40001"}
	b.observed(3, reports, o[0], o[1], o[2], o[3], o[4])
	reports[o[0]], reports[o[1]] = "203.0.113.7:5000", "203.0.113.7:5000"
	b.observed(1, reports, o[0], o[1])
	if shown := b.shown(); shown != at("203.0.113.7:5000") || b.Class() != wire.ReachPunched {
		t.Errorf("shown at %v, %v", shown, b.Class())
	}
}

// A cell that came a moment ago waits until it knows its own class, also before it has looked at the time (F35).
func TestF35_ACellThatJustCameDoesNotPunch(t *testing.T) {
	b, home := classed()
	b.class[globalV4], b.views[globalV4].agreed = wire.ReachUnknown, 0
	m := b.member(2, "203.0.113.2:2000", wire.ReachRelayed, home.ID)
	b.Route(b.now, m)
	if b.paths[2].wanted {
		t.Error("it wants to punch before it knows its class")
	}
	b.pass(classPatience)
	if asked, _, _ := b.said(wire.PunchAsk); asked != 0 {
		t.Errorf("asked %d times", asked)
	}
}
