package cell

import (
	"encoding/binary"
	"time"

	"colloid.net/meshd/wire"
)

// A datagram with this cell's own id is either its own, thrown back by whoever captured it, or that of another
// machine with a copy of its disk. Counters tell: no run uses one twice, so what this run has not sent yet is
// somebody else's, and so is what has a counter of this run and another seal.

// sentKept is how many of the last datagrams are remembered; of older ones nothing can be said.
const sentKept = 1024

// twinShown is how long an alarm about another machine with this id outlives the last proof of it.
const twinShown = 10 * time.Minute

// sentRing remembers the seals of the last datagrams by counter.
type sentRing [sentKept]struct{ counter, seal uint64 }

func (r *sentRing) note(trailer []byte) {
	counter := binary.BigEndian.Uint64(trailer)
	slot := &r[counter%sentKept]
	slot.counter, slot.seal = counter, binary.BigEndian.Uint64(trailer[8:])
}

// mayHaveSent reports whether a datagram that bears this cell's id can be one of its own.
func (c *Cell) mayHaveSent(trailer []byte) bool {
	if len(trailer) < wire.TrailerSize {
		return true
	}
	counter := binary.BigEndian.Uint64(trailer)
	if slot := &c.sentLately[counter%sentKept]; slot.counter == counter {
		return slot.seal == binary.BigEndian.Uint64(trailer[8:])
	}
	return counter <= c.sealer.Counter()
}

// forgetTwin ends the alarm when there is no further proof.
func (c *Cell) forgetTwin() {
	if c.alarms.has(alarmIdentity) && c.now.Sub(c.twinSeen) >= twinShown {
		c.alarms.clear(alarmIdentity)
	}
}
