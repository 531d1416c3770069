package cluster

import (
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// raiseFirewall lets the present network namespace answer nobody whom it has not sent to, by address and port, in
// both versions of IP: what a home router does for version 6, where it translates nothing. Neighbour discovery
// passes, and so does what the host says to itself.
func raiseFirewall() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	drop := nftables.ChainPolicyDrop
	w := rules{Conn: c, table: c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "firewall"})}
	inwards := w.AddChain(&nftables.Chain{Name: "inwards", Table: w.table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter, Policy: &drop})
	accept := []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}
	w.add(inwards, iif("lo"), accept)
	w.add(inwards, state(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED), accept)
	w.add(inwards, []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_ICMPV6}},
	}, accept)
	if err := c.Flush(); err != nil {
		return fmt.Errorf("firewall: %w", err)
	}
	return nil
}
