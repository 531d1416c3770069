package cell

import (
	"encoding/binary"
	"net/netip"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// A cell whose state directory was replaced by an older copy counts again where the copy ends. What it
// sends looks like a replay to everybody (F13), so it would never learn that it is behind (F1). Whoever
// refuses such a datagram therefore shows its sender the cluster's memory of it: its own status register,
// whose context holds its greatest dot. The sender then raises its incarnation and is heard again.
const (
	// behindInterval is the least time between two hints to one cell.
	behindInterval = time.Second
	// behindMax bounds the memory of hints; when it is full it starts anew.
	behindMax = 64
)

// refusedReplay looks at a datagram that was refused as a replay. Nothing in it is authenticated: the hint
// tells no secret, and goes out only as far as the address has paid for it (F14).
func (c *Cell) refusedReplay(from netip.AddrPort, header wire.Header, size int, trailer []byte) {
	name := []byte(state.StatusKey(header.Sender))
	if _, found := c.store.Get(name); !found || len(trailer) != wire.TrailerSize || header.Sender == c.config.Self || !c.admissible(from) {
		return
	}
	counts := binary.BigEndian.Uint64(trailer) >> wire.CounterBits
	if uint64(c.opener.Newest(header.Sender)) <= counts {
		return // an ordinary repetition
	}
	if last, told := c.behind[header.Sender]; told && c.now.Sub(last) < behindInterval {
		return
	}
	if c.behind == nil || len(c.behind) >= behindMax {
		c.behind = make(map[wire.CellID]clock.Instant)
	}
	c.guard.Received(c.now, from, size)
	c.store.Frames(name, wire.SealedPayloadMax, func(record *wire.Record) bool {
		if record.EntryCount != 1 || wire.ContextLookup(record.Context, header.Sender) == 0 {
			return true
		}
		payload := wire.AppendDelta(c.payload[:0], record)
		if c.guard.AllowSend(c.now, from, wire.HeaderSize+len(payload)+wire.TrailerSize) {
			c.behind[header.Sender] = c.now
			c.sendAddress(header.Sender, from, wire.TypeDelta, c.config.Random.Uint32(), payload)
		}
		return false
	})
}

// behindRaisesMax bounds how far a booting cell feels its way in one run.
const behindRaisesMax = 64

// toldOwnStatus: somebody shows a booting cell its own status, which holds nothing new. If nobody answers it
// otherwise, it counts under an incarnation that was used already, though not for any write that is known: by
// a run that ended before it could say anything. The next one may be free.
func (c *Cell) toldOwnStatus() {
	last, told := c.behind[c.config.Self]
	if c.phase != Booting || c.writes.raising != 0 || c.writes.felt >= behindRaisesMax ||
		c.now.Sub(c.boot.since) < behindInterval || told && c.now.Sub(last) < behindInterval {
		return
	}
	if c.behind == nil {
		c.behind = make(map[wire.CellID]clock.Instant)
	}
	c.behind[c.config.Self] = c.now
	c.writes.felt++
	c.raise(c.incarnation + 1)
}
