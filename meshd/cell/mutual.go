package cell

import (
	"net/netip"
	"slices"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/clock"
	"colloid.net/meshd/join"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// Cells that join each other at once, in pairs or in a ring, must not each enter the cluster that the other has just
// left. Three rules see to that. A cell that has decided to move lets nobody in. A cell that has let somebody in
// does not move until that one is there, or its handshake is too old to be used. And so that not all of a ring wait
// for each other, one that tries to join lets in only greater ids: at once whom it is calling itself, others once
// nobody has answered it for a while.
const (
	// joinHandshakeLife is how long an answer to a handshake counts.
	joinHandshakeLife = 3 * time.Second
	// guestWait is how long a cell stays where it is for one that it let in: its handshake and its disk.
	guestWait = 2 * joinHandshakeLife
	// joinReserve is how long a cell that tries to join lets in nobody but whom it calls: a seed that is there has
	// answered by then. Then the cells of a ring, which all wait, begin to let greater ids in one after the other,
	// the least id first, within joinSpread: one is enough, and all others follow it.
	joinReserve = 3 * time.Second
	joinSpread  = 6 * time.Second
)

// lastGuest is whom this cell let in lately.
type lastGuest struct {
	id      wire.CellID
	until   clock.Instant // it may still be on its way
	several bool          // others may be, too
}

// moving reports whether the cell has decided to leave its cluster for another and is storing that.
func (c *Cell) moving() bool {
	j := c.joining
	return j != nil && j.ticket != 0 && !j.entered
}

// mayWelcome reports whether a cell that is joining somebody itself lets another one in; that one repeats.
func (c *Cell) mayWelcome(hello join.Hello, from netip.AddrPort) bool {
	j := c.joining
	if j == nil {
		return true
	}
	waited := c.now.Sub(j.began)
	turn := joinReserve + joinSpread>>24*time.Duration(c.config.Self>>40)
	switch {
	case waited >= joinTimeout:
		return true
	case waited >= turn, slices.Contains(j.addresses, from):
		return hello.Self >= c.config.Self // an equal one is told that its disk was cloned
	}
	return false
}

// noteGuest remembers who was let in. Answers to this cell's own request were given before, by cells that may have
// moved since: they count no more.
func (c *Cell) noteGuest(id wire.CellID) {
	g := &c.guest
	g.several = !g.until.Reached(c.now) && g.until != 0 && (g.several || g.id != id)
	g.id, g.until = id, c.now.Add(guestWait)
	if j := c.joining; j != nil {
		j.guest = id
		c.handshake()
	}
}

// awaitsGuest reports whether somebody who was let in may still be on the way.
func (c *Cell) awaitsGuest() bool {
	g := &c.guest
	return g.until != 0 && !g.until.Reached(c.now) && (g.several || c.members.Get(g.id) == nil)
}

// staysFor reports whether somebody who was let in keeps this cell from moving to the cluster that welcomes it. The
// guest itself does not: whoever welcomes has not moved, and does not while it waits for this cell.
func (c *Cell) staysFor(welcome join.Welcome) bool {
	g := &c.guest
	seed := wire.CellID(0)
	if len(welcome.Members) > 0 {
		seed = welcome.Members[0].ID
	}
	if id := c.metMeanwhile(seed); id != 0 {
		c.finishJoin(failure(uds.ErrorBusy, "cell "+id.String()+
			" has joined this one meanwhile: repeat the command to move this cell alone"))
		return true
	}
	if !c.awaitsGuest() || !g.several && g.id == seed {
		return false
	}
	c.waitForGuest()
	return true
}

// waitForGuest lets nobody count on this cell until the guest is there or does not come any more.
func (c *Cell) waitForGuest() {
	j := c.joining
	j.waits, j.until = true, max(j.until, c.guest.until.Add(joinTimeout/2))
	c.handshake()
}

// guestsOfBefore: an earlier run may have let somebody in just before it ended.
func (c *Cell) guestsOfBefore() {
	if !c.cluster.Joined {
		c.guest = lastGuest{until: c.now.Add(guestWait), several: true}
	}
}

// metMeanwhile names a cell that came while this one tried to join another, 0 if there is none: one that was let in,
// or one of an earlier life of a cell that believed to be alone.
func (c *Cell) metMeanwhile(seed wire.CellID) (id wire.CellID) {
	j := c.joining
	if j.guest != 0 && j.guest != seed && c.members.Get(j.guest) != nil {
		return j.guest
	}
	if j.alone {
		c.members.Each(func(m *member) bool {
			if m.ID != seed && m.Life == state.Alive {
				id = m.ID
			}
			return id == 0
		})
	}
	return id
}
