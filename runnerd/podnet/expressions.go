package podnet

import (
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Parts of rules. Registers are numbered as the kernel does: 1 to 4 are of 16 bytes each, and 8 to 23 the
// same memory in pieces of 4. A concatenation lies in registers that follow each other, each part padded
// to 4 bytes.

// Headers of a packet.
const (
	linkHeader      = expr.PayloadBaseLLHeader
	networkHeader   = expr.PayloadBaseNetworkHeader
	transportHeader = expr.PayloadBaseTransportHeader
)

var (
	accept = []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}
	drop   = []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}
	ipv4   = join2(meta(expr.MetaKeyNFPROTO, 1), equal(1, []byte{unix.NFPROTO_IPV4}))
	ipv6   = join2(meta(expr.MetaKeyNFPROTO, 1), equal(1, []byte{unix.NFPROTO_IPV6}))

	notLoopback = interfaceIs(expr.MetaKeyIIFNAME, expr.CmpOpNeq, "lo")

	// toHost fits packets to any address of the host.
	toHost = []expr.Any{
		&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
	}
	// service1 loads protocol and destination port.
	service1 = join2(meta(expr.MetaKeyL4PROTO, 1), load(transportHeader, 9, 2, 2))
	// known fits packets of connections that were let through, and errors about them.
	known = connection(expr.CtKeySTATE, expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED)
	// translated fits packets whose destination was a published port (IPS_DST_NAT).
	translated = connection(expr.CtKeySTATUS, 1<<5)
)

func join2(parts ...[]expr.Any) (list []expr.Any) {
	for _, part := range parts {
		list = append(list, part...)
	}
	return list
}

func join(parts ...[]byte) (list []byte) {
	for _, part := range parts {
		list = append(list, part...)
	}
	return list
}

// padded fills up to whole registers.
func padded(b []byte) []byte {
	return append(append([]byte{}, b...), make([]byte, (4-len(b)%4)%4)...)
}

// nameBytes is the name of an interface as the kernel compares it.
func nameBytes(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}

func meta(key expr.MetaKey, register uint32) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: register}}
}

func load(base expr.PayloadBase, register, offset, length uint32) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: register, Base: base, Offset: offset, Len: length}}
}

func equal(register uint32, data []byte) []expr.Any {
	return []expr.Any{&expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: data}}
}

func lookup(s *nftables.Set, invert bool) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: 1, SetName: s.Name, SetID: s.ID, Invert: invert}}
}

func lookupTo(s *nftables.Set) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: 1, DestRegister: 1, IsDestRegSet: true, SetName: s.Name, SetID: s.ID}}
}

// destinationNAT takes the address from register 1 and the port from the one behind it.
func destinationNAT(family, portRegister uint32) []expr.Any {
	return []expr.Any{&expr.NAT{
		Type: expr.NATTypeDestNAT, Family: family, RegAddrMin: 1, RegProtoMin: portRegister, Specified: true,
	}}
}

func interfaceIs(key expr.MetaKey, op expr.CmpOp, name string) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: nameBytes(name)},
	}
}

// connection fits packets of connections with any of some bits.
func connection(key expr.CtKey, bits uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: key, Register: 1},
		&expr.Bitwise{
			SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(bits), Xor: make([]byte, 4),
		},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}
}

func etherType(kind uint16) []expr.Any {
	return join2(load(linkHeader, 1, 12, 2), equal(1, portBytes(kind)))
}

func destination4(a netip.Addr) []expr.Any {
	return join2(load(networkHeader, 1, 16, 4), equal(1, a.AsSlice()))
}

func destination6(a netip.Addr) []expr.Any {
	return join2(load(networkHeader, 1, 24, 16), equal(1, a.AsSlice()))
}

// within fits packets with an address of a range at an offset of the network header.
func within(p netip.Prefix, offset uint32) []expr.Any { return inRange(p, offset, expr.CmpOpEq) }

func notWithin(p netip.Prefix, offset uint32) []expr.Any { return inRange(p, offset, expr.CmpOpNeq) }

func withinDestination(p netip.Prefix) []expr.Any {
	if p.Addr().Is6() {
		return within(p, 24)
	}
	return within(p, 16)
}

func inRange(p netip.Prefix, offset uint32, op expr.CmpOp) []expr.Any {
	length := uint32(p.Addr().BitLen() / 8)
	mask := make([]byte, length)
	for bit := range p.Bits() {
		mask[bit/8] |= 0x80 >> (bit % 8)
	}
	return append(load(networkHeader, 1, offset, length),
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: length, Mask: mask, Xor: make([]byte, length)},
		&expr.Cmp{Op: op, Register: 1, Data: p.Addr().AsSlice()})
}
