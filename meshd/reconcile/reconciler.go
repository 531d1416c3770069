package reconcile

import (
	"cmp"
	"slices"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/placement"
	"colloid.net/meshd/wire"
)

// Timing (SPEC-REVIEW Part 1 section 5.4, F69, F75, F131).
const (
	// SettleQuiet is how long H and the specifications must have been quiet before they are acted on.
	SettleQuiet = time.Second
	// SettleMax bounds the wait when they are never quiet.
	SettleMax = 5 * time.Second
	// SurplusMax is how long an instance waits for its replacements elsewhere.
	SurplusMax = 120 * time.Second
	// RepeatInterval is the time between two requests for the same action.
	RepeatInterval = 2 * time.Second
	// GraceDefault is the stop grace of a specification that says nothing.
	GraceDefault = 10 * time.Second
)

// Reconciler is the memory of one cell's reconciliation. Its maps hold at most one entry per instance
// and wanted slot of the last Run.
type Reconciler struct {
	self wire.CellID

	settling    bool
	settleFirst clock.Instant // first change of the window
	settleDue   clock.Instant

	surplus map[InstanceID]mark // since when an instance is surplus
	gates   map[slotID]mark     // since when the other ranks let a slot update
	asked   map[actionID]mark   // when an action was asked for last

	preparations map[InstanceID]*preparation

	draining        map[InstanceID]mark // since when an instance is announced as draining
	drainingChanged []InstanceID        // in the last Run

	round  uint64        // number of the present Run: marks that it does not renew are dropped
	due    clock.Instant // of the next decision that depends on time
	actual []*Actual     // sorted by ID, without Gone
	going  []*Actual     // instances that leave this cell or wait to leave it
	stops  []Action
	starts []startRequest
	ready  []startRequest // starts for which there is room
	checks []Action
	// Instances to be prepared: for updates, and of what this cell stands by for.
	updates, standbys []Action
	again             []Action // starts of instances that exist and lack their environment
	yields            []yield
	// Instances that nobody else may run: they stay until their room is needed.
	homeless []yield
	actions  []Action // the result of the last Run

	startingCPU, startingMemory, startingCount uint64 // of ready
}

// mark is an instant that is forgotten unless every Run renews it.
type mark struct {
	since clock.Instant
	round uint64
}

type slotID struct {
	keyHash uint64
	slot    uint16
}

type actionID struct {
	kind Kind
	id   InstanceID
}

type startRequest struct {
	workload *placement.Workload
	slot     uint16
}

// New returns the reconciler of a cell that has decided nothing yet.
func New(self wire.CellID) *Reconciler {
	return &Reconciler{
		self: self, due: clock.Never,
		surplus: make(map[InstanceID]mark), gates: make(map[slotID]mark), asked: make(map[actionID]mark),
		draining: make(map[InstanceID]mark), preparations: make(map[InstanceID]*preparation),
	}
}

// Changed says that H or a specification changed. Run returns nothing until they have been quiet for
// SettleQuiet, at most SettleMax after the first change (F69). Endpoints and reports of the helper
// are no such change: Run may simply be called.
func (r *Reconciler) Changed(now clock.Instant) {
	if !r.settling {
		r.settling, r.settleFirst = true, now
	}
	r.settleDue = clock.Earliest(now.Add(SettleQuiet), r.settleFirst.Add(SettleMax))
}

// Deadline is when Run must be called again if nothing else happens.
func (r *Reconciler) Deadline() clock.Instant {
	if r.settling {
		return r.settleDue
	}
	return r.due
}

// Unsent takes back the note that an action was asked for, because the helper's ring was full: the
// next Run asks again.
func (r *Reconciler) Unsent(action Action) {
	if p := r.preparations[action.ID]; p != nil && action.Kind == Prepare {
		p.asked = 0
		return
	}
	if action.Kind == Withdraw {
		r.preparations[action.ID] = &preparation{tried: true}
		return
	}
	delete(r.asked, actionID{action.Kind, action.ID})
}

// Run returns what the helper shall do: stops first, then starts by descending priority. The slice is
// valid until the next Run.
func (r *Reconciler) Run(now clock.Instant, in *Input) []Action {
	if r.settling {
		if !r.settleDue.Reached(now) {
			return nil
		}
		r.settling = false
	}
	r.due = clock.Never
	if in.Plan == nil {
		return nil
	}
	if in.Self != r.self {
		panic("reconcile: input of cell " + in.Self.String() + " given to cell " + r.self.String())
	}
	r.round++
	r.begin(in)
	run := run{Reconciler: r, Input: in, now: now}
	run.walk()
	run.emit()
	run.endPreparing()
	r.end()
	return r.actions
}

// begin sorts the actual instances by identity.
func (r *Reconciler) begin(in *Input) {
	r.actual, r.going = r.actual[:0], r.going[:0]
	r.stops, r.starts, r.actions = r.stops[:0], r.starts[:0], r.actions[:0]
	r.checks, r.updates, r.standbys = r.checks[:0], r.updates[:0], r.standbys[:0]
	r.ready, r.again, r.yields, r.drainingChanged = r.ready[:0], r.again[:0], r.yields[:0], r.drainingChanged[:0]
	r.homeless = r.homeless[:0]
	r.startingCPU, r.startingMemory, r.startingCount = 0, 0, 0
	for i := range in.Actual {
		if in.Actual[i].State != Gone {
			r.actual = append(r.actual, &in.Actual[i])
		}
		if in.Actual[i].State == Denied {
			r.refused(&in.Actual[i])
		}
	}
	slices.SortFunc(r.actual, func(a, b *Actual) int { return compareID(a.ID, b.ID) })
}

// end drops every mark that this Run did not renew, and the references to the input.
func (r *Reconciler) end() {
	sweep(r.surplus, r.round)
	sweep(r.gates, r.round)
	sweep(r.asked, r.round)
	r.endDraining()
	clear(r.actual)
	clear(r.going)
	clear(r.starts)
	clear(r.ready)
	clear(r.yields)
	clear(r.homeless)
}

func sweep[K comparable](marks map[K]mark, round uint64) {
	for key, m := range marks {
		if m.round != round {
			delete(marks, key)
		}
	}
}

// renew keeps the mark of key alive and returns its instant; a new mark starts now.
func renew[K comparable](marks map[K]mark, key K, now clock.Instant, round uint64) clock.Instant {
	m, ok := marks[key]
	if !ok {
		m.since = now
	}
	m.round = round
	marks[key] = m
	return m.since
}

func compareID(a, b InstanceID) int {
	return cmp.Or(cmp.Compare(a.KeyHash, b.KeyHash), cmp.Compare(a.Slot, b.Slot),
		cmp.Compare(a.Digest, b.Digest))
}

// wake makes sure that Run is called at an instant.
func (r *Reconciler) wake(at clock.Instant) { r.due = clock.Earliest(r.due, at) }
