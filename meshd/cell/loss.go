package cell

import (
	"slices"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// A cell whose files are damaged must not take what is left for all there is: it would stop what it no longer knows
// of and let in whom a lost lock kept out. It stays booting, which keeps what runs, lets nobody in and takes no
// configuration, until another member of its cluster has told it everything or an operator does without (F157).

// showLost raises the alarm about it.
func (c *Cell) showLost() {
	hint := "put the file back from a backup, if there is one, with colloid stopped; then say that this is all: `colloid accept-loss`"
	if c.cluster.Joined {
		hint = "it takes the state from the first cell of its cluster that answers; if none is left: `colloid accept-loss`"
	}
	c.alarms.raise(alarmLost, "critical", "configuration of this cell may be lost: "+c.config.Lost+
		". It stops and starts nothing, lets nobody in and takes no configuration", hint)
}

// endLoss: the state is complete again, or is taken to be.
func (c *Cell) endLoss() {
	if c.config.Lost == "" {
		return
	}
	c.config.Lost = ""
	c.alarms.clear(alarmLost)
	c.lossOver, c.persist.stateDirty = true, true
	c.saveSnapshot() // before the directory forgets that it lost something, see snapshotStored
}

// acceptLoss is the operator's word for it.
func (c *Cell) acceptLoss(reply func(Response)) {
	if c.config.Lost == "" || c.phase != Booting {
		reply(failure(uds.ErrorInvalid, "nothing is lost here: see `colloid status`"))
		return
	}
	c.becomeAuthoritative("an operator accepted the loss of " + c.config.Lost)
	reply(Response{Status: uds.OK})
}

// wholeCluster reports whether there is nobody else to ask.
func (c *Cell) wholeCluster() bool {
	if !c.cluster.Joined && c.members.Len() == 0 {
		return true
	}
	if !c.config.Renewed {
		return false
	}
	for _, id := range c.cellIDs() {
		if view := c.views.cells[id]; id != c.config.Self && view.hasContact && !c.isFormer(view) &&
			(!view.hasStatus || view.status.Life != state.Gone) {
			return false
		}
	}
	return true
}

// isFormer reports whether a cell is what this one was before it got a new id. In a cluster that never had a second
// cell every other one is; elsewhere the one that was on this host, under this address.
func (c *Cell) isFormer(view *cellView) bool {
	if !c.cluster.Joined {
		return true
	}
	return len(view.contact.Candidates) > 0 && len(c.config.Addresses) > 0 && view.contact.Hostname == c.config.Hostname &&
		view.contact.Candidates[0].Address == c.config.Addresses[0].Address
}

// dropFormer declares what this cell was before gone: nobody else ever would while it is alone.
func (c *Cell) dropFormer() {
	if !c.config.Renewed {
		return
	}
	var former []wire.CellID
	for _, id := range slices.Clone(c.cellIDs()) {
		if view := c.views.cells[id]; id != c.config.Self && view.hasContact && c.isFormer(view) &&
			(!view.hasStatus || view.status.Life != state.Gone) {
			former = append(former, id)
		}
	}
	c.config.Renewed = false
	for _, id := range former {
		c.log(LevelInfo, "cell "+id.String()+" was this one before it got a new id: gone")
		c.declareGone(id)
	}
}
