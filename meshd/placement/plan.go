package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"colloid.net/meshd/wire"
)

// Plan is the result of one Compute. It is immutable.
type Plan struct {
	keys       []uint64 // sorted
	spans      []span   // of keys[i] in replicas
	replicas   []Replica
	shortfalls []shortfall   // sorted by index
	takers     []wire.CellID // cells that receive new replicas, sorted
	standby    []wire.CellID // of keys[i] unless stateful, 0 = nobody; see StandsBy
	standbys   []standby     // of stateful workloads, sorted by index
}

type span struct{ start, end int32 }

// shortfall says that replicas of a workload found no cell.
type shortfall struct {
	index    int32 // in keys
	missing  int32
	replicas int32
	// waits of the missing replicas wait for room on their anchors; one is waitsFor, which lacks lack.
	waits    int32
	waitsFor wire.CellID
	lack     blocker
	tally    *tally // of the others; nil without any
}

// tally counts the cells by what kept them from taking a replica.
type tally [blockerCount]int32

func (p *Planner) newPlan() *Plan {
	plan := &Plan{keys: make([]uint64, len(p.demands)), spans: make([]span, len(p.demands))}
	replicas, anyFetches := 0, false
	for i, d := range p.demands {
		plan.keys[i] = d.w.KeyHash
		replicas += min(d.replicas, len(p.ids))
		anyFetches = anyFetches || d.fetches
	}
	if anyFetches {
		plan.standby = make([]wire.CellID, len(p.demands))
	}
	plan.replicas = make([]Replica, 0, min(replicas, ReplicasMax))
	for i, id := range p.ids {
		if cell := &p.nodes[p.order[i]].cell; cellTakesNew(cell) {
			plan.takers = append(plan.takers, id)
		}
	}
	return plan
}

func (plan *Plan) finish() {
	slices.SortFunc(plan.shortfalls, func(a, b shortfall) int { return cmp.Compare(a.index, b.index) })
	slices.SortStableFunc(plan.standbys, func(a, b standby) int { return cmp.Compare(a.index, b.index) })
}

// Of returns the replicas of a workload in the order of their ranks; it must not be modified.
func (plan *Plan) Of(keyHash uint64) []Replica {
	i, ok := slices.BinarySearch(plan.keys, keyHash)
	if !ok {
		return nil
	}
	s := plan.spans[i]
	return plan.replicas[s.start:s.end:s.end]
}

// Len returns the number of replicas placed.
func (plan *Plan) Len() int { return len(plan.replicas) }

// Unplaced returns how many replicas of a workload found no cell (F78), and a sentence that says why
// when there are any.
func (plan *Plan) Unplaced(keyHash uint64) (n int, reason string) {
	s, ok := plan.shortfallOf(keyHash)
	if !ok {
		return 0, ""
	}
	return int(s.missing), s.reason()
}

// ShortOfRoom reports whether replicas of the workload are unplaced because cells that could run it
// are full. False means that all are placed or that nobody else may run the missing ones.
func (plan *Plan) ShortOfRoom(keyHash uint64) bool {
	s, ok := plan.shortfallOf(keyHash)
	if !ok {
		return false
	}
	for b := blockProcessor; s.tally != nil && b < blockerCount; b++ {
		if s.tally[b] > 0 {
			return true
		}
	}
	return s.waits > 0
}

// TakesNew reports whether the cell was in H and open for new replicas when the plan was made.
func (plan *Plan) TakesNew(cell wire.CellID) bool {
	_, ok := slices.BinarySearch(plan.takers, cell)
	return ok
}

func (plan *Plan) shortfallOf(keyHash uint64) (*shortfall, bool) {
	i, ok := slices.BinarySearch(plan.keys, keyHash)
	if !ok {
		return nil, false
	}
	j, ok := slices.BinarySearchFunc(plan.shortfalls, int32(i),
		func(s shortfall, index int32) int { return cmp.Compare(s.index, index) })
	if !ok {
		return nil, false
	}
	return &plan.shortfalls[j], true
}

// shortfallOf describes what is missing of a workload right after it was placed.
func (p *Planner) shortfallOf(d *demand, index int32, missing int) shortfall {
	s := shortfall{index: index, missing: int32(missing), replicas: int32(d.replicas)}
	for i, n := range d.anchored {
		if n == anchorWaits {
			s.waits++
			s.waitsFor = d.w.Anchors[i]
			owner, _ := p.lookup(s.waitsFor)
			s.lack = p.rooms[owner].lacks(&d.ask)
		}
	}
	if s.waits == s.missing {
		return s
	}
	shared := len(p.touched) == 0 && len(d.w.Denied) == 0 && p.hopeless(d)
	if shared && d.class.fullTally != nil && d.class.fullTallyFill == p.fill {
		s.tally = d.class.fullTally
		return s
	}
	s.tally = new(tally)
	for _, n := range p.order {
		s.tally[p.blockerOf(d, n)]++
	}
	if shared {
		d.class.fullTally, d.class.fullTallyFill = s.tally, p.fill
	}
	return s
}

// blockerOf says why a node takes no further replica of the workload at this point of the fill.
func (p *Planner) blockerOf(d *demand, n int32) blocker {
	cell := &p.nodes[n].cell
	refusal := d.class.refusal(cell)
	switch {
	case refusal == blockNoNew && slices.Contains(d.w.Keepers, cell.ID), refusal == blockHeldBack:
	case refusal != blockNothing:
		return refusal
	}
	if d.denied(cell.ID) {
		return blockDenied
	}
	if p.counts[n] > 0 && !d.goesRound {
		return blockHolds
	}
	return p.rooms[n].lacks(&d.ask)
}

var lackNames = [blockerCount]string{
	blockNothing: "room", blockProcessor: "cpu", blockMemory: "memory", blockDisk: "disk",
	blockInstances: "an instance slot", blockPort: "a host port",
}

var tallyPhrases = [blockerCount]string{
	blockNothing:      "%d could take more but the plan is full",
	blockHolds:        "%d hold one already",
	blockProcessor:    "%d short of cpu",
	blockMemory:       "%d short of memory",
	blockDisk:         "%d short of disk",
	blockInstances:    "%d without a free instance slot",
	blockPort:         "%d with the host port taken",
	blockDenied:       "%d refuse it",
	blockNoNew:        "%d leaving or drained",
	blockRuntime:      "%d without the runtime",
	blockForbidden:    "%d whose policy forbids the runtime",
	blockArchitecture: "%d of another architecture",
	blockConstraint:   "%d outside the constraints",
	blockDegraded:     "%d with a full store",
}

func (s *shortfall) reason() string {
	var b strings.Builder
	fmt.Fprintf(&b, "no cell for %d of %d replicas: ", s.missing, s.replicas)
	separator := ""
	if s.waits > 0 {
		fmt.Fprintf(&b, "%d waiting for %s on the owner of the volume (cell %s)", s.waits, lackNames[s.lack],
			s.waitsFor)
		separator = ", "
	}
	if s.tally == nil {
		return b.String()
	}
	for _, blocker := range tallyOrder {
		if count := s.tally[blocker]; count > 0 {
			fmt.Fprintf(&b, separator+tallyPhrases[blocker], count)
			separator = ", "
		}
	}
	if separator == "" {
		b.WriteString("no cell is healthy")
	}
	return b.String()
}

// tallyOrder lists the blockers as they are told: what an operator can change first.
var tallyOrder = [...]blocker{
	blockHolds, blockProcessor, blockMemory, blockDisk, blockInstances, blockPort, blockDenied, blockNoNew,
	blockForbidden, blockRuntime, blockArchitecture, blockConstraint, blockDegraded, blockNothing,
}
