package cell

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/clock"
	"colloid.net/meshd/reconcile"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

var errLeft = errors.New("this cell has left")

// leaveAttempt hands over and then departs (F8).
type leaveAttempt struct {
	until clock.Instant // end of the hand-over, then of the stopping
	stop  bool          // what is left here is being stopped
	force bool          // also what is frozen, and what cannot be stopped runs on
	gone  bool
	left  []uds.LeftInstance // what runs on
	sent  int
	next  clock.Instant
	reply func(Response)
}

// leaveLinger is how long the GONE status may travel before the cell forgets the cluster.
const leaveLinger = 500 * time.Millisecond

// Flags of a LEAVE request.
const (
	leaveForce   = 1 // stop what is frozen, too, and leave without runnerd
	leaveAbandon = 2 // though volumes stay behind
)

// parseLeave reads a LEAVE request: the drain limit and, if there is one, a byte of flags.
func parseLeave(payload []byte) (drain time.Duration, flags byte, ok bool) {
	if len(payload) < 2 || len(payload) > 3 || len(payload) == 3 && payload[2]&^(leaveForce|leaveAbandon) != 0 {
		return 0, 0, false
	}
	if len(payload) == 3 {
		flags = payload[2]
	}
	return time.Duration(binary.BigEndian.Uint16(payload)) * time.Second, flags, true
}

// frozenHere names the first frozen key of which something runs here. Nobody takes such an instance over, and
// without an operator's word nobody may stop it either (SAFE-1, F57).
func (c *Cell) frozenHere() (key string, found bool) {
	for _, actual := range c.actualSorted() {
		if actual.State != reconcile.Denied && c.isFrozen(actual.ID.KeyHash) && (!found || actual.Key < key) {
			key, found = actual.Key, true
		}
	}
	return key, found
}

func (c *Cell) frozenRefusal(key string) Response {
	way := "apply a specification that all versions here can read"
	if _, conflict := c.views.conflicts[key]; conflict {
		way = "`colloid resolve " + key + "`"
	}
	return failure(uds.ErrorInvalid, key+" is frozen and runs here, nobody takes it over: "+way+
		" first, or stop it with `colloid leave --force`")
}

func (c *Cell) leave(limit time.Duration, flags byte, reply func(Response)) {
	force := flags&leaveForce != 0
	if c.phase == Leaving || c.moving() {
		reply(failure(uds.ErrorBusy, "this cell is leaving or joining already: try again in a moment"))
		return
	}
	if text := c.bootingRefusal(); text != "" && !force {
		reply(failure(uds.ErrorBusy, text))
		return
	}
	if key, found := c.frozenHere(); found && !force {
		reply(c.frozenRefusal(key))
		return
	}
	if list := c.volumesAt(c.config.Self); len(list) > 0 && flags&leaveAbandon == 0 {
		reply(volumesRefusal(list, "colloid leave"))
		return
	}
	if c.joining != nil {
		c.finishJoin(failure(uds.ErrorBusy, "this cell is told to leave"))
	}
	if c.phase == Booting {
		limit = 0                   // it knows nobody who would take over
		c.boot.authoritative = true // as far as it will get
	}
	c.phase = Leaving
	c.leaving = &leaveAttempt{until: c.now.Add(limit), force: force, reply: reply}
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
		switch {
		case (!c.runner.listed || c.runner.silent) && len(c.runsHereAll()) > 0: // nothing can be stopped; runnerd may be about to come back
			if !l.until.Reached(c.now) && !c.unsupervised() {
				return
			}
			if !l.force {
				c.stayUnstopped()
				return
			}
		case len(c.runner.actual) > 0 && c.runner.connected:
			if !l.stop && (l.until.Reached(c.now) || !c.hasHeirs()) {
				if key, found := c.frozenHere(); found && !l.force {
					c.stay(key)
					return
				}
				c.stopRest()
			}
			if !l.until.Reached(c.now) {
				return
			}
		}
		l.gone, l.left = true, c.runsHereAll()
		l.next = c.now.Add(leaveLinger)
		status := state.CellStatus{
			Life: state.Gone, Incarnation: c.statusIncarnation, Claimants: []wire.CellID{c.config.Self},
		}
		c.publish(state.StatusKey(c.config.Self), state.AppendCellStatus(nil, status))
		c.withdrawDrain()
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

// bootingRefusal says what would be lost if a cell that is not in step with its cluster left, "" if nothing.
func (c *Cell) bootingRefusal() string {
	const force = ": wait until it is, or give it up with `colloid leave --force`"
	switch {
	case c.phase != Booting:
	case c.arrival != nil && !c.arrival.merged && len(c.arrival.keys) > 0:
		return "what this cell took along (" + c.arrival.keys[0].name + ") is not in the cluster yet" + force
	case len(c.runner.actual) > 0:
		return "this cell is not in step with its cluster yet, so nobody would take over what runs here" + force
	}
	return ""
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

// stay takes a leave back: a key became frozen meanwhile. What has moved comes back by placement.
func (c *Cell) stay(key string) {
	reply := c.takeBack(key + " is frozen and runs here")
	reply(c.frozenRefusal(key))
}

// stayUnstopped takes a leave back that would leave instances behind which nobody here can stop.
func (c *Cell) stayUnstopped() {
	left := c.runsHereAll()
	reply := c.takeBack("runnerd is gone, and instances run here")
	reply(failure(uds.ErrorInvalid, "runnerd is gone, so nothing here can be stopped, and these run on: "+leftText(left)+
		": start colloid again so that runnerd comes back, or end them yourself; `colloid leave --force` leaves them running"))
}

// leftText names instances, so that a person can end them.
func leftText(left []uds.LeftInstance) string {
	var names []string
	for _, l := range left[:min(len(left), replicasNamed)] {
		name := fmt.Sprintf("%s/%d", l.Key, l.Slot)
		if l.PID != 0 {
			name += fmt.Sprintf(" (process %d)", l.PID)
		}
		names = append(names, name)
	}
	text := strings.Join(names, ", ")
	if more := len(left) - replicasNamed; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// runsHereAll lists the instances on this host that may run, by what runnerd said last; of a runnerd that has not spoken
// yet, by what this cell published before.
func (c *Cell) runsHereAll() []uds.LeftInstance {
	var list []uds.LeftInstance
	for _, actual := range c.actualSorted() {
		if actual.State != reconcile.Denied && actual.State != reconcile.Exited {
			list = append(list, uds.LeftInstance{Key: actual.Key, Slot: int(actual.ID.Slot), PID: int(actual.PID)})
		}
	}
	if c.runner.listed || len(list) > 0 || !c.runnerExpected() {
		return list
	}
	for _, id := range sortedEndpointIDs(c.views.endpoints) {
		endpoint := c.views.endpoints[id]
		if view := c.views.byHash[endpoint.KeyHash]; id.cell == c.config.Self && view != nil {
			for _, instance := range endpoint.Instances {
				if instance.State != state.EndpointExited {
					list = append(list, uds.LeftInstance{Key: view.key, Slot: int(instance.Slot)})
				}
			}
		}
	}
	return list
}

// takeBack ends a leave that cannot be completed.
func (c *Cell) takeBack(why string) (reply func(Response)) {
	reply = c.leaving.reply
	c.leaving = nil
	c.phase = Active
	c.statusIncarnation++
	c.log(LevelWarning, "not leaving: "+why)
	c.announceSelf()
	c.planChanged()
	return reply
}

// stopRest begins to stop what nobody took over in time. With force that includes what is frozen: it would run
// on unwatched, and the operator said so.
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
	reply, left := c.leaving.reply, c.leaving.left
	c.leaving = nil
	var cluster Cluster
	c.config.Entropy(cluster.Key[:])
	c.saveCluster(cluster, &c.founding)
	c.config.Storage.SavePeers(c.nextTicket(), nil)
	c.dropArrival()
	c.endLoss()
	c.dropPending()
	c.config.Peers = nil
	c.boot = bootState{compared: true}
	c.persist = persistState{stateDirty: true}
	c.enter(cluster)
	c.startBoot()
	c.saveSnapshot()
	c.log(LevelInfo, "left; this cell is a cluster of one again: "+hex64(c.clusterID))
	if len(left) > 0 {
		c.log(LevelWarning, "left, and these run on: "+leftText(left))
		reply(document(uds.LeaveReply{Left: left}))
		return
	}
	reply(Response{Status: uds.OK})
}
