package swim

import (
	"net/netip"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/overlay"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

var unknownAddress netip.AddrPort

// Receive takes a verified PING, PONG, PING_REQ or PING_REQ_ACK that came from an address; the zero
// AddrPort stands for a relay: then nothing is learnt about addresses (F155). Malformed and unexpected ones
// are dropped without a trace.
func (d *Detector) Receive(now clock.Instant, from wire.CellID, address netip.AddrPort,
	h wire.Header, payload []byte) {
	d.enter(now)
	m := d.members.Get(from)
	if m != nil {
		if address.IsValid() {
			m.Source, m.SourceHeard = address, now
		}
		d.heard(now, m)
	}
	switch h.Type {
	case wire.TypePing:
		// Anybody is answered, with as many bytes as came (F14).
		if _, err := wire.ParsePing(payload); err == nil {
			d.options.Send(from, wire.TypePong, h.Nonce, wire.AppendPing(d.payload[:0], address))
		}
	case wire.TypePong:
		if observed, err := wire.ParsePing(payload); err == nil && m != nil {
			d.receivePong(now, m, address, h.Nonce, observed)
		}
	case wire.TypePingReq:
		if target, err := wire.ParsePingReq(payload, d.wireOptions()); err == nil && m != nil {
			d.receiveRequest(now, from, h.Nonce, target.ID)
		}
	case wire.TypePingReqAck:
		if ack, err := wire.ParsePingReqAck(payload); err == nil && m != nil {
			d.receiveAck(now, m, h.Nonce, ack)
		}
	}
	d.flush(now)
}

func (d *Detector) wireOptions() wire.Options { return wire.Options{Loopback: d.options.Loopback} }

// Heard notes a verified datagram of any kind. It is no proof that this cell reaches the sender, so it
// cancels nothing: it extends a suspicion once, and a cell held DEAD is shown its register.
func (d *Detector) Heard(now clock.Instant, from wire.CellID) {
	d.enter(now)
	if m := d.members.Get(from); m != nil {
		d.heard(now, m)
	}
	d.flush(now)
}

func (d *Detector) heard(now clock.Instant, m *overlay.Member) {
	m.Heard = now
	if m.Life == state.Dead {
		d.accuseAloud(now, m)
		return
	}
	if p := d.attended(m.ID); p != nil && (p.since != 0 || p.heard != 0) && p.phase != phaseIdle {
		p.extended = true
	}
}

// receivePong handles the only proof of contact both ways: the echo of a nonce this cell sent.
func (d *Detector) receivePong(now clock.Instant, m *overlay.Member, address netip.AddrPort,
	nonce uint32, observed netip.AddrPort) {
	q, ok := d.outstanding.take(now, m.ID, nonce)
	if !ok || q.kind == kindRequest {
		return
	}
	d.answered(now)
	spoke(now, m)
	// That the answer came from elsewhere proves nothing about elsewhere: anybody on the path can have
	// sent it on from there (F155). The address that was asked is the one that received the nonce.
	if !m.Address.IsValid() {
		m.Address = address
		d.members.Revised()
	}
	direct := address.IsValid()
	if direct {
		m.Validated = now
	}
	m.ObserveRTT(now.Sub(q.sent))
	if q.kind == kindScheduled {
		d.health.improve()
	}
	d.reached(now, m)
	if q.kind == kindRelay {
		d.relaySucceeded(m.ID, nonce, observed)
	}
	if d.options.Validated != nil && direct {
		d.options.Validated(now, m)
	}
	if d.options.Observed != nil && observed.IsValid() && direct {
		d.options.Observed(now, m.ID, observed)
	}
}

// receiveAck takes a helper's word that it reached the target. "Unreachable" only proves that the
// helper itself can be talked to (F37).
func (d *Detector) receiveAck(now clock.Instant, helper *overlay.Member, nonce uint32, ack wire.PingReqAck) {
	q, ok := d.outstanding.take(now, helper.ID, nonce)
	if !ok || q.kind != kindRequest || q.about != ack.Target {
		return
	}
	d.answered(now)
	spoke(now, helper)
	if !ack.Reachable {
		// The helper may still get a late PONG and say so: leave the question open.
		d.outstanding.add(q)
		return
	}
	if target := d.members.Get(ack.Target); target != nil {
		if p := d.peers[target.ID]; p != nil && p.phase == phaseRounds && d.options.Detour != nil {
			d.options.Detour(now, target)
		}
		d.reached(now, target)
	}
}
