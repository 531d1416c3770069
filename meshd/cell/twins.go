package cell

import (
	"net/netip"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/wire"
)

// Two machines with one id, as a cloned disk gives them, overrule each other: the contact of the cell leads to
// one and to the other in turns, each time under a higher incarnation. Every cell sees that in the store, so
// every cell's status can say it, not only that of the two (F2, F3). A machine that moves between networks
// changes its address without a new incarnation; one that is restarted elsewhere does not come back to the old
// address again and again.
const (
	twinReturns = 3
	twinWindow  = 10 * time.Minute
)

// twinWatch follows the addresses of one cell.
type twinWatch struct {
	address     netip.AddrPort // where its contact leads
	earlier     netip.AddrPort // where it led before
	incarnation uint32         // under which that was written
	returns     int            // to the earlier address, within the window
	since       clock.Instant  // of the first of them
	last        clock.Instant
}

// saw takes the next contact of the cell. It reports whether two machines seem to be behind it.
func (t *twinWatch) saw(now clock.Instant, address netip.AddrPort, incarnation uint32) {
	if address == t.address || incarnation < t.incarnation {
		t.incarnation = max(t.incarnation, incarnation)
		return
	}
	if address == t.earlier && incarnation > t.incarnation {
		if t.returns == 0 || now.Sub(t.since) > twinWindow {
			t.returns, t.since = 0, now
		}
		t.returns++
		t.last = now
	}
	t.earlier, t.address, t.incarnation = t.address, address, incarnation
}

// twins reports whether two machines are taken to use the id; it is forgotten when they have been quiet for the
// length of the window.
func (t *twinWatch) twins(now clock.Instant) bool {
	return t.returns >= twinReturns && now.Sub(t.last) <= twinWindow
}

// watchTwins looks at a contact that has changed.
func (c *Cell) watchTwins(view *cellView, key string) {
	register, found := c.store.Get([]byte(key))
	if !found || !view.hasContact || len(view.contact.Candidates) == 0 {
		return
	}
	dot, _, ok := register.Latest()
	if !ok || dot.Actor != view.id {
		return
	}
	view.twins.saw(c.now, view.contact.Candidates[0].Address, dot.Incarnation())
}

// alarm is the text about a cell behind which two machines are.
func (t *twinWatch) alarm(id wire.CellID) (text, hint string) {
	return "two machines use the id of cell " + id.String() + ", one at " + t.address.String() + " and one at " +
			t.earlier.String(),
		"a disk image was cloned: stop colloid on one of them, remove its cell_id file, start it again"
}
