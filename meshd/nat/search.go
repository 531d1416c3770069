package nat

import (
	"net/netip"
	"slices"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/overlay"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// A search makes two cells meet of which one is behind a router that uses another port for each destination, the
// hard side, and the other behind a filter that looks at addresses and ports, the easy side. The hard side sends to the
// easy one from many sockets, so its router opens as many ports; the easy one sends to ports that it draws. Whichever
// datagram meets an open port shows it (a birthday search):
//
//	hard                        coordinator                       easy
//	  │ PunchSearch ─────────────────►│ PunchSearchGo ──────────────►│
//	  │◄───────────── PunchSearchGo   │                              │
//	  │◄──────────────────── relayed: PunchSearchReady, or Busy ─────│
//	  │                                one PUNCH_SYN to its address  │
//	  │ five PUNCH_SYN from its own socket ─────────────────────────►│ (gets in where addresses alone are looked at)
//	  │ PUNCH_SYN from 256 sockets ─────────────────────────────────►│ (dropped by its filter)
//	  │ relayed: PunchSearchBegin ──────────────────────────────────►│
//	  │◄─────────────────── PUNCH_SYN to 800 drawn ports a second ───│
//	  │ first one that gets in: keep its socket, close all others    │
//	  │ PUNCH_SYN and PING through it ──────────────────────────────►│
//
// With s sockets and p probes the chance to miss is C(64512-s, p) / C(64512, p): with 256 and 3072 it is 0.000004, with
// 256 and 1024 0.017. A hit takes 252 probes on average. Whatever part of the 64512 ports the router uses, the chance
// is the same, since the easy side draws from all of them.
//
// What two classes say does not tell whether the easy side's filter looks at ports, so the search begins with what takes no
// further socket: that is the attempt of such a pair, and there is no other before it.
const (
	// SocketsMax is how many sockets a cell has beside its own: those of one search and those kept.
	SocketsMax = searchSockets + keptMax
	// searchSockets are opened for one search; with fewer than searchSocketsMin, where descriptors are short, a
	// search is not worth its datagrams: the chance is 87 %.
	searchSockets    = 256
	searchSocketsMin = 64
	// keptMax bounds the cells that this one reaches through a socket kept from a search.
	keptMax = 16
	// probesMax bounds the datagrams of one search to ports that were drawn, out of ports from portFirst on.
	probesMax = 3072
	// probesMin are the least for which a search begins, where an hour's are used up: 98.3 %.
	probesMin = 1024
	portFirst = 1024
	ports     = 1<<16 - portFirst

	// probesAtOnce are sent every probeInterval, on average: 800 a second.
	probesAtOnce  = 8
	probeInterval = 10 * time.Millisecond
	// punchesAtOnce sockets are opened, and sent from, every punchInterval; all are used once more after
	// secondRound, for what was lost and for ports that were probed too early.
	punchesAtOnce = 16
	punchInterval = 5 * time.Millisecond
	secondRound   = 1500 * time.Millisecond
	// probeTime and searchTime bound a search on the easy and on the hard side; on a slow machine it takes longer
	// than the 3.8 s that its datagrams need.
	probeTime  = 12 * time.Second
	searchTime = 13 * time.Second
	// beginWait is how long the easy side waits for PunchSearchBegin: the hard one opens its sockets meanwhile, which
	// takes a tenth of a second, or seconds on a busy machine.
	beginWait = 7 * time.Second
	// knockWait is how long the hard side tries its own socket before it opens others.
	knockWait = time.Second
	// settleTime is how long the two may take to prove the way that was found; the easy side does not probe for
	// hitPause after a hit.
	settleTime = 3 * time.Second
	hitPause   = 700 * time.Millisecond

	// searchAgainMin is the least time between the first two searches of a pair, each further one takes four times as long
	// to come, up to searchEvery: a path that was found may be lost soon, and one search in some thousand misses. The
	// easy side, which hears of a search a little later, allows the part searchSlack of it.
	searchAgainMin = time.Minute
	searchEvery    = time.Hour
	searchSlack    = 6
	// searchPause lies between two searches with sockets of this cell: their ports stay in the router's table
	// for 30 s.
	searchPause = 2 * time.Second
	// searchPatience is how long the two wait for a search before they punch as usual again.
	searchPatience = time.Minute
	// searchRetry is the first pause after the easy side had no time or no answer came; it doubles up to againMax.
	// As long as no socket was opened, it does so up to searchRetryMax: most of those who have no time have some soon.
	searchRetry    = 5 * time.Second
	searchRetryMax = 20 * time.Second
	// silentMax exchanges in a row without any answer, and searchesMax searches, make the two punch as usual: one of
	// them may not know of searches, or the other one's router is not what it seems. The easy side, which cannot count
	// them, waits for easyPatience.
	silentMax    = 4
	searchesMax  = 3
	easyPatience = 3 * time.Minute

	// A cell begins at most searchesBurst searches at once and searchesPerHour more an hour, and sends at most
	// probesBurst probes and probesPerHour more an hour, whoever asks: what a member that was taken over can make
	// of it is no more.
	searchesPerHour = 32
	searchesBurst   = 16
	probesPerHour   = 8192
	probesBurst     = 8192
)

// search is one that is under way: of one cell there is one at a time.
type search struct {
	id         wire.CellID
	rendezvous uint64
	hard       bool           // the sockets are this cell's
	address    netip.AddrPort // hard: the easy side's. easy: the hard side's, whose port says nothing
	other      netip.AddrPort // hard: where else the easy side's router may send from, if it has two ports for it
	counted    bool           // as an attempt
	begun      bool           // hard: it sends. easy: PunchSearchBegin has come
	next       clock.Instant
	until      clock.Instant

	// Hard side.
	coordinators [coordinatorsMax]wire.CellID
	known, asked int
	ready        bool           // the easy side takes part
	said         netip.AddrPort // by it: another place where its router has it, or nothing of interest
	knocks       int            // PUNCH_SYN sent from the own socket
	widened      bool           // the further ones are used, too
	sockets      [searchSockets]uint16
	open         int
	opened       bool // as many as there is room for
	sentFrom     int  // in this round
	begins       int  // PunchSearchBegin sent
	started      clock.Instant
	second       bool
	won          int // socket, 0 = none yet, ownSocket

	// Easy side.
	sent  int
	drawn [ports / 64]uint64
	hits  int
}

// searchFirst reports whether the way to a member is one for a search, and punching as usual would only show that.
func (t *Traversal) searchFirst(now clock.Instant, p *Path, m *overlay.Member) bool {
	if !t.searchable(m) || p.searches >= searchesMax {
		return false
	}
	if t.Class() == wire.ReachPunched {
		if now.Sub(p.firstWanted) >= easyPatience {
			return false
		}
	} else if p.silent >= silentMax || len(t.kept) >= keptMax || t.asks.left(now) < 1 {
		return false
	}
	return !sameRouter(t.Candidates(make([]state.Candidate, 0, state.CandidatesMax)), m.Candidates)
}

// budget is how much may be done: burst at once, and one more each interval.
type budget struct {
	interval time.Duration
	burst    int
	ready    clock.Instant // theoretical arrival time of the generic cell rate algorithm
}

// left returns how much may be done now.
func (b *budget) left(now clock.Instant) int {
	return b.burst - int((max(b.ready, now).Sub(now)+b.interval-1)/b.interval)
}

func (b *budget) spend(now clock.Instant, count int) {
	b.ready = max(b.ready, now).Add(time.Duration(count) * b.interval)
}

// searchSensible reports whether a hard and an easy cell are such by their class.
func searchSensible(hard, easy *overlay.Member) bool {
	return hard.Reach == wire.ReachRelayed && easy.Reach == wire.ReachPunched
}

// searchable reports whether a search can make the way to a member direct where punching does not, whichever of the
// two is the hard side.
func (t *Traversal) searchable(m *overlay.Member) bool {
	if t.options.NoSearch || t.scope().private() {
		return false
	}
	switch t.Class() {
	case wire.ReachRelayed:
		return m.Reach == wire.ReachPunched && t.options.OpenSocket != nil
	case wire.ReachPunched:
		return m.Reach == wire.ReachRelayed
	}
	return false
}

// maySearch reports whether this cell, as the hard side, should search for a way to a member: somebody uses the path, there
// is a relay, through which the two agree on the rest, and punching as usual is not what comes first, or was in vain.
func (t *Traversal) maySearch(now clock.Instant, p *Path, m *overlay.Member) bool {
	return p.searchAgain.Reached(now) && p.attempt == nil && !p.open(now) &&
		p.used != 0 && now.Sub(p.used) < usedFor && m != nil && m.InService() && t.searchable(m) &&
		(p.failed != 0 || t.searchFirst(now, p, m)) && t.relayFor(now, p, m) != 0
}

// tickSearch begins, continues and ends searches, and gives back sockets of paths that are lost.
func (t *Traversal) tickSearch(now clock.Instant) {
	t.releaseLost(now)
	s := t.search
	if s == nil {
		t.beginSearch(now)
		return
	}
	m, p := t.options.Members.Get(s.id), t.paths[s.id]
	if m == nil || p == nil || !m.InService() {
		t.endSearch(now)
		return
	}
	if !s.next.Reached(now) {
		return
	}
	if s.hard {
		t.continueHard(now, s, p, m)
	} else {
		t.continueEasy(now, s, p, m)
	}
}

// beginSearch asks for the first search that is worth it and whose time has come.
func (t *Traversal) beginSearch(now clock.Instant) {
	if t.options.OpenSocket == nil || t.Class() != wire.ReachRelayed || !t.searchDue.Reached(now) ||
		len(t.kept) >= keptMax || t.asks.left(now) < 1 {
		return
	}
	for _, p := range t.active {
		if p.open(now) || !p.searchAgain.Reached(now) {
			continue
		}
		m := t.options.Members.Get(p.ID)
		if !t.maySearch(now, p, m) {
			continue
		}
		s := &search{id: p.ID, hard: true}
		s.coordinators, s.known = t.coordinators(now, m)
		t.search = s
		t.askSearch(now, s, p, m)
		return
	}
}

// askSearch asks the next coordinator, or gives up for a while.
func (t *Traversal) askSearch(now clock.Instant, s *search, p *Path, m *overlay.Member) {
	if s.asked >= s.known {
		if p.silent++; s.ready {
			p.silent = 0
		}
		t.postpone(now, p)
		return
	}
	s.asked++
	for s.rendezvous == 0 { // who asks again repeats the number, so an answer that took its time counts
		s.rendezvous = uint64(t.options.Nonce())<<32 | uint64(t.options.Nonce())
	}
	s.next = now.Add(coordinatorWait)
	t.say(s.coordinators[s.asked-1], m, m.Address, wire.PunchSearch, s.rendezvous)
}

// say sends a PUNCH_REQ that names a member at an address.
func (t *Traversal) say(to wire.CellID, m *overlay.Member, address netip.AddrPort, what uint8, rendezvous uint64) {
	request := wire.PunchReq{
		Target:     wire.Contact{ID: m.ID, Address: address, Reach: m.Reach, Flags: what},
		Rendezvous: rendezvous,
	}
	if request.Target.Check(t.wireOptions()) == nil {
		t.options.Send(to, wire.TypePunchReq, t.options.Nonce(), wire.AppendPunchReq(t.payload[:0], request))
	}
}

// searchPause is the least time from one search of a pair to the next.
func (p *Path) searchPause() time.Duration {
	return min(searchAgainMin<<(2*min(max(p.searches, 1)-1, 8)), searchEvery)
}

// postpone has a search tried again soon: the other side was busy, or somebody did not answer.
func (t *Traversal) postpone(now clock.Instant, p *Path) {
	limit := searchRetryMax
	if t.search.widened {
		limit = againMax
	}
	pause := min(searchRetry<<min(p.refusals, 10), limit)
	p.refusals++
	t.tell(p.ID, "search %x comes later: heard %t, asked %d", t.search.rendezvous, t.search.ready, t.search.asked)
	p.searchAgain = now.Add(pause + time.Duration(t.options.Random.Int64N(int64(pause)/2)))
	t.search = nil
}

// receiveSearch takes what coordinator and partner of a search say.
func (t *Traversal) receiveSearch(now clock.Instant, sender *overlay.Member, request wire.PunchReq) {
	s := t.search
	mine := s != nil && s.rendezvous == request.Rendezvous && !s.begun
	switch request.Target.Flags {
	case wire.PunchSearchGo:
		if !mine || !s.hard {
			t.joinSearch(now, sender, request)
		} else if request.Target.ID == s.id && slices.Contains(s.coordinators[:s.asked], sender.ID) &&
			t.searchableAt(s.id, request.Target.Address) {
			s.address = request.Target.Address
			if m := t.options.Members.Get(s.id); m != nil {
				s.other = otherPort(m, s.address)
			}
		}
	case wire.PunchSearchReady:
		if mine && s.hard && sender.ID == s.id {
			s.ready, s.said = true, request.Target.Address
		}
	case wire.PunchSearchBusy:
		if p := t.paths[sender.ID]; s != nil && s.hard && s.rendezvous == request.Rendezvous && sender.ID == s.id &&
			p != nil && s.won == 0 {
			t.refused(now, s, p)
		}
	case wire.PunchSearchBegin:
		if p := t.paths[sender.ID]; mine && !s.hard && sender.ID == s.id && p != nil {
			s.begun, s.next, s.until = true, now, now.Add(probeTime)
			t.searchCounts(now, s, p)
			p.searched = now
			p.searches++
			t.tell(p.ID, "search %x, number %d: to ports of %v", s.rendezvous, p.searches, s.address.Addr())
		} else if (s == nil || s.rendezvous != request.Rendezvous) && t.punchLimit.Allow(now, sender.ID) {
			t.say(sender.ID, sender, request.Target.Address, wire.PunchSearchBusy, request.Rendezvous) // it came too late
		}
	}
	p := (*Path)(nil)
	if s = t.search; s != nil {
		p = t.paths[s.id]
	}
	if p != nil && s.hard && !s.begun && s.ready && s.address.IsValid() {
		if s.said != s.address && s.said.Addr() == s.address.Addr() { // at the address that the home told, so it aims at nobody else
			s.other = s.said
		}
		s.begun, s.started, s.next, s.until = true, now, now, now.Add(knockWait+searchTime)
		p.silent = 0
		t.tell(p.ID, "search %x: to %v and %v", s.rendezvous, s.address, s.other)
		t.searchCounts(now, s, p)
	}
	t.next = clock.Earliest(t.next, now)
}

// searchCounts counts a search in which this cell sends as an attempt, once.
func (t *Traversal) searchCounts(now clock.Instant, s *search, p *Path) {
	if !s.counted && !p.open(now) {
		p.Attempts++
		t.stats.Attempts++
	}
	s.counted = true
}

// widen has further sockets used: the own one was not heard.
func (t *Traversal) widen(now clock.Instant, s *search, p *Path) {
	s.widened = true
	t.asks.spend(now, 1)
	t.stats.Searches++
	p.searched = now
	p.searches++
	pause := p.searchPause()
	t.tell(p.ID, "search %x, number %d: more sockets to %v", s.rendezvous, p.searches, s.address)
	p.searchAgain = now.Add(pause + time.Duration(t.options.Random.Int64N(int64(pause)/12)))
}

// refused ends a search in which the easy side does not take part, or not any more: it has sent nothing, so the two
// need not wait for an hour.
func (t *Traversal) refused(now clock.Instant, s *search, p *Path) {
	if s.widened {
		p.searched = 0
		p.searches--
	}
	t.postpone(now, p)
	t.search = s
	t.endSearch(now)
}

// foundBySearch ends the search that led to the address of a member which has just been confirmed.
func (t *Traversal) foundBySearch(now clock.Instant, p *Path, m *overlay.Member) {
	s := t.search
	if s == nil || s.id != p.ID {
		return
	}
	if s.hard && (s.won == 0 || m.Address != s.address) || !s.hard && m.Address.Addr() != s.address.Addr() {
		return
	}
	p.refusals = 0
	if s.widened || !s.hard && s.begun {
		p.found = m.Address
		t.stats.Found++
		t.tell(p.ID, "search %x found %v after %d datagrams", s.rendezvous, m.Address, s.sent)
	}
	s.won = 0 // the socket stays
	t.endSearch(now)
}

// endSearch gives back what a search holds.
func (t *Traversal) endSearch(now clock.Instant) {
	s := t.search
	t.search = nil
	t.tell(s.id, "search %x ends: begun %t, %d sockets open, won %d, %d datagrams, %d heard", s.rendezvous, s.begun, s.open, s.won,
		s.sent, s.hits)
	if !s.hard {
		return
	}
	if s.widened {
		t.searchDue = now.Add(searchPause)
	}
	t.closeSockets(s)
	if s.won != 0 {
		t.release(s.won)
	}
}
