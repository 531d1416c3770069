package uds

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// Bounds of what names a machine.
const (
	targetMax = 512
	hostMax   = 253
	labelMax  = 63
	keyMax    = 256
)

// Target is the HOST[:PORT][#KEY] of a CONNECT request.
type Target struct {
	Host string // a name, or an address without brackets in the form that netip writes
	Port uint16 // 0: none given
	Key  string // empty: none given
}

// Address writes the target without its key, which must not appear in messages.
func (t Target) Address() string {
	switch {
	case t.Port != 0:
		return net.JoinHostPort(t.Host, strconv.Itoa(int(t.Port)))
	case strings.Contains(t.Host, ":"):
		return "[" + t.Host + "]"
	}
	return t.Host
}

// String writes the target in the form that ParseTarget reads.
func (t Target) String() string {
	if t.Key == "" {
		return t.Address()
	}
	return t.Address() + "#" + t.Key
}

// ParseTarget parses HOST[:PORT][#KEY]. HOST is a name, an IPv4 address, or an IPv6 address in brackets; a
// bare IPv6 address is understood too, without a port. What is not understood to its last character is
// refused, and so is what looks like an address that is none: asked as a name, whoever answers for names
// could say where it leads.
func ParseTarget(text string) (Target, error) {
	address, key, hasKey := strings.Cut(text, "#")
	fail := func(reason string) (Target, error) {
		return Target{}, fmt.Errorf("address %q: %s: want HOST, HOST:PORT or [IPV6]:PORT, with #KEY for a locked cluster",
			shortened(address), reason)
	}
	if len(text) > targetMax {
		return fail("it is too long")
	}
	if hasKey && (key == "" || len(key) > keyMax || strings.IndexFunc(key, notPrinted) >= 0) {
		return fail("the key behind # is empty or not a key")
	}
	host, port, reason := splitPort(address)
	if reason != "" {
		return fail(reason)
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		if ip.IsUnspecified() || ip.Unmap().IsUnspecified() {
			return fail("every address is none to connect to")
		}
		if reason := ofOneMachine(ip); reason != "" {
			return fail(reason)
		}
		host = ip.String()
	} else if reason := judgeName(host); reason != "" {
		return fail(reason)
	}
	return Target{host, port, key}, nil
}

// ParseEndpoint parses the ADDRESS, ADDRESS:PORT, [IPV6] or [IPV6]:PORT of one machine, or the address that
// stands for all of a machine's. portDefault is the port where none is given.
func ParseEndpoint(text string, portDefault uint16) (netip.AddrPort, error) {
	fail := func(reason string) (netip.AddrPort, error) {
		return netip.AddrPort{}, fmt.Errorf("address %q: %s: want ADDRESS, ADDRESS:PORT or [IPV6]:PORT",
			shortened(text), reason)
	}
	if len(text) > targetMax {
		return fail("it is too long")
	}
	host, port, reason := splitPort(text)
	if reason != "" {
		return fail(reason)
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return fail("the host is no address")
	}
	if reason := ofOneMachine(ip); reason != "" {
		return fail(reason)
	}
	if port == 0 {
		port = portDefault
	}
	return netip.AddrPortFrom(ip.Unmap(), port), nil
}

// splitPort takes host and port apart; the port is 0 where none is given. Brackets stand around an IPv6
// address as a whole, and nowhere else.
func splitPort(text string) (host string, port uint16, reason string) {
	host = text
	colon := -1
	if inside, bracketed := strings.CutPrefix(text, "["); bracketed {
		end := strings.IndexByte(inside, ']')
		if end < 0 {
			return "", 0, "the bracket is not closed"
		}
		host = inside[:end]
		if ip, err := netip.ParseAddr(host); err != nil || !ip.Is6() {
			return "", 0, "brackets are for IPv6 addresses"
		}
		if rest := inside[end+1:]; rest != "" {
			if rest[0] != ':' {
				return "", 0, "only :PORT may stand behind the bracket"
			}
			colon = len(text) - len(rest)
		}
	} else if strings.Count(text, ":") == 1 {
		colon = strings.IndexByte(text, ':')
		host = text[:colon]
	}
	if colon >= 0 {
		digits := text[colon+1:]
		number, err := strconv.ParseUint(digits, 10, 16)
		if err != nil || digits[0] == '0' {
			return "", 0, "the port is not a number from 1 to 65535"
		}
		port = uint16(number)
	}
	return host, port, ""
}

// ofOneMachine says why an address is not that of one machine, as seen from this one.
func ofOneMachine(address netip.Addr) string {
	plain := address.Unmap()
	switch {
	case plain.IsMulticast(), plain == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return "that is the address of many machines, name one"
	case address.Is4In6() && address.Zone() != "":
		return "an IPv4 address has no zone"
	case strings.IndexFunc(address.Zone(), notInNames) >= 0:
		return "the zone behind % is no name of an interface"
	}
	return ""
}

// judgeName says why a text is no name of a host.
func judgeName(host string) string {
	const neither = "the host is neither a name nor an address"
	if host == "" || len(host) > hostMax {
		return neither
	}
	labels := strings.Split(strings.TrimSuffix(host, "."), ".")
	for _, label := range labels {
		if label == "" || len(label) > labelMax || label[0] == '-' || strings.IndexFunc(label, notInNames) >= 0 {
			return neither
		}
	}
	// No name ends like that, and 10.0.0.256 or 0x7f.1 was meant to be an address.
	last := labels[len(labels)-1]
	if strings.Trim(last, "0123456789") == "" || strings.HasPrefix(last, "0x") || strings.HasPrefix(last, "0X") {
		return neither
	}
	return ""
}

// notInNames is true for what names of hosts and interfaces do not consist of.
func notInNames(c rune) bool {
	letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
	return !letter && c != '-' && c != '.' && c != '_'
}

func notPrinted(c rune) bool { return c <= ' ' || c > '~' }

func shortened(text string) string {
	if len(text) > 80 {
		return text[:80] + "..."
	}
	return text
}
