package swim

import (
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/overlay"
	"colloid.net/meshd/wire"
)

// schedule decides whom the next scheduled probe goes to: the ring successor on odd ticks, so that
// every cell has a designated prober, and a shuffled rotation over all members on even ticks (F62 a).
type schedule struct {
	next     clock.Instant // 0 until the first Tick with a member
	ticks    uint64
	rotation []wire.CellID
	position int
	dead     wire.CellID // the DEAD member probed last
}

// tickSchedule sends the scheduled probe if it is due. Missed ticks are not made up for.
func (d *Detector) tickSchedule(now clock.Instant) {
	s := &d.schedule
	if d.members.Len() == 0 {
		s.next = 0
		return
	}
	if s.next == 0 {
		s.next = now.Add(d.jitter())
		d.health.lastAnswer, d.health.unanswered = now, 0
		return
	}
	if !s.next.Reached(now) {
		return
	}
	late := now.Sub(s.next)
	if late > lateMin {
		d.health.worsen()
	}
	s.next = s.next.Add(probeInterval)
	if late >= probeInterval {
		s.next = now.Add(probeInterval)
	}
	if d.health.quiet > 0 {
		d.health.quiet--
	}
	s.ticks++
	if s.ticks%uint64(deadInterval/probeInterval) == 0 {
		d.probeDead(now)
	}
	if m := d.nextTarget(); m != nil {
		d.scheduledProbe(now, m)
	}
}

// jitter spreads the first ticks of cells that started together.
func (d *Detector) jitter() time.Duration {
	return time.Duration(d.options.Random.Int64N(int64(probeInterval)))
}

// nextTarget returns the member whose turn it is, nil if all are out of service or under probe.
func (d *Detector) nextTarget() *overlay.Member {
	s := &d.schedule
	successor := d.members.Successor(d.options.Self, d.skipRing)
	if successor == nil || s.ticks%2 == 1 {
		return successor
	}
	for range rotationSkipsMax {
		if s.position >= len(s.rotation) {
			d.shuffle()
		}
		m := d.members.Get(s.rotation[s.position])
		s.position++
		if m != nil && m != successor && !d.skipRing(m) {
			return m
		}
	}
	return successor
}

// shuffle draws the order of the next rotation; the slice is reused.
func (d *Detector) shuffle() {
	s := &d.schedule
	s.rotation, s.position = s.rotation[:0], 0
	for i := range d.members.Len() {
		s.rotation = append(s.rotation, d.members.At(i).ID)
	}
	d.options.Random.Shuffle(len(s.rotation), func(i, j int) {
		s.rotation[i], s.rotation[j] = s.rotation[j], s.rotation[i]
	})
}

func (d *Detector) scheduledProbe(now clock.Instant, m *overlay.Member) {
	p := d.peer(m.ID)
	d.health.unanswered++
	if p.phase == phaseOnlooker {
		d.beginRounds(now, p, m)
		return
	}
	p.first = now
	d.ping(now, m, kindScheduled)
	d.enterPhase(p, phaseDirect, now.Add(d.timeout(m)))
	d.accuseAloud(now, m)
}

// probeDead sends a PING to one DEAD member, in ring order, so that a healed partition is noticed. Its
// answer, or its own refusal to be dead, leads to TellStatus.
func (d *Detector) probeDead(now clock.Instant) {
	s := &d.schedule
	if m := d.members.Successor(s.dead, d.skipLive); m != nil {
		s.dead = m.ID
		d.ping(now, m, kindDead)
	}
}

// succeeded reports whether another member answers at the address of a DEAD one: the machine has a new
// identity, and would take what is sent to the old one for its own. How the version of a datagram was chosen,
// for one (F26).
func (d *Detector) succeeded(dead *overlay.Member) bool {
	for i := range d.members.Len() {
		if m := d.members.At(i); m.Address == dead.Address && m.InService() && m.Validated != 0 {
			return true
		}
	}
	return false
}

// evidenceLifetime grows with the health multiplier: a slow cell hears slowly.
func (d *Detector) evidenceLifetime() time.Duration {
	return evidenceLifetime * time.Duration(d.health.multiplier())
}
