package policy

import (
	"fmt"
	"net/netip"

	"colloid.net/workload/syntax"
)

// Network is what a host says of the network of its containers. The zero value means the defaults of
// package podnet.
type Network struct {
	None   bool         // containers have nothing but lo
	Bridge string       // "" = colloid0
	IPv4   netip.Prefix // invalid = derived from the cell's id
	IPv6   netip.Prefix
}

// CheckPrefix tells whether addresses of containers may come out of a range.
func CheckPrefix(p netip.Prefix) error {
	if p != p.Masked() {
		return fmt.Errorf("%s has bits behind its length, expected %s", p, p.Masked())
	}
	least, most := 16, 29
	if p.Addr().Is6() {
		least, most = 48, 120
	}
	if p.Bits() < least || p.Bits() > most {
		return fmt.Errorf("%s is too large or too small, expected a length from %d to %d", p, least, most)
	}
	a := p.Addr()
	if a.Is4In6() || a.IsLoopback() || a.IsMulticast() || a.IsUnspecified() || a.IsLinkLocalUnicast() {
		return fmt.Errorf("%s is no range for hosts", p)
	}
	return nil
}

// CheckBridge tells whether a bridge may have a name.
func CheckBridge(name string) error {
	if len(name) == 0 || len(name) > 15 {
		return fmt.Errorf("bridge name %q has %d bytes, expected 1 to 15", name, len(name))
	}
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
			return fmt.Errorf("bridge name %q has a character other than a-z, 0-9, - and _", name)
		}
	}
	return nil
}

// networkStatement parses the statements about the network of containers.
func (p *parser) networkStatement(s *syntax.Statement) {
	n := &p.policy.Containers.Network
	if s.Name == "pod_bridge" {
		if word := p.word(s, "the name of a bridge"); word != nil {
			if err := CheckBridge(word.Text); err != nil {
				p.complain(word.Position, "%v", err)
			}
			n.Bridge = word.Text
		}
		return
	}
	if s.Block || len(s.Arguments) == 0 || len(s.Arguments) > 2 {
		p.complain(s.Position, "pod_network needs a range for IPv4, one for IPv6, or both, or none")
		return
	}
	if s.Arguments[0].Text == "none" && len(s.Arguments) == 1 {
		n.None = true
		return
	}
	for i := range s.Arguments {
		word := &s.Arguments[i]
		prefix, err := netip.ParsePrefix(word.Text)
		if err == nil {
			err = CheckPrefix(prefix)
		}
		place := &n.IPv4
		if prefix.Addr().Is6() {
			place = &n.IPv6
		}
		if err == nil && place.IsValid() {
			err = fmt.Errorf("there are two ranges of one family")
		}
		if err != nil {
			p.complain(word.Position, "pod_network %s: %v", syntax.Quote(word.Text), err)
			continue
		}
		*place = prefix
	}
}
