package swim

import (
	"fmt"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/overlay"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// phase says what the detector is doing about a peer.
type phase uint8

const (
	phaseIdle     phase = iota // nothing is open
	phaseDirect                // a scheduled PING is out
	phaseOnlooker              // accused by others; this cell has no evidence and waits
	phaseRounds                // a full round is out
	phaseWaiting               // between two full rounds, or until fewer cells are under rounds
)

// peer is what the detector remembers of a member.
type peer struct {
	id    wire.CellID
	phase phase
	at    int           // position in Detector.active, -1 if not there
	next  clock.Instant // when step is due

	first clock.Instant // first PING of this investigation
	since clock.Instant // local start of the suspicion, 0 = none
	heard clock.Instant // first accusation heard, 0 = none

	incarnation uint32 // the one accused in the store
	accusers    int    // in the store, this cell not counted
	claimed     bool   // this cell has accused it
	asked       int    // helpers asked in the present round
	failed      int    // full rounds in a row that failed
	extended    bool   // the one extension was granted

	told      clock.Instant    // last TellStatus to it
	deaths    [2]clock.Instant // the two latest DEAD, latest first
	deathSeen bool             // deadInc is valid
	deathOf   uint32           // incarnation of the latest DEAD
}

// peer returns the record of a member, making one if needed.
func (d *Detector) peer(id wire.CellID) *peer {
	if p := d.peers[id]; p != nil {
		return p
	}
	if len(d.peers) > d.members.Len()+roundsMax {
		d.forgetStrangers()
	}
	p := &peer{id: id, at: -1}
	d.peers[id] = p
	return p
}

// forgetStrangers drops records of cells that are members no more. Order does not matter here: each
// record is judged by itself.
func (d *Detector) forgetStrangers() {
	for id, p := range d.peers {
		if d.members.Get(id) == nil && p.phase == phaseIdle {
			delete(d.peers, id)
		}
	}
}

// enterPhase is the only place where a peer changes phase; due is when step is called next.
func (d *Detector) enterPhase(p *peer, to phase, due clock.Instant) {
	if p.phase == phaseRounds {
		d.rounds--
	}
	if to == phaseRounds {
		d.rounds++
	}
	p.phase, p.next = to, due
	switch {
	case to == phaseIdle && p.at >= 0:
		last := len(d.active) - 1
		d.active[p.at] = d.active[last]
		d.active[p.at].at = p.at
		d.active[last] = nil
		d.active = d.active[:last]
		p.at = -1
	case to != phaseIdle && p.at < 0:
		p.at = len(d.active)
		d.active = append(d.active, p)
	}
	if d.rounds < 0 || p.at >= 0 && d.active[p.at] != p {
		panic(fmt.Sprintf("swim: active list broken: peer %v at %d, rounds %d", p.id, p.at, d.rounds))
	}
}

// clear ends an investigation without a verdict. What was told and who died when is kept.
func (d *Detector) clear(p *peer) {
	d.enterPhase(p, phaseIdle, clock.Never)
	p.first, p.since, p.heard = 0, 0, 0
	p.accusers, p.asked, p.failed = 0, 0, 0
	p.claimed, p.extended = false, false
}

// step handles a peer whose time has come.
func (d *Detector) step(now clock.Instant, p *peer) {
	m := d.members.Get(p.id)
	if m == nil || !m.InService() {
		d.clear(p)
		return
	}
	switch p.phase {
	case phaseDirect:
		m.Failures++
		p.since = now
		d.beginRounds(now, p, m)
	case phaseOnlooker, phaseWaiting:
		d.beginRounds(now, p, m)
	case phaseRounds:
		d.roundFailed(now, p, m)
	case phaseIdle:
		panic(fmt.Sprintf("swim: idle peer %v has a deadline", p.id))
	}
}

// beginRounds opens the full rounds, or waits for a turn. A member without an address is left to those
// who have one: failing to reach it would prove nothing.
func (d *Detector) beginRounds(now clock.Instant, p *peer, m *overlay.Member) {
	if !overlay.UsableAddress(m.Address) {
		d.clear(p)
		return
	}
	if p.first == 0 {
		p.first = now
	}
	if d.rounds >= roundsMax {
		d.enterPhase(p, phaseWaiting, now.Add(probeInterval))
		return
	}
	d.round(now, p, m)
}

// round sends a PING to the target and asks helpers, all at once.
func (d *Detector) round(now clock.Instant, p *peer, m *overlay.Member) {
	d.ping(now, m, kindRound)
	p.asked = 0
	target := wire.Contact{ID: m.ID, Address: m.Address}
	if target.Check(wire.Options{Loopback: true}) == nil {
		d.target = m.ID
		d.helpers = d.homesOf(m, d.helpers[:0])
		if len(d.helpers) == 0 || m.HasHome(d.options.Self) {
			d.helpers = d.members.Random(d.options.Random, indirectProbeCount-len(d.helpers), d.helpers, d.skipHelp)
		}
		for _, helper := range d.helpers {
			nonce := d.options.Nonce()
			d.outstanding.add(
				question{cell: helper.ID, about: m.ID, nonce: nonce, sent: now, kind: kindRequest})
			if !m.NeedsHelp() { // else it may have no way there, and is silent
				await(now, helper)
			}
			d.options.Send(helper.ID, wire.TypePingReq, nonce, wire.AppendPingReq(d.payload[:0], target))
			p.asked++
		}
	}
	d.enterPhase(p, phaseRounds, now.Add(d.timeout(m)))
	d.accuseAloud(now, m)
}

// homesOf appends the homes of a member that can be asked about it: they have an open way to it when nobody
// else has (F36).
func (d *Detector) homesOf(m *overlay.Member, dst []*overlay.Member) []*overlay.Member {
	for _, id := range m.Homes {
		if home := d.members.Get(id); home != nil && !d.skipHelper(home) {
			dst = append(dst, home)
		}
	}
	return dst
}

func (d *Detector) skipHelper(m *overlay.Member) bool {
	return m.ID == d.target || !m.Address.IsValid() || d.skipDoubt(m)
}

// roundFailed draws the consequences of a full round without an answer.
func (d *Detector) roundFailed(now clock.Instant, p *peer, m *overlay.Member) {
	m.Failures++
	p.failed++
	if p.since == 0 {
		p.since = now
	}
	if p.failed == 1 && p.asked > 0 && d.health.lastAnswer < p.first {
		d.health.worsen() // not even the helpers were heard: the fault may be here
	}
	if d.options.MayAccuse != nil && !d.options.MayAccuse(now, m) {
		// That it is out of reach from here says nothing about it.
		if p.failed >= accusationRounds {
			d.clear(p)
		} else {
			d.round(now, p, m)
		}
		return
	}
	hearing := d.hearing(now, p) && !d.muted(now, p)
	if !p.claimed && hearing && (p.failed >= accusationRounds || p.heard != 0) {
		p.claimed = true
		if p.accusers < state.ClaimantsMax {
			d.claimLater(p.id, state.Suspect, m.StatusIncarnation)
		}
	}
	if hearing && p.claimed && d.overdue(now, p) && p.failed >= accusationRounds && d.mayBury(now, p) {
		d.claimLater(p.id, state.Dead, m.StatusIncarnation)
		d.clear(p)
		return
	}
	if !hearing && p.failed > accusationRounds {
		// Nobody answers, or too few: haste would only add noise to what is probably this cell's own fault.
		d.enterPhase(p, phaseWaiting, now.Add(probeInterval))
		return
	}
	d.round(now, p, m)
}

// muted reports whether this cell is to keep for itself that it does not reach a peer. The evidence stays:
// whoever is cut off must not forget, every time a verdict is due, what shows that it is.
func (d *Detector) muted(now clock.Instant, p *peer) bool {
	return (p.failed >= accusationRounds || p.heard != 0) && d.options.Muted != nil && d.options.Muted(now)
}

// overdue reports whether the suspicion has lasted long enough.
func (d *Detector) overdue(now clock.Instant, p *peer) bool {
	start := p.since
	if p.heard != 0 && p.heard < start {
		start = p.heard
	}
	return now.Sub(start) >= d.patience(p)
}

// patience is how long the suspicion of a peer must last.
func (d *Detector) patience(p *peer) time.Duration {
	timeout := suspicionTimeout
	if p.accusers >= suspicionAccusers {
		timeout = suspicionFloor
	}
	timeout *= time.Duration(d.health.multiplier())
	if p.extended {
		timeout += extension
	}
	return timeout
}

// mayBury applies what forbids a DEAD besides time: the pause rule (F65), and the dampening of a cell
// that died twice lately, which takes a second accuser where one can exist (F64).
func (d *Detector) mayBury(now clock.Instant, p *peer) bool {
	if d.health.quiet > 0 {
		return false
	}
	frequent := p.deaths[1] != 0 && now.Sub(p.deaths[1]) < deathsWindow
	return !frequent || p.accusers > 0 || d.others(2) < 2
}

// timeout is how long a round with the member may take (F70).
func (d *Detector) timeout(m *overlay.Member) time.Duration {
	base := min(max(probeTimeoutMin, probeTimeoutRoundTrips*m.RTT), probeTimeoutMax)
	return min(base*time.Duration(d.health.multiplier()), stretchedTimeoutMax)
}

// reached ends whatever was open about a member that proved to be reachable.
func (d *Detector) reached(now clock.Instant, m *overlay.Member) {
	m.Failures = 0
	if p := d.attended(m.ID); p != nil && p.phase != phaseIdle {
		d.clear(p)
	}
	d.accuseAloud(now, m)
}

// accuseAloud shows a cell the accusation or verdict about it, so that it can refute (F63, F64).
func (d *Detector) accuseAloud(now clock.Instant, m *overlay.Member) {
	if m.Life != state.Suspect && m.Life != state.Dead {
		return
	}
	p := d.peer(m.ID)
	if p.told != 0 && now.Sub(p.told) < tellInterval {
		return
	}
	p.told = now
	d.options.TellStatus(now, m.ID, m.ID)
}
