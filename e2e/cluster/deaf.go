package cluster

import (
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// everybody is what a cell that hears nothing does not hear.
var everybody = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}

// Deafen drops all that arrives at the cell from these others, or from anybody if none is named; what the cell
// sends still leaves. It takes the place of an earlier call. ErrNoLink without namespaces.
func (c *Cell) Deafen(others ...*Cell) error {
	deaf := everybody
	if len(others) > 0 {
		deaf = nil
		for _, other := range others {
			deaf = append(deaf, netip.PrefixFrom(other.Address, other.Address.BitLen()))
		}
	}
	return c.cluster.network.deafen(c.number, deaf)
}

// Hear ends Deafen.
func (c *Cell) Hear() error { return c.cluster.network.deafen(c.number, nil) }

// deafen writes the rules of a cell's own packet filter, in the place of those it has.
func (n *namespaces) deafen(i int, deaf []netip.Prefix) error {
	ns, err := openNamespace(n.cellName(i))
	if err != nil {
		return err
	}
	defer ns.close()
	c, err := nftables.New(nftables.WithNetNSFd(int(ns.handle)))
	if err != nil {
		return err
	}
	// Not the whole rule set: runnerd has a table of its own in there.
	table := &nftables.Table{Family: nftables.TableFamilyINet, Name: "deaf"}
	c.AddTable(table)
	c.DelTable(table)
	if len(deaf) > 0 {
		c.AddTable(table)
	}
	accept := nftables.ChainPolicyAccept
	chain := &nftables.Chain{Name: "in", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw, Policy: &accept}
	if len(deaf) > 0 {
		c.AddChain(chain)
	}
	for _, from := range deaf {
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: slices.Concat(iif(cellLink), source(from),
			[]expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}})})
	}
	return c.Flush()
}

// source matches packets of a family that come from one address, or from any if the prefix is empty.
func source(from netip.Prefix) []expr.Any {
	family, offset, size := byte(unix.NFPROTO_IPV4), uint32(12), uint32(4)
	if from.Addr().Is6() {
		family, offset, size = unix.NFPROTO_IPV6, 8, 16
	}
	match := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{family}},
	}
	if from.Addr().Is6() { // neighbour discovery goes on, without which nothing could be sent
		match = append(match, &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{unix.IPPROTO_ICMPV6}})
	}
	if from.Bits() == 0 {
		return match
	}
	return append(match,
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: from.Addr().AsSlice()})
}
