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

// Times and counts of punching (F35).
const (
	// attemptsMax bounds the attempts under way; further ones wait.
	attemptsMax = 32
	// coordinatorsMax are asked one after the other, fewer again and again: a question, an answer or what it starts
	// may be lost, and cells that came a moment ago do not know of each other.
	coordinatorsMax = 3
	// coordinatorWait is how long an attempt waits for the coordinator's answer.
	coordinatorWait = 1200 * time.Millisecond
	// punchWait is how long an attempt goes on after its first PUNCH_SYN.
	punchWait = 2 * time.Second
	// targetsMax bounds the addresses tried at once.
	targetsMax = 4
	// unansweredMin is the first pause after no coordinator answered: a cell that came a moment ago is unknown to
	// some of them. Nothing was tried, so it counts for nothing, and doubles up to againMin.
	unansweredMin = 2 * time.Second
	// againMin and againMax bound the pause after a failed attempt.
	againMin = 15 * time.Second
	againMax = 10 * time.Minute
	// answersMax bounds the PUNCH_SYN answered outside an attempt of this cell until there were none for answersQuiet:
	// as many as two cells send that both ask every coordinator. An answer looks like what it answers, so between two
	// cells that do not have each other's address among their targets it is answered, too. Counting per rendezvous
	// would end nothing: of two that are under way at once each would begin the count of the other anew.
	answersMax   = 2 * coordinatorsMax * len(synOffsets)
	answersQuiet = 10 * time.Second
	// exchangeFresh is how recently a coordinator must have heard a cell to know its mapping.
	exchangeFresh = 25 * time.Second
)

// synOffsets are the moments of the five PUNCH_SYN of one attempt.
var synOffsets = [...]time.Duration{0, 50 * time.Millisecond, 100 * time.Millisecond,
	200 * time.Millisecond, 400 * time.Millisecond}

// attempt is one exchange under a number, and the window in which both sides send; or those of one after the other, as
// long as this cell asks: each counts (Path.Attempts).
type attempt struct {
	rendezvous uint64
	ours       bool          // this cell began it
	counted    bool          // the two have tried
	asked      int           // coordinators
	begun      clock.Instant // first PUNCH_SYN, 0 = waiting for a coordinator
	syns       int
	trains     int // of PUNCH_SYN in this attempt, at most coordinatorsMax
	targets    [targetsMax]netip.AddrPort
	count      int
	next       clock.Instant
}

// mayPunch reports whether an attempt has any chance, and whether it is time for it: what helps depends on what both
// routers do, so for a while the classes of both are waited for.
func (t *Traversal) mayPunch(now clock.Instant, p *Path, m *overlay.Member) bool {
	if p.firstWanted == 0 {
		p.firstWanted = now
	}
	if t.pending(now, m) || m.Reach == wire.ReachUnknown && t.Class() != wire.ReachPublic &&
		now.Sub(p.firstWanted) < patienceFor(t.Class()) {
		return false
	}
	if t.searchFirst(now, p, m) {
		p.again = now.Add(tickInterval) // not to be looked at for every datagram
		return false
	}
	return t.sensible(now, p, m)
}

// sensible reports whether punching has any chance, as far as the classes are known.
func (t *Traversal) sensible(now clock.Instant, p *Path, m *overlay.Member) bool {
	if p.failed != 0 && t.searchable(m) && now.Sub(p.failed) < searchPatience {
		return false // that is what the search is for
	}
	if t.Class() == wire.ReachRelayed && m.Reach == wire.ReachRelayed {
		return sameRouter(t.Candidates(make([]state.Candidate, 0, state.CandidatesMax)), m.Candidates)
	}
	return true
}

// tickAttempt begins, continues or ends the attempt of a path.
func (t *Traversal) tickAttempt(now clock.Instant, p *Path, m *overlay.Member) {
	a := p.attempt
	if a == nil {
		if p.wanted && t.attempts < attemptsMax {
			p.wanted = false
			if !p.open(now) && t.mayPunch(now, p, m) { // more may be known than when it was wanted
				t.beginAttempt(now, p, m)
			}
		}
		return
	}
	if !a.next.Reached(now) {
		return
	}
	switch {
	case a.begun == 0:
		t.askNext(now, p)
	case a.syns < len(synOffsets):
		t.sendSyns(now, p)
	case p.open(now):
		t.endAttempt(p)
	default:
		if a.ours && !t.searchable(m) { // other coordinators would tell the same
			a.begun, a.syns, a.count, a.rendezvous = 0, 0, 0, 0
			t.askNext(now, p)
			return
		}
		t.fail(now, p)
	}
}

func (t *Traversal) beginAttempt(now clock.Instant, p *Path, m *overlay.Member) {
	p.attempt = &attempt{ours: true}
	t.attempts++
	t.askNext(now, p)
}

// coordinators are the homes of a member and those of this cell, as far as they are reached straight.
func (t *Traversal) coordinators(now clock.Instant, m *overlay.Member) (list [coordinatorsMax]wire.CellID, known int) {
	add := func(id wire.CellID) {
		c := t.options.Members.Get(id)
		if known < coordinatorsMax && !slices.Contains(list[:known], id) && id != m.ID && c != nil && c.InService() &&
			t.direct(now, c) && !t.suspected(id) {
			list[known] = id
			known++
		}
	}
	for _, home := range m.Homes {
		add(home)
	}
	for _, home := range t.Homes() {
		add(home)
	}
	return list, known
}

// askNext asks the next coordinator, or gives up.
func (t *Traversal) askNext(now clock.Instant, p *Path) {
	a := p.attempt
	m := t.options.Members.Get(p.ID)
	if a.asked >= coordinatorsMax || !a.ours || m == nil {
		t.fail(now, p)
		return
	}
	list, known := t.coordinators(now, m) // anew: more may be known by now
	if known == 0 {
		t.fail(now, p)
		return
	}
	coordinator := list[a.asked%known]
	a.asked++
	for a.rendezvous == 0 { // who asks again, since nothing was heard, repeats the number
		a.rendezvous = uint64(t.options.Nonce())<<32 | uint64(t.options.Nonce())
	}
	a.next = now.Add(coordinatorWait)
	request := wire.PunchReq{
		Target:     wire.Contact{ID: p.ID, Address: m.Address, Reach: m.Reach, Flags: wire.PunchAsk},
		Rendezvous: a.rendezvous,
	}
	if request.Target.Check(wire.Options{Loopback: true}) != nil {
		t.fail(now, p)
		return
	}
	t.options.Send(coordinator, wire.TypePunchReq, t.options.Nonce(), wire.AppendPunchReq(t.payload[:0], request))
}

// fail ends an attempt without success.
func (t *Traversal) fail(now clock.Instant, p *Path) {
	a := p.attempt
	t.endAttempt(p)
	if a == nil || a.begun == 0 && !a.counted {
		t.tell(p.ID, "nobody answered, %d times in a row", p.unanswered+1)
		pause := min(unansweredMin<<min(p.unanswered, 10), againMin)
		p.unanswered++
		p.again = now.Add(pause + time.Duration(t.options.Random.Int64N(int64(pause)/4)))
		return
	}
	pause := min(againMin<<min(p.tries, 10), againMax)
	p.tries++
	t.tell(p.ID, "attempt %x was in vain, at %v", a.rendezvous, a.targets[:a.count])
	p.unanswered, p.failed = 0, now
	p.again = now.Add(pause + time.Duration(t.options.Random.Int64N(int64(pause)/4)))
}

func (t *Traversal) endAttempt(p *Path) {
	p.wanted = false // by now that is old
	if p.attempt != nil {
		p.attempt = nil
		t.attempts--
	}
}

func (t *Traversal) sendSyns(now clock.Instant, p *Path) {
	a := p.attempt
	for _, target := range a.targets[:a.count] {
		t.options.SendTo(p.ID, target, wire.TypePunchSyn, t.options.Nonce(), wire.AppendPunchSyn(t.payload[:0], a.rendezvous))
	}
	a.syns++
	if a.syns < len(synOffsets) {
		a.next = a.begun.Add(synOffsets[a.syns])
	} else {
		a.next = a.begun.Add(punchWait)
	}
}

// Receive takes a verified PUNCH_REQ or PUNCH_SYN of a member. from is the zero AddrPort for one that came
// through a relay.
func (t *Traversal) Receive(now clock.Instant, sender *overlay.Member, from netip.AddrPort, h wire.Header, payload []byte) {
	switch h.Type {
	case wire.TypePunchReq:
		request, err := wire.ParsePunchReq(payload, t.wireOptions())
		if err != nil {
			return
		}
		switch request.Target.Flags {
		case wire.PunchAsk:
			t.coordinate(now, sender, from, request, wire.PunchGo)
		case wire.PunchDial:
			t.coordinate(now, sender, from, request, wire.PunchDialGo)
		case wire.PunchGo:
			t.invited(now, sender, request)
		case wire.PunchAccept:
			t.introduce(now, sender, from, request)
		case wire.PunchStart:
			t.started(now, request)
		case wire.PunchDialGo:
			t.callBack(now, sender, request)
		case wire.PunchSearch:
			t.coordinate(now, sender, from, request, wire.PunchSearchGo)
		default:
			t.receiveSearch(now, sender, request)
		}
	case wire.TypePunchSyn:
		if rendezvous, err := wire.ParsePunchSyn(payload); err == nil && from.IsValid() {
			t.receiveSyn(now, sender, from, rendezvous)
		}
	}
}

// invited hears from a coordinator that another cell wants to meet this one, and where it is. Unless this cell asked,
// that may be anywhere, so how often is limited (F14). If it takes part it begins to send and says so; else it says
// nothing, and the other one asks again.
func (t *Traversal) invited(now clock.Instant, coordinator *overlay.Member, request wire.PunchReq) {
	m := t.options.Members.Get(request.Target.ID)
	helpless := request.Target.Reach >= wire.ReachPunched
	if m != nil && m.ID == t.reserved && helpless {
		t.reserved = 0 // it cannot show that strangers get through
	}
	if m == nil || !m.InService() || !m.NeedsHelp() && !helpless && !t.Restricted() || t.keepsApart(now, m.ID) {
		return
	}
	p := t.path(m.ID) // it may be open on this side and lost on the other, whose router has a new port
	if p == nil {
		return
	}
	a := p.attempt
	switch {
	case t.search != nil && t.search.id == m.ID:
		return
	case a == nil && (t.attempts >= attemptsMax || t.pending(now, m) || !t.sensible(now, p, m)):
		return
	case a == nil && t.Class() == wire.ReachRelayed && t.searchFirst(now, p, m):
		return // the other one asked before it knew this cell's class; this one begins with a search
	case a != nil && a.begun != 0 && a.rendezvous != request.Rendezvous && (a.ours || a.syns < len(synOffsets)):
		return // both began; one is enough
	case !t.punchLimit.Allow(now, coordinator.ID):
		t.stats.Refused++
		return
	}
	t.punch(now, p, m, request)
	accepted := wire.PunchReq{
		Target:     wire.Contact{ID: m.ID, Address: request.Target.Address, Reach: m.Reach, Flags: wire.PunchAccept},
		Rendezvous: request.Rendezvous,
	}
	t.options.Send(coordinator.ID, wire.TypePunchReq, t.options.Nonce(), wire.AppendPunchReq(t.payload[:0], accepted))
}

// started hears that the cell this one asked for takes part.
func (t *Traversal) started(now clock.Instant, request wire.PunchReq) {
	m, p := t.options.Members.Get(request.Target.ID), t.paths[request.Target.ID]
	if m == nil || p == nil || p.attempt == nil || !p.attempt.ours || p.attempt.rendezvous != request.Rendezvous {
		return
	}
	t.punch(now, p, m, request)
}

// punch begins to send PUNCH_SYN, or sends them once more if the coordinator repeats himself after the last one: then
// something was lost.
func (t *Traversal) punch(now clock.Instant, p *Path, m *overlay.Member, request wire.PunchReq) {
	a := p.attempt
	if a == nil {
		a = &attempt{}
		p.attempt = a
		t.attempts++
	}
	if a.begun != 0 && a.rendezvous == request.Rendezvous {
		if a.syns < len(synOffsets) || a.trains >= coordinatorsMax {
			return
		}
		a.trains++
	} else if !p.open(now) {
		p.Attempts++
		t.stats.Attempts++
	}
	if a.rendezvous != request.Rendezvous || a.trains == 0 {
		a.trains = 1
	}
	a.counted = true
	a.rendezvous, a.begun, a.next, a.syns, a.count = request.Rendezvous, now, now, 0, 0
	t.addTargets(a, m, request.Target.Address)
	t.tell(p.ID, "attempt %x, number %d, of %v and %v, asked here: %t, to %v", a.rendezvous, p.Attempts, t.Class(), m.Reach, a.ours,
		a.targets[:a.count])
	t.sendSyns(now, p)
	t.next = clock.Earliest(t.next, now) // Tick looks at the new deadline
}

// addTargets collects where the other cell may be (F33): as the coordinator sees it, on a network of this
// side of the router, and under addresses of the other family.
func (t *Traversal) addTargets(a *attempt, m *overlay.Member, observed netip.AddrPort) {
	add := func(address netip.AddrPort) {
		for _, have := range a.targets[:a.count] {
			if have == address {
				return
			}
		}
		if a.count < targetsMax {
			a.targets[a.count] = address
			a.count++
		}
	}
	add(observed)
	mine := t.Candidates(make([]state.Candidate, 0, state.CandidatesMax))
	local := globalOf(mine) == observed.Addr() || sameRouter(mine, m.Candidates) ||
		t.views[t.scope()].at != 0 && t.views[t.scope()].observed.Addr() == observed.Addr()
	for _, candidate := range m.Candidates {
		address := candidate.Address
		if !usableFrom(address, t.wireOptions()) || !hasFamily(t.options.Own, address.Addr()) {
			continue
		}
		private := scopeOf(address.Addr()).private()
		onMyNetwork := false
		for _, own := range t.options.Own {
			onMyNetwork = onMyNetwork || near(own.Address.Addr(), address.Addr())
		}
		if !private || local || onMyNetwork && !differentRouters(mine, m.Candidates) {
			add(address)
		}
	}
}

func usableFrom(address netip.AddrPort, o wire.Options) bool {
	return wire.Contact{ID: 1, Address: address}.Check(o) == nil
}

// receiveSyn answers a PUNCH_SYN where it came from: that opens the last filter on the way, and covers a
// router that used another port for it than anybody could know (F35).
func (t *Traversal) receiveSyn(now clock.Instant, m *overlay.Member, from netip.AddrPort, rendezvous uint64) {
	if p := t.paths[m.ID]; !m.NeedsHelp() && !t.Restricted() && (p == nil || p.attempt == nil) {
		return // unless the two have agreed to: its newest contact may say nothing of a home yet
	}
	if t.searchHit(now, m, from, rendezvous) || t.Settled(now, m) && m.Address != from {
		return
	}
	const size = wire.HeaderSize + wire.PunchSynSize + wire.TrailerSize
	p := t.path(m.ID)
	if p == nil {
		return
	}
	if m.Address != from || !p.open(now) {
		t.options.Check(m.ID, from)
	}
	if a := p.attempt; a != nil && a.syns < len(synOffsets) && slices.Contains(a.targets[:a.count], from) {
		return // it gets one of the five anyway; once they are sent they may all have come before its filter was open
	}
	if now.Sub(p.answered) >= answersQuiet {
		p.answers = 0
	}
	p.answered = now
	if p.answers++; p.answers <= answersMax && t.options.Guard.AllowSend(now, from, size) {
		t.options.SendTo(m.ID, from, wire.TypePunchSyn, t.options.Nonce(), wire.AppendPunchSyn(t.payload[:0], rendezvous))
	}
}
