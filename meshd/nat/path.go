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

// Times of a path.
const (
	// directTTL is how long a mapping is trusted after the last datagram through it (PUNCH_TTL): the
	// shortest timeouts of routers are 30 s.
	directTTL = 25 * time.Second
	// keepAfter of silence an open path is used once, so that it stays open (specification 6.5: 20 s, less
	// the time for two repetitions).
	keepAfter  = 17 * time.Second
	keepRepeat = 2500 * time.Millisecond
	// doubtMin without an answer puts a path in doubt: from then on everything goes both ways.
	doubtMin        = time.Second
	doubtRoundTrips = 3
	// doubtRepeat lies between the keepalives on a path in doubt: a question may stay without an answer because the other
	// cell has no time for it, so whether the path is lost is asked by what is always answered.
	doubtRepeat = time.Second
	// lostAfter without an answer a path is given up.
	lostAfter = 5 * time.Second
	// relayPatience without an answer another relay is tried.
	relayPatience = 1200 * time.Millisecond
	// usedFor is how long an open path is kept open after the last message over it.
	usedFor = 5 * time.Minute
	// openMax bounds the open paths that are kept open; those used least recently are left to close.
	openMax = 128
	// blockedFor is how long a cell that needs no help is reached through others after it did not answer
	// this cell but somebody else.
	blockedFor = time.Minute
)

// Path is the way to one cell that needs help, or that this cell fails to reach itself.
type Path struct {
	ID wire.CellID

	proven  clock.Instant // last datagram straight from the member's address, 0 = not open
	asked   clock.Instant // first question sent straight since then that nobody answered, 0 = none
	pinged  clock.Instant // last keepalive
	used    clock.Instant // last message
	since   clock.Instant // the path is open without a break
	blocked clock.Instant // others reach the member and this cell did not; tried again from then on, 0 = no

	pingNonce uint32 // of the last keepalive, 0 = answered

	relay        wire.CellID // used last
	relayAt      int         // which of the possible ones
	relayAsked   clock.Instant
	relayHeard   clock.Instant
	relayChanged clock.Instant

	answered clock.Instant // last PUNCH_SYN that was no target's of an attempt of this cell, see answersMax
	answers  int           // to such since the last time without them
	wanted   bool          // somebody wants an attempt
	attempt  *attempt

	failed      clock.Instant  // last attempt in which both sent in vain, 0 = none since it was open
	searchAgain clock.Instant  // earliest next search by this cell
	searched    clock.Instant  // last one that began, on either side; 0 = none
	searches    int            // that began since a path which came of one lasted for searchEvery
	refusals    int            // since then
	silent      int            // exchanges before a search in a row that nobody answered
	found       netip.AddrPort // the address that the last one led to

	firstWanted clock.Instant // when an attempt was wanted first since the path was open, 0 = never
	reach       wire.Reach    // class of the other one when that was looked at last
	unanswered  int           // attempts in a row for which no coordinator answered
	tries       int           // attempts without success
	again       clock.Instant // earliest next one
	Attempts    int           // exchanges after which this cell punched since the path is known, whoever began
}

// path returns the record of a member, making one.
func (t *Traversal) path(id wire.CellID) *Path {
	if p := t.paths[id]; p != nil {
		return p
	}
	if len(t.paths) >= overlay.MembersMax {
		return nil // nobody is a member without place
	}
	p := &Path{ID: id}
	t.paths[id] = p
	t.active = append(t.active, p)
	return p
}

func (t *Traversal) drop(p *Path) {
	t.endAttempt(p)
	delete(t.paths, p.ID)
	for i := range t.active {
		if t.active[i] == p {
			t.active = append(t.active[:i], t.active[i+1:]...)
			return
		}
	}
}

// Route is the way a datagram takes.
type Route struct {
	Direct bool        // straight to the member's address
	Relay  wire.CellID // through this cell, 0 = none; both together while the direct way is in doubt
}

// Route says which way a datagram to a member goes (F36).
func (t *Traversal) Route(now clock.Instant, m *overlay.Member) Route {
	if t.keepsApart(now, m.ID) {
		if relay := t.keeper(now, m); relay != 0 {
			return Route{Relay: relay}
		}
	}
	p := t.paths[m.ID]
	if !m.NeedsHelp() {
		if p == nil || p.blocked == 0 {
			return Route{Direct: true}
		}
		p.used = now
		relay := t.relayFor(now, p, m)
		return Route{Direct: relay == 0 || p.blocked <= now, Relay: relay}
	} else if p == nil {
		if p = t.path(m.ID); p == nil {
			return Route{Direct: true}
		}
	}
	p.used = now
	open := p.open(now)
	if open && !p.doubtful(now, m) {
		return Route{Direct: true}
	}
	relay := t.relayFor(now, p, m)
	if !open && relay != 0 {
		p.wanted = p.again <= now && p.attempt == nil && t.mayPunch(now, p, m)
	}
	return Route{Direct: open || relay == 0, Relay: relay}
}

func (p *Path) open(now clock.Instant) bool {
	return p.proven != 0 && now.Sub(p.proven) < directTTL
}

func (p *Path) doubtful(now clock.Instant, m *overlay.Member) bool {
	return p.asked != 0 && now.Sub(p.asked) >= max(doubtMin, doubtRoundTrips*m.RTT)
}

// direct reports whether a datagram sent straight to the member has a good chance to arrive.
func (t *Traversal) direct(now clock.Instant, m *overlay.Member) bool {
	p := t.paths[m.ID]
	if !m.NeedsHelp() {
		return (p == nil || p.blocked == 0) && !t.keepsApart(now, m.ID)
	}
	return p != nil && p.open(now) && !p.doubtful(now, m)
}

// Direct reports whether this cell reaches the member without a relay.
func (t *Traversal) Direct(now clock.Instant, m *overlay.Member) bool { return t.direct(now, m) }

// keeper is the relay to a member that is kept unknown to this cell's router: any other one that is not.
func (t *Traversal) keeper(now clock.Instant, m *overlay.Member) wire.CellID {
	var best *overlay.Member
	t.options.Members.Each(func(other *overlay.Member) bool {
		if other.ID != m.ID && other.InService() && other.Address.IsValid() && !other.NeedsHelp() &&
			t.direct(now, other) && !t.suspected(other.ID) && other.Heard != 0 && (best == nil || other.Heard > best.Heard) {
			best = other
		}
		return true
	})
	if best == nil {
		return 0
	}
	return best.ID
}

// relays reports whether a member can be this cell's relay now.
func (t *Traversal) relays(now clock.Instant, m *overlay.Member) bool {
	return m != nil && m.Reach == wire.ReachPublic && t.reaches(now, m)
}

// reaches reports whether a member that needs no help is reached straight.
func (t *Traversal) reaches(now clock.Instant, m *overlay.Member) bool {
	return m != nil && m.InService() && m.Address.IsValid() && !m.NeedsHelp() && !t.suspected(m.ID) && t.direct(now, m)
}

// relayFor returns the relay to use: a home of the member, else a home of this cell, which passes on to
// one of the member's. When nothing comes back, the next one is tried.
func (t *Traversal) relayFor(now clock.Instant, p *Path, m *overlay.Member) wire.CellID {
	var list [2 * state.HomesMax]wire.CellID
	n := 0
	add := func(id wire.CellID, relays func(clock.Instant, *overlay.Member) bool) {
		if n < len(list) && id != m.ID && !slices.Contains(list[:n], id) && relays(now, t.options.Members.Get(id)) {
			list[n] = id
			n++
		}
	}
	for _, home := range m.Homes {
		add(home, t.relays)
	}
	for _, home := range t.Homes() {
		add(home, t.relays)
	}
	for _, home := range m.Homes { // whoever has it for a home knows better what it is than a cell that missed its contact
		add(home, t.reaches)
	}
	if n == 0 {
		return 0
	}
	if p.relayAsked != 0 && now.Sub(p.relayAsked) >= max(relayPatience, doubtRoundTrips*m.RTT) &&
		now.Sub(p.relayChanged) >= relayPatience {
		p.relayAt++
		p.relayChanged, p.relayAsked = now, 0
	}
	p.relay = list[p.relayAt%n]
	return p.relay
}

// Sent notes what was sent to a member. question says that an answer is expected.
func (t *Traversal) Sent(now clock.Instant, id wire.CellID, route Route, question bool) {
	p := t.paths[id]
	if p == nil || !question {
		return
	}
	if route.Direct && p.asked == 0 {
		p.asked = now
	}
	if route.Relay != 0 && p.relayAsked == 0 {
		p.relayAsked = now
	}
}

// Heard notes a verified datagram that came straight from a member's address.
func (t *Traversal) Heard(now clock.Instant, m *overlay.Member) {
	if m.Reach == wire.ReachPublic {
		t.nearby, t.nearbyAt = m.ID, now
	}
	p := t.paths[m.ID]
	if p == nil {
		if !m.NeedsHelp() {
			return
		}
		if p = t.path(m.ID); p == nil {
			return
		}
	}
	if !p.open(now) {
		p.since = now
		t.tell(m.ID, "heard at %v", m.Address)
	}
	if p.proven != 0 && now.Sub(p.proven) >= homeSilence+homeRepeat && t.isHome(m.ID) {
		t.recover(m.ID)
	}
	p.proven, p.asked, p.blocked = now, 0, 0
}

// HeardRelayed notes a verified datagram of a member that came through a relay.
func (t *Traversal) HeardRelayed(now clock.Instant, id wire.CellID) {
	if p := t.paths[id]; p != nil {
		p.relayHeard, p.relayAsked = now, 0
	}
}

// Carried notes that a relay handed something over: it is there.
func (t *Traversal) Carried(now clock.Instant, relay *overlay.Member) {
	if p := t.paths[relay.ID]; p != nil && p.proven != 0 {
		p.proven, p.asked = now, 0
	}
}

// Confirmed notes that a member echoed a nonce from an address, which is its address now.
func (t *Traversal) Confirmed(now clock.Instant, m *overlay.Member) {
	p := t.paths[m.ID]
	if p == nil && !m.NeedsHelp() && !t.Restricted() {
		return
	}
	if p = t.path(m.ID); p == nil {
		return
	}
	if p.attempt != nil {
		t.stats.Succeeded++
		t.endAttempt(p)
	}
	if !p.open(now) {
		p.since = now
		t.tell(m.ID, "open, at %v, after %d attempts", m.Address, p.Attempts)
	}
	p.proven, p.asked, p.blocked, p.failed, p.tries, p.wanted = now, 0, 0, 0, 0, false
	p.firstWanted, p.silent = 0, 0
	t.foundBySearch(now, p, m)
}

// settledFor is how long a path must be left alone after it opened: further PUNCH_SYN of the same attempt
// come from other addresses.
const settledFor = 3 * time.Second

// Settled reports whether the address of a member has just been found, so that another one, from which its
// PUNCH_SYN came, is not worth a look.
func (t *Traversal) Settled(now clock.Instant, m *overlay.Member) bool {
	p := t.paths[m.ID]
	return p != nil && p.open(now) && !p.doubtful(now, m) && now.Sub(p.since) < settledFor
}

// Detour notes that others reach a member that did not answer this cell. If this cell is behind a router
// or filter, that is no accident: datagrams go through its homes for a while.
func (t *Traversal) Detour(now clock.Instant, m *overlay.Member) {
	if m.NeedsHelp() || !t.Restricted() {
		return
	}
	if p := t.path(m.ID); p != nil {
		p.proven, p.asked = 0, 0
		p.blocked = now.Add(blockedFor)
	}
}

// MayAccuse reports whether it says anything about a member that this cell does not reach it (F36): of one
// that needs help only its homes can tell, or anybody if they are out themselves.
func (t *Traversal) MayAccuse(now clock.Instant, m *overlay.Member) bool {
	if t.keepsApart(now, m.ID) {
		return false
	}
	if !m.NeedsHelp() {
		p := t.paths[m.ID]
		return (p == nil || p.blocked == 0) && (m.Validated != 0 || !t.Restricted())
	}
	if m.HasHome(t.options.Self) {
		return true
	}
	for _, home := range m.Homes {
		if h := t.options.Members.Get(home); h != nil && h.InService() && !t.suspected(home) {
			return false
		}
	}
	return true
}

// tickPaths closes what is lost, keeps open what is used, and runs the attempts.
func (t *Traversal) tickPaths(now clock.Instant) {
	open := 0
	for i := 0; i < len(t.active); i++ {
		p := t.active[i]
		m := t.options.Members.Get(p.ID)
		if m == nil {
			t.drop(p)
			i--
			continue
		}
		t.tickPath(now, p, m, &open)
		t.tickAttempt(now, p, m)
	}
}

func (t *Traversal) tickPath(now clock.Instant, p *Path, m *overlay.Member, open *int) {
	if p.reach != m.Reach { // what was in vain with another class may not be now
		p.reach = m.Reach
		p.again, p.tries = clock.Earliest(p.again, now), 0
	}
	if p.blocked != 0 && p.blocked <= now && p.asked != 0 && now.Sub(p.asked) >= doubtMin {
		p.blocked, p.asked = now.Add(blockedFor), 0 // still
	}
	if p.proven == 0 {
		return
	}
	if !p.open(now) || p.asked != 0 && now.Sub(p.asked) >= lostAfter {
		if now.Sub(p.since) >= searchEvery {
			p.searches = 0
		}
		p.proven, p.asked = 0, 0
		p.again, p.tries, p.firstWanted = now, 0, 0
		t.stats.Lost++
		t.tell(p.ID, "lost, %v", m.Address)
		return
	}
	if m.InService() && p.doubtful(now, m) && now.Sub(p.pinged) >= doubtRepeat {
		t.ping(now, p, m.Address)
	}
	home := t.isHome(p.ID) || m.HasHome(t.options.Self) || t.keeps(p.ID)
	if !home && (now.Sub(p.used) >= usedFor || *open >= openMax) {
		return
	}
	*open++
	if m.InService() && now.Sub(p.proven) >= keepAfter && now.Sub(p.pinged) >= keepRepeat {
		t.ping(now, p, m.Address)
	}
}

// ping asks for any answer at all.
func (t *Traversal) ping(now clock.Instant, p *Path, address netip.AddrPort) {
	p.pinged = now
	if p.asked == 0 {
		p.asked = now
	}
	p.pingNonce = t.options.Nonce()
	t.options.SendTo(p.ID, address, wire.TypePing, p.pingNonce, wire.AppendPing(t.payload[:0], netip.AddrPort{}))
}

// forgiveAll lets attempts begin again at once: this cell's own situation has changed.
func (t *Traversal) forgiveAll(now clock.Instant) {
	for _, p := range t.active {
		p.again, p.tries = now, 0
	}
}

// Kind names how this cell reaches another.
type Kind uint8

// Kinds of paths.
const (
	KindDirect   Kind = iota // straight, no help needed
	KindPunched              // straight, through a hole that both made
	KindRelayed              // through a relay
	KindNone                 // no way is known
	KindUnproven             // straight, since it needs no help, but nothing has come back yet
)

var kindNames = [...]string{"direct", "punched", "relayed", "none", "unproven"}

func (k Kind) String() string { return kindNames[k] }

// Report is what this cell tells about a path.
type Report struct {
	Kind     Kind
	Relay    wire.CellID
	Age      time.Duration // since the path is as it is; 0 = not known
	Attempts int           // to make it direct, whoever began
	Searched bool          // it was found by a search for a port
}

// local reports whether a member that needs help is reached without any: on a network of this cell.
func (t *Traversal) local(m *overlay.Member) bool {
	return scopeOf(m.Address.Addr()).private() && slices.ContainsFunc(m.Candidates, func(c state.Candidate) bool {
		return c.Address == m.Address
	})
}

// proven reports whether a member has answered this cell straight from its address.
func (t *Traversal) proven(now clock.Instant, m *overlay.Member) bool {
	return m.Validated != 0 || t.options.Guard != nil && t.options.Guard.Validated(now, m.Address)
}

// Report describes the way to a member without changing anything.
func (t *Traversal) Report(now clock.Instant, m *overlay.Member) Report {
	p := t.paths[m.ID]
	if p == nil {
		switch {
		case m.NeedsHelp():
			return Report{Kind: KindNone}
		case !t.proven(now, m):
			return Report{Kind: KindUnproven}
		}
		return Report{Kind: KindDirect}
	}
	r := Report{Attempts: p.Attempts}
	switch {
	case !m.NeedsHelp() && p.blocked == 0 && !p.open(now) && !t.proven(now, m):
		r.Kind = KindUnproven
	case !m.NeedsHelp() && p.blocked == 0:
		r.Kind = KindDirect
	case p.open(now) && !t.local(m):
		r.Kind, r.Age = KindPunched, now.Sub(p.since)
		r.Searched = p.found.IsValid() && p.found == m.Address
	case p.open(now):
		r.Kind, r.Age = KindDirect, now.Sub(p.since)
	case p.relay != 0:
		r.Kind, r.Relay = KindRelayed, p.relay
		if p.relayChanged != 0 {
			r.Age = now.Sub(p.relayChanged)
		}
	default:
		r.Kind = KindNone
	}
	return r
}

// HeardFrom returns when a home was last heard straight from its address, 0 if never.
func (t *Traversal) HeardFrom(id wire.CellID) clock.Instant {
	if p := t.paths[id]; p != nil {
		return p.proven
	}
	return 0
}
