package nat

import (
	"net/netip"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/overlay"
	"colloid.net/meshd/wire"
)

// coordinate serves a cell that wants to meet another one, or to be called by it. Where the two are comes
// from this cell's own exchange with them, never from the request (F37).
func (t *Traversal) coordinate(now clock.Instant, asker *overlay.Member, from netip.AddrPort, request wire.PunchReq, kind uint8) {
	if !from.IsValid() || !t.options.Guard.AllowRequest(now, asker.ID) {
		t.stats.Refused++
		return
	}
	observed := wire.Contact{ID: asker.ID, Address: from, Reach: asker.Reach, Flags: kind}
	if asker.NeedsHelp() && asker.Reach == wire.ReachUnknown {
		observed.Reach = wire.ReachPunched // the other one may not have heard yet that it needs help
	}
	if observed.Check(t.wireOptions()) != nil {
		return
	}
	if request.Target.ID == t.options.Self {
		if kind == wire.PunchDialGo {
			t.call(asker.ID, from, request.Rendezvous)
		}
		return
	}
	m := t.options.Members.Get(request.Target.ID)
	if m == nil || !m.InService() || m.ID == asker.ID || !t.direct(now, m) ||
		m.NeedsHelp() && now.Sub(m.Heard) >= exchangeFresh || kind == wire.PunchSearchGo && !searchSensible(asker, m) {
		t.stats.Refused++
		return
	}
	toTarget := wire.PunchReq{Target: observed, Rendezvous: request.Rendezvous}
	t.options.Send(m.ID, wire.TypePunchReq, t.options.Nonce(), wire.AppendPunchReq(t.payload[:0], toTarget))
	if kind == wire.PunchSearchGo {
		toAsker := wire.PunchReq{
			Target:     wire.Contact{ID: m.ID, Address: m.Address, Reach: m.Reach, Flags: kind},
			Rendezvous: request.Rendezvous,
		}
		t.options.SendTo(asker.ID, from, wire.TypePunchReq, t.options.Nonce(), wire.AppendPunchReq(t.payload[:0], toAsker))
	}
}

// introduce tells a cell that the one it asked for takes part, and where that one is: as this cell sees it now. Only
// then do both send, so neither sends in vain because the other one does not know it yet or is not ready.
func (t *Traversal) introduce(now clock.Instant, accepting *overlay.Member, from netip.AddrPort, request wire.PunchReq) {
	asker := t.options.Members.Get(request.Target.ID)
	if !from.IsValid() && t.direct(now, accepting) { // it keeps this cell unknown to its router
		from = accepting.Address
	}
	if !from.IsValid() || asker == nil || !asker.InService() || asker.ID == accepting.ID ||
		!t.introduceLimit.Allow(now, accepting.ID) {
		t.stats.Refused++
		return
	}
	seen := wire.Contact{ID: accepting.ID, Address: from, Reach: accepting.Reach, Flags: wire.PunchStart}
	if seen.Check(t.wireOptions()) != nil {
		return
	}
	answer := wire.PunchReq{Target: seen, Rendezvous: request.Rendezvous}
	t.options.Send(asker.ID, wire.TypePunchReq, t.options.Nonce(), wire.AppendPunchReq(t.payload[:0], answer))
}

// callBack calls a cell on behalf of a coordinator.
func (t *Traversal) callBack(now clock.Instant, sender *overlay.Member, request wire.PunchReq) {
	if t.options.Guard.AllowRequest(now, sender.ID) && t.options.Members.Get(request.Target.ID) != nil {
		t.call(request.Target.ID, request.Target.Address, request.Rendezvous)
	}
}

func (t *Traversal) call(id wire.CellID, to netip.AddrPort, rendezvous uint64) {
	if t.options.SendAlternate != nil {
		t.options.SendAlternate(id, to, wire.TypePing, uint32(rendezvous),
			wire.AppendPing(t.payload[:0], netip.AddrPort{}))
	}
}
