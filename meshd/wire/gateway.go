package wire

import (
	"encoding/binary"
	"net/netip"
)

// GatewayClaimSize is the payload size of GW_CLAIM.
const GatewayClaimSize = 18

// GatewayClaim is the payload of GW_CLAIM: the sender advertises VIP. For display only; who owns a
// VIP is decided by the store.
type GatewayClaim struct {
	VIP      netip.Addr // IPv4 is kept unmapped
	Priority uint16     // lower is stronger
}

// AppendGatewayClaim appends the payload of GW_CLAIM. It panics on an address that cannot be a VIP.
func AppendGatewayClaim(dst []byte, g GatewayClaim) []byte {
	if !usable(g.VIP.Unmap()) {
		panic("wire: gateway claim for " + g.VIP.String())
	}
	raw := g.VIP.As16()
	return binary.BigEndian.AppendUint16(append(dst, raw[:]...), g.Priority)
}

// ParseGatewayClaim decodes the payload of GW_CLAIM.
func ParseGatewayClaim(payload []byte) (GatewayClaim, error) {
	if len(payload) != GatewayClaimSize {
		return GatewayClaim{}, ErrLength
	}
	g := GatewayClaim{netip.AddrFrom16([16]byte(payload)).Unmap(), binary.BigEndian.Uint16(payload[16:])}
	if !usable(g.VIP) {
		return GatewayClaim{}, ErrAddress
	}
	return g, nil
}
