package daemon

import (
	"net"
	"net/netip"

	"colloid.net/meshd/cell"
	"colloid.net/meshd/nat"
	"colloid.net/meshd/reactor"
)

// network is the cell's socket, which can also send from another port: to call a cell back that wants to
// know whether strangers reach it (F31). For a search behind a router it has further ones (F35).
type network struct {
	reactor.Reactor
}

// OpenSocket implements cell.Sockets.
func (n network) OpenSocket(socket int) bool { return n.Reactor.OpenSocket(socket) == nil }

// SendAlternate sends one datagram from a port that is used for nothing else. It is needed a few times a
// minute at most (overlay.RequestsPerSecond bounds what others can ask for), so a socket is made for each.
func (n network) SendAlternate(to netip.AddrPort, datagram []byte) {
	local := net.UDPAddrFromAddrPort(netip.AddrPortFrom(n.LocalAddress().Addr(), 0))
	kind := "udp4"
	if to.Addr().Is6() && !to.Addr().Is4In6() {
		kind = "udp6"
	}
	if n.LocalAddress().Addr().IsUnspecified() {
		local = nil
	}
	socket, err := net.ListenUDP(kind, local)
	if err != nil {
		return // the call does not come, and the caller asks again
	}
	defer socket.Close()
	_, _ = socket.WriteToUDPAddrPort(datagram, to)
}

// A search and the sockets kept need no more than the reactor has.
const _ = uint(reactor.SocketsMax - nat.SocketsMax)

var _ cell.Sockets = network{}
