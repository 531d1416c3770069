package swim

import (
	"net/netip"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/overlay"
	"colloid.net/meshd/wire"
)

// relay is a probe made for another cell. It stays for probeTimeoutMax after its negative answer went
// out, so that a late PONG still helps.
type relay struct {
	requester wire.CellID
	target    wire.CellID
	request   uint32 // nonce of the PING_REQ
	nonce     uint32 // nonce of the PING
	due       clock.Instant
	refused   bool // the negative answer went out
}

// receiveRequest probes a target for another member, at the address this cell itself knows; the one in
// the request is never used (F37). A cell that has no usable address, or too many requests, is silent:
// silence is no evidence.
func (d *Detector) receiveRequest(now clock.Instant, from wire.CellID, request uint32, target wire.CellID) {
	m := d.members.Get(target)
	if m == nil || target == from || !d.reachable(now, m) || len(d.relays) == relaysMax {
		return
	}
	if d.options.Guard != nil && !d.options.Guard.AllowRequest(now, from) {
		return
	}
	nonce := d.ping(now, m, kindRelay)
	// The refusal must arrive before the requester's own timeout: four fifths of it.
	due := now.Add(d.timeout(m) * 4 / 5)
	d.relays = append(d.relays,
		relay{requester: from, target: target, request: request, nonce: nonce, due: due})
}

// reachable reports whether a datagram of this cell has a chance to arrive: an address is known, and
// a mapping through the target's NAT is open if it needs one.
func (d *Detector) reachable(now clock.Instant, m *overlay.Member) bool {
	return overlay.UsableAddress(m.Address) && (d.options.Direct == nil || d.options.Direct(now, m))
}

func (d *Detector) relaySucceeded(target wire.CellID, nonce uint32, observed netip.AddrPort) {
	for i := range d.relays {
		if r := d.relays[i]; r.target == target && r.nonce == nonce {
			d.answerRelay(r, true, observed)
			d.removeRelay(i)
			return
		}
	}
}

func (d *Detector) expireRelays(now clock.Instant) {
	for i := 0; i < len(d.relays); {
		r := &d.relays[i]
		switch {
		case !r.due.Reached(now):
			i++
		case r.refused:
			d.removeRelay(i)
		default:
			r.refused, r.due = true, now.Add(probeTimeoutMax)
			d.answerRelay(*r, false, unknownAddress)
			d.lookMyself(now, r.target)
			i++
		}
	}
}

// lookMyself begins this cell's own investigation of a target that it is a home of and did not reach for
// somebody else: nobody but its homes can accuse it (F36).
func (d *Detector) lookMyself(now clock.Instant, target wire.CellID) {
	m := d.members.Get(target)
	if m == nil || !m.InService() || !m.HasHome(d.options.Self) {
		return
	}
	if p := d.peer(target); p.phase == phaseIdle || p.phase == phaseOnlooker {
		d.beginRounds(now, p, m)
	}
}

func (d *Detector) answerRelay(r relay, reachable bool, observed netip.AddrPort) {
	ack := wire.PingReqAck{Target: r.target, Reachable: reachable, Observed: observed}
	d.options.Send(r.requester, wire.TypePingReqAck, r.request, wire.AppendPingReqAck(d.payload[:0], ack))
}

func (d *Detector) removeRelay(i int) {
	last := len(d.relays) - 1
	d.relays[i] = d.relays[last]
	d.relays = d.relays[:last]
}
