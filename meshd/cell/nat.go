package cell

import (
	"net/netip"
	"slices"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/clock"
	"colloid.net/meshd/nat"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// Alternate is a Network that can also send from another port than the cell's: what a filter lets in from
// there, it lets in from anybody (F31). A Network without it calls nobody back.
type Alternate interface {
	SendAlternate(to netip.AddrPort, datagram []byte)
}

// enterNetwork makes the part that deals with routers, for the cluster just entered.
func (c *Cell) enterNetwork() {
	options := nat.Options{
		Self: c.config.Self, Random: c.config.Random, Members: c.members, Guard: c.guard,
		Own: c.config.Addresses, Loopback: c.config.Loopback,
		Nonce: c.config.Random.Uint32, Send: c.send, SendTo: c.sendAddress, Check: c.checkAddress,
		Suspected: c.detector.Suspected, Recheck: c.recheckAddress, NoSearch: c.config.NoPortSearch,
	}
	if c.config.Logger != nil {
		options.Log = c.logPath
	}
	c.sockets, _ = c.config.Network.(Sockets)
	if c.sockets != nil {
		options.OpenSocket, options.CloseSocket, options.SendVia = c.sockets.OpenSocket, c.sockets.CloseSocket, c.sendVia
	}
	if alternate, ok := c.config.Network.(Alternate); ok {
		options.SendAlternate = func(id wire.CellID, to netip.AddrPort, kind wire.Type, nonce uint32, payload []byte) {
			if datagram := c.seal(c.scratch[:0], id, kind, nonce, payload); datagram != nil {
				alternate.SendAlternate(to, datagram)
			}
		}
	}
	for _, contact := range c.config.Peers {
		options.Known = append(options.Known, contact.Address.Addr())
	}
	if c.joining != nil {
		for _, address := range c.joining.addresses {
			options.Known = append(options.Known, address.Addr())
		}
	}
	if c.nat != nil {
		c.nat.Close()
	}
	c.nat = nat.New(options)
	c.nat.SetMapped(c.mapped)
	c.contactDue, c.contactSaid, c.againDue = 0, 0, 0
}

// logPath logs what happens to the path to a cell, 0 for what this one finds out about itself.
func (c *Cell) logPath(id wire.CellID, text string) {
	if id != 0 {
		text = "path to " + id.String() + ": " + text
	}
	c.log(LevelDebug, text)
}

// question reports whether a message is answered by whoever gets it.
func question(kind wire.Type) bool {
	switch kind {
	case wire.TypePing, wire.TypeDelta, wire.TypeAEBegin:
		return true
	}
	return false
}

// Hop is the next station of a datagram.
type Hop struct {
	Address netip.AddrPort
	Relay   wire.CellID // 0 = the member itself is at Address
}

// route returns where a datagram to a member goes: straight, through a relay, or both ways while the
// straight one is in doubt. hops[1] is set only then.
func (c *Cell) route(m *member) (hops [2]Hop, count int) {
	route := c.nat.Route(c.now, m)
	if route.Direct {
		hops[count] = Hop{Address: m.Address}
		count++
	}
	if relay := c.members.Get(route.Relay); relay != nil && relay.Address.IsValid() {
		hops[count] = Hop{Address: relay.Address, Relay: relay.ID}
		count++
	}
	return hops, count
}

// sendMember sends a message to a member on whatever way there is.
func (c *Cell) sendMember(m *member, kind wire.Type, nonce uint32, payload []byte) {
	hops, count := c.route(m)
	asks := question(kind)
	for _, hop := range hops[:count] {
		c.nat.Sent(c.now, m.ID, nat.Route{Direct: hop.Relay == 0, Relay: hop.Relay}, asks)
		if hop.Relay == 0 {
			c.sendAddress(m.ID, hop.Address, kind, nonce, payload)
			continue
		}
		head := wire.AppendRelay(c.scratch[:0], wire.RelayFirst, m.ID)
		c.counters.relayed++
		if datagram := c.seal(head, m.ID, kind, nonce, payload); datagram != nil {
			c.transmit(hop.Address, datagram)
		}
	}
	if count == 0 {
		c.counters.unroutable++
	}
}

// receiveRelayed handles a datagram that came through a relay, or that this cell is to pass on (F36).
func (c *Cell) receiveRelayed(from netip.AddrPort, datagram []byte) {
	kind, target, inner, err := wire.ParseRelay(datagram)
	if err != nil {
		c.counters.malformed++
		return
	}
	if target != c.config.Self {
		c.passOn(from, kind, target, datagram, inner)
		return
	}
	c.keepSealed(wire.Type(inner[1]), inner)
	header, payload, hop, err := c.opener.OpenHop(inner)
	if err != nil || header.Sender == c.config.Self {
		c.counters.unsealed++
		return
	}
	if header.Type.Relayable() || header.Type == wire.TypeRelayOffer {
		c.receiveStream(netip.AddrPort{}, header, payload, hop)
		c.drain()
		return
	}
	// Who the sender is, is sure; where it is, a relay cannot say (F155).
	c.heardVersion(header.Sender, header.Version)
	if m := c.members.Get(header.Sender); m != nil {
		returned := c.returned(m)
		c.detector.Heard(c.now, m.ID)
		m.Heard = c.now
		c.nat.HeardRelayed(c.now, m.ID)
		c.creditRelay(from)
		if returned {
			c.wantSession(m.ID)
		}
	} else if relay := c.memberAt(from); relay != nil {
		c.replyVia = from // a stranger: only the relay knows the way back
		if c.stranger.id == 0 {
			c.stranger = stranger{header.Sender, c.now.Add(strangerDelay), relay.ID}
		}
	}
	c.replyTo, c.replyAddress = header.Sender, netip.AddrPort{}
	c.dispatch(netip.AddrPort{}, header, payload)
	c.replyTo, c.replyVia = 0, netip.AddrPort{}
	c.drain()
}

// memberAt returns the member that has an address, nil if none. Relays are few, so looking for them is rare
// enough: a stranger is one for a second, a home is found first.
func (c *Cell) memberAt(address netip.AddrPort) (found *member) {
	c.members.Each(func(m *member) bool {
		if m.Address == address {
			found = m
		}
		return found == nil
	})
	return found
}

// sendBack sends an answer to a stranger through the relay that its question came through.
func (c *Cell) sendBack(to wire.CellID, kind wire.Type, nonce uint32, payload []byte) {
	head := wire.AppendRelay(c.scratch[:0], wire.RelayFirst, to)
	c.counters.relayed++
	if datagram := c.seal(head, to, kind, nonce, payload); datagram != nil {
		c.transmit(c.replyVia, datagram)
	}
}

// creditRelay notes that the home at this address is there.
func (c *Cell) creditRelay(from netip.AddrPort) {
	for _, id := range c.nat.Homes() {
		if m := c.members.Get(id); m != nil && m.Address == from {
			c.nat.Carried(c.now, m)
		}
	}
}

// passOn relays a datagram, if a member sealed it and it was not here before: replay windows keep it from
// going round in circles, and strangers from being served (F14).
func (c *Cell) passOn(from netip.AddrPort, kind wire.Type, target wire.CellID, datagram, inner []byte) {
	m := c.members.Get(target)
	if m == nil || !m.InService() || !m.Address.IsValid() || c.phase == Booting {
		c.counters.relayRefused++
		return
	}
	c.relayCopy = append(c.relayCopy[:0], inner...) // opening destroys it
	header, _, hop, err := c.opener.OpenHop(c.relayCopy)
	if err != nil || header.Sender == c.config.Self || header.Sender == target {
		c.counters.relayRefused++
		return
	}
	origin := c.members.Get(hop)
	if origin == nil || !origin.InService() {
		c.counters.relayRefused++
		return
	}
	// Streams of one cell may come from others that relay them, and must not use up what carries its probes.
	streams := header.Type.Relayable() || header.Type == wire.TypeRelayOffer
	limit := &c.relayLimit
	if streams {
		limit = &c.streamLimit
	}
	if kind == wire.RelayFirst && !streams { // the origin itself is at from
		c.guard.Received(c.now, from, len(datagram))
		c.heard(header.Sender, from, wire.TypePunchKeep)
	}
	if !limit.Allow(c.now, hop) {
		c.counters.relayRefused++
		return
	}
	next := m.Address
	if !c.nat.Direct(c.now, m) {
		if kind == wire.RelayLast {
			// A home that has lost its client for the moment tries all the same.
			if !m.HasHome(c.config.Self) {
				c.counters.relayRefused++
				return
			}
		} else if home := c.homeOf(m, origin.ID); home != nil {
			next = home.Address
		}
	}
	c.counters.passedOn++
	wire.AppendRelay(datagram[:0], wire.RelayLast, target)
	c.transmit(next, datagram)
}

// homeOf returns a home of a member that this cell reaches.
func (c *Cell) homeOf(m *member, except wire.CellID) *member {
	for _, id := range m.Homes {
		if home := c.members.Get(id); id != except && home != nil && home.InService() && home.Address.IsValid() &&
			!c.detector.Suspected(id) && c.nat.Direct(c.now, home) {
			return home
		}
	}
	return nil
}

// receivePunch hands PUNCH_REQ and PUNCH_SYN of members on.
func (c *Cell) receivePunch(sender wire.CellID, from netip.AddrPort, header wire.Header, payload []byte) {
	if m := c.members.Get(sender); m != nil {
		c.nat.Receive(c.now, m, from, header, payload)
	}
}

// observedBy takes this cell's own address as a member sees it (F32).
func (c *Cell) observedBy(now clock.Instant, by wire.CellID, address netip.AddrPort) {
	if m := c.members.Get(by); m != nil {
		c.nat.Observed(now, m, address)
	}
}

// hinted takes from a PING where its sender sees this cell.
func (c *Cell) hinted(sender wire.CellID, from netip.AddrPort, payload []byte) {
	if m := c.members.Get(sender); m != nil && from.IsValid() {
		if observed, err := wire.ParsePing(payload); err == nil {
			c.nat.Hinted(c.now, m, from, observed)
		}
	}
}

// SetMapped sets the addresses that a router opened for this cell on request.
func (c *Cell) SetMapped(now clock.Instant, addresses []netip.AddrPort) {
	c.now = now
	c.mapped = slices.Clone(addresses)
	c.nat.SetMapped(c.mapped)
}

// recoverAgain is when a cell whose router gave it another place asks more cells what it missed: until they know where
// it is, some send to where it was, for as long as a new contact takes to reach them.
var recoverAgain = [...]time.Duration{1500 * time.Millisecond, 2500 * time.Millisecond}

// recoverMore asks again, another cell that was heard straight just now if there is one.
func (c *Cell) recoverMore() {
	var found [1]*member
	for _, m := range c.members.Random(c.config.Random, 1, found[:0], func(m *member) bool {
		return !m.InService() || m.ID == c.againFrom || c.detector.Suspected(m.ID) || !c.nat.Direct(c.now, m) ||
			m.Heard == 0 || c.now.Sub(m.Heard) >= heardLately
	}) {
		c.againFrom = m.ID
	}
	c.wantSession(c.againFrom)
	c.againDue = 0
	if c.againCount++; c.againCount < len(recoverAgain) {
		c.againDue = c.now.Add(recoverAgain[c.againCount])
	}
}

// contactDelay collects changes of the own contact; contactPause is the least time between two of them.
const (
	contactDelay = 100 * time.Millisecond
	contactPause = 2 * time.Second
)

// tickNetwork runs the part that deals with routers and publishes what became different.
func (c *Cell) tickNetwork() {
	c.nat.Tick(c.now)
	if peer := c.nat.Recovered(); peer != 0 && c.phase != Booting {
		c.sessions.Abandon(c.now)
		c.sessionsWanted = c.sessionsWanted[:0] // they were for less
		c.wantSession(peer)
		c.againFrom, c.againDue, c.againCount = peer, c.now.Add(recoverAgain[0]), 0
	}
	if c.againDue != 0 && c.againDue.Reached(c.now) {
		c.recoverMore()
	}
	c.catchUp()
	c.tickAddresses()
	if c.nat.Changed() {
		c.chooseAgain()
		c.contactChanged()
	}
	if c.contactDue == 0 || !c.contactDue.Reached(c.now) || c.phase == Booting {
		return
	}
	c.contactDue = 0
	c.contactSaid = c.now
	c.publish(state.ContactKey(c.config.Self), append(state.AppendCellContact(nil, c.ownContact()), c.config.ContactExtension...))
	c.restateEndpoints()
}

// contactChanged has the own contact published soon.
func (c *Cell) contactChanged() {
	if c.contactDue != 0 {
		return
	}
	c.contactDue = c.now.Add(contactDelay)
	if c.contactSaid != 0 {
		c.contactDue = max(c.contactDue, c.contactSaid.Add(contactPause))
	}
}

// chooseAgain looks at the candidates of all members anew: which of them are on this side of a router depends
// on what this cell knows of its own (F33).
func (c *Cell) chooseAgain() {
	c.members.Each(func(m *member) bool {
		if view := c.views.cells[m.ID]; view != nil && view.hasContact {
			c.chooseAddress(m, view, false, false)
		}
		return true
	})
}

// detour hears that others reach a member which did not answer this cell. The address may be the wrong one:
// another of its candidates is asked, and counts if it answers.
func (c *Cell) detour(m *member) {
	c.nat.Detour(c.now, m)
	var others [state.CandidatesMax]netip.AddrPort
	count := 0
	for _, candidate := range m.Candidates {
		if candidate.Address != m.Address && c.admissible(candidate.Address) && count < len(others) {
			others[count] = candidate.Address
			count++
		}
	}
	if count > 0 && !m.NeedsHelp() {
		c.checkAddress(m.ID, others[c.config.Random.IntN(count)])
	}
}

// A cell behind a router misses some of what is sent to it while the others do not know its homes yet. For
// catchUpFor after it became active, and for as long as it has no home, it asks one of them whether there is
// more, every catchUpPause; without a home, the cell that was heard last: who may become one, it must be told.
const (
	catchUpFor   = 20 * time.Second
	catchUpPause = 2500 * time.Millisecond
	catchUpSlow  = 20 * time.Second // after that
)

func (c *Cell) catchUp() {
	if c.phase == Booting {
		c.caughtUp, c.caughtUntil = 0, 0
		return
	}
	if c.caughtUntil == 0 {
		c.caughtUntil = c.now.Add(catchUpFor)
	}
	if !c.nat.Restricted() || !c.caughtUp.Reached(c.now) {
		return
	}
	homes := c.nat.Homes()
	if len(homes) > 0 && c.caughtUntil.Reached(c.now) {
		return
	}
	c.caughtUp = c.now.Add(catchUpPause)
	if c.caughtUntil.Reached(c.now) {
		c.caughtUp = c.now.Add(catchUpSlow)
	}
	if len(homes) > 0 {
		c.wantSession(homes[0])
		return
	}
	var last *member
	c.members.Each(func(m *member) bool {
		if c.answers(m) && m.Heard != 0 && c.now.Sub(m.Heard) < heardLately && (last == nil || m.Heard > last.Heard) {
			last = m
		}
		return true
	})
	if last != nil {
		c.wantSession(last.ID)
	}
}

func (c *Cell) networkDeadline() clock.Instant {
	next := c.nat.Deadline()
	if c.againDue != 0 {
		next = clock.Earliest(next, c.againDue)
	}
	if c.contactDue != 0 && c.phase != Booting {
		next = clock.Earliest(next, c.contactDue)
	}
	if c.addresses.due != 0 {
		next = clock.Earliest(next, c.addresses.due)
	}
	return next
}

// networkInfo tells people how others reach this cell.
func (c *Cell) networkInfo() uds.NetworkInfo {
	finding := c.nat.Finding()
	info := uds.NetworkInfo{
		Reach: finding.Reach.String(), Scope: finding.Scope, Translated: finding.Translated,
		Mapping: finding.Mapping, Filter: finding.Filter,
		Mapped: []string{}, Homes: []uds.HomeInfo{}, Candidates: []uds.AddressInfo{},
	}
	if finding.Observed.IsValid() {
		info.Observed = finding.Observed.String()
	}
	for _, address := range finding.Mapped {
		info.Mapped = append(info.Mapped, address.String())
	}
	for _, id := range c.nat.Homes() {
		home := uds.HomeInfo{Cell: id.String(), HeardSeconds: -1}
		if view := c.views.cells[id]; view != nil {
			home.Hostname = view.contact.Hostname
		}
		if at := c.nat.HeardFrom(id); at != 0 {
			home.HeardSeconds = c.now.Sub(at).Seconds()
		}
		info.Homes = append(info.Homes, home)
	}
	for _, candidate := range c.nat.Candidates(c.candidates[:0]) {
		info.Candidates = append(info.Candidates,
			uds.AddressInfo{Address: candidate.Address.String(), Reach: candidate.Reach.String()})
	}
	return info
}

// describePath tells people how this cell reaches a member.
func (c *Cell) describePath(info *uds.CellInfo, m *member) {
	report := c.nat.Report(c.now, m)
	info.Path, info.PathAttempts = report.Kind.String(), report.Attempts
	info.PathSeconds = report.Age.Seconds()
	info.PathSearched = report.Searched
	if report.Relay != 0 {
		info.Relay = report.Relay.String()
	}
}

// PathTo returns how this cell reaches another, for tests and checkers: false if it does not know it.
func (c *Cell) PathTo(id wire.CellID) (nat.Report, bool) {
	m := c.members.Get(id)
	if m == nil {
		return nat.Report{}, false
	}
	return c.nat.Report(c.now, m), true
}

// Finding returns what this cell knows of its own router, for tests and checkers.
func (c *Cell) Finding() nat.Finding { return c.nat.Finding() }

// Homes returns the cell's homes, for tests and checkers.
func (c *Cell) Homes() []wire.CellID { return slices.Clone(c.nat.Homes()) }
