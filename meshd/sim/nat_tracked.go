package sim

import (
	"net/netip"
	"time"
)

// tracking is the table of a router that translates as Linux does for several machines: each connection keeps its port as
// long as no other machine has the same port towards the same peer. Else it gets another one, and what the machine begins
// from then on gets that one, too. So two machines that use one inner port and met some peers in different order are each
// seen at two ports, which neither chose nor knows.
type tracking struct {
	inner map[[2]netip.AddrPort]*connection // by inner address and peer
	outer map[outerKey]*connection
	order []*connection // as they began, for the newest of a machine
}

type outerKey struct {
	port uint16
	peer netip.AddrPort
}

type connection struct {
	inner, peer netip.AddrPort
	port        uint16
	used        time.Duration
}

func newTracking() *tracking {
	return &tracking{inner: make(map[[2]netip.AddrPort]*connection), outer: make(map[outerKey]*connection)}
}

// expire forgets what was not used lately.
func (t *tracking) expire(now time.Duration) {
	kept := t.order[:0]
	for _, c := range t.order {
		if now-c.used < mappingTTL {
			kept = append(kept, c)
			continue
		}
		delete(t.inner, [2]netip.AddrPort{c.inner, c.peer})
		delete(t.outer, outerKey{c.port, c.peer})
	}
	t.order = kept
}

// port returns the outer port of what goes from an inner address to a peer.
func (t *tracking) port(w *World, source, to netip.AddrPort) uint16 {
	c := t.inner[[2]netip.AddrPort{source, to}]
	if c == nil || w.now-c.used >= mappingTTL {
		t.expire(w.now)
		c = &connection{inner: source, peer: to, port: t.choose(w, source, to)}
		t.inner[[2]netip.AddrPort{source, to}], t.outer[outerKey{c.port, to}] = c, c
		t.order = append(t.order, c)
	}
	c.used = w.now
	return c.port
}

func (t *tracking) choose(w *World, source, to netip.AddrPort) uint16 {
	for i := len(t.order) - 1; i >= 0; i-- {
		if c := t.order[i]; c.inner == source {
			if t.outer[outerKey{c.port, to}] == nil {
				return c.port
			}
			break
		}
	}
	port := source.Port()
	for t.outer[outerKey{port, to}] != nil {
		port = uint16(1024 + w.random.IntN(64000))
	}
	return port
}

// back returns the inner address that a datagram from a peer to an outer port goes to.
func (t *tracking) back(now time.Duration, peer netip.AddrPort, port uint16) (netip.AddrPort, bool) {
	c := t.outer[outerKey{port, peer}]
	if c == nil || now-c.used >= mappingTTL {
		return netip.AddrPort{}, false
	}
	return c.inner, true
}
