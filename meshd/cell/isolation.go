package cell

import (
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// isolationState follows how much of the cluster this cell can reach. A cell that lost more than half of
// it is probably the one that is cut off: it accuses nobody and starts nothing for ISOLATION_HOLD, then
// acts on what it sees, still without accusing (F64, F66, AVAIL-1).
type isolationState struct {
	since clock.Instant // 0 = most members are reachable
	alone bool          // the hold is over: unreachable cells are out of the local H
	until clock.Instant
	// unreachable are members that the detector would have declared dead while this cell was mute.
	unreachable map[wire.CellID]struct{}
}

func (s *isolationState) deadline() clock.Instant {
	if s.since == 0 || s.alone {
		return clock.Never
	}
	return s.until
}

// minority reports whether more than half of the members, this cell included, do not answer.
func (c *Cell) minority() bool {
	members, lost := 1, 0
	c.members.Each(func(m *member) bool {
		if m.Life == state.Dead && !c.detector.Suspected(m.ID) {
			return true // long dead: not part of what is lost now
		}
		members++
		if c.detector.Suspected(m.ID) {
			lost++
		}
		return true
	})
	return lost*2 > members
}

// mute reports whether an accusation must be kept private because this cell is the isolated one.
func (s *isolationState) mute(c *Cell, target wire.CellID, status state.CellStatus) bool {
	if status.Life != state.Suspect && status.Life != state.Dead {
		return false
	}
	if s.since == 0 && c.minority() {
		s.begin(c)
	}
	if s.since == 0 {
		return false
	}
	if status.Life == state.Dead {
		s.unreachable[target] = struct{}{}
	}
	return true
}

func (s *isolationState) begin(c *Cell) {
	s.since, s.alone = c.now, false
	s.until = c.now.Add(c.timing.IsolationHold)
	s.unreachable = make(map[wire.CellID]struct{})
	c.alarms.raise(alarmIsolated, "warning", "more than half of the cells do not answer: this cell is cut off",
		"check its network; it keeps what it runs and starts nothing for a while")
	c.log(LevelWarning, "isolated: more than half of the cells do not answer")
	c.planChanged()
}

func (c *Cell) tickIsolation() {
	s := &c.isolation
	if s.since == 0 {
		return
	}
	if !c.minority() {
		*s = isolationState{}
		c.alarms.clear(alarmIsolated)
		c.log(LevelInfo, "no longer isolated")
		c.planChanged()
		return
	}
	if !s.alone && s.until.Reached(c.now) {
		s.alone = true
		c.log(LevelWarning, "still isolated: acting on the cells that answer")
		c.planChanged()
	}
}

// health is what H says of one cell (F68).
type health uint8

const (
	healthOut  health = iota
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
	if view.heldUntil > c.now {
		return healthOut
	}
	if c.isolation.alone {
		if _, lost := c.isolation.unreachable[view.id]; lost && c.detector.Suspected(view.id) {
			return healthOut
		}
	}
	if view.hasCapacity && view.capacity.Cordoned {
		return healthKeep
	}
	return healthFull
}

// healthOfSelf: a cell always counts on itself, whatever others wrote; what they wrote is being refuted.
func (c *Cell) healthOfSelf(view *cellView) health {
	switch {
	case c.store.Degraded():
		return healthOut
	case c.phase == Leaving, view.hasCapacity && view.capacity.Cordoned:
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
