package reactor

import (
	"encoding/binary"
	"net/netip"
)

// routeTable remembers on which local address each peer was last heard, so that answers leave from
// there (F34). It is a cache of fixed size: a newer peer takes an older one's place, whose answers
// then leave from the address the kernel chooses.
type routeTable struct {
	memory []byte
	routes []route
}

const routesMax = 4096

type route struct {
	peer, local [16]byte
	port        uint16
	used        bool
}

const routeSize = 36

func newRouteTable() (*routeTable, error) {
	memory, err := mapMemory(routesMax * routeSize)
	if err != nil {
		return nil, err
	}
	return &routeTable{memory, view[route](memory, 0, routesMax)}, nil
}

func (t *routeTable) slot(peer [16]byte, port uint16) *route {
	mixed := binary.LittleEndian.Uint64(peer[:]) ^ binary.LittleEndian.Uint64(peer[8:])*0x9e3779b97f4a7c15
	mixed = (mixed ^ uint64(port)) * 0xff51afd7ed558ccd
	return &t.routes[(mixed^mixed>>29)>>32%routesMax]
}

func (t *routeTable) remember(from netip.AddrPort, local netip.Addr) {
	peer := from.Addr().As16()
	r := t.slot(peer, from.Port())
	r.peer, r.port, r.local, r.used = peer, from.Port(), local.As16(), true
}

func (t *routeTable) lookup(to netip.AddrPort) (netip.Addr, bool) {
	peer := to.Addr().As16()
	r := t.slot(peer, to.Port())
	if !r.used || r.peer != peer || r.port != to.Port() {
		return netip.Addr{}, false
	}
	return netip.AddrFrom16(r.local).Unmap(), true
}

// forget drops what is known of a peer: its local address may have left this host.
func (t *routeTable) forget(to netip.AddrPort) {
	peer := to.Addr().As16()
	if r := t.slot(peer, to.Port()); r.peer == peer && r.port == to.Port() {
		r.used = false
	}
}

func (t *routeTable) free() { unmapMemory(t.memory) }
