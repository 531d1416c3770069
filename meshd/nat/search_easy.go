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

// searchableAt reports whether a member can be searched for at an address that a coordinator tells: a global one which
// the member itself has published. So it takes both to aim a search (F14).
func (t *Traversal) searchableAt(id wire.CellID, address netip.AddrPort) bool {
	m := t.options.Members.Get(id)
	where := address.Addr()
	if m == nil || !usableFrom(address, wire.Options{}) || scopeOf(where).private() || !hasFamily(t.options.Own, where) ||
		t.views[t.scope()].observed.Addr() == where || !slices.ContainsFunc(m.Candidates, func(c state.Candidate) bool {
		return c.Address.Addr() == where
	}) {
		return false
	}
	return true
}

// taken reports whether a cell that needs no help is reached at an address: its ports are not for drawing.
func (t *Traversal) taken(address netip.Addr) (taken bool) {
	t.options.Members.Each(func(other *overlay.Member) bool {
		taken = !other.NeedsHelp() && other.Address.Addr() == address
		return !taken
	})
	return taken
}

// joinSearch takes part in the search of another cell, as the easy side.
func (t *Traversal) joinSearch(now clock.Instant, coordinator *overlay.Member, request wire.PunchReq) {
	m := t.options.Members.Get(request.Target.ID)
	if m == nil || !m.InService() || m.Reach != wire.ReachRelayed || !t.searchable(m) || coordinator.ID == m.ID ||
		coordinator.Reach != wire.ReachPublic || !t.isHome(coordinator.ID) && !m.HasHome(coordinator.ID) ||
		!t.searchableAt(m.ID, request.Target.Address) || t.taken(request.Target.Address.Addr()) {
		t.stats.Refused++
		return
	}
	p := t.path(m.ID)
	if p == nil || p.searched != 0 && now.Sub(p.searched) < p.searchPause()/searchSlack*(searchSlack-1) {
		t.stats.Refused++
		return
	}
	p.firstWanted = now // the other one tries
	answer := uint8(wire.PunchSearchReady)
	s := t.search
	again := s != nil && !s.hard && !s.begun && s.id == m.ID
	switch {
	case again && s.rendezvous == request.Rendezvous:
		s.next = now.Add(beginWait)
	case s != nil && !again || t.probes.left(now) < probesMin:
		answer = wire.PunchSearchBusy
	default:
		t.search = &search{id: m.ID, rendezvous: request.Rendezvous, address: request.Target.Address,
			next: now.Add(beginWait)}
	}
	t.tell(p.ID, "search %x asked for: takes part %t", request.Rendezvous, answer == wire.PunchSearchReady)
	where := request.Target.Address
	if other := t.unseenBy(coordinator); answer == wire.PunchSearchReady && other.IsValid() {
		where = other // this cell's contact may not say so yet
	}
	t.say(m.ID, m, where, answer, request.Rendezvous)
	if answer == wire.PunchSearchReady { // a filter that looks at addresses lets it in from now on
		t.options.SendTo(m.ID, request.Target.Address, wire.TypePunchSyn, t.options.Nonce(),
			wire.AppendPunchSyn(t.payload[:0], request.Rendezvous))
	}
}

// continueEasy sends to ports that it draws.
func (t *Traversal) continueEasy(now clock.Instant, s *search, p *Path, m *overlay.Member) {
	if !s.begun || s.sent >= probesMax || s.until.Reached(now) || t.probes.left(now) < probesAtOnce {
		t.endSearch(now)
		return
	}
	for range probesAtOnce {
		port := t.options.Random.IntN(ports)
		for s.drawn[port/64]&(1<<(port%64)) != 0 {
			port = t.options.Random.IntN(ports)
		}
		s.drawn[port/64] |= 1 << (port % 64)
		t.options.SendTo(s.id, netip.AddrPortFrom(s.address.Addr(), uint16(portFirst+port)), wire.TypePunchSyn,
			t.options.Nonce(), wire.AppendPunchSyn(t.payload[:0], s.rendezvous))
	}
	s.sent += probesAtOnce
	t.stats.Probes += probesAtOnce
	t.probes.spend(now, probesAtOnce)
	s.next = now.Add(probeInterval*3/4 + time.Duration(t.options.Random.Int64N(int64(probeInterval/2))))
	if s.sent >= probesMax {
		s.next = now.Add(settleTime) // the last one may have met a port
	}
}

// searchHitsMax bounds the answers to what the hard side sends in a search.
const searchHitsMax = 16

// searchHit takes a PUNCH_SYN of a search and reports whether it is one. On the easy side it came from the port that was
// searched for; on the hard side the first one that came through a further socket has decided the search already.
func (t *Traversal) searchHit(now clock.Instant, m *overlay.Member, from netip.AddrPort, rendezvous uint64) bool {
	s := t.search
	if s == nil || s.id != m.ID || s.rendezvous != rendezvous {
		return false
	}
	if s.hard {
		if s.at(from) && s.begun && s.won == 0 { // it met the port of the cell's own socket, which punched before
			s.won, s.address = ownSocket, from
			t.closeSockets(s)
			s.until = now.Add(settleTime)
			t.confirm(now, s)
			t.next = clock.Earliest(t.next, s.next)
		}
		return from == s.address
	}
	if from.Addr() != s.address.Addr() || s.hits >= searchHitsMax {
		return true
	}
	if p := t.paths[m.ID]; p != nil {
		t.searchCounts(now, s, p)
	}
	s.hits++
	s.next = max(s.next, now.Add(hitPause))
	t.options.Recheck(m.ID, from)
	const size = wire.HeaderSize + wire.PunchSynSize + wire.TrailerSize
	if t.options.Guard.AllowSend(now, from, size) {
		t.options.SendTo(m.ID, from, wire.TypePunchSyn, t.options.Nonce(), wire.AppendPunchSyn(t.payload[:0], rendezvous))
	}
	return true
}
