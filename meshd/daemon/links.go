package daemon

import (
	"net"
	"net/netip"

	"colloid.net/meshd/wire"
)

// linkRounds is how many samples of load go by between two looks at the links: ten seconds.
const linkRounds = 2

// Bytes that the network puts around a datagram.
const (
	headersVersion4 = 20 + 8
	headersVersion6 = 40 + 8
)

// checkLinks tells the cell of a link of this host that does not carry a full datagram. Waiting until one is
// sent would not do: those that come this way are lost without an error anywhere (F30).
func (d *Daemon) checkLinks() {
	name, mtu, need := narrowLink(*d.addresses.Load())
	d.inbox.post(func() { d.cell.LinkTooNarrow(d.reactor.Now(), name, mtu, need) })
}

// narrowLink finds a link with one of the addresses and too small an MTU; no name: there is none.
func narrowLink(addresses []netip.Addr) (name string, mtu, need int) {
	links, err := net.Interfaces()
	if err != nil {
		return "", 0, 0
	}
	for _, link := range links {
		if link.MTU >= wire.DatagramMax+headersVersion6 || link.Flags&net.FlagUp == 0 {
			continue
		}
		own, err := link.Addrs()
		if err != nil {
			continue
		}
		for _, entry := range own {
			network, ok := entry.(*net.IPNet)
			if !ok {
				continue
			}
			address, _ := netip.AddrFromSlice(network.IP)
			address = address.Unmap()
			need := wire.DatagramMax + headersVersion6
			if address.Is4() {
				need = wire.DatagramMax + headersVersion4
			}
			for _, used := range addresses {
				if used == address && link.MTU < need {
					return link.Name, link.MTU, need
				}
			}
		}
	}
	return "", 0, 0
}
