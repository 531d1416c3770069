package daemon

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// advertised lists where other cells may reach this one, best first: what the operator said, else the
// bound address, else every global address of the host, IPv4 first because every network has it.
func advertised(chosen []netip.AddrPort, bound netip.AddrPort) ([]state.Candidate, error) {
	addresses := chosen
	if len(addresses) == 0 && !bound.Addr().IsUnspecified() {
		addresses = []netip.AddrPort{bound}
	}
	if len(addresses) == 0 {
		found, err := hostAddresses()
		if err != nil {
			return nil, err
		}
		for _, address := range found {
			addresses = append(addresses, netip.AddrPortFrom(address, bound.Port()))
		}
	}
	if len(addresses) == 0 {
		// A host without network is still a cluster of one (BOOT-1).
		addresses = []netip.AddrPort{netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), bound.Port())}
	}
	var candidates []state.Candidate
	for _, address := range addresses[:min(len(addresses), state.CandidatesMax)] {
		if address.Port() == 0 {
			address = netip.AddrPortFrom(address.Addr(), bound.Port())
		}
		candidates = append(candidates, state.Candidate{Address: address, Reach: wire.ReachUnknown})
	}
	return candidates, nil
}

// insideOnly are the beginnings of the names of bridges that lead to containers and virtual machines of this host: an
// address there is of no use to other cells, and may be the same on each of them.
var insideOnly = []string{"colloid", "docker", "br-", "virbr", "cni", "lxcbr", "podman"}

// hostAddresses lists the global addresses of this host's interfaces.
func hostAddresses() ([]netip.Addr, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("cannot list the interfaces of this host: %w", err)
	}
	var list []net.Addr
	for _, one := range interfaces {
		if !slices.ContainsFunc(insideOnly, func(begin string) bool { return strings.HasPrefix(one.Name, begin) }) {
			addresses, _ := one.Addrs() // it may have gone meanwhile
			list = append(list, addresses...)
		}
	}
	var v4, v6 []netip.Addr
	for _, entry := range list {
		network, ok := entry.(*net.IPNet)
		if !ok {
			continue
		}
		address, ok := netip.AddrFromSlice(network.IP)
		address = address.Unmap()
		if !ok || !address.IsGlobalUnicast() {
			continue
		}
		if address.Is4() {
			v4 = append(v4, address)
		} else {
			v6 = append(v6, address)
		}
	}
	return append(v4, v6...), nil
}
