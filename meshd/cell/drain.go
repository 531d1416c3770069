package cell

import (
	"encoding/binary"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// viewDrain mirrors an operator's wish that a cell be empty. Several values at once, of which one says so, mean
// yes: the safer reading until somebody resolves it (decision D1 does the same for the door).
func (c *Cell) viewDrain(key string) {
	id, ok := state.SplitDrain(key)
	if !ok {
		return
	}
	register, found := c.store.Get([]byte(key))
	drained := found && !register.Absent()
	if _, was := c.views.drained[id]; was == drained {
		return
	}
	if drained {
		c.views.drained[id] = struct{}{}
	} else {
		delete(c.views.drained, id)
	}
	c.planChanged()
}

func (c *Cell) isDrained(id wire.CellID) bool {
	_, drained := c.views.drained[id]
	return drained
}

// withdrawDrain ends the wish that this cell be empty: it belongs to a life in the cluster, which ends when the cell
// leaves, as it does when it is forgotten (see keysOf). Where the cluster did not hear of the end, as the cell left
// out of reach, the wish is withdrawn when the cell has joined again: whoever connects a machine wants it in use.
func (c *Cell) withdrawDrain() {
	if c.isDrained(c.config.Self) {
		c.publish(state.DrainKey(c.config.Self), nil)
	}
}

// drainAbandon is the wish of a DRAIN request that goes on although volumes stay behind; 1 is a plain yes.
const drainAbandon = 2

// drainCommand closes a cell for new work and moves what it runs, or ends that. Any cell can be meant.
func (c *Cell) drainCommand(payload []byte, reply func(Response)) {
	if len(payload) != 9 || payload[8] > drainAbandon {
		reply(failure(uds.ErrorInvalid, "drain: malformed request"))
		return
	}
	id, wish := wire.CellID(binary.BigEndian.Uint64(payload)), payload[8] != 0
	view := c.views.cells[id]
	switch {
	case c.phase == Booting:
		reply(failure(uds.ErrorBusy, "this cell is still syncing with the cluster: try again in a moment"))
		return
	case view == nil || view.hasStatus && view.status.Life == state.Gone && wish:
		reply(Response{Status: uds.NotFound})
		return
	}
	if list := c.volumesAt(id); wish && len(list) > 0 && payload[8] != drainAbandon && !c.isDrained(id) {
		reply(volumesRefusal(list, "colloid drain "+id.String()))
		return
	}
	key := state.DrainKey(id)
	register, found := c.store.Get([]byte(key))
	if c.isDrained(id) == wish && !(found && register.Conflicted()) {
		reply(Response{Status: uds.OK})
		return
	}
	var value []byte
	if wish {
		value = []byte("drain")
	}
	c.operatorWrite(key, value, func(err error) {
		if err != nil {
			reply(writeFailure(key, err))
			return
		}
		reply(Response{Status: uds.OK})
	})
}
