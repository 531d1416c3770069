package sim

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"colloid.net/meshd/wire"
)

// NATKind is what stands between a machine and the others.
type NATKind uint8

// Kinds. Mapping and filter are those of RFC 4787: a mapping that depends on nothing but the inner address
// keeps one port, a filter that depends on nothing lets everybody in.
const (
	Public         NATKind = iota // nothing: a global address of its own
	FullCone                      // one port; lets everybody in
	RestrictedCone                // one port; lets in whom it was used to send to, by address
	PortRestricted                // one port; by address and port
	Symmetric                     // another port for each destination; by address and port
	OneToOne                      // a global address of its own that it does not know of, as clouds do
	NoHairpin                     // port-restricted; all machines of this kind share one router and switch
	DoubleNAT                     // a port-restricted router behind another one
	Blocked                       // a filter lets datagrams pass to and from the first machine only
	Firewall                      // a global address of its own, known to it; lets in answers, by address and port
	NATKinds                      // how many there are
)

var natNames = [NATKinds]string{"public", "full-cone", "restricted", "port-restricted", "symmetric", "1:1",
	"no-hairpin", "double", "blocked", "firewall"}

func (k NATKind) String() string { return natNames[k] }

// ParseNATKind reads what String writes.
func ParseNATKind(text string) (NATKind, error) {
	if i := slices.Index(natNames[:], text); i >= 0 {
		return NATKind(i), nil
	}
	return 0, fmt.Errorf("router %q: want one of %v", text, natNames)
}

// mappingTTL is how long a router remembers a mapping that is not used from inside: the shortest of
// common ones.
const mappingTTL = 30 * time.Second

// router translates for the machines behind it.
type router struct {
	world    *World
	kind     NATKind
	external netip.Addr
	outer    *router // the next router outwards, nil = the internet
	inner    []*Node
	nested   []*router
	mappings map[mappingKey]*mapping
	ports    map[uint16]*mapping
	tracked  *tracking // in the place of the two before, for a router with Options.Tracking
	epoch    int       // of its memory; ports differ in each
	down     bool
}

type mappingKey struct {
	inner netip.AddrPort
	to    netip.AddrPort // of symmetric ones only
}

type mapping struct {
	key       mappingKey
	port      uint16
	used      time.Duration
	addresses map[netip.Addr]time.Duration
	peers     map[netip.AddrPort]time.Duration
}

// place puts a machine behind its router.
func (w *World) place(n *Node) {
	kind := n.NAT
	global := netip.AddrFrom4([4]byte{20, byte(n.Index >> 16), byte(n.Index >> 8), byte(n.Index)})
	if w.options.Version6 {
		global = netip.AddrFrom16([16]byte{0x26, 0x00, 13: byte(n.Index >> 16), 14: byte(n.Index >> 8), 15: byte(n.Index)})
	}
	if kind == Public {
		n.Address = netip.AddrPortFrom(global, wire.Port)
		w.byAddr[n.Address] = n
		return
	}
	var r *router
	if kind == NoHairpin {
		for _, other := range w.nodes {
			if other.NAT == NoHairpin && other != n {
				r = other.router
			}
		}
	}
	if r == nil {
		r = newRouter(w, kind, global)
		if kind == DoubleNAT {
			outer := newRouter(w, PortRestricted, global)
			r.kind, r.outer, r.external = PortRestricted, outer, netip.AddrFrom4([4]byte{192, 168, 1, 2})
			outer.nested = append(outer.nested, r)
			w.routers[global] = outer
		} else {
			w.routers[global] = r
		}
	}
	r.inner = append(r.inner, n)
	n.router = r
	if kind == Firewall {
		n.Address = netip.AddrPortFrom(global, wire.Port)
		return
	}
	// The same private addresses everywhere, as in life.
	n.Address = netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 168, 0, byte(1 + len(r.inner))}), wire.Port)
}

func newRouter(w *World, kind NATKind, external netip.Addr) *router {
	r := &router{world: w, kind: kind, external: external}
	r.forget()
	return r
}

// forget loses all mappings; later ones get other ports.
func (r *router) forget() {
	r.mappings, r.ports = make(map[mappingKey]*mapping), make(map[uint16]*mapping)
	if r.kind == NoHairpin && r.world.options.Tracking {
		r.tracked = newTracking()
	}
	r.epoch++
}

// Rebind makes the routers of a machine forget everything (F36).
func (n *Node) Rebind() {
	for r := n.router; r != nil; r = r.outer {
		r.forget()
	}
}

// setRouters switches the routers of a machine on or off.
func (n *Node) setRouters(down bool) {
	for r := n.router; r != nil; r = r.outer {
		r.down = down
		if down {
			r.forget()
		}
	}
}

// off reports whether this router or one further out is switched off.
func (r *router) off() bool {
	for ; r != nil; r = r.outer {
		if r.down {
			return true
		}
	}
	return false
}

// out translates the source of a datagram that leaves.
func (r *router) out(source, to netip.AddrPort) (netip.AddrPort, bool) {
	w := r.world
	if r.down || r.kind == Blocked && to != w.nodes[0].Address {
		return source, false
	}
	if r.tracked != nil {
		return netip.AddrPortFrom(r.external, r.tracked.port(w, source, to)), true
	}
	key := mappingKey{inner: source}
	if r.kind == Symmetric {
		key.to = to
	}
	m := r.mappings[key]
	if m == nil || w.now-m.used >= mappingTTL && r.kind != OneToOne && r.kind != FullCone {
		if m != nil {
			delete(r.ports, m.port)
		}
		m = &mapping{key: key, port: r.newPort(source.Port()),
			addresses: make(map[netip.Addr]time.Duration), peers: make(map[netip.AddrPort]time.Duration)}
		r.mappings[key], r.ports[m.port] = m, m
	}
	m.used = w.now
	m.addresses[to.Addr()], m.peers[to] = w.now, w.now
	return netip.AddrPortFrom(r.external, m.port), true
}

// newPort keeps the inner port where that is free, except for symmetric routers and after a restart.
func (r *router) newPort(wanted uint16) uint16 {
	if r.kind == OneToOne || r.kind == Firewall || r.kind == FullCone && r.epoch == 1 || r.kind != Symmetric && r.epoch == 1 && r.ports[wanted] == nil {
		return wanted
	}
	for {
		if port := uint16(1024 + r.world.random.IntN(64000)); r.ports[port] == nil {
			return port
		}
	}
}

// in translates the destination of a datagram that arrives.
func (r *router) in(source netip.AddrPort, port uint16) (netip.AddrPort, bool) {
	if r.down {
		return netip.AddrPort{}, false
	}
	if r.kind == OneToOne {
		return netip.AddrPortFrom(r.inner[0].Address.Addr(), port), true
	}
	if r.tracked != nil {
		return r.tracked.back(r.world.now, source, port)
	}
	m, now := r.ports[port], r.world.now
	if m == nil || now-m.used >= mappingTTL && r.kind != FullCone {
		return netip.AddrPort{}, false
	}
	passes := false
	switch at, known := m.addresses[source.Addr()]; r.kind {
	case FullCone:
		passes = true
	case RestrictedCone:
		passes = known && now-at < mappingTTL
	default:
		at, known := m.peers[source]
		passes = known && now-at < mappingTTL
	}
	return m.key.inner, passes
}

// resolve follows a datagram from a machine to where it arrives: nil for nowhere. source is what the
// receiver sees, and socket is the one of its that hears it.
func (n *network) resolve(from *Node, source, to netip.AddrPort) (target *Node, seen netip.AddrPort, socket int) {
	w := n.world
	for r := from.router; r != nil; r = r.outer {
		for _, neighbour := range r.inner {
			if neighbour.Address == to && neighbour != from {
				return neighbour, source, 0
			}
		}
		if to.Addr() == r.external {
			return nil, source, 0 // no hairpin
		}
		var passes bool
		if source, passes = r.out(source, to); !passes {
			return nil, source, 0
		}
	}
	r := w.routers[to.Addr()]
	if r == nil {
		return w.byAddr[to], source, 0
	}
	for {
		inner, passes := r.in(source, to.Port())
		if !passes {
			return nil, source, 0
		}
		for _, m := range r.inner {
			if socket, open := m.socketAt(inner); open {
				return m, source, socket
			}
		}
		next := (*router)(nil)
		for _, candidate := range r.nested {
			if candidate.external == inner.Addr() {
				next, to = candidate, inner
			}
		}
		if next == nil {
			return nil, source, 0
		}
		r = next
	}
}

// Move gives a machine without a router another address, as a DHCP server does. The cell is told after a while, as by
// its process.
func (n *Node) Move(address netip.AddrPort) {
	if n.NAT != Public {
		panic("sim: only a machine without a router can be moved")
	}
	delete(n.world.byAddr, n.Address)
	n.Address = address
	n.world.byAddr[address] = n
}
