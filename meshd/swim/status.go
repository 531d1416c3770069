package swim

import (
	"math"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/overlay"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// SetSelf sets what this cell says of itself: its life (ALIVE or LEAVING) and the incarnation to start
// from. It writes nothing.
func (d *Detector) SetSelf(status state.CellStatus) {
	d.self = state.CellStatus{Life: status.Life, Incarnation: status.Incarnation}
}

// Self returns what this cell says of itself now, without claimants.
func (d *Detector) Self() state.CellStatus { return d.self }

// StatusChanged must be called whenever a status register in the store has a new value, whoever wrote
// it, and after a member was added whose register is known already. It sets the member's Life and
// StatusIncarnation.
func (d *Detector) StatusChanged(now clock.Instant, id wire.CellID, status state.CellStatus) {
	d.enter(now)
	if id == d.options.Self {
		d.refute(status)
	} else if m := d.members.Get(id); m != nil {
		m.Life, m.StatusIncarnation = status.Life, status.Incarnation
		d.judge(now, d.peer(id), m, status)
	}
	d.flush(now)
}

// refute answers an accusation of this cell with a higher incarnation (F63). GONE is not refuted: an
// operator said it. At the last incarnation there is no answer left.
func (d *Detector) refute(status state.CellStatus) {
	switch {
	case status.Life == state.Gone:
		return
	case status.Incarnation < d.self.Incarnation:
		// The store has not got what this cell says of itself: say it again.
	case status.Life == state.Suspect || status.Life == state.Dead:
		if status.Incarnation == math.MaxUint32 {
			return
		}
		d.health.worsen()
		d.self.Incarnation = status.Incarnation + 1
	case status.Incarnation == d.self.Incarnation && status.Life >= d.self.Life:
		return // what this cell says itself
	default:
		d.self.Incarnation = status.Incarnation // an earlier run of this cell got further
		if status.Life > d.self.Life {
			if status.Incarnation == math.MaxUint32 {
				return
			}
			d.self.Incarnation++ // that run was leaving, this one stays
		}
		if status.Life == d.self.Life {
			return
		}
	}
	d.claimLater(d.options.Self, d.self.Life, d.self.Incarnation)
}

// judge applies a changed register to the investigation of a peer.
func (d *Detector) judge(now clock.Instant, p *peer, m *overlay.Member, status state.CellStatus) {
	switch status.Life {
	case state.Suspect:
		p.accusers = 0
		for _, c := range status.Claimants {
			if c != d.options.Self {
				p.accusers++
			}
		}
		d.accused(now, p, m, status.Incarnation)
	case state.Dead:
		if !p.deathSeen || p.deathOf != status.Incarnation {
			p.deathSeen, p.deathOf = true, status.Incarnation
			p.deaths[1], p.deaths[0] = p.deaths[0], now
		}
		d.clear(p)
	default:
		d.clear(p) // it speaks for itself, or is gone
	}
}

// accused starts or updates the local timer of a suspicion in the store.
func (d *Detector) accused(now clock.Instant, p *peer, m *overlay.Member, incarnation uint32) {
	if p.phase == phaseIdle && m.Validated != 0 && now.Sub(m.Validated) < freshContact {
		d.accuseAloud(now, m) // it is there; it only has to hear of this
		return
	}
	if p.heard == 0 || p.incarnation != incarnation {
		p.heard, p.incarnation = now, incarnation
	}
	switch p.phase {
	case phaseRounds, phaseWaiting:
		d.accuseAloud(now, m)
	case phaseIdle, phaseDirect:
		if d.members.Precedes(m.ID, predecessorsMax, d.skipDoubt) {
			d.beginRounds(now, p, m)
		} else if p.phase == phaseIdle {
			d.enterPhase(p, phaseOnlooker, d.onlookerDue(p))
		}
	case phaseOnlooker:
		p.next = min(p.next, d.onlookerDue(p))
	}
}

// onlookerDue is when a cell that only heard of a suspicion looks for itself: when the suspicion is
// overdue and still no DEAD has come, which takes the death of everybody who had evidence.
func (d *Detector) onlookerDue(p *peer) clock.Instant {
	spread := min(onlookerDelayMin+time.Duration(d.members.Len())*onlookerDelayPerMember, onlookerDelayMax)
	wait := time.Duration(d.options.Random.Int64N(int64(spread)))
	return p.heard.Add(d.patience(p)).Add(probeTimeoutMin + wait)
}
