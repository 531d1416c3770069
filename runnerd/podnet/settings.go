package podnet

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"net/netip"
)

// Bounds.
const (
	LeasesMax   = 1022 // containers of one host
	PortsMax    = 16   // published ports of one container
	deriveTries = 64   // ranges that are tried when the first one is in use
)

// DefaultBridge is the name of the bridge where the policy gives none.
const DefaultBridge = "colloid0"

// rangeIPv4 is where the ranges of cells lie that have no statement in their policy: 16,384 times 254
// addresses. Two cells may have the same one; nothing of it is visible outside of the host (F100).
var rangeIPv4 = netip.MustParsePrefix("10.64.0.0/10")

// Settings are what the host's policy says of the network. The zero value means the defaults.
type Settings struct {
	Bridge string       // "" = DefaultBridge
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

// derived gives the ranges of a cell, or others if try is not 0: the same ones after every restart.
func derived(cell uint64, try int) (ipv4, ipv6 netip.Prefix) {
	hash := fnv.New64a()
	hash.Write(binary.BigEndian.AppendUint64([]byte("colloid pods"), cell+uint64(try)))
	// The multiplication spreads what FNV leaves in the low bits.
	sum := hash.Sum64() * 0x9e3779b97f4a7c15
	base := binary.BigEndian.Uint32(rangeIPv4.Addr().AsSlice())
	var four [4]byte
	binary.BigEndian.PutUint32(four[:], base|uint32(sum>>50)<<8)
	var six [16]byte
	binary.BigEndian.PutUint64(six[:], sum)
	six[0] = 0xfd // RFC 4193: a range that nobody gives out
	return netip.PrefixFrom(netip.AddrFrom4(four), 24), netip.PrefixFrom(netip.AddrFrom16(six), 64)
}

// capacity is how many containers a range has room for: not the first address, the bridge's, the last.
func capacity(p netip.Prefix) int {
	bits := p.Addr().BitLen() - p.Bits()
	if bits >= 10 {
		return LeasesMax
	}
	return 1<<bits - 3
}

// addressOf gives the address with a number in a range; 1 is the bridge.
func addressOf(p netip.Prefix, number int) netip.Addr {
	raw := p.Addr().AsSlice()
	tail := raw[len(raw)-4:]
	binary.BigEndian.PutUint32(tail, binary.BigEndian.Uint32(tail)+uint32(number))
	a, _ := netip.AddrFromSlice(raw)
	return a
}
