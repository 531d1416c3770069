package nat

import (
	"testing"
	"time"

	"colloid.net/meshd/wire"
)

// Where the classes say that it takes a search, the two begin with that: neither asks for an attempt before it. Where the
// other side's filter looks at addresses alone, the search ends with the first exchange and opens no socket (F35).
func TestF35_TheSearchComesFirst(t *testing.T) {
	for _, class := range []wire.Reach{wire.ReachRelayed, wire.ReachPunched} {
		s := newSearcher(class)
		s.Confirmed(s.now, s.home)
		searches := 0
		for range 8 {
			s.Route(s.now, s.partner)
			s.run(2*time.Second, func(m message) {
				for _, what := range punchReqs([]message{m}) {
					if what == wire.PunchAsk {
						t.Errorf("%v: asks for an attempt", class)
					}
					if what == wire.PunchSearch {
						searches++
					}
				}
			})
		}
		if (searches > 0) != (class == wire.ReachRelayed) {
			t.Errorf("%v: asks %d times for a search", class, searches)
		}
	}
	hard := newSearcher(wire.ReachRelayed)
	hard.Confirmed(hard.now, hard.home)
	hard.path(2).used = hard.now
	hard.run(100*time.Millisecond, func(message) {})
	hard.says(hard.partner, wire.PunchSearchReady, self, "203.0.113.7:40001")
	hard.says(hard.home, wire.PunchSearchGo, 2, "203.0.113.99:7777")
	hard.run(100*time.Millisecond, func(message) {})
	hard.Receive(hard.now, hard.partner, at("203.0.113.99:7777"), wire.Header{Type: wire.TypePunchSyn},
		wire.AppendPunchSyn(nil, hard.search.rendezvous))
	hard.partner.Address = at("203.0.113.99:7777")
	hard.Confirmed(hard.now, hard.partner)
	hard.run(2*time.Second, func(message) {})
	if r := hard.Report(hard.now, hard.partner); r.Kind != KindPunched || r.Searched || r.Attempts != 1 || len(hard.via) != 0 {
		t.Errorf("%+v, %d sockets used", r, len(hard.via))
	}

	easy := newSearcher(wire.ReachPunched)
	easy.says(easy.home, wire.PunchSearchGo, 2, "203.0.113.99:5555")
	easy.take()
	easy.Receive(easy.now, easy.partner, at("203.0.113.99:6666"), wire.Header{Type: wire.TypePunchSyn},
		wire.AppendPunchSyn(nil, searchNonce))
	if len(easy.checked) != 1 || easy.checked[0] != at("203.0.113.99:6666") {
		t.Errorf("checked %v", easy.checked)
	}
	easy.partner.Address = at("203.0.113.99:6666")
	easy.Confirmed(easy.now, easy.partner)
	if r := easy.Report(easy.now, easy.partner); r.Searched || r.Attempts != 1 || easy.search != nil {
		t.Errorf("%+v", r)
	}
}

// An answer that takes longer than the next coordinator is waited for counts all the same, and a repeated question is
// answered like the first: on a busy machine the two agree later, not in another minute (F35).
func TestF35_SlowAnswersBeforeASearchCount(t *testing.T) {
	hard := newSearcher(wire.ReachRelayed)
	hard.Contacted(hard.now, hard.member(4, "198.51.100.4:12421", wire.ReachPublic).Address)
	hard.partner.Homes = append(hard.partner.Homes, 4)
	hard.Confirmed(hard.now, hard.home)
	hard.path(2).used = hard.now
	numbers := make(map[uint64]bool)
	hard.run(coordinatorWait+200*time.Millisecond, func(m message) {
		if request, err := wire.ParsePunchReq(m.payload, wire.Options{}); m.kind == wire.TypePunchReq && err == nil &&
			request.Target.Flags == wire.PunchSearch {
			numbers[request.Rendezvous] = true
		}
	})
	if len(numbers) != 1 || hard.search.asked != 2 {
		t.Errorf("asked %d with the numbers %v", hard.search.asked, numbers)
	}
	hard.says(hard.home, wire.PunchSearchGo, 2, "203.0.113.99:7777")
	hard.says(hard.partner, wire.PunchSearchReady, self, "203.0.113.7:40001")
	if !hard.search.begun {
		t.Error("the answer to the first question is of no use")
	}

	easy := newSearcher(wire.ReachPunched)
	for range 2 {
		easy.says(easy.home, wire.PunchSearchGo, 2, "203.0.113.99:5555")
		if what := punchReqs(easy.take()); len(what) != 1 || what[0] != wire.PunchSearchReady {
			t.Errorf("it says %v", what)
		}
		easy.run(1200*time.Millisecond, func(message) {})
	}
}
