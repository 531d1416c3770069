package cell

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/nat"
	"colloid.net/meshd/overlay"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// send is the way out of every protocol part: it finds the address of the addressee, adds the
// header, seals, and hands the datagram to the network. A message to somebody unknown is dropped and
// counted; every protocol above repeats what matters.
func (c *Cell) send(to wire.CellID, kind wire.Type, nonce uint32, payload []byte) {
	if member := c.members.Get(to); member != nil && member.Address.IsValid() {
		if to != c.replyTo || !c.replyAddress.IsValid() {
			c.sendMember(member, kind, nonce, payload)
			return
		}
		address := c.replyAddress
		// The cell may have moved, or somebody replays its datagrams from an address of his choice.
		if address != member.Address &&
			!c.guard.AllowSend(c.now, address, wire.HeaderSize+len(payload)+wire.TrailerSize) {
			c.counters.guarded++
			return
		}
		c.sendAddress(to, address, kind, nonce, payload)
		return
	}
	if to == c.replyTo && c.replyVia.IsValid() {
		c.sendBack(to, kind, nonce, payload)
		return
	}
	address, named, ok := c.guests.address(to)
	if !ok {
		c.counters.unroutable++
		return
	}
	// Where nobody vouches for a guest's address but the guest, it gets little until it has echoed a
	// nonce (F14).
	if !named && !c.guard.AllowSend(c.now, address, wire.HeaderSize+len(payload)+wire.TrailerSize) {
		c.counters.guarded++
		return
	}
	c.sendAddress(to, address, kind, nonce, payload)
}

// sendAddress sends to a cell at an address, in a version that the cell understands.
func (c *Cell) sendAddress(to wire.CellID, address netip.AddrPort, kind wire.Type, nonce uint32, payload []byte) {
	datagram := c.seal(c.scratch[:0], to, kind, nonce, payload)
	if datagram == nil {
		return
	}
	m := c.members.Get(to)
	switch {
	case m == nil:
		c.transmit(address, datagram)
	case m.Contactee == address.Addr() && c.now.Sub(m.Contacted) < nat.ContactedEvery:
		c.emit(address, datagram)
	default:
		m.Contacted, m.Contactee = c.now, address.Addr()
		c.transmit(address, datagram)
	}
}

// seal appends a sealed datagram of this cell in a version that the addressee understands; nil if there is none.
func (c *Cell) seal(dst []byte, to wire.CellID, kind wire.Type, nonce uint32, payload []byte) []byte {
	if len(payload) > wire.SealedPayloadMax {
		panic("cell: payload longer than a sealed datagram holds")
	}
	version, ok := c.versionFor(to)
	if !ok {
		c.counters.noVersion++
		return nil
	}
	header := wire.Header{
		Version: version, Type: kind, PayloadLength: uint16(len(payload)), Sender: c.config.Self, Nonce: nonce,
	}
	begin := len(dst)
	dst = append(wire.AppendHeader(dst, header), payload...)
	dst = append(dst[:begin], c.sealer.Seal(dst[begin:])...)
	c.sentLately.note(dst[len(dst)-wire.TrailerSize:])
	return dst
}

// transmit hands a datagram to the network.
func (c *Cell) transmit(address netip.AddrPort, datagram []byte) {
	c.nat.Contacted(c.now, address)
	c.emit(address, datagram)
}

func (c *Cell) emit(address netip.AddrPort, datagram []byte) {
	c.counters.sent++
	c.counters.sentBytes += uint64(len(datagram))
	if socket := c.nat.SocketFor(address); socket != 0 {
		c.sockets.SendVia(socket, address, datagram)
		return
	}
	c.config.Network.Send(address, datagram)
}

// vouched reports whether a member answered from an address lately enough that the guard has nothing to count
// there: what it received from a proven address it never looks at.
func (c *Cell) vouched(id wire.CellID, from netip.AddrPort) bool {
	m := c.members.Get(id)
	return m != nil && m.Address == from && m.Validated != 0 && c.now.Sub(m.Validated) < vouchedFor
}

// vouchedFor is well below overlay.ValidationLifetime: when the proof ends, the count has begun anew for long.
const vouchedFor = overlay.ValidationLifetime / 2

// admissible refuses source addresses that cannot be a cell's.
func (c *Cell) admissible(from netip.AddrPort) bool {
	address := from.Addr()
	return from.Port() != 0 && !address.IsMulticast() && !address.IsUnspecified() &&
		(c.config.Loopback || !address.IsLoopback())
}

// guestsMax bounds the cells that spoke to us before their contact reached the store. The guest that
// was heard least recently is replaced.
const guestsMax = 256

type guest struct {
	id      wire.CellID
	address netip.AddrPort
	named   bool // by an operator, a welcome or our own directory, not by the guest itself
	greeted bool // was sent the cluster key at this address: what it seals proves that it arrived there
	heard   clock.Instant
	speaks  uint8 // version of its last message, 0 = not heard
}

// guestTable holds addresses of cells that own the cluster key but are not members yet: joiners.
type guestTable struct{ list []guest }

func (t *guestTable) init() { t.list = t.list[:0] }

func (t *guestTable) address(id wire.CellID) (address netip.AddrPort, named, ok bool) {
	for i := range t.list {
		if t.list[i].id == id {
			return t.list[i].address, t.list[i].named, true
		}
	}
	return netip.AddrPort{}, false, false
}

func (t *guestTable) put(now clock.Instant, id wire.CellID, address netip.AddrPort, named bool) {
	oldest := -1
	for i := range t.list {
		if t.list[i].id == id {
			named = named || t.list[i].named && t.list[i].address == address
			greeted := t.list[i].greeted && t.list[i].address == address
			t.list[i] = guest{id, address, named, greeted, now, t.list[i].speaks}
			return
		}
		if oldest < 0 || t.list[i].heard < t.list[oldest].heard {
			oldest = i
		}
	}
	fresh := guest{id: id, address: address, named: named, heard: now}
	if len(t.list) < guestsMax {
		t.list = append(t.list, fresh)
	} else {
		t.list[oldest] = fresh
	}
}

// speaks notes in which version a guest was heard.
func (t *guestTable) speaks(id wire.CellID, version uint8) {
	for i := range t.list {
		if t.list[i].id == id {
			t.list[i].speaks = version
			return
		}
	}
}

// version returns the version in which a guest was heard, 0 if it was not.
func (t *guestTable) version(id wire.CellID) uint8 {
	for i := range t.list {
		if t.list[i].id == id {
			return t.list[i].speaks
		}
	}
	return 0
}

// greet notes that the guest is being sent the cluster key.
func (t *guestTable) greet(now clock.Instant, id wire.CellID, address netip.AddrPort) {
	t.put(now, id, address, false)
	for i := range t.list {
		if t.list[i].id == id {
			t.list[i].greeted = true
		}
	}
}

// greeted reports whether the guest was sent the cluster key at this address.
func (t *guestTable) greeted(id wire.CellID, address netip.AddrPort) bool {
	for i := range t.list {
		if t.list[i].id == id {
			return t.list[i].greeted && t.list[i].address == address
		}
	}
	return false
}

func (t *guestTable) remove(id wire.CellID) {
	for i := range t.list {
		if t.list[i].id == id {
			t.list[i] = t.list[len(t.list)-1]
			t.list = t.list[:len(t.list)-1]
			return
		}
	}
}

// returnInterval is the least time between two sessions because a cell came back: its first datagrams
// arrive before the suspicion is cleared.
const returnInterval = 5 * time.Second

// returned reports whether a cell that was out of reach is heard again: it has missed gossip, which gives
// up after 1.75 s, and so have we.
func (c *Cell) returned(m *member) bool {
	_, missed := c.missed[m.ID]
	if c.phase == Booting || m.Life != state.Dead && !missed && !c.detector.Suspected(m.ID) {
		return false
	}
	if last, ok := c.returns[m.ID]; ok && c.now.Sub(last) < returnInterval {
		return false
	}
	if len(c.returns) >= sessionsWantedMax {
		clear(c.returns)
	}
	c.returns[m.ID] = c.now
	delete(c.missed, m.ID)
	return true
}

// missedNews notes a member that did not acknowledge what gossip told it, though it is no suspect: its router may have
// forgotten it, and by its next probe it is there again. As soon as it is heard it gets what it missed.
func (c *Cell) missedNews(id wire.CellID) {
	if len(c.missed) >= sessionsWantedMax {
		clear(c.missed)
	}
	c.missed[id] = struct{}{}
}

// heard notes a verified datagram. Streams and volumes are relayed under their originator's id, so
// they say nothing about where or whether the sender lives (F155).
func (c *Cell) heard(sender wire.CellID, from netip.AddrPort, kind wire.Type) {
	if kind >= wire.TypeStreamOpen && kind <= wire.TypeVolumeDone && kind != wire.TypeAEMerkleReq &&
		kind != wire.TypeAEMerkleResp && kind != wire.TypeAEVector {
		return
	}
	member := c.members.Get(sender)
	if member == nil {
		c.guests.put(c.now, sender, from, false)
		c.noticeStranger(sender, from)
		switch {
		case c.guard.Validated(c.now, from):
		case c.guests.greeted(sender, from):
			c.guard.Validate(c.now, from)
		default:
			c.checkAddress(sender, from)
		}
		return
	}
	returned := c.returned(member)
	c.detector.Heard(c.now, sender)
	member.Heard = c.now
	switch {
	case member.Address == from:
		c.nat.Heard(c.now, member)
	case kind != wire.TypePunchSyn: // those are looked at with what they belong to
		c.checkAddress(sender, from)
	}
	if returned {
		c.wantSession(sender)
	}
}

// strangerDelay is how long a cell that is no member yet may take to become one by gossip. One stranger is
// looked at after the other: a cluster that grows fast has many, none of which stays one.
const strangerDelay = 500 * time.Millisecond

type stranger struct {
	id  wire.CellID // 0 = none
	due clock.Instant
	via wire.CellID // who relays for it, and hence knows it; 0 = it speaks for itself
}

// noticeStranger notes a cell that owns the cluster's key and is unknown: our state may be older than its
// membership, as when cells that met it last were killed before their snapshot was written.
func (c *Cell) noticeStranger(sender wire.CellID, from netip.AddrPort) {
	if c.stranger.id == 0 && !c.guests.greeted(sender, from) {
		c.stranger = stranger{id: sender, due: c.now.Add(strangerDelay)}
	}
}

// tickStranger wants a session with a cell that is still unknown.
func (c *Cell) tickStranger() {
	if c.stranger.id == 0 || !c.stranger.due.Reached(c.now) {
		return
	}
	if c.members.Get(c.stranger.id) == nil {
		peer := c.stranger.id
		if c.stranger.via != 0 {
			peer = c.stranger.via
		}
		c.wantSession(peer)
	}
	c.stranger = stranger{}
}

// sessionsWantedMax bounds the cells that wait for a session out of turn; the periodic rounds reach the
// rest.
const sessionsWantedMax = 64

// wantSession asks for an anti-entropy session as soon as one can be started.
func (c *Cell) wantSession(peer wire.CellID) {
	if len(c.sessionsWanted) < sessionsWantedMax && !slices.Contains(c.sessionsWanted, peer) {
		c.sessionsWanted = append(c.sessionsWanted, peer)
	}
	c.startWanted()
}

// startWanted starts the first session that is wanted and can begin, if none of ours is under way. One with a peer
// whose own session with this cell still runs has to wait, since that one knows only what was before; the others
// do not wait for it.
func (c *Cell) startWanted() {
	if c.phase == Booting {
		return
	}
	for i, peer := range c.sessionsWanted {
		if c.sessions.Start(c.now, peer, false) {
			c.sessionsWanted = slices.Delete(c.sessionsWanted, i, i+1)
			return
		}
	}
}

// addressChecksMax bounds the address changes being verified; further ones wait for a later datagram.
const addressChecksMax = 64

type addressCheck struct {
	id      wire.CellID
	address netip.AddrPort
	nonce   uint32
	until   clock.Instant
}

// addressChecks are PINGs sent to the new address of a member; the address counts only once it has
// echoed the nonce (F155).
type addressChecks struct{ list []addressCheck }

func (a *addressChecks) init() { a.list = a.list[:0] }

func (c *Cell) checkAddress(id wire.CellID, address netip.AddrPort) {
	if !c.canCheck(id) {
		return
	}
	if !c.guard.AllowSend(c.now, address, wire.HeaderSize+wire.PingSize+wire.TrailerSize) {
		c.counters.guarded++
		return
	}
	c.askAddress(id, address)
}

// recheckAddress is checkAddress that does not wait for the end of another check of the same cell.
func (c *Cell) recheckAddress(id wire.CellID, address netip.AddrPort) {
	c.checks.list = slices.DeleteFunc(c.checks.list, func(check addressCheck) bool { return check.id == id })
	c.checkAddress(id, address)
}

// canCheck reports whether there is room for one more check and none of this cell is under way.
func (c *Cell) canCheck(id wire.CellID) bool {
	kept := c.checks.list[:0]
	pending := false
	for _, check := range c.checks.list {
		if check.until.Reached(c.now) {
			continue
		}
		pending = pending || check.id == id
		kept = append(kept, check)
	}
	c.checks.list = kept
	return !pending && len(kept) < addressChecksMax
}

// askAddress sends the PING of a check. It says where it goes: a cell whose router has forgotten it learns that from
// the first one who notices.
func (c *Cell) askAddress(id wire.CellID, address netip.AddrPort) {
	nonce := c.config.Random.Uint32()
	c.checks.list = append(c.checks.list, addressCheck{id, address, nonce, c.now.Add(2 * time.Second)})
	c.sendAddress(id, address, wire.TypePing, nonce, wire.AppendPing(c.payload[:0], address))
}

// addressConfirmed consumes the PONG of an address check.
func (c *Cell) addressConfirmed(sender wire.CellID, from netip.AddrPort, nonce uint32) bool {
	for i, check := range c.checks.list {
		if check.nonce != nonce || check.id != sender {
			continue
		}
		c.checks.list = append(c.checks.list[:i], c.checks.list[i+1:]...)
		if check.address != from {
			return true
		}
		c.guard.Validate(c.now, from)
		if member := c.members.Get(sender); member != nil {
			member.Address = from
			c.members.Revised()
			c.nat.Confirmed(c.now, member)
			c.persist.peersDirty = true
		}
		return true
	}
	return false
}

// answerFindNode returns the members closest to the target (specification 4.5).
func (c *Cell) answerFindNode(sender wire.CellID, header wire.Header, payload []byte) {
	target, err := wire.ParseFindNode(payload)
	if err != nil {
		c.counters.malformed++
		return
	}
	contacts := c.closest(target)
	c.send(sender, wire.TypeNodes, header.Nonce, wire.AppendNodes(c.payload[:0], contacts))
}

// closest returns the members nearest to an id by XOR, as many as one NODES message holds.
func (c *Cell) closest(target wire.CellID) []wire.Contact {
	contacts := make([]wire.Contact, 0, c.members.Len())
	c.members.Each(func(m *member) bool {
		if m.Address.IsValid() {
			contacts = append(contacts, wire.Contact{ID: m.ID, Address: m.Address, Flags: uint8(m.Flags)})
		}
		return true
	})
	slices.SortFunc(contacts, func(a, b wire.Contact) int { return cmp.Compare(a.ID^target, b.ID^target) })
	return contacts[:min(len(contacts), wire.NodesMax, nodesMax)]
}

// nodesMax is k, the number of contacts that answer one question (specification 4.5).
const nodesMax = 20
