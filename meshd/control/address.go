package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"colloid.net/meshd/wire"
)

// Target is a parsed HOST[:PORT][#KEY].
type Target struct {
	Host string
	Port uint16
	Key  string // empty: none given
}

const (
	targetMax    = 512
	hostMax      = 253
	keyMax       = 256
	addressesMax = 16
	// resolveTimeout bounds the lookup of a name.
	resolveTimeout = 5 * time.Second
)

// ParseTarget parses HOST[:PORT][#KEY]. HOST is a name, an IPv4 address, or an IPv6 address in
// brackets; a bare IPv6 address is understood too, without a port.
func ParseTarget(text string) (Target, error) {
	fail := func(reason string) (Target, error) {
		return Target{}, fmt.Errorf("address %q: %s: "+
			"want HOST, HOST:PORT or [IPV6]:PORT, with #KEY for a locked cluster", shorten(text), reason)
	}
	if len(text) > targetMax {
		return fail("it is too long")
	}
	rest, key, hasKey := strings.Cut(text, "#")
	if hasKey && (key == "" || len(key) > keyMax || !printable(key)) {
		return fail("the key behind # is empty or not a key")
	}
	host, port := rest, strconv.Itoa(wire.Port)
	if _, err := netip.ParseAddr(rest); err != nil {
		bracketed := strings.HasPrefix(rest, "[")
		switch {
		case bracketed && strings.HasSuffix(rest, "]"):
			host = rest[1 : len(rest)-1]
		case strings.Contains(rest, ":"):
			var err error
			if host, port, err = net.SplitHostPort(rest); err != nil {
				return fail("host and port cannot be told apart")
			}
		}
		if a, err := netip.ParseAddr(host); bracketed && (err != nil || !a.Is6()) {
			return fail("brackets are for IPv6 addresses")
		}
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || number == 0 {
		return fail("the port is not a number from 1 to 65535")
	}
	if !validHost(host) {
		return fail("the host is neither a name nor an address")
	}
	return Target{host, uint16(number), key}, nil
}

func shorten(text string) string {
	if len(text) > 80 {
		return text[:80] + "..."
	}
	return text
}

func printable(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

func validHost(host string) bool {
	if address, err := netip.ParseAddr(host); err == nil {
		return letters(address.Zone())
	}
	return host != "" && len(host) <= hostMax && letters(host) && host[0] != '-' && host[0] != '.'
}

// letters reports whether s consists of what names of hosts and interfaces consist of.
func letters(s string) bool {
	for i := range len(s) {
		c := s[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && c != '-' && c != '.' && c != '_' {
			return false
		}
	}
	return true
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
		if address.IsValid() && !address.IsUnspecified() && !seen[address] && len(addresses) < addressesMax {
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
