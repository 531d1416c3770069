package cell

import (
	"bytes"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/crdt"
	"colloid.net/meshd/state"
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
	outcome := c.merge(from, record)
	if outcome.Rejected {
		return
	}
	if outcome.Stale {
		c.answerStale(from)
	}
	if c.phase == Booting && !outcome.Changed && string(record.Name) == state.StatusKey(c.config.Self) {
		c.toldOwnStatus()
	}
	c.send(from, wire.TypeDeltaAck, header.Nonce, wire.AppendDeltaAck(c.payload[:0], record.KeyHash))
}

// mergeSession is the merge path of anti-entropy, which answers stale entries itself.
func (c *Cell) mergeSession(_ clock.Instant, from wire.CellID, record *wire.Record) crdt.Outcome {
	return c.merge(from, record)
}

// merge is the only way foreign records enter the store. What changed something is news for others too,
// however it came, except while this cell itself is catching up. What the change means for this cell is
// looked at later, see drain: the caller may be in the middle of a session.
func (c *Cell) merge(from wire.CellID, record *wire.Record) crdt.Outcome {
	outcome := c.store.Merge(record)
	if outcome.Rejected {
		c.counters.rejected++
		return outcome
	}
	if outcome.OwnDotAhead {
		c.noteOwnDotAhead(record)
	}
	if outcome.DuplicateDot {
		c.alarms.raise(alarmDuplicateDot, "critical", "two different values were written under one identity to "+
			string(record.Name), "a cell's disk was cloned: stop the clone and remove its cell_id file")
	}
	if outcome.Changed {
		c.changed(record.Name, change{from: from, spread: c.phase != Booting && c.mayForward(record)})
	}
	return outcome
}

// mayForward charges the forwarding of a record to its actor. What is above the allowance of one actor
// reaches the others by anti-entropy (F18). A cell's status is never held back: it decides what runs.
func (c *Cell) mayForward(record *wire.Record) bool {
	if state.CategoryOf(record.Name) == state.Status {
		return true
	}
	dot, _, _, ok := wire.NextEntry(record.Entries)
	return !ok || c.gossip.Allow(c.now, dot.Actor)
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

// change is a key whose register changed and whose meaning has not been looked at yet.
type change struct {
	end    int // of its name in changes.text
	from   wire.CellID
	spread bool // it is news for others; not for the cell it came from
}

// changes are emptied at the end of every input. Spreading waits until the meaning is known, so that a
// member whose contact has just arrived counts among those to be told.
type changes struct {
	text     []byte // the names one after the other
	list     []change
	draining bool
	members  bool   // the member list or a member's life changed
	ownAhead uint64 // greatest own sequence seen in somebody's state that this run has not used (F1)
}

// changed notes that a register differs from before.
func (c *Cell) changed(name []byte, note change) {
	c.persist.stateDirty = true
	c.changes.text = append(c.changes.text, name...)
	note.end = len(c.changes.text)
	c.changes.list = append(c.changes.list, note)
}

// reclaimAfter is how long after a foreign change of an own fact this cell states its facts again. It also
// bounds the quarrel with another instance of this cell, until somebody stops one of them (F2).
const reclaimAfter = time.Second

// isOwnFact reports whether only this cell says anything under a key. If others change it all the same,
// then because the cluster has forgotten, or overruled by what an earlier life of this cell wrote, what it
// said: after its directory was restored from an older copy, say (F1).
func (c *Cell) isOwnFact(name []byte) bool {
	rest, health := bytes.CutPrefix(name, []byte(state.PrefixHealth))
	if !health {
		var endpoint bool
		if rest, endpoint = bytes.CutPrefix(name, []byte(state.PrefixEndpoint)); !endpoint {
			return false
		}
	}
	return bytes.HasPrefix(rest, c.ownName) && !bytes.HasSuffix(name, []byte(".status"))
}

// drain looks at what changed. Looking may write, which adds to the list.
func (c *Cell) drain() {
	if c.changes.draining {
		return
	}
	c.changes.draining = true
	begin := 0
	for i := 0; i < len(c.changes.list); i++ {
		note := c.changes.list[i]
		name := c.changes.text[begin:note.end:note.end]
		begin = note.end
		c.view(name)
		if c.config.Observe != nil {
			c.config.Observe(c, name)
		}
		if note.from != 0 && c.isOwnFact(name) && c.schedule.reclaim == 0 {
			c.schedule.reclaim = c.now.Add(reclaimAfter)
		}
		if note.spread {
			c.gossip.Queue(c.now, name, note.from)
		}
	}
	c.changes.text, c.changes.list = c.changes.text[:0], c.changes.list[:0]
	c.changes.draining = false
	if c.changes.ownAhead != 0 {
		c.ownDotAhead()
	}
	c.watchSuccessor()
}

// watchSuccessor begins every new ring edge with a session. Gossip promises that a cell hears what its
// predecessor hears (F42), but only from the moment the predecessor lists it; what passed before, while
// a new cell was known to few, is made up for here. So by induction along the ring nobody is missed,
// however many join at once.
//
// While many cells join, the successor changes again and again; only the edge that stays is worth it.
func (c *Cell) watchSuccessor() {
	if c.phase == Booting || !c.changes.members {
		return
	}
	c.changes.members = false
	successor := c.members.Successor(c.config.Self, func(m *member) bool { return !m.InService() })
	if successor == nil || successor.ID == c.successor {
		return
	}
	c.successor, c.edgeDue = successor.ID, c.now.Add(edgeDelay)
}

// edgeDelay is how long a ring edge must have stood before its session.
const edgeDelay = 200 * time.Millisecond

// mendEdge begins a session with the ring successor once it is no longer suspected: gossip passed it over until
// then, and a cell that was cut off for a moment suspects everybody, so what it wrote meanwhile missed exactly the
// one whom nobody else tells for sure.
func (c *Cell) mendEdge() {
	switch {
	case c.successor == 0 || c.phase == Booting:
		c.passedOver = 0
	case c.detector.Suspected(c.successor):
		c.passedOver = c.successor
	case c.passedOver == c.successor:
		// That others reach it ends the suspicion, too, but a session would only wait for an answer.
		if m := c.members.Get(c.successor); m != nil && m.Heard != 0 && c.now.Sub(m.Heard) < edgeHeard {
			c.passedOver = 0
			c.wantSession(c.successor)
		}
	}
}

// edgeHeard is how recently a successor must have been heard itself.
const edgeHeard = time.Second

// tickEdge begins the session of a ring edge that has stood for long enough.
func (c *Cell) tickEdge() {
	c.mendEdge()
	if c.edgeDue == 0 || !c.edgeDue.Reached(c.now) {
		return
	}
	c.edgeDue = 0
	c.wantSession(c.successor)
}
