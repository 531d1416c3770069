package cell

import (
	"fmt"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/nat"
	"colloid.net/meshd/state"
	"colloid.net/meshd/swim"
	"colloid.net/meshd/wire"
)

// isolationState follows how much of the cluster this cell can reach. A cell that lost more than half of
// it is probably the one that is cut off: it accuses nobody and starts nothing for ISOLATION_HOLD, then
// acts on what it sees, still without accusing (F64, F66, AVAIL-1).
type isolationState struct {
	since   clock.Instant // 0 = most members are reachable
	until   clock.Instant // end of the hold
	alone   bool          // the hold is over: unreachable cells are out of the local H
	checked clock.Instant
	knocked clock.Instant // when the latest of the cells that left was asked
	door    wire.CellID   // which one that was
}

// knockInterval is how often a cell that is cut off asks one of those that left.
const knockInterval = 5 * time.Second

// isolationCheck is how often the question is asked while nothing points at it.
const isolationCheck = 500 * time.Millisecond

func (s *isolationState) deadline() clock.Instant {
	if s.since == 0 || s.alone {
		return clock.Never
	}
	return s.until
}

// silentMin is how many must be silent before the answers of few are held against them: as many as a cell asks in the
// time until its first verdict. With three, bad weather makes whole cells doubt themselves ten times as often.
const silentMin = 5

// minority reports whether this cell is probably the one that is cut off: more than half of the members, this cell
// included, do not answer, or more than half of those that it asked since it began to doubt somebody. The second
// matters to large clusters and to neighbours that are cut off together: a cell asks one more every second, so while
// most have not been asked yet nothing is known of them, and the first verdict is due after five seconds.
//
// The silence of those whom this cell cannot accuse (F36) says something about this cell all the same. But that it
// suspects none of them says nothing: only their homes do. The long dead do not count as lost now.
func (c *Cell) minority() bool {
	since := c.detector.Doubted()
	if since == 0 {
		return c.detector.Isolated(c.now)
	}
	lost, silent, answered, unknown := 0, 0, 1, 0 // it answers itself
	for i := range c.members.Len() {
		switch m := c.members.At(i); {
		case c.detector.Suspected(m.ID):
			lost++
		case m.Answered >= since:
			answered++
		case !m.InService():
		case swim.Silent(c.now, since, m):
			silent++
		case c.nat.MayAccuse(c.now, m):
			unknown++
		}
	}
	return lost > silent+answered+unknown || lost+silent >= silentMin && lost+silent > answered || c.detector.Isolated(c.now)
}

// unreached reports whether this cell fails to reach a member at present, whatever the store says of it.
func (c *Cell) unreached(m *member) bool {
	if c.detector.Suspected(m.ID) || !m.InService() {
		return true
	}
	since := c.detector.Doubted()
	return c.isolation.since != 0 && since != 0 && m.Answered < since && swim.Silent(c.now, since, m)
}

// isolationAlarm says that this cell is cut off, and what it still reaches.
func (c *Cell) isolationAlarm(add func(severity, text, hint string)) {
	if c.isolation.since == 0 {
		return
	}
	reached, all := 0, c.members.Len()
	for i := range all {
		if !c.unreached(c.members.At(i)) {
			reached++
		}
	}
	add("critical", fmt.Sprintf("this cell is cut off: it reaches %d of the %d other cells since %v ago; what it shows of "+
		"the rest is what they said last", reached, all, c.now.Sub(c.isolation.since).Round(time.Second)),
		"check its network; it keeps what it runs and starts nothing for a while")
}

// muted reports whether accusations must be kept private because this cell is the isolated one.
func (s *isolationState) muted(c *Cell) bool {
	if c.phase == Booting {
		return false // it claims nothing then
	}
	if s.since == 0 && c.minority() {
		s.begin(c)
	}
	return s.since != 0
}

func (s *isolationState) begin(c *Cell) {
	s.since, s.alone = c.now, false
	s.until = c.now.Add(c.timing.IsolationHold)
	c.log(LevelWarning, "isolated: more than half of the cells do not answer")
	c.planChanged()
}

func (c *Cell) tickIsolation() {
	s := &c.isolation
	if c.phase == Booting || c.now.Sub(s.checked) < isolationCheck && !s.deadline().Reached(c.now) {
		return
	}
	s.checked = c.now
	c.knock()
	lost := c.minority()
	switch {
	case lost && s.since == 0:
		s.begin(c)
	case !lost && s.since != 0:
		*s = isolationState{checked: c.now, door: s.door}
		c.log(LevelInfo, "no longer isolated")
		c.planChanged()
	case lost && !s.alone && s.until.Reached(c.now):
		s.alone = true
		c.log(LevelWarning, "still isolated: acting on the cells that answer")
		c.planChanged()
	}
}

// knock asks a cell that left whether it is there again. Nobody else probes those that are no members, but one may
// have come back meanwhile, and be the only one that a cell behind a narrow filter can reach: none of the others
// could tell it so. Its answer makes it a stranger, whom a session makes a member.
func (c *Cell) knock() {
	s := &c.isolation
	if c.now.Sub(s.knocked) < knockInterval || s.since == 0 && !c.nobodyAnswers() {
		return
	}
	s.knocked = c.now
	next, first := wire.CellID(0), wire.CellID(0)
	for id, view := range c.views.cells {
		if !view.hasStatus || view.status.Life != state.Gone || !view.hasContact || id == c.config.Self {
			continue
		}
		if id > s.door && (next == 0 || id < next) {
			next = id
		}
		if first == 0 || id < first {
			first = id
		}
	}
	if next == 0 {
		next = first
	}
	if s.door = next; next == 0 {
		return
	}
	candidates := c.views.cells[next].contact.Candidates
	if address := nat.Choose(c.nat.Candidates(c.candidates[:0]), candidates, c.admissible); address.IsValid() && c.canCheck(next) {
		c.askAddress(next, address) // the store named it: the guard has nothing to say (F14)
	}
}

// nobodyAnswers reports whether this cell has members and reaches none of them. With a single one that is no
// isolation, see minority.
func (c *Cell) nobodyAnswers() bool {
	for i := range c.members.Len() {
		if m := c.members.At(i); m.InService() && !c.detector.Suspected(m.ID) {
			return false
		}
	}
	return c.members.Len() > 0
}

// health is what H says of one cell (F68).
type health uint8

const (
	healthOut  health = iota
	healthHeld        // back from the dead a moment ago: gets what nobody else takes (F64)
	healthKeep        // keeps what it runs, gets nothing new
	healthFull
)

// healthOf computes membership in H, with the local hold of re-admitted cells (F64).
func (c *Cell) healthOf(view *cellView) health {
	if view.id == c.config.Self {
		return c.healthOfSelf(view)
	}
	if !view.hasContact || !view.hasStatus || view.contact.Flags&(state.FlagDegraded|state.FlagEphemeral) != 0 {
		return healthOut
	}
	switch view.status.Life {
	case state.Alive, state.Suspect:
	case state.Leaving:
		return healthKeep
	default:
		return healthOut
	}
	if c.isolation.alone && c.detector.Suspected(view.id) {
		return healthOut
	}
	if view.hasCapacity && view.capacity.Cordoned || c.isDrained(view.id) {
		return healthKeep
	}
	if view.heldUntil > c.now {
		return healthHeld
	}
	return healthFull
}

// healthOfSelf: a cell always counts on itself, whatever others wrote; what they wrote is being refuted.
func (c *Cell) healthOfSelf(view *cellView) health {
	switch {
	case c.store.Degraded():
		return healthOut
	case c.phase == Leaving, view.hasCapacity && view.capacity.Cordoned, c.isDrained(c.config.Self):
		return healthKeep
	}
	return healthFull
}

// flapMemory is how long a cell's earlier absences count against it when it returns.
const flapMemory = 10 * time.Minute

// brieflyOut is how short an absence must be to be forgiven at once: a refuted accusation, not a death.
const brieflyOut = 2 * time.Second

// trackHolds starts and ends the re-admission holds. It returns the earliest end of a hold.
func (c *Cell) trackHolds() clock.Instant {
	next := clock.Never
	for _, id := range c.cellIDs() {
		view := c.views.cells[id]
		if id == c.config.Self || !view.hasStatus {
			continue
		}
		out := view.status.Life == state.Dead || view.status.Life == state.Gone
		switch {
		case out && view.outSince == 0:
			view.outSince, view.heldUntil = c.now, 0
		case !out && view.outSince != 0:
			c.readmit(view)
		}
		if view.heldUntil > c.now {
			next = clock.Earliest(next, view.heldUntil)
		} else if view.heldUntil != 0 {
			view.heldUntil = 0
			c.planChanged()
		}
	}
	return next
}

func (c *Cell) readmit(view *cellView) {
	absent := c.now.Sub(view.outSince)
	view.outSince = 0
	if absent < brieflyOut {
		return
	}
	if view.lastOut == 0 || c.now.Sub(view.lastOut) > flapMemory {
		view.holdTimes = 0
	}
	hold := min(c.timing.ReadmissionHold<<min(view.holdTimes, 5), max(readmissionHoldMax, c.timing.ReadmissionHold))
	view.holdTimes++
	view.lastOut = c.now
	view.heldUntil = c.now.Add(hold)
	c.log(LevelInfo, "cell "+view.id.String()+" is back; it counts again in "+hold.String())
}
