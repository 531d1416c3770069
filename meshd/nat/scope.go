package nat

import (
	"net/netip"
	"slices"

	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// scope is a family and a kind of network. What is observed in one says nothing about another: a cell may
// be PUBLIC on its own network and behind a router for everybody else (F31, F32).
type scope uint8

const (
	privateV4 scope = iota
	privateV6
	globalV4
	globalV6
	scopes
)

var scopeNames = [scopes]string{"private IPv4", "private IPv6", "global IPv4", "global IPv6"}

var shared = netip.MustParsePrefix("100.64.0.0/10") // between a provider and its customers (RFC 6598)

// scopeOf returns the scope of a usable address.
func scopeOf(address netip.Addr) scope {
	address = address.Unmap()
	private := address.IsPrivate() || address.IsLoopback() || address.IsLinkLocalUnicast() ||
		address.Is4() && shared.Contains(address)
	switch {
	case private && address.Is4():
		return privateV4
	case private:
		return privateV6
	case address.Is4():
		return globalV4
	}
	return globalV6
}

func (s scope) private() bool { return s < globalV4 }

// near reports whether two addresses are probably on one network: same /24 or /64.
func near(a, b netip.Addr) bool {
	a, b = a.Unmap(), b.Unmap()
	if a.Is4() != b.Is4() {
		return false
	}
	bits := 64
	if a.Is4() {
		bits = 24
	}
	prefix, err := a.Prefix(bits)
	return err == nil && prefix.Contains(b)
}

// Choose returns the candidate of another cell's contact to dial first, the zero AddrPort for none: one on
// this cell's own network if both are behind the same router or have no other, then what is reachable for
// strangers, then the rest in its order (F33). usable rejects addresses that cannot be dialled from here.
func Choose(own, theirs []state.Candidate, usable func(netip.AddrPort) bool) netip.AddrPort {
	best, bestRank := netip.AddrPort{}, 0
	for _, candidate := range theirs {
		if !usable(candidate.Address) {
			continue
		}
		if rank := rankOf(own, theirs, candidate); rank > bestRank {
			best, bestRank = candidate.Address, rank
		}
	}
	return best
}

func rankOf(own, theirs []state.Candidate, candidate state.Candidate) int {
	address := candidate.Address.Addr()
	switch {
	case !hasFamily(own, address):
		return 1
	case scopeOf(address).private() && sameRouter(own, theirs):
		return 6
	case scopeOf(address).private() && slices.ContainsFunc(own, func(c state.Candidate) bool {
		return near(c.Address.Addr(), address)
	}) && !differentRouters(own, theirs):
		return 5
	case candidate.Reach == wire.ReachPublic && !scopeOf(address).private():
		return 4
	case !scopeOf(address).private():
		return 3
	}
	return 2
}

func hasFamily(own []state.Candidate, address netip.Addr) bool {
	return len(own) == 0 || slices.ContainsFunc(own, func(c state.Candidate) bool {
		return c.Address.Addr().Is4() == address.Is4()
	})
}

// globalOf returns the first global address of a list.
func globalOf(list []state.Candidate) netip.Addr {
	for _, c := range list {
		if scopeOf(c.Address.Addr()) == globalV4 {
			return c.Address.Addr()
		}
	}
	return netip.Addr{}
}

// sameRouter reports whether both cells are seen at one global address by the others.
func sameRouter(own, theirs []state.Candidate) bool {
	mine := globalOf(own)
	return mine.IsValid() && mine == globalOf(theirs)
}

// differentRouters reports whether both are known to be seen at different global addresses: then equal
// private prefixes mean nothing, half the world is 192.168.1.0/24.
func differentRouters(own, theirs []state.Candidate) bool {
	mine, other := globalOf(own), globalOf(theirs)
	return mine.IsValid() && other.IsValid() && mine != other
}
