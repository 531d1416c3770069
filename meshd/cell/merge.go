package cell

import (
	"colloid.net/meshd/crdt"
	"colloid.net/meshd/wire"
)

// receiveDelta merges one fresh write, acknowledges it whatever became of it (F28), and passes it on
// if and only if it changed something (F27).
func (c *Cell) receiveDelta(from wire.CellID, header wire.Header, payload []byte) {
	record := &c.record
	if err := wire.ParseDelta(payload, record); err != nil {
		c.counters.malformed++
		return
	}
	if c.absorb(from, record) {
		c.acknowledge(from, header.Nonce, record.KeyHash)
	}
}

// receiveState merges the records of an AE_STATE that belongs to no session: gossip of registers that
// do not fit a delta, or the answer to a stale entry (F45).
func (c *Cell) receiveState(from wire.CellID, header wire.Header, payload []byte) {
	record := &c.record
	var last uint64
	for rest := payload; len(rest) > 0; {
		var err error
		if rest, err = wire.NextStateRecord(rest, record); err != nil {
			c.counters.malformed++
			return
		}
		if !c.absorb(from, record) {
			return
		}
		last = record.KeyHash
	}
	c.acknowledge(from, header.Nonce, last)
}

func (c *Cell) acknowledge(to wire.CellID, nonce uint32, keyHash uint64) {
	c.send(to, wire.TypeDeltaAck, nonce, wire.AppendDeltaAck(c.payload[:0], keyHash))
}

// absorb merges one gossiped record and spreads it if it was news. It reports whether the record was
// acceptable. Records above the actor's allowance are dropped unacknowledged: the sender repeats, and
// anti-entropy brings the rest (F18).
func (c *Cell) absorb(from wire.CellID, record *wire.Record) bool {
	outcome := c.merge(from, record)
	if outcome.Rejected {
		c.counters.rejected++
		return false
	}
	if outcome.Changed && c.mayForward(record) {
		c.gossip.Spread(c.now, record.Name, from)
	}
	return true
}

// mayForward charges the forwarding of a record to its newest actor (F18).
func (c *Cell) mayForward(record *wire.Record) bool {
	dot, _, _, ok := wire.NextEntry(record.Entries)
	return !ok || c.gossip.Allow(c.now, dot.Actor)
}

// mergeSession is the merge path of anti-entropy. What a session repairs is news for others as well,
// so it is spread, except while this cell itself is catching up.
func (c *Cell) mergeSession(_ clockInstant, from wire.CellID, record *wire.Record) crdt.Outcome {
	outcome := c.merge(from, record)
	if outcome.Changed && c.phase != Booting && c.mayForward(record) {
		c.gossip.Spread(c.now, record.Name, from)
	}
	return outcome
}

// merge is the only way foreign records enter the store.
func (c *Cell) merge(from wire.CellID, record *wire.Record) crdt.Outcome {
	outcome := c.store.Merge(record)
	if outcome.Rejected {
		return outcome
	}
	if outcome.OwnDotAhead {
		c.ownDotAhead(record)
	}
	if outcome.DuplicateDot {
		c.alarms.raise(alarmDuplicateDot, "critical", "two different values were written under one identity to "+
			string(record.Name), "a cell's disk was cloned: stop the clone and remove its cell_id file")
	}
	if outcome.Stale && from.Valid() {
		c.answerStale(from)
	}
	if outcome.Changed {
		c.changed(record.Name)
	}
	return outcome
}

// answerStale tells the sender of a superseded entry that it is superseded (F45 iii). It must follow the
// merge directly.
func (c *Cell) answerStale(to wire.CellID) {
	var answer wire.Record
	c.store.StaleAnswer(&answer)
	if wire.RecordSize(&answer) > wire.SealedPayloadMax {
		return // anti-entropy says it in parts
	}
	c.send(to, wire.TypeAEState, c.config.Random.Uint32(), wire.AppendStateRecord(c.payload[:0], &answer))
}

// changed notes that a register differs from before.
func (c *Cell) changed(name []byte) {
	c.persist.stateDirty = true
	c.view(name)
}
