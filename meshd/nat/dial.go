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

// Times and counts of dial-backs (F31).
const (
	// dialInterval is the pause between dial-backs until the class is settled, dialSettled afterwards.
	dialInterval = 2500 * time.Millisecond
	dialSettled  = 60 * time.Second
	// dialTimeout is how long a dial-back may take.
	dialTimeout = 2 * time.Second
	// contactedFor is how long a filter may remember that this cell sent to an address.
	contactedFor = 5 * time.Minute
	// ContactedEvery is how often it is enough to say that this cell sends to an address.
	ContactedEvery = 30 * time.Second
	// contactedMax bounds the addresses remembered; at the bound the old ones go, then all.
	contactedMax = 8192
	// reserveFor is how long one member is kept unknown to our router after the cell became active.
	reserveFor = 8 * time.Second
	// reserveAgain is how long nobody is looked for after nobody was found, unless a member changes: an address
	// becomes unknown to a filter again only after contactedFor.
	reserveAgain = time.Minute
)

// Contacted notes that this cell sends to an address: from now on its router may let answers in.
func (t *Traversal) Contacted(now clock.Instant, to netip.AddrPort) {
	if _, known := t.contacted[to.Addr()]; !known && len(t.contacted) >= contactedMax {
		for address, at := range t.contacted { // each is judged by itself, the order does not matter
			if now.Sub(at) >= contactedFor {
				delete(t.contacted, address)
			}
		}
		if len(t.contacted) >= contactedMax {
			clear(t.contacted)
		}
	}
	t.contacted[to.Addr()] = now
}

func (t *Traversal) strange(now clock.Instant, address netip.Addr) bool {
	at, known := t.contacted[address]
	return !known || now.Sub(at) >= contactedFor+ContactedEvery
}

// dial is a dial-back under way.
type dial struct {
	nonce   uint32 // 0 = none
	scope   scope
	strange bool
	due     clock.Instant // when it counts as missed
	next    clock.Instant // when the next one begins
	widest  scope         // what the pause before it was chosen for
}

// tickDial ends and begins dial-backs.
func (t *Traversal) tickDial(now clock.Instant) {
	d := &t.dial
	if d.nonce != 0 && d.due.Reached(now) {
		t.views[d.scope].dialled(false, d.strange)
		d.nonce = 0
		t.judge(now)
	}
	if d.next == 0 {
		d.next = now.Add(dialInterval / 5)
	}
	if widest := t.scope(); widest != d.widest { // what a neighbour showed settles nothing about a wider network
		d.widest, d.next = widest, clock.Earliest(d.next, now.Add(dialInterval/5))
	}
	if d.nonce != 0 || !d.next.Reached(now) {
		return
	}
	d.next = now.Add(dialInterval)
	v := &t.views[t.scope()]
	if t.reserved == 0 && (v.answered >= dialsProve || v.missed >= 2*dialsRefute || v.refuted >= dialsProve) {
		d.next = now.Add(dialSettled)
	}
	t.beginDial(now)
}

// beginDial asks a member to have this cell called: by a third one that was never contacted if there is
// one, else by itself from another port.
func (t *Traversal) beginDial(now clock.Instant) {
	coordinator := t.pickCoordinator(now)
	if coordinator == nil {
		return
	}
	caller := t.reserved
	if m := t.options.Members.Get(caller); m == nil || !m.InService() || !t.strange(now, m.Address.Addr()) {
		caller = t.pickStranger(now, coordinator)
	}
	m := t.options.Members.Get(caller)
	if m == nil {
		m = coordinator
	}
	target := wire.Contact{ID: m.ID, Address: m.Address, Flags: wire.PunchDial}
	if target.Check(wire.Options{Loopback: true}) != nil {
		return
	}
	d := &t.dial
	for d.nonce = 0; d.nonce == 0; {
		d.nonce = t.options.Nonce()
	}
	d.scope, d.strange = scopeOf(coordinator.Address.Addr()), t.strange(now, m.Address.Addr())
	d.due = now.Add(dialTimeout)
	request := wire.PunchReq{Target: target, Rendezvous: uint64(d.nonce)}
	t.options.Send(coordinator.ID, wire.TypePunchReq, t.options.Nonce(), wire.AppendPunchReq(t.payload[:0], request))
}

// pickCoordinator draws a member that can be asked: best one whose own address is global.
func (t *Traversal) pickCoordinator(now clock.Instant) *overlay.Member {
	pick := func(global bool) *overlay.Member {
		var found [1]*overlay.Member
		list := t.options.Members.Random(t.options.Random, 1, found[:0], func(m *overlay.Member) bool {
			return !m.InService() || !m.Address.IsValid() || m.NeedsHelp() && !t.direct(now, m) || t.suspected(m.ID) ||
				m.ID == t.reserved || m.Heard == 0 || global && scopeOf(m.Address.Addr()).private()
		})
		if len(list) == 0 {
			return nil
		}
		return list[0]
	}
	if m := pick(true); m != nil {
		return m
	}
	return pick(false)
}

// pickStranger draws a member that this cell's router has not seen this cell talk to.
func (t *Traversal) pickStranger(now clock.Instant, coordinator *overlay.Member) wire.CellID {
	var found [1]*overlay.Member
	list := t.options.Members.Random(t.options.Random, 1, found[:0], func(m *overlay.Member) bool {
		return m.ID == coordinator.ID || !m.InService() || !m.Address.IsValid() || m.NeedsHelp() ||
			near(m.Address.Addr(), coordinator.Address.Addr()) || !t.strange(now, m.Address.Addr()) ||
			scopeOf(m.Address.Addr()) != scopeOf(coordinator.Address.Addr())
	})
	if len(list) == 0 {
		return 0
	}
	return list[0].ID
}

// DialBack takes a PING that came straight from an address and reports whether it was the one asked for:
// then it is evidence and nothing else, above all not a sign of where its sender lives.
func (t *Traversal) DialBack(now clock.Instant, nonce uint32, from netip.AddrPort) bool {
	d := &t.dial
	if d.nonce == 0 || nonce != d.nonce {
		return false
	}
	d.nonce = 0
	t.views[d.scope].dialled(true, t.strange(now, from.Addr()))
	t.judge(now)
	return true
}

// reserve keeps one member unknown to this cell's router until it has called back: only calls from such an
// address tell a filter that looks at addresses from none at all (F31). It is done where it matters, for
// cells with private addresses in a cluster with global ones: at the beginning, and as long as everybody
// who called was an acquaintance, whenever somebody new turns up.
func (t *Traversal) reserve(now clock.Instant) {
	v := &t.views[t.scope()]
	undecided := t.reserveUntil == 0 || t.translated() && v.answered >= dialsProve && !v.confirmed && v.refuted < dialsProve
	if !undecided || t.reserved != 0 && !t.reserveUntil.Reached(now) || t.options.Members.Len() < 2 || !t.privateOnly() {
		return
	}
	// This looks at all members when there is none to find, as on a network of its own, so not at every Tick.
	if t.reserveLook != 0 && !t.reserveLook.Reached(now) && t.reserveSeen == t.options.Members.Revision() {
		return
	}
	t.reserveLook, t.reserveSeen = now.Add(reserveAgain), t.options.Members.Revision()
	var found [1]*overlay.Member
	list := t.options.Members.Random(t.options.Random, 1, found[:0], func(m *overlay.Member) bool {
		t.stats.Looked++
		return scopeOf(m.Address.Addr()).private() || !m.InService() || !m.Address.IsValid() || m.NeedsHelp() ||
			!t.strange(now, m.Address.Addr())
	})
	if len(list) > 0 {
		t.reserved, t.reserveUntil = list[0].ID, now.Add(reserveFor)
		t.dial.next = clock.Earliest(t.dial.next, now.Add(dialInterval/5))
	}
}

func (t *Traversal) privateOnly() bool {
	return len(t.options.Own) > 0 && !slices.ContainsFunc(t.options.Own, func(c state.Candidate) bool {
		return !scopeOf(c.Address.Addr()).private()
	})
}

// keepsApart reports whether a member is reserved at present.
func (t *Traversal) keepsApart(now clock.Instant, id wire.CellID) bool {
	if t.reserved != id || id == 0 {
		return false
	}
	v := &t.views[t.scope()]
	if t.reserveUntil.Reached(now) || v.confirmed && v.answered >= dialsProve || v.refuted >= dialsProve {
		t.reserved = 0
		return false
	}
	return true
}
