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

// Times and counts of the classification.
const (
	// dialsProve dial-backs must arrive, dialsRefute in a row must not, before either is believed.
	dialsProve  = 2
	dialsRefute = 3
	// votesFresh is how far apart two observations may be that are compared with each other.
	votesFresh = 30 * time.Second
	// votesDiffer differing pairs in a row make a mapping depend on the destination: one pair may be a
	// router that just got another address.
	votesDiffer = 2
)

// view is what is known of this cell in one scope.
type view struct {
	observer  netip.Addr     // who reported last
	observed  netip.AddrPort // this cell as that one saw it
	at        clock.Instant
	agreed    int // pairs of observers at different addresses in a row that said the same
	differed  int // or not
	answered  int // dial-backs that arrived, in a row
	missed    int // or did not
	refuted   int // of those from an address that this cell never sent to
	confirmed bool

	reports    [reportsMax]report // the last one of each observer
	reportNext int
	most       netip.AddrPort // where most observers see this cell if not all agree, see usual
	other      netip.AddrPort // another place at the same router
	fresh      bool           // something new was reported since that was found out
	usualAt    clock.Instant
}

// reportsMax bounds the observers remembered in a scope; the oldest gives way. In larger clusters the agreement
// of many stands for the memory of each.
const reportsMax = 64

type report struct {
	observer netip.AddrPort
	observed netip.AddrPort
	at       clock.Instant
	old      bool // somebody has seen this cell leave that place, see outdate
}

// moved notes a report and tells whether the same observer saw this cell elsewhere before: then the router
// has given it another place.
func (v *view) moved(now clock.Instant, observer, observed netip.AddrPort) bool {
	for i := range v.reports {
		r := &v.reports[i]
		if r.observer == observer {
			moved := r.observed != observed && now.Sub(r.at) < contactedFor
			v.fresh = v.fresh || r.observed != observed || now.Sub(r.at) >= usualFor
			before := r.observed
			r.observed, r.at, r.old = observed, now, false
			if moved { // what others said of the place before may be as old as what this one did
				v.outdate(before)
			}
			return moved
		}
	}
	v.fresh = true
	v.reports[v.reportNext] = report{observer: observer, observed: observed, at: now}
	v.reportNext = (v.reportNext + 1) % reportsMax
	return false
}

// reported returns where an observer saw this cell last.
func (v *view) reported(observer netip.AddrPort) (netip.AddrPort, bool) {
	for i := range v.reports {
		if v.reports[i].observer == observer {
			return v.reports[i].observed, true
		}
	}
	return netip.AddrPort{}, false
}

// observe takes one report (F32). Only reports of observers at different addresses tell anything about the
// mapping; another report by the same one means that the mapping itself changed.
func (v *view) observe(now clock.Instant, observer netip.Addr, observed netip.AddrPort) {
	fresh := v.at != 0 && now.Sub(v.at) < votesFresh
	switch {
	case fresh && v.observer != observer && v.observed == observed:
		v.agreed, v.differed = v.agreed+1, 0
	case fresh && v.observer != observer:
		v.differed++
		if v.differed >= votesDiffer {
			v.agreed = 0
		}
	}
	v.observer, v.observed, v.at = observer, observed, now
}

// dialled takes the outcome of a dial-back. strange says that this cell had not sent to the dialler's
// address: from there, even a filter that looks at addresses alone lets nothing in.
func (v *view) dialled(arrived, strange bool) {
	if arrived {
		v.answered, v.missed = v.answered+1, 0
		if strange {
			v.refuted, v.confirmed = 0, true
		}
		return
	}
	v.answered, v.missed = 0, v.missed+1
	if strange {
		v.refuted++
		v.confirmed = false
	}
}

// class is what the reports and dial-backs add up to. Behind a router only a call of a stranger proves that
// everybody gets through: a restricted cone lets all ports of acquaintances in (F31). A cell whose own address
// is global has no such thing before it; there a call from another port does.
func (v *view) class(before wire.Reach, translated bool) wire.Reach {
	open := v.refuted < dialsProve && (v.confirmed || !translated)
	switch {
	case open && v.answered >= dialsProve:
		return wire.ReachPublic
	case open && before == wire.ReachPublic && v.missed < dialsRefute:
		return wire.ReachPublic
	case v.differed >= votesDiffer && !v.most.IsValid():
		return wire.ReachRelayed
	case before == wire.ReachRelayed && v.agreed == 0 && !v.most.IsValid():
		return wire.ReachRelayed
	case (v.agreed > 0 || v.most.IsValid()) && (v.missed >= dialsRefute || v.refuted >= dialsProve || v.answered >= dialsProve):
		return wire.ReachPunched
	case before == wire.ReachPunched:
		return wire.ReachPunched
	}
	return wire.ReachUnknown
}

// Observed takes this cell's address as a member sees it, from an answer that came straight from it.
func (t *Traversal) Observed(now clock.Instant, by *overlay.Member, observed netip.AddrPort) {
	if !by.Address.IsValid() || !observed.IsValid() {
		return
	}
	s := scopeOf(by.Address.Addr())
	v := &t.views[s]
	if v.at != 0 && v.observed != observed && t.isOwn(v.observed) != t.isOwn(observed) {
		// One observer sits on this side of a router and one beyond it, which says nothing about how the
		// router translates (F32). The one beyond it speaks for more of the world.
		if t.isOwn(observed) {
			return
		}
		v.at = 0
	}
	// Everybody saw this cell at one place, and somebody sees it at another: the router has changed it, too.
	settled := v.at != 0 && v.agreed >= votesDiffer && v.differed == 0 && v.observed != observed && !v.seen(now, observed)
	v.observe(now, by.Address.Addr(), observed)
	if v.moved(now, by.Address, observed) || settled {
		if t.class[s] == wire.ReachPublic {
			t.dial.next = now // the address by which it was called may be another machine's now
			v.answered = 0
		}
		t.announce(now)
		t.recover(by.ID)
	}
	t.judge(now)
}

// Pong takes the answer to a keepalive of this package: the other cell says where it sees this one.
func (t *Traversal) Pong(now clock.Instant, by *overlay.Member, from netip.AddrPort, nonce uint32, payload []byte) {
	if by.Address != from {
		return
	}
	switch p := t.paths[by.ID]; {
	case t.question.answered(now, by.ID, nonce):
	case p != nil && p.pingNonce == nonce && nonce != 0:
		p.pingNonce = 0
	default:
		return
	}
	if observed, err := wire.ParsePing(payload); err == nil {
		t.Observed(now, by, observed)
	}
}

// askAgain is the pause between two questions because somebody sees this cell elsewhere.
const askAgain = 250 * time.Millisecond

// Hinted takes what a PING that came straight from a member says: where that one sees this cell. Anybody may
// have made it travel as it did, so it is no evidence; but where it differs from what this cell believes, the
// member is asked at once, and its answer to a nonce is. Without that, a cell that keeps no homes, since strangers
// reach it, would learn that its router forgot it only when it happens to probe somebody who needs no help.
func (t *Traversal) Hinted(now clock.Instant, by *overlay.Member, from, observed netip.AddrPort) {
	v := &t.views[scopeOf(from.Addr())]
	if !observed.IsValid() || by.Address != from || v.at == 0 || t.isOwn(v.observed) || t.isOwn(observed) {
		return
	}
	before, known := v.reported(from)
	if !known && t.Class() != wire.ReachRelayed {
		before = v.observed // it should see what all others see
	}
	if !before.IsValid() || before == observed {
		return
	}
	q := &t.question
	if q.nonce != 0 && now.Sub(q.at) < askAgain {
		return
	}
	t.ask(now, by.ID, from)
}

// ask asks a member where it sees this cell.
func (t *Traversal) ask(now clock.Instant, id wire.CellID, address netip.AddrPort) {
	q := &t.question
	q.id, q.at = id, now
	for q.nonce = 0; q.nonce == 0; {
		q.nonce = t.options.Nonce()
	}
	t.options.SendTo(id, address, wire.TypePing, q.nonce, wire.AppendPing(t.payload[:0], netip.AddrPort{}))
}

// question asks a member where it sees this cell.
type question struct {
	id    wire.CellID
	nonce uint32 // 0 = none was asked
	at    clock.Instant
}

// answered takes the answer to such a question.
func (q *question) answered(now clock.Instant, by wire.CellID, nonce uint32) bool {
	if q.nonce == 0 || q.nonce != nonce || q.id != by || now.Sub(q.at) > dialTimeout {
		return false
	}
	q.nonce = 0
	return true
}

// Announcements after a move go to as many members, at most so often.
const (
	announceMax   = 64
	announcePause = 2 * time.Second
)

// announce lets members whom this cell reaches straight know where it is now, by a PING: its source address
// is checked by them as always. A move that comes too soon after another one is announced when the pause is over.
func (t *Traversal) announce(now clock.Instant) {
	if t.announced != 0 && now.Sub(t.announced) < announcePause {
		t.announceDue = t.announced.Add(announcePause)
		return
	}
	t.announced, t.announceDue = now, 0
	var found [announceMax]*overlay.Member
	for _, m := range t.options.Members.Random(t.options.Random, announceMax, found[:0], func(m *overlay.Member) bool {
		return !m.InService() || !m.Address.IsValid() || m.Heard == 0 || m.NeedsHelp() && t.paths[m.ID] == nil
	}) {
		t.options.SendTo(m.ID, m.Address, wire.TypePing, t.options.Nonce(), wire.AppendPing(t.payload[:0], netip.AddrPort{}))
	}
}

// recover notes that this cell may have missed what was sent to it lately, and who can tell.
func (t *Traversal) recover(peer wire.CellID) { t.recovered = peer }

// Recovered returns, once, a cell that can tell what this one may have missed while nothing reached it; 0
// for no need.
func (t *Traversal) Recovered() wire.CellID {
	peer := t.recovered
	t.recovered = 0
	return peer
}

// translated reports whether observers see another address than this cell has.
func (t *Traversal) translated() bool {
	v := &t.views[t.scope()]
	return v.at != 0 && !t.isOwn(v.observed)
}

func (t *Traversal) isOwn(address netip.AddrPort) bool {
	return slices.ContainsFunc(t.options.Own, func(c state.Candidate) bool { return c.Address == address })
}

// scope is the widest one in which anything is known: its class is the cell's.
func (t *Traversal) scope() scope {
	for _, s := range [...]scope{globalV4, globalV6, privateV4, privateV6} {
		if v := &t.views[s]; v.at != 0 || v.answered+v.missed > 0 {
			return s
		}
	}
	return privateV4
}

// Class returns the class of this cell.
func (t *Traversal) Class() wire.Reach { return t.class[t.scope()] }

// Restricted reports whether others may not reach this cell without help.
func (t *Traversal) Restricted() bool {
	class := t.Class()
	return class >= wire.ReachPunched || class == wire.ReachUnknown &&
		(t.translated() || t.views[t.scope()].missed >= dialsRefute || t.guessed())
}

// guessed reports whether this cell must be behind a router although nobody has told it yet: it has private
// addresses only and hears a cell with a global one. It matters in the first second, when the others learn
// of it and want to know how to reach it.
func (t *Traversal) guessed() bool {
	m := t.options.Members.Get(t.nearby)
	return t.views[t.scope()].at == 0 && m != nil && !scopeOf(m.Address.Addr()).private() && t.privateOnly()
}

// Settle finds a first home at once if one is needed. It is for the moment at which the cell introduces
// itself.
func (t *Traversal) Settle(now clock.Instant) {
	t.reserve(now)
	if t.Restricted() && len(t.homes) == 0 {
		t.wasRestricted = true
		t.tryHome(now, 0)
	}
}

// Finding is what is known of this cell's own router, for people.
type Finding struct {
	Reach      wire.Reach
	Scope      string
	Translated bool
	Observed   netip.AddrPort
	Mapping    string // none, one-port, per-destination, unknown
	Filter     string // open, closed, unknown
	Mapped     []netip.AddrPort
}

// Finding returns what is known now.
func (t *Traversal) Finding() Finding {
	s := t.scope()
	v := &t.views[s]
	f := Finding{Reach: t.class[s], Scope: scopeNames[s], Translated: t.translated(), Observed: v.observed,
		Mapping: "unknown", Filter: "unknown", Mapped: t.mapped}
	switch {
	case v.at != 0 && !f.Translated:
		f.Mapping = "none"
	case v.most.IsValid():
		f.Mapping = "one-port"
	case v.differed >= votesDiffer:
		f.Mapping = "per-destination"
	case v.agreed > 0:
		f.Mapping = "one-port"
	}
	switch {
	case f.Reach == wire.ReachPublic:
		f.Filter = "open"
	case v.missed > 0:
		f.Filter = "closed"
	}
	return f
}

// judge notes changes of the class.
func (t *Traversal) judge(now clock.Instant) {
	for s := range t.views {
		v := &t.views[s]
		v.usual(now)
		// As long as nobody has said where this cell is seen, one without a global address must be behind a router.
		translated := v.at != 0 && !t.isOwn(v.observed) || v.at == 0 && !scope(s).private() && t.privateOnly()
		if class := v.class(t.class[s], translated); class != t.class[s] {
			t.tell(0, "%s: %v, was %v: %d observers agree, %d do not, seen at %v; %d calls arrived, %d did not, %d of strangers",
				scopeNames[s], class, t.class[s], v.agreed, v.differed, v.observed, v.answered, v.missed, v.refuted)
			t.class[s] = class
			t.changed = true
			t.forgiveAll(now) // whoever could not be reached before may be reachable now
		}
	}
	if restricted := t.Restricted(); restricted != t.wasRestricted {
		t.wasRestricted, t.changed = restricted, true
		if !restricted {
			t.homes = t.homes[:0]
		}
	}
	if shown, other := t.shown(), t.views[t.scope()].other; shown != t.published || other != t.publishedOther {
		t.published, t.publishedOther, t.changed = shown, other, true
		t.tell(0, "seen at %v and %v", shown, other)
	}
}

// shown is the address that this cell tells the others to be seen under, the zero AddrPort for none. Where
// the port depends on who looks, none is told: the address alone says who is behind the same router.
func (t *Traversal) shown() netip.AddrPort {
	s := t.scope()
	v := &t.views[s]
	switch {
	case !t.translated():
		return netip.AddrPort{}
	case t.class[s] == wire.ReachRelayed:
		return netip.AddrPortFrom(v.observed.Addr(), wire.Port)
	case v.most.IsValid():
		return v.most
	case v.differed > 0 && t.published.IsValid():
		return t.published // wait for what the next one says
	}
	return v.observed
}

// Candidates returns what this cell publishes: its own addresses, and the one that others see, with the
// classes of their scopes. dst is reused.
func (t *Traversal) Candidates(dst []state.Candidate) []state.Candidate {
	dst = dst[:0]
	s := t.scope()
	if shown := t.shown(); shown.IsValid() {
		reach := t.class[s]
		if reach == wire.ReachUnknown {
			reach = wire.ReachPunched // worth an attempt, not a plain call
		}
		dst = append(dst, state.Candidate{Address: shown, Reach: reach})
		if other := t.views[s].other; other.IsValid() && other != shown && reach == wire.ReachPunched {
			dst = append(dst, state.Candidate{Address: other, Reach: reach})
		}
	}
	for _, extra := range t.mapped {
		if len(dst) < state.CandidatesMax &&
			!slices.ContainsFunc(dst, func(c state.Candidate) bool { return c.Address == extra }) {
			dst = append(dst, state.Candidate{Address: extra, Reach: wire.ReachUnknown})
		}
	}
	for _, own := range t.options.Own {
		reach := t.class[scopeOf(own.Address.Addr())]
		if len(dst) < state.CandidatesMax {
			dst = append(dst, state.Candidate{Address: own.Address, Reach: reach})
		}
	}
	return dst
}
