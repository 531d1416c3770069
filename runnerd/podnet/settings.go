package podnet

import (
	"encoding/binary"
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
