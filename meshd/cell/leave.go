package cell

import (
	"errors"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/clock"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

var errLeft = errors.New("this cell has left")

// leaveAttempt hands over and then departs (F8).
type leaveAttempt struct {
	until clock.Instant // end of the hand-over, then of the stopping
	stop  bool          // what is left here is being stopped
	gone  bool
	sent  int
	next  clock.Instant
	reply func(Response)
}

// leaveLinger is how long the GONE status may travel before the cell forgets the cluster.
const leaveLinger = 500 * time.Millisecond

func (c *Cell) leave(limit time.Duration, reply func(Response)) {
	if c.phase != Active {
		reply(failure(uds.ErrorBusy, "this cell is "+c.phase.String()))
		return
	}
	c.phase = Leaving
	c.leaving = &leaveAttempt{until: c.now.Add(limit), reply: reply}
	c.statusIncarnation++
	c.log(LevelInfo, "leaving: handing over for up to "+limit.String())
	c.announceSelf()
	c.planChanged()
}

func (c *Cell) leaveDeadline() clock.Instant {
	switch {
	case c.leaving == nil:
		return clock.Never
	case c.leaving.gone:
		return c.leaving.next
	}
	return c.leaving.until
}

func (c *Cell) tickLeave() {
	l := c.leaving
	if l == nil {
		return
	}
	if !l.gone {
		if busy := len(c.runner.actual) > 0 && c.runner.connected; busy {
			if !l.stop && (l.until.Reached(c.now) || !c.hasHeirs()) {
				c.stopRest()
			}
			if !l.until.Reached(c.now) {
				return
			}
		}
		l.gone = true
		l.next = c.now.Add(leaveLinger)
		status := state.CellStatus{
			Life: state.Gone, Incarnation: c.statusIncarnation, Claimants: []wire.CellID{c.config.Self},
		}
		c.publish(state.StatusKey(c.config.Self), state.AppendCellStatus(nil, status))
		c.members.Each(func(m *member) bool {
			c.send(m.ID, wire.TypeLeave, c.config.Random.Uint32(), nil)
			l.sent++
			return l.sent < 8
		})
		return
	}
	if l.next.Reached(c.now) {
		c.left()
	}
}

// hasHeirs reports whether there is another cell that workloads can be handed over to.
func (c *Cell) hasHeirs() bool {
	for id, view := range c.views.cells {
		if id != c.config.Self && view.hasStatus &&
			(view.status.Life == state.Alive || view.status.Life == state.Suspect) {
			return true
		}
	}
	return false
}

// stopSlack is what stopping may take on top of the longest grace among the instances.
const stopSlack = 5 * time.Second

// stopRest begins to stop what nobody took over in time, in conflict or not: it would run on unwatched.
func (c *Cell) stopRest() {
	longest := reconcile.GraceDefault
	for _, actual := range c.runner.actual {
		longest = max(longest, actual.Grace)
	}
	c.leaving.stop, c.leaving.until = true, c.now.Add(longest+stopSlack)
	c.log(LevelInfo, "leaving: stopping what is left here")
	c.views.runDirty = true
	c.actuate()
}

// left founds a fresh cluster of one: the daemon goes on, without configuration or members.
func (c *Cell) left() {
	reply := c.leaving.reply
	c.leaving = nil
	var cluster Cluster
	c.config.Entropy(cluster.Key[:])
	c.saveCluster(cluster, nil)
	c.config.Storage.SavePeers(c.nextTicket(), nil)
	c.dropPending()
	c.config.Peers = nil
	c.boot = bootState{compared: true}
	c.persist = persistState{stateDirty: true}
	c.enter(cluster)
	c.startBoot()
	c.saveSnapshot()
	c.log(LevelInfo, "left; this cell is a cluster of one again: "+hex64(c.clusterID))
	reply(Response{Status: uds.OK})
}
