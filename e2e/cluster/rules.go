package cluster

import (
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// rules writes the rules of one router.
type rules struct {
	*nftables.Conn
	table    *nftables.Table
	cell     netip.Addr
	first    netip.Addr // public address of the first cell
	remapped int        // how often the router has forgotten everything
	set      *nftables.Set
}

func (w *rules) write(kind Router) error {
	drop, accept := nftables.ChainPolicyDrop, nftables.ChainPolicyAccept
	before := w.AddChain(&nftables.Chain{Name: "before", Table: w.table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest, Policy: &accept})
	after := w.AddChain(&nftables.Chain{Name: "after", Table: w.table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource, Policy: &accept})
	through := w.AddChain(&nftables.Chain{Name: "through", Table: w.table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter, Policy: &drop})
	// A datagram that nobody asked for must not become a connection of the router itself: it would take the
	// port that a mapping of the cell needs a moment later.
	w.AddChain(&nftables.Chain{Name: "own", Table: w.table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter, Policy: &drop})
	if kind == RestrictedCone {
		w.set = &nftables.Set{Table: w.table, Name: "contacted", KeyType: nftables.TypeIPAddr,
			HasTimeout: true, Timeout: 2 * time.Minute, Dynamic: true}
		if err := w.AddSet(w.set, nil); err != nil {
			return err
		}
		w.add(through, iif(inside), []expr.Any{
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
			&expr.Dynset{SrcRegKey: 1, SetName: w.set.Name, SetID: w.set.ID, Operation: uint32(unix.NFT_DYNSET_OP_UPDATE)},
		})
	}
	if kind == Blocked {
		w.add(through, iif(inside), []expr.Any{
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: w.first.AsSlice()},
			&expr.Verdict{Kind: expr.VerdictDrop},
		})
	}
	w.add(through, iif(inside), []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}})
	w.add(through, state(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED), []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}})
	w.add(through, translated(), []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}})
	w.inwards(before, kind)
	w.outwards(after, kind)
	return nil
}

// inwards lets strangers in where the kind does.
func (w *rules) inwards(chain *nftables.Chain, kind Router) {
	outsidePort := binaryutil.BigEndian.PutUint16(w.outsidePort())
	dnat := []expr.Any{
		&expr.Immediate{Register: 1, Data: w.cell.AsSlice()},
		&expr.Immediate{Register: 2, Data: binaryutil.BigEndian.PutUint16(Port)},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegProtoMin: 2},
	}
	toPort := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_UDP}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: outsidePort},
	}
	switch kind {
	case FullCone:
		w.add(chain, iif(outside), toPort, dnat)
	case RestrictedCone:
		w.add(chain, iif(outside), toPort, []expr.Any{
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4},
			&expr.Lookup{SourceRegister: 1, SetName: w.set.Name, SetID: w.set.ID},
		}, dnat)
	case OneToOne:
		w.add(chain, iif(outside), []expr.Any{
			&expr.Immediate{Register: 1, Data: w.cell.AsSlice()},
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1},
		})
	}
}

// outsidePort is what the router makes of the cell's port where it keeps one.
func (w *rules) outsidePort() uint16 {
	if w.remapped == 0 {
		return Port
	}
	return uint16(20000 + w.remapped)
}

func (w *rules) outwards(chain *nftables.Chain, kind Router) {
	masquerade := &expr.Masq{}
	match := [][]expr.Any{oif(outside)}
	switch {
	case kind == Symmetric:
		masquerade = &expr.Masq{FullyRandom: true}
	case w.remapped > 0 && kind != OneToOne:
		// Another port than before, for the cell's own port only; a call back comes from another one.
		match = append(match, []expr.Any{
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_UDP}},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 2},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(Port)},
			&expr.Immediate{Register: 1, Data: binaryutil.BigEndian.PutUint16(w.outsidePort())},
		})
		masquerade = &expr.Masq{ToPorts: true, RegProtoMin: 1, RegProtoMax: 1}
		w.add(chain, append(match, []expr.Any{masquerade})...)
		match, masquerade = [][]expr.Any{oif(outside)}, &expr.Masq{}
	}
	w.add(chain, append(match, []expr.Any{masquerade})...)
}

func (w *rules) add(chain *nftables.Chain, parts ...[]expr.Any) {
	w.AddRule(&nftables.Rule{Table: w.table, Chain: chain, Exprs: slices.Concat(parts...)})
}

func iif(name string) []expr.Any { return onLink(expr.MetaKeyIIFNAME, name) }
func oif(name string) []expr.Any { return onLink(expr.MetaKeyOIFNAME, name) }

func onLink(key expr.MetaKey, name string) []expr.Any {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: padded}}
}

func state(mask uint32) []expr.Any { return conntrack(expr.CtKeySTATE, mask) }

// translated matches what a rule of the chain before has let in (IPS_DST_NAT).
func translated() []expr.Any { return conntrack(expr.CtKeySTATUS, 1<<5) }

func conntrack(key expr.CtKey, mask uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: key, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(mask), Xor: binaryutil.NativeEndian.PutUint32(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(0)},
	}
}
