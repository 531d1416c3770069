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

// Reconciler is the memory of one cell's reconciliation.
type Reconciler struct {
	self wire.CellID

	settling    bool
	settleFirst clock.Instant // first change of the window
	settleDue   clock.Instant

	surplus map[InstanceID]mark    // since when an instance is surplus
	asked   map[Action]mark        // when an action was asked for last; see request
	gates   map[slotID]mark        // since when the lower ranks let a slot update
	round   uint64                 // number of the present Run: marks of older rounds are dropped
	due     clock.Instant          // of the next time-dependent decision
	actual  []*Actual              // sorted by ID
	going   []*Actual              // leave this cell: surplus or stopping
	wanted  []wantedSlot           // scratch
	stops   []Action               // of this Run
	starts  []startRequest         // of this Run
	actions []Action               // returned
	plan    []placement.Replica    // of the workload at hand
	spec    *placement.Workload    // the workload at hand
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
