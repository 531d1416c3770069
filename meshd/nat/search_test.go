package nat

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/overlay"
	"colloid.net/meshd/wire"
)

// searcher is a bench behind a router whose class is known, with two homes and one partner.
type searcher struct {
	*bench
	home, partner *overlay.Member
	open          map[int]bool
	via           map[int]int // datagrams by socket
}

const searchNonce = 0x1234567890abcdef

// newSearcher makes a cell of the given class whose partner has the other one of a hard and an easy pair.
func newSearcher(class wire.Reach) *searcher {
	b := newBench("192.168.1.10:12421")
	s := &searcher{bench: b, open: make(map[int]bool), via: make(map[int]int)}
	b.options.OpenSocket = func(socket int) bool {
		if s.open[socket] || socket < 1 || socket > SocketsMax {
			panic("opened twice, or a wrong one")
		}
		s.open[socket] = true
		return true
	}
	b.options.CloseSocket = func(socket int) {
		if !s.open[socket] {
			panic("closed twice")
		}
		delete(s.open, socket)
	}
	b.options.SendVia = func(socket int, to wire.CellID, address netip.AddrPort, kind wire.Type, nonce uint32, payload []byte) {
		if !s.open[socket] || kind != wire.TypePunchSyn {
			panic("sent through a closed socket, or something else")
		}
		s.via[socket]++
		b.options.SendTo(to, address, kind, nonce, payload)
	}
	b.options.Recheck = b.options.Check
	s.home = b.member(1, "198.51.100.1:12421", wire.ReachPublic)
	other := b.member(3, "198.51.100.3:12421", wire.ReachPublic)
	for i := range 4 { // two observers, who agree or not
		port := uint16(40001)
		if class == wire.ReachRelayed {
			port += uint16(i)
		}
		b.Contacted(b.now, s.home.Address)
		b.Contacted(b.now, other.Address)
		b.Observed(b.now, []*overlay.Member{s.home, other}[i%2], netip.AddrPortFrom(netip.MustParseAddr("203.0.113.7"), port))
		b.now = b.now.Add(time.Second)
	}
	theirs := wire.ReachPunched
	if class == wire.ReachPunched {
		theirs = wire.ReachRelayed
		for range dialsRefute {
			b.views[globalV4].dialled(false, true)
		}
		b.judge(b.now)
	}
	s.partner = b.member(2, "203.0.113.99:12421", theirs, 1)
	if b.Class() != class {
		panic("class " + b.Class().String())
	}
	b.take()
	return s
}

func (s *searcher) says(from *overlay.Member, what uint8, named wire.CellID, address string) {
	request := wire.PunchReq{Target: wire.Contact{ID: named, Address: at(address), Flags: what}, Rendezvous: searchNonce}
	if search := s.search; search != nil && search.hard {
		request.Rendezvous = search.rendezvous
	}
	s.Receive(s.now, from, from.Address, wire.Header{Type: wire.TypePunchReq}, wire.AppendPunchReq(nil, request))
}

// punchReqs returns what the PUNCH_REQ among some messages say.
func punchReqs(sent []message) (what []uint8) {
	for _, m := range sent {
		if request, err := wire.ParsePunchReq(m.payload, wire.Options{}); m.kind == wire.TypePunchReq && err == nil {
			what = append(what, request.Target.Flags)
		}
	}
	return what
}

// run lets time pass up to a limit and returns what was sent when.
func (s *searcher) run(limit time.Duration, each func(m message)) {
	for end := s.now.Add(limit); ; {
		s.home.Heard, s.partner.Heard = s.now, s.now
		s.Tick(s.now)
		for _, m := range s.take() {
			each(m)
		}
		next := max(s.Deadline(), s.now.Add(time.Millisecond))
		if next > end {
			s.now = end
			return
		}
		s.now = next
	}
}

// begin brings the easy side to where it sends.
func (s *searcher) begin() {
	s.says(s.home, wire.PunchSearchGo, 2, "203.0.113.99:5555")
	s.take()
	s.says(s.partner, wire.PunchSearchBegin, self, "203.0.113.7:40001")
}

// The easy side takes part only where a home of one of the two says so, for an address that the hard side itself has
// published, that is global, and at which nobody is reached without help (F14, F35). It waits for the hard side.
func TestF14_F35_NobodyAimsASearch(t *testing.T) {
	address := "203.0.113.99:5555"
	stranger := func(s *searcher) *overlay.Member { return s.member(5, "198.51.100.5:12421", wire.ReachPublic) }
	for name, test := range map[string]struct {
		prepare func(s *searcher)
		from    func(s *searcher) *overlay.Member
		address string
		want    bool
	}{
		"as it should be":                  {want: true},
		"by a cell that is nobody's home":  {from: stranger},
		"by the hard side":                 {from: func(s *searcher) *overlay.Member { return s.partner }},
		"by a home that needs help":        {prepare: func(s *searcher) { s.home.Reach = wire.ReachPunched }},
		"an address it did not publish":    {address: "203.0.113.98:5555"},
		"an address of another cell":       {prepare: func(s *searcher) { s.member(6, "203.0.113.99:1000", wire.ReachPublic) }},
		"of this cell's own router":        {address: "203.0.113.7:5555", prepare: func(s *searcher) { s.partner.Candidates[0].Address = at("203.0.113.7:12421") }},
		"a private address":                {address: "10.0.0.1:5555", prepare: func(s *searcher) { s.partner.Candidates[0].Address = at("10.0.0.1:12421") }},
		"a loopback address":               {address: "127.0.0.1:5555", prepare: func(s *searcher) { s.partner.Candidates[0].Address = at("127.0.0.1:12421") }},
		"a shared address":                 {address: "100.64.0.1:5555", prepare: func(s *searcher) { s.partner.Candidates[0].Address = at("100.64.0.1:12421") }},
		"of the other version of IP":       {address: "[2001:db8::1]:5555", prepare: func(s *searcher) { s.partner.Candidates[0].Address = at("[2001:db8::1]:12421") }},
		"a cell whose router keeps a port": {prepare: func(s *searcher) { s.partner.Reach = wire.ReachPunched }},
		"a cell that is reached already":   {prepare: func(s *searcher) { s.Confirmed(s.now, s.partner); s.partner.Reach = wire.ReachPublic }},
		"when it was told not to":          {prepare: func(s *searcher) { s.options.NoSearch = true }},
	} {
		s := newSearcher(wire.ReachPunched)
		if test.prepare != nil {
			test.prepare(s)
		}
		from, to := s.home, address
		if test.from != nil {
			from = test.from(s)
		}
		if test.address != "" {
			to = test.address
		}
		s.says(from, wire.PunchSearchGo, 2, to)
		sent := s.take()
		ready := len(punchReqs(sent)) == 1
		knocks := slices.DeleteFunc(sent, func(m message) bool { return m.kind != wire.TypePunchSyn })
		if len(knocks) > 0 && !ready || len(knocks) > 1 || len(knocks) == 1 && knocks[0].address != at(to) {
			t.Errorf("%s: it opens its filter for %v", name, knocks)
		}
		probes := 0
		count := func(m message) {
			if m.kind == wire.TypePunchSyn {
				probes++
			}
		}
		s.run(beginWait-time.Millisecond, count)
		if ready != test.want || probes != 0 {
			t.Errorf("%s: takes part: %v, %d probes before it was told to begin", name, ready, probes)
		}
		s.says(s.partner, wire.PunchSearchBegin, self, "203.0.113.7:40001")
		s.run(10*time.Second, count)
		if (probes > 0) != test.want {
			t.Errorf("%s: %d probes", name, probes)
		}
	}
}

// The easy side sends to each port once in a search, to no privileged one, at most 1000 a second and 3072 in all, and for
// one pair not again for a minute, then four minutes and so on, however often it is asked to (F14, F35).
func TestF14_F35_ProbesAreBounded(t *testing.T) {
	s := newSearcher(wire.ReachPunched)
	s.begin()
	ports := make(map[uint16]bool)
	var moments []clock.Instant
	note := func(m message) {
		if m.kind != wire.TypePunchSyn {
			return
		}
		if ports[m.address.Port()] || m.address.Port() < 1024 || m.address.Addr() != netip.MustParseAddr("203.0.113.99") {
			t.Fatalf("a probe to %v", m.address)
		}
		ports[m.address.Port()] = true
		moments = append(moments, s.now)
	}
	s.run(20*time.Second, note)
	if len(ports) != probesMax {
		t.Errorf("%d probes", len(ports))
	}
	for i := range moments {
		if i >= 1000 && moments[i].Sub(moments[i-1000]) < time.Second {
			t.Fatalf("1000 probes within %v", moments[i].Sub(moments[i-1000]))
		}
	}
	var began []time.Duration
	first := moments[0]
	for range 240 {
		clear(ports)
		before := len(moments)
		s.begin()
		s.run(30*time.Second, note)
		if count := len(moments) - before; count > probesMax {
			t.Errorf("%d probes in one search", count)
		} else if count > 0 {
			began = append(began, moments[before].Sub(first).Round(time.Second))
		}
	}
	t.Logf("asked every 30 s, searched again after %v", began)
	if len(began) != 5 || began[0] < 50*time.Second || began[1] < 250*time.Second || began[2] < 1050*time.Second ||
		began[3] < 4050*time.Second {
		t.Errorf("searched again after %v", began)
	}
}

// Whoever asks, and for whom: in any hour a cell sends at most 16384 probes, and it says so to those it has no time
// for (F14, F35).
func TestF14_F35_ProbesOfACellAreBounded(t *testing.T) {
	s := newSearcher(wire.ReachPunched)
	var moments []clock.Instant
	busy := 0
	for i := range 600 {
		id := wire.CellID(1000 + i)
		m := s.member(id, netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 1, byte(i >> 8), byte(i)}), 12421).String(), wire.ReachRelayed, 1)
		s.says(s.home, wire.PunchSearchGo, id, m.Address.String())
		for _, what := range punchReqs(s.take()) {
			if what == wire.PunchSearchBusy {
				busy++
			}
		}
		s.says(m, wire.PunchSearchBegin, self, "203.0.113.7:40001")
		s.run(15*time.Second, func(m message) {
			if m.kind == wire.TypePunchSyn {
				moments = append(moments, s.now)
			}
		})
	}
	most := 0
	for i, j := 0, 0; i < len(moments); i++ {
		for moments[i].Sub(moments[j]) > time.Hour {
			j++
		}
		most = max(most, i-j+1)
	}
	if most > probesBurst+probesPerHour || most < probesBurst || busy == 0 {
		t.Errorf("%d probes within an hour, of %d; busy %d times", most, len(moments), busy)
	}
}

// begun brings the hard side to where its sockets are open.
func (s *searcher) begun(t *testing.T) {
	t.Helper()
	s.Confirmed(s.now, s.home)
	p := s.path(2)
	p.used = s.now
	asked := false
	s.run(time.Second, func(m message) {
		for _, what := range punchReqs([]message{m}) {
			asked = asked || what == wire.PunchSearch && m.to == s.home.ID
		}
	})
	if !asked || len(s.open) != 0 {
		t.Fatalf("asked %v, %d sockets open", asked, len(s.open))
	}
	s.says(s.home, wire.PunchSearchGo, 2, "203.0.113.99:7777")
	s.says(s.partner, wire.PunchSearchReady, self, "203.0.113.7:40001")
	begins, knocks := 0, 0
	s.run(knockWait+time.Second, func(m message) {
		for _, what := range punchReqs([]message{m}) {
			if what == wire.PunchSearchBegin && m.to == 2 {
				begins++
			}
		}
		if m.kind == wire.TypePunchSyn && m.address != at("203.0.113.99:7777") {
			t.Errorf("a PUNCH_SYN to %v", m.address)
		}
		if m.kind == wire.TypePunchSyn && len(s.open) == 0 {
			knocks++
		}
	})
	if knocks != len(synOffsets) || p.Attempts != 1 {
		t.Errorf("%d PUNCH_SYN from its own socket, %d attempts", knocks, p.Attempts)
	}
	if len(s.open) != searchSockets || len(s.via) != searchSockets || begins != len(beginOffsets) {
		t.Fatalf("%d sockets open, %d used, told to begin %d times", len(s.open), len(s.via), begins)
	}
}

// The hard side opens 256 sockets and uses each once, later once more. They hear the partner from where it was told to
// be, and nobody else; the first one that hears it is kept and all others are closed at once. It counts when the
// partner has echoed a nonce, and is closed when the path is lost (F35, F155).
func TestF35_F155_TheFirstSocketThatHearsIsKept(t *testing.T) {
	s := newSearcher(wire.ReachRelayed)
	s.begun(t)
	partner := at("203.0.113.99:7777")
	for name, wrong := range map[string]bool{
		"another cell":    s.Arrived(s.now, 7, 3, partner),
		"another address": s.Arrived(s.now, 7, 2, at("203.0.113.99:7778")),
		"another socket":  s.Arrived(s.now, 270, 2, partner),
	} {
		if wrong {
			t.Errorf("%s is heard", name)
		}
	}
	if !s.Arrived(s.now, 7, 2, partner) || len(s.open) != 1 || !s.open[7] {
		t.Fatalf("%d sockets open", len(s.open))
	}
	if s.Arrived(s.now, 8, 2, partner) || !s.Arrived(s.now, 7, 2, partner) || s.SocketFor(partner) != 7 {
		t.Error("another socket is heard, or the kept one is not used")
	}
	if len(s.checked) == 0 || s.checked[len(s.checked)-1] != partner {
		t.Errorf("checked %v", s.checked)
	}
	s.partner.Address = partner
	s.Confirmed(s.now, s.partner)
	if r := s.Report(s.now, s.partner); r.Kind != KindPunched || !r.Searched || s.search != nil {
		t.Errorf("%+v", r)
	}
	if s.Arrived(s.now, 7, 3, partner) || s.Arrived(s.now, 7, 2, at("203.0.113.99:7778")) || !s.Arrived(s.now, 7, 2, partner) {
		t.Error("a kept socket hears others, or its partner no more")
	}
	pings := 0
	for range 10 { // ten idle minutes
		s.run(time.Minute, func(m message) {
			if m.kind == wire.TypePing && m.address == partner {
				pings++
				s.Heard(s.now, s.partner)
			}
		})
	}
	if pings < 30 || !s.open[7] {
		t.Errorf("%d keepalives, %v", pings, s.open)
	}
	s.run(time.Minute, func(message) {})
	if len(s.open) != 0 || s.SocketFor(partner) != 0 || s.Report(s.now, s.partner).Searched {
		t.Errorf("a lost path keeps %v", s.open)
	}
	s.Close()
}

// Nothing is kept of a search that leads nowhere, of one whose way is not proven, or of a cell that is forgotten.
func TestF35_SearchesGiveSocketsBack(t *testing.T) {
	for name, end := range map[string]func(s *searcher){
		"nothing came":     func(*searcher) {},
		"not proven":       func(s *searcher) { s.Arrived(s.now, 9, 2, at("203.0.113.99:7777")) },
		"forgotten":        func(s *searcher) { s.members.Remove(2); s.Forget(2) },
		"another cluster":  func(s *searcher) { s.Close() },
		"kept and forgone": func(s *searcher) { s.Arrived(s.now, 9, 2, at("203.0.113.99:7777")); s.members.Remove(2); s.Forget(2) },
	} {
		s := newSearcher(wire.ReachRelayed)
		s.begun(t)
		end(s)
		s.run(searchTime+settleTime, func(message) {})
		if len(s.open) != 0 || s.search != nil || len(s.kept) != 0 {
			t.Errorf("%s: %d sockets open", name, len(s.open))
		}
		for socket, count := range s.via {
			if count > 2 {
				t.Errorf("%s: %d datagrams from socket %d", name, count, socket)
			}
		}
	}
}

// A hard side that opened its sockets too slowly, as on a busy machine, is told so and tries again soon: nobody has
// probed, so the two need not wait for an hour. How often is bounded all the same (F14, F35).
func TestF14_F35_TooLateForASearchIsSaid(t *testing.T) {
	easy := newSearcher(wire.ReachPunched)
	easy.says(easy.home, wire.PunchSearchGo, 2, "203.0.113.99:5555")
	easy.run(beginWait+time.Second, func(message) {})
	if easy.search != nil {
		t.Fatal("it waits for ever")
	}
	easy.says(easy.partner, wire.PunchSearchBegin, self, "203.0.113.7:40001")
	if what := punchReqs(easy.take()); len(what) != 1 || what[0] != wire.PunchSearchBusy {
		t.Errorf("too late: it says %v", what)
	}
	easy.says(easy.home, wire.PunchSearchGo, 2, "203.0.113.99:5555")
	if what := punchReqs(easy.take()); len(what) != 1 || what[0] != wire.PunchSearchReady {
		t.Errorf("asked again it says %v", what)
	}

	hard := newSearcher(wire.ReachRelayed)
	p := hard.path(2)
	for range 200 {
		p.used = hard.now
		hard.run(10*time.Second, func(m message) {
			if s := hard.search; m.kind == wire.TypePunchReq && s != nil {
				for _, what := range punchReqs([]message{m}) {
					switch what {
					case wire.PunchSearch:
						hard.says(hard.home, wire.PunchSearchGo, 2, "203.0.113.99:12421")
						hard.says(hard.partner, wire.PunchSearchReady, self, "203.0.113.7:40001")
					case wire.PunchSearchBegin:
						hard.says(hard.partner, wire.PunchSearchBusy, self, "203.0.113.7:40001")
					}
				}
			}
		})
	}
	if n := hard.Stats().Searches; n < 2 || n > 16 || len(hard.open) != 0 {
		t.Errorf("%d searches in half an hour, %d sockets open", n, len(hard.open))
	}
	t.Logf("%d searches in half an hour of refusals", hard.Stats().Searches)
}
