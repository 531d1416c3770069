package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/wire"
)

// Target is a HOST[:PORT][#KEY] with the port that is meant.
type Target struct {
	Host string
	Port uint16
	Key  string // empty: none given
}

const (
	addressesMax = 16
	// resolveTimeout bounds the lookup of a name.
	resolveTimeout = 5 * time.Second
)

// ParseTarget parses HOST[:PORT][#KEY] as uds.ParseTarget does; the port is wire.Port where none is given.
func ParseTarget(text string) (Target, error) {
	parsed, err := uds.ParseTarget(text)
	if err != nil {
		return Target{}, err
	}
	return Target{parsed.Host, cmp.Or(parsed.Port, wire.Port), parsed.Key}, nil
}

// Resolver looks up names; *net.Resolver is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Resolve returns the addresses of a target, at most 16, each once. It takes at most 5 seconds.
func Resolve(ctx context.Context, resolver Resolver, target Target) ([]netip.AddrPort, error) {
	if address, err := netip.ParseAddr(target.Host); err == nil {
		return []netip.AddrPort{netip.AddrPortFrom(address.Unmap(), target.Port)}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	found, err := resolver.LookupNetIP(ctx, "ip", target.Host)
	if err != nil {
		return nil, fmt.Errorf("host %q cannot be resolved: %s: check the name or use an address",
			target.Host, resolveReason(err))
	}
	var addresses []netip.AddrPort
	seen := map[netip.Addr]bool{}
	for _, address := range found {
		address = address.Unmap()
		usable := address.IsValid() && !address.IsUnspecified() && !address.IsMulticast()
		if usable && !seen[address] && len(addresses) < addressesMax {
			seen[address] = true
			addresses = append(addresses, netip.AddrPortFrom(address, target.Port))
		}
	}
	if len(addresses) == 0 {
		return nil, fmt.Errorf("host %q has no address: check the name or use an address", target.Host)
	}
	return addresses, nil
}

func resolveReason(err error) string {
	var e *net.DNSError
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &e) && e.IsTimeout:
		return "no answer from the name server within 5 s"
	case errors.As(err, &e) && e.IsNotFound:
		return "no such host"
	}
	return err.Error()
}
