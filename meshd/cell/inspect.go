package cell

import (
	"net/netip"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/gossip"
	"colloid.net/meshd/nat"
	"colloid.net/meshd/placement"
	"colloid.net/meshd/reconcile"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// Plan returns what placement said last, for checkers. It is valid until the next input.
func (c *Cell) Plan() *placement.Plan { return c.plan }

// PlanInput returns, for checkers, what Plan was computed from; current is false if that has changed since.
func (c *Cell) PlanInput() (cells []placement.Cell, workloads []placement.Workload, current bool) {
	if c.views.planDirty {
		return nil, nil, false
	}
	return c.placementCells(), c.placementWorkloads(), true
}

// PlanIsShared reports whether the plan follows from the replicated state alone: it is up to date, and
// none of the local exceptions applies (isolation, re-admission, a full store; F50, F64, F66; a cell that
// others call dead counts on itself until its refutation is out).
func (c *Cell) PlanIsShared() bool {
	self := c.views.cells[c.config.Self]
	return self != nil && self.hasContact && self.hasStatus && self.status.Life == state.Alive &&
		c.phase == Active && !c.views.planDirty && c.isolation.since == 0 &&
		c.runner.holds == clock.Never && !c.store.Degraded()
}

// Occupancy is how full one bounded table is.
type Occupancy struct {
	Name       string
	Used, Most int
}

// Occupancies lists every table and queue of the cell that input from outside can fill.
func (c *Cell) Occupancies() []Occupancy {
	return []Occupancy{
		{"guests", len(c.guests.list), guestsMax},
		{"address checks", len(c.checks.list), addressChecksMax},
		{"sessions wanted", len(c.sessionsWanted), sessionsWantedMax},
		{"writes pending", len(c.writes.pending), writesPendingMax},
		{"instances", len(c.runner.actual), instancesMax},
		{"preparations", c.reconciler.Preparations(), reconcile.PreparationsMax + instancesMax},
		{"returns", len(c.returns), sessionsWantedMax},
		{"missed", len(c.missed), sessionsWantedMax},
		{"boot answers", len(c.boot.answered), guestsMax},
		{"gossip pending", c.gossip.Stats().Pending, gossip.PendingMax},
		{"changes", len(c.changes.list), 0},
	}
}

// Traversal returns the counters of the part that deals with routers, for tests.
func (c *Cell) Traversal() nat.Stats { return c.nat.Stats() }

// ConflictKeys returns the operator keys that the cell shows as in CONFLICT. Nobody else may change it.
func (c *Cell) ConflictKeys() map[string]struct{} { return c.views.conflicts }

// AddressOf returns where this cell sends what is for another, for tests.
func (c *Cell) AddressOf(id wire.CellID) netip.AddrPort {
	if m := c.members.Get(id); m != nil {
		return m.Address
	}
	return netip.AddrPort{}
}
