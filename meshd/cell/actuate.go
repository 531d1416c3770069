package cell

import (
	"slices"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/placement"
	"colloid.net/meshd/reconcile"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// planDelay gathers the changes that come together, for instance while many cells join. It is far below
// the settle time of reconciliation, so nothing waits for it.
const planDelay = 100 * time.Millisecond

// planChanged marks the inputs of placement as changed and opens the settle window (F69).
func (c *Cell) planChanged() {
	if !c.views.planDirty {
		c.views.planDirty, c.views.planDue = true, c.now.Add(planDelay)
	}
	c.views.runDirty = true
	c.reconciler.Changed(c.now)
}

// freshPlan recomputes the plan if anything it depends on has changed.
func (c *Cell) freshPlan() {
	if !c.views.planDirty {
		return
	}
	c.views.planDirty = false
	c.runner.holds = c.trackHolds()
	c.computePlan()
	c.views.runDirty = true
}

// actuate recomputes the plan when its inputs changed and turns differences into actions.
func (c *Cell) actuate() {
	if c.rollout.due.Reached(c.now) {
		c.views.runDirty = true
	}
	if c.runner.holds.Reached(c.now) {
		c.runner.holds = clock.Never // the fresh plan finds the next one
		c.planChanged()
	}
	if c.views.planDirty && c.views.planDue.Reached(c.now) {
		c.freshPlan()
	}
	if !c.runner.works() || !c.runner.listed {
		return
	}
	if c.views.planDirty || !c.views.runDirty && !c.reconciler.Deadline().Reached(c.now) {
		return
	}
	c.views.runDirty = false
	input := c.reconcileInput()
	for _, action := range c.reconciler.Run(c.now, &input) {
		if !c.fillEnvironment(&action) {
			c.reconciler.Unsent(action) // it was here a moment ago: the next change looks again
			continue
		}
		if c.config.Runner == nil || !c.config.Runner.Do(action) {
			c.counters.actionsDelayed++
			c.reconciler.Unsent(action)
			continue
		}
		c.counters.actions++
		if action.Kind != reconcile.Withdraw { // whose end is nothing to be told of
			c.logAction(action)
		}
	}
	for _, id := range c.reconciler.DrainingChanged() {
		if actual, here := c.runner.actual[id]; here {
			c.publishEndpoint(actual.Key)
		}
	}
	c.watchRollouts()
}

func (c *Cell) logAction(action reconcile.Action) {
	c.log(LevelInfo, action.Kind.String()+" "+action.Key+" ("+hex64(action.ID.Digest)+")")
}

// MayStart reports whether this cell may start anything now, for checkers.
func (c *Cell) MayStart() bool { return c.mayStart() && c.boot.authoritative }

// mayStart: a boot must settle, an isolated cell must wait (F66, F69).
func (c *Cell) mayStart() bool {
	if c.boot.settled > c.now {
		return false
	}
	if !c.boot.authoritative && !c.boot.hadSnapshot {
		return false
	}
	return c.isolation.since == 0 || c.isolation.alone
}

func (c *Cell) reconcileInput() reconcile.Input {
	if c.leaving != nil && c.leaving.stop {
		return reconcile.Input{Self: c.config.Self, Authoritative: true, Plan: c.plan, Actual: c.actualSorted()}
	}
	return reconcile.Input{
		Self:          c.config.Self,
		Authoritative: c.boot.authoritative,
		HoldStarts:    !c.mayStart(),
		Plan:          c.plan,
		Workloads:     c.placementWorkloads(),
		Frozen:        c.isFrozen,
		Ready:         c.serves,
		ReadyOld: func(keyHash uint64, cell wire.CellID, slot uint16) bool {
			return c.serves(keyHash, cell, slot, 0)
		},
		Occupied:  c.isOccupied,
		Halted:    c.isHalted,
		Startable: c.startable,
		Capacity:  c.runner.capacity(),
		Drained:   c.isDrained(c.config.Self),
		Prepares:  c.runner.hello.TakesPrepare,
		Unprepared: func(keyHash uint64) bool {
			view := c.views.byHash[keyHash]
			return view != nil && c.saysUnprepared(view)
		},
		Actual: c.actualSorted(),
	}
}

func (c *Cell) isFrozen(keyHash uint64) bool {
	if view := c.views.byHash[keyHash]; view != nil {
		return view.frozen
	}
	// An instance that was started in another cluster has another hash of the same key (F16): what counts
	// is the key.
	for id, actual := range c.runner.actual {
		if id.KeyHash == keyHash {
			view := c.views.workloads[actual.Key]
			return view != nil && view.frozen
		}
	}
	return false
}

// isReady reports whether a cell says that it has a READY instance in a slot; digest 0 means any.
func (c *Cell) isReady(keyHash uint64, cell wire.CellID, slot uint16, digest uint64) bool {
	endpoint := c.endpointOf(keyHash, cell)
	if endpoint == nil {
		return false
	}
	for i := range endpoint.Instances {
		instance := &endpoint.Instances[i]
		if instance.State == state.EndpointReady && instance.Slot == slot &&
			(digest == 0 || instance.Digest == digest) {
			return true
		}
	}
	return false
}

// serves is isReady on a cell that nobody suspects. What a cell said before it went silent is no reason to end or to
// replace what serves elsewhere: within seconds it has refuted that, or is dead.
func (c *Cell) serves(keyHash uint64, cell wire.CellID, slot uint16, digest uint64) bool {
	view := c.views.cells[cell]
	suspect := cell != c.config.Self && view != nil && view.hasStatus && view.status.Life == state.Suspect
	return !suspect && c.isReady(keyHash, cell, slot, digest)
}

func (c *Cell) endpointOf(keyHash uint64, cell wire.CellID) *state.CellEndpoint {
	view := c.views.byHash[keyHash]
	if view == nil {
		return nil
	}
	endpoint := c.views.endpoints[endpointID{cell, state.WorkloadName(view.key)}]
	if endpoint == nil || endpoint.KeyHash != keyHash {
		return nil
	}
	return endpoint
}

// isOccupied reports whether a live cell other than this one still has an instance in a slot (SAFE-5).
func (c *Cell) isOccupied(keyHash uint64, slot uint16) bool {
	for id, view := range c.views.cells {
		if id == c.config.Self || c.healthOf(view) == healthOut {
			continue
		}
		endpoint := c.endpointOf(keyHash, id)
		if endpoint == nil {
			continue
		}
		for i := range endpoint.Instances {
			if endpoint.Instances[i].Slot == slot {
				return true
			}
		}
	}
	return false
}

// computePlan hands the replicated facts, and nothing else, to placement (F72, F73).
func (c *Cell) computePlan() {
	c.plan = c.planner.Compute(c.placementCells(), c.placementWorkloads())
}

// placementCells lists the cells that count for placement, by id.
func (c *Cell) placementCells() (cells []placement.Cell) {
	cells = make([]placement.Cell, 0, len(c.cellIDs()))
	for _, id := range c.cellIDs() {
		view := c.views.cells[id]
		h := c.healthOf(view)
		if h == healthOut || id != c.config.Self && !view.hasContact {
			continue
		}
		cells = append(cells, placement.Cell{
			ID: id, Flags: view.contact.Flags, Arch: view.contact.Arch, Labels: view.contact.Labels,
			Capacity: view.capacity, NoNew: h == healthKeep, HeldBack: h == healthHeld,
			Drained: c.isDrained(id),
		})
	}
	return cells
}

// placementWorkloads lists the workloads with a usable specification, by key hash.
func (c *Cell) placementWorkloads() []placement.Workload {
	list := make([]placement.Workload, 0, len(c.views.workloads))
	for _, view := range c.views.workloads {
		if view.spec == nil {
			continue
		}
		w := placement.Workload{
			Key: view.key, KeyHash: view.hash, Spec: view.spec, Encoded: view.raw, Digest: view.digest,
			Keepers: c.keepersOf(view), Incumbent: c.isolation.alone && c.runsHere(view.hash),
		}
		w.Denied, w.DenialReasons = c.deniedBy(view)
		list = append(list, w)
	}
	slices.SortFunc(list, func(a, b placement.Workload) int {
		switch {
		case a.KeyHash < b.KeyHash:
			return -1
		case a.KeyHash > b.KeyHash:
			return 1
		}
		return 0
	})
	return list
}

// deniedBy lists the cells whose host refuses what the workload now is, with their reasons (D2).
func (c *Cell) deniedBy(view *workloadView) (denied []wire.CellID, reasons []string) {
	if len(c.views.denials) == 0 {
		return nil, nil
	}
	name := state.WorkloadName(view.key)
	for id, denial := range c.views.denials {
		if id.workload == name && denial.KeyHash == view.hash && denial.Digest == view.digest {
			denied = append(denied, id.cell)
		}
	}
	slices.Sort(denied)
	for _, cell := range denied {
		reasons = append(reasons, c.views.denials[endpointID{cell, name}].Reason)
	}
	return denied, reasons
}

// keepersOf lists the cordoned cells that run the workload already.
func (c *Cell) keepersOf(view *workloadView) []wire.CellID {
	var keepers []wire.CellID
	for id, other := range c.views.cells {
		if other.hasCapacity && other.capacity.Cordoned && c.endpointOf(view.hash, id) != nil {
			keepers = append(keepers, id)
		}
	}
	slices.Sort(keepers)
	return keepers
}

func (c *Cell) runsHere(keyHash uint64) bool {
	for id := range c.runner.actual {
		if id.KeyHash == keyHash {
			return true
		}
	}
	return false
}

func sortedEndpointIDs[V any](m map[endpointID]V) []endpointID {
	ids := make([]endpointID, 0, len(m))
	for id := range m {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b endpointID) int {
		if a.cell != b.cell {
			if a.cell < b.cell {
				return -1
			}
			return 1
		}
		if a.workload < b.workload {
			return -1
		} else if a.workload > b.workload {
			return 1
		}
		return 0
	})
	return ids
}
