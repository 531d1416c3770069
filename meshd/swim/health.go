package swim

import "colloid.net/meshd/clock"

// health is what the detector thinks of its own cell: Lifeguard's score, the memory of the last contact
// with anybody, and the quiet time after a pause.
type health struct {
	score      int           // 0..healthMax-1
	lastAnswer clock.Instant // last answer to a nonce of ours from anybody, or start of counting
	unanswered int           // scheduled probes since then
	quiet      int           // scheduled probes still to pass before a DEAD may be claimed
}

func (h *health) multiplier() int { return h.score + 1 }

func (h *health) worsen() { h.score = min(h.score+1, healthMax-1) }

func (h *health) improve() { h.score = max(h.score-1, 0) }

// enter is called first by everything that carries a time. It applies the wake rule (F11, F65): if
// this process has not run for pauseMin although it had something to do, whatever it was waiting for
// proves nothing.
func (d *Detector) enter(now clock.Instant) {
	if d.schedule.next != 0 && now.Sub(d.lastEntry) > pauseMin &&
		now.Sub(d.Deadline()) > pauseMin-probeInterval {
		d.dropSuspicions(now)
		d.health.worsen()
	}
	d.lastEntry = now
}

// dropSuspicions forgets all private evidence and starts over with quietRounds of patience.
func (d *Detector) dropSuspicions(now clock.Instant) {
	for len(d.active) > 0 {
		d.clear(d.active[len(d.active)-1])
	}
	d.relays = d.relays[:0]
	d.health.quiet = quietRounds
	d.health.lastAnswer, d.health.unanswered = now, 0
	if d.schedule.next != 0 {
		d.schedule.next = now.Add(d.jitter())
	}
}

// answered notes that somebody answered: this cell sends and hears. If it was isolated until now, its
// suspicions are worth nothing.
func (d *Detector) answered(now clock.Instant) {
	if d.Isolated(now) {
		d.dropSuspicions(now)
	}
	d.health.lastAnswer, d.health.unanswered = now, 0
}

// Isolated reports whether at least two other cells should be there and none has answered for
// SUSPECT_TIMEOUT (F64, F66): then the fault is most likely here, and this detector claims nothing. With
// a single other cell the two cases cannot be told apart, and that cell is declared DEAD instead.
func (d *Detector) Isolated(now clock.Instant) bool {
	return d.health.unanswered >= 2 && now.Sub(d.health.lastAnswer) >= isolationMin && d.others(2) >= 2
}

// hearing reports whether this cell has proof that its own ears work: since the investigation of p
// began and not long ago, somebody answered it. Where nobody else could answer, it must do without.
func (d *Detector) hearing(now clock.Instant, p *peer) bool {
	if d.health.lastAnswer > p.first && now.Sub(d.health.lastAnswer) <= d.evidenceLifetime() {
		return true
	}
	return d.others(2) < 2
}

// others counts members in service, up to limit.
func (d *Detector) others(limit int) int {
	n := 0
	for i := 0; i < d.members.Len() && n < limit; i++ {
		if d.members.At(i).InService() {
			n++
		}
	}
	return n
}
