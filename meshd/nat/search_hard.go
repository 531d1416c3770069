package nat

import (
	"net/netip"
	"slices"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/overlay"
	"colloid.net/meshd/wire"
)

// ownSocket stands for the cell's own among those that can win a search.
const ownSocket = -1

// keptSocket is one through which a cell is reached.
type keptSocket struct {
	id      wire.CellID
	address netip.AddrPort
	socket  int
}

// continueHard opens sockets and sends from them, until one of them hears the other side.
func (t *Traversal) continueHard(now clock.Instant, s *search, p *Path, m *overlay.Member) {
	switch {
	case !s.begun:
		t.askSearch(now, s, p, m)
	case s.until.Reached(now):
		if s.won != 0 && p.open(now) && m.Address == s.address { // heard there, so kept as if the echo had come: it is lost like any other
			t.foundBySearch(now, p, m)
			return
		}
		if !s.widened {
			t.postpone(now, p)
			t.search = s
		}
		t.endSearch(now)
	case s.won != 0:
		t.confirm(now, s)
	case !s.widened:
		t.knock(now, s, p)
	case s.sentFrom < s.open || !s.opened:
		t.punchMore(now, s)
	case s.open < searchSocketsMin:
		t.endSearch(now)
	case s.begins < len(beginOffsets):
		t.say(s.id, m, m.Address, wire.PunchSearchBegin, s.rendezvous)
		s.next = now.Add(beginOffsets[s.begins])
		s.begins++
	case !s.second:
		s.second, s.sentFrom, s.next = true, 0, max(now, s.started.Add(knockWait+secondRound))
	default:
		s.next = s.until
	}
}

// knock sends from the own socket, and goes on to others when that was in vain.
func (t *Traversal) knock(now clock.Instant, s *search, p *Path) {
	if s.knocks == len(synOffsets) {
		t.widen(now, s, p)
		s.next = now
		return
	}
	t.options.SendTo(s.id, s.address, wire.TypePunchSyn, t.options.Nonce(), wire.AppendPunchSyn(t.payload[:0], s.rendezvous))
	if s.other.IsValid() {
		t.options.SendTo(s.id, s.other, wire.TypePunchSyn, t.options.Nonce(), wire.AppendPunchSyn(t.payload[:0], s.rendezvous))
	}
	if s.knocks++; s.knocks < len(synOffsets) {
		s.next = s.started.Add(synOffsets[s.knocks])
	} else {
		s.next = s.started.Add(knockWait)
	}
}

// beginOffsets are the pauses after each PunchSearchBegin: the first may be lost.
var beginOffsets = [...]time.Duration{200 * time.Millisecond, 300 * time.Millisecond, 0}

// punchMore sends from some sockets; in the first round it opens them.
func (t *Traversal) punchMore(now clock.Instant, s *search) {
	for range punchesAtOnce {
		if s.sentFrom == s.open && (s.opened || !t.openOne(s)) {
			break
		}
		for _, address := range [...]netip.AddrPort{s.address, s.other} {
			if address.IsValid() {
				t.options.SendVia(int(s.sockets[s.sentFrom]), s.id, address, wire.TypePunchSyn, t.options.Nonce(),
					wire.AppendPunchSyn(t.payload[:0], s.rendezvous))
			}
		}
		s.sentFrom++
	}
	s.next = now.Add(punchInterval)
}

// openOne opens one more socket of a search, if there is room.
func (t *Traversal) openOne(s *search) bool {
	number := 1
	if s.open > 0 {
		number = int(s.sockets[s.open-1]) + 1
	}
	for slices.ContainsFunc(t.kept, func(k keptSocket) bool { return k.socket == number }) {
		number++
	}
	if !t.options.OpenSocket(number) {
		s.opened = true
		return false
	}
	s.sockets[s.open] = uint16(number)
	s.open++
	s.opened = s.open == searchSockets
	return true
}

// Arrived reports whether a datagram is let in that a cell sent straight to one of the further sockets: they hear
// those they were opened for and nobody else. The first one that gets through decides a search.
func (t *Traversal) Arrived(now clock.Instant, socket int, sender wire.CellID, from netip.AddrPort) bool {
	for _, k := range t.kept {
		if k.socket == socket {
			return k.id == sender && k.address == from
		}
	}
	s := t.search
	if s == nil || !s.hard || !s.begun || s.won != 0 || s.id != sender || !s.at(from) ||
		!slices.Contains(s.sockets[:s.open], uint16(socket)) || len(t.kept) >= keptMax {
		return false
	}
	s.won, s.address = socket, from
	t.tell(sender, "search %x: heard by socket %d from %v", s.rendezvous, socket, from)
	t.kept = append(t.kept, keptSocket{sender, from, socket})
	t.closeSockets(s)
	s.next, s.until = now, now.Add(settleTime)
	t.confirm(now, s)
	t.next = clock.Earliest(t.next, now)
	return true
}

// at reports whether the easy side may send from an address.
func (s *search) at(address netip.AddrPort) bool {
	return address == s.address || s.other.IsValid() && address == s.other
}

// confirmPause lies between the moments at which the way that was found is tried, since any datagram may be lost.
const confirmPause = 300 * time.Millisecond

// confirm lets the other side know which port it was, and asks for the echo that makes the path count.
func (t *Traversal) confirm(now clock.Instant, s *search) {
	t.options.SendTo(s.id, s.address, wire.TypePunchSyn, t.options.Nonce(), wire.AppendPunchSyn(t.payload[:0], s.rendezvous))
	t.options.Recheck(s.id, s.address)
	s.next = now.Add(confirmPause)
}

// closeSockets closes the sockets of a search but the one that is kept.
func (t *Traversal) closeSockets(s *search) {
	for _, socket := range s.sockets[:s.open] {
		if !slices.ContainsFunc(t.kept, func(k keptSocket) bool { return k.socket == int(socket) }) {
			t.options.CloseSocket(int(socket))
		}
	}
	s.open = 0
}

// release closes a socket that was kept.
func (t *Traversal) release(socket int) {
	for i := range t.kept {
		if t.kept[i].socket == socket {
			t.kept = slices.Delete(t.kept, i, i+1)
			t.options.CloseSocket(socket)
			return
		}
	}
}

// releaseLost closes kept sockets whose path is not open any more, or leads elsewhere.
func (t *Traversal) releaseLost(now clock.Instant) {
	for i := len(t.kept) - 1; i >= 0; i-- {
		k := t.kept[i]
		if s := t.search; s != nil && s.won == k.socket {
			continue // not proven yet
		}
		m, p := t.options.Members.Get(k.id), t.paths[k.id]
		if m == nil || p == nil || !p.open(now) || m.Address != k.address {
			t.release(k.socket)
		}
	}
}

// keeps reports whether a cell is reached through a kept socket.
func (t *Traversal) keeps(id wire.CellID) bool {
	return slices.ContainsFunc(t.kept, func(k keptSocket) bool { return k.id == id })
}

// SocketFor returns the socket that datagrams to an address leave from, 0 for the cell's own.
func (t *Traversal) SocketFor(address netip.AddrPort) int {
	for i := range t.kept {
		if t.kept[i].address == address {
			return t.kept[i].socket
		}
	}
	return 0
}

// Close gives back all sockets: the cell goes on with another Traversal.
func (t *Traversal) Close() {
	if s := t.search; s != nil && s.hard {
		t.closeSockets(s)
	}
	t.search = nil
	for len(t.kept) > 0 {
		t.release(t.kept[0].socket)
	}
}
