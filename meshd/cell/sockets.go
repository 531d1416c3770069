package cell

import (
	"net/netip"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/wire"
)

// Sockets is a Network that can have further sockets beside the cell's own: a router that uses another port for each
// destination gives each of them other ports (F35). What comes in on them goes to Cell.ReceiveVia. A Network without
// them reaches some cells through relays only.
type Sockets interface {
	// OpenSocket opens the socket with a number from 1 to nat.SocketsMax, which is free, and reports whether it could.
	OpenSocket(socket int) bool
	// CloseSocket closes it; nothing of it is handed over any more.
	CloseSocket(socket int)
	// SendVia is Send through it.
	SendVia(socket int, to netip.AddrPort, datagram []byte)
}

// sendVia sends to a cell at an address through one of the further sockets.
func (c *Cell) sendVia(socket int, to wire.CellID, address netip.AddrPort, kind wire.Type, nonce uint32, payload []byte) {
	datagram := c.seal(c.scratch[:0], to, kind, nonce, payload)
	if datagram == nil {
		return
	}
	c.nat.Contacted(c.now, address)
	c.counters.sent++
	c.counters.sentBytes += uint64(len(datagram))
	c.sockets.SendVia(socket, address, datagram)
}

// ReceiveVia is Receive for what came in on a further socket. Members alone are heard there, and none through a relay.
func (c *Cell) ReceiveVia(now clock.Instant, socket int, from netip.AddrPort, datagram []byte) {
	if wire.IsRelay(datagram) {
		c.counters.received++
		c.counters.malformed++
		return
	}
	c.arrivedVia = socket
	c.Receive(now, from, datagram)
	c.arrivedVia = 0
}
