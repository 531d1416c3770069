package cell

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/reconcile"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
	"colloid.net/workload"
)

// When a specification is good and when it has failed (docs/decisions.md).
const (
	// goodAfter is how long all replicas must have been ready, on top of min_ready.
	goodAfter = 10 * time.Second
	// deadlineDefault is how long an instance may take to become ready before its specification was good.
	deadlineDefault = 2 * time.Minute
	// crashesMax is how often it may have been restarted by then.
	crashesMax = 3
)

// rolloutView mirrors what the cluster knows of the roll-outs of one workload name.
type rolloutView struct {
	verdicts []state.Verdict // sorted by cell
	good     []byte          // encoded specification
}

// rolloutState is what this cell times itself. Both maps have at most one entry per instance or workload here.
type rolloutState struct {
	attempts map[reconcile.InstanceID]*attempt
	proofs   map[uint64]*proof // by key hash
	due      clock.Instant
}

// attempt is an instance of a specification that is not known to be good.
type attempt struct {
	dots       uint64
	restarts   uint32 // when it was first seen
	since      clock.Instant
	lastReady  uint32 // restarts when it was last seen ready
	readySince clock.Instant
	seen       bool
}

// proof is a specification of which every replica is ready.
type proof struct {
	dots     uint64
	restarts int
	since    clock.Instant
	seen     bool
}

func (r *rolloutState) init() {
	*r = rolloutState{attempts: make(map[reconcile.InstanceID]*attempt), proofs: make(map[uint64]*proof),
		due: clock.Never}
}

// viewRollout mirrors one rollout key and applies it to the workload of that name.
func (c *Cell) viewRollout(name string) {
	short, field, ok := state.SplitRollout(name)
	if !ok || field != state.RolloutVerdict && field != state.RolloutGood {
		return
	}
	view := c.views.rollouts[short]
	if view == nil {
		view = new(rolloutView)
		c.views.rollouts[short] = view
	}
	register, found := c.store.Get([]byte(name))
	switch {
	case field == state.RolloutGood:
		view.good = nil
		if _, value, ok := latestOf(register, found); ok && len(value) > 0 {
			view.good = slices.Clone(value)
		}
	default:
		view.verdicts = view.verdicts[:0]
		for raw := entriesOf(register, found); len(raw) > 0; {
			_, value, rest, ok := wire.NextEntry(raw)
			if !ok {
				break
			}
			raw = rest
			if verdict, err := state.ParseVerdict(value); err == nil {
				view.verdicts = append(view.verdicts, verdict)
			}
		}
		slices.SortFunc(view.verdicts, func(a, b state.Verdict) int { return strings.Compare(a.Cell.String(), b.Cell.String()) })
	}
	if view.good == nil && len(view.verdicts) == 0 {
		delete(c.views.rollouts, short)
	}
	for _, kind := range workloadKinds {
		if w := c.views.workloads[kind+short]; w != nil {
			c.applyRollout(w)
		}
	}
	c.views.runDirty = true
}

// workloadKinds are the prefixes under which a workload name may stand.
var workloadKinds = [...]string{state.PrefixSpread, state.PrefixStateful, state.PrefixWasm}

// applyRollout decides which specification of a workload counts: the operator's, or, after a verdict on that very
// write, the last good one. It depends on the store alone, so equal stores plan alike (EXEC-2).
func (c *Cell) applyRollout(view *workloadView) {
	before := view.digest
	wasHeld := view.held
	view.spec, view.raw, view.digest = view.wanted, view.wantedRaw, view.wantedDigest
	view.verdict, view.held = nil, false
	rollout := c.views.rollouts[state.WorkloadName(view.key)]
	if rollout != nil && !view.frozen && view.wanted != nil {
		for i := range rollout.verdicts {
			if v := &rollout.verdicts[i]; v.Dots == view.dots && v.Digest == view.wantedDigest {
				view.verdict = v
				break
			}
		}
		if view.verdict != nil && view.wanted.Update.AutoRollback {
			c.hold(view, rollout.good)
		}
	}
	if view.digest != before || view.held != wasHeld {
		c.planChanged()
	}
}

func (c *Cell) hold(view *workloadView, good []byte) {
	spec := goodSpec(view.key, good)
	if spec == nil || spec.InstanceDigest() == view.wantedDigest {
		return
	}
	view.spec, view.raw, view.digest, view.held = spec, good, spec.InstanceDigest(), true
}

// goodSpec decodes the last good specification of a key, nil if there is none.
func goodSpec(key string, good []byte) *workload.Spec {
	if len(good) == 0 {
		return nil
	}
	spec, err := workload.Decode(good)
	if err != nil || workload.CheckKey(key, spec) != nil {
		return nil // of another kind of workload with this name
	}
	return spec
}

// isHalted reports whether what serves of a workload must not be replaced.
func (c *Cell) isHalted(keyHash uint64) bool {
	view := c.views.byHash[keyHash]
	return view != nil && view.verdict != nil && !view.held
}

// watchRollouts judges this cell's own instances and writes down what is good. It follows every
// reconciliation.
func (c *Cell) watchRollouts() {
	r := &c.rollout
	r.due = clock.Never
	if c.phase != Active || !c.boot.authoritative {
		return
	}
	for _, a := range r.attempts {
		a.seen = false
	}
	for _, p := range r.proofs {
		p.seen = false
	}
	for _, actual := range c.actualSorted() {
		if view := c.views.byHash[actual.ID.KeyHash]; view != nil && actual.ID.Digest == view.digest && !view.frozen {
			c.judge(view, &actual)
		}
	}
	for _, key := range c.workloadKeys() {
		if view := c.views.workloads[key]; !view.frozen && view.spec != nil && !view.held {
			c.judgePreparation(view)
			c.prove(view)
		}
	}
	for id, a := range r.attempts {
		if !a.seen {
			delete(r.attempts, id)
		}
	}
	for hash, p := range r.proofs {
		if !p.seen {
			delete(r.proofs, hash)
		}
	}
}

// judge looks at one instance of this cell that runs what the operator wants. Only what has a good predecessor is
// judged: the first specification has nothing to go back to.
func (c *Cell) judge(view *workloadView, actual *reconcile.Actual) {
	if actual.State == reconcile.Denied || actual.State == reconcile.Stopping || !c.onTrial(view) {
		return
	}
	a := c.rollout.attempts[actual.ID]
	if a == nil || a.dots != view.dots {
		a = &attempt{dots: view.dots, restarts: actual.Restarts, since: c.now}
		c.rollout.attempts[actual.ID] = a
	}
	a.seen = true
	limit := rolloutDeadline(view.spec)
	if actual.State != reconcile.Ready || actual.Restarts != a.lastReady {
		a.readySince = 0
	}
	if actual.State == reconcile.Ready && a.readySince == 0 {
		a.readySince, a.lastReady = c.now, actual.Restarts
	}
	reason := ""
	switch end := a.since.Add(limit); {
	case actual.Restarts >= a.restarts+crashesMax:
		reason = fmt.Sprintf("restarted %d times", actual.Restarts-a.restarts)
	case actual.State == reconcile.Exited && actual.ExitCode != 0:
		reason = "ended"
	case actual.State == reconcile.Ready:
		c.withdraw(view, a)
		return
	case end.Reached(c.now):
		reason = fmt.Sprintf("not ready within %s of its start", limit)
	default:
		c.rollout.due = clock.Earliest(c.rollout.due, end)
		return
	}
	if view.verdict == nil {
		c.condemn(view, actual, reason)
	}
}

// onTrial reports whether what is wanted of a workload follows on something good, and is not known to be good itself.
func (c *Cell) onTrial(view *workloadView) bool {
	rollout := c.views.rollouts[state.WorkloadName(view.key)]
	if view.held || rollout == nil {
		return false
	}
	good := goodSpec(view.key, rollout.good)
	return good != nil && good.InstanceDigest() != view.digest
}

func (c *Cell) condemn(view *workloadView, actual *reconcile.Actual, reason string) {
	if actual.Reason != "" {
		reason += ": " + actual.Reason
	} else if actual.ExitCode != 0 {
		reason += fmt.Sprintf(": exit code %d", actual.ExitCode)
	}
	c.log(LevelWarning, "update of "+view.key+" has failed here: "+reason)
	c.publish(state.RolloutKey(state.WorkloadName(view.key), state.RolloutVerdict),
		state.AppendVerdict(nil, state.Verdict{Dots: view.dots, Digest: view.wantedDigest, Cell: c.config.Self, Reason: reason}))
}

// withdraw takes this cell's verdict back when its instance has recovered for good.
func (c *Cell) withdraw(view *workloadView, a *attempt) {
	if view.verdict == nil || view.verdict.Cell != c.config.Self {
		return
	}
	if end := a.readySince.Add(goodAfter); !end.Reached(c.now) {
		c.rollout.due = clock.Earliest(c.rollout.due, end)
		return
	}
	a.restarts = a.lastReady
	c.publish(state.RolloutKey(state.WorkloadName(view.key), state.RolloutVerdict), nil)
}

// prove writes a specification down as good once all its replicas have been ready for long enough. The cell of
// rank 0 does; while two plans differ two cells may, and write the same.
func (c *Cell) prove(view *workloadView) {
	replicas := c.plan.Of(view.hash)
	if unplaced, _ := c.plan.Unplaced(view.hash); len(replicas) == 0 || unplaced > 0 ||
		replicas[0].Cell != c.config.Self {
		return
	}
	name := state.WorkloadName(view.key)
	rollout := c.views.rollouts[name]
	if rollout != nil && bytes.Equal(rollout.good, view.raw) {
		return
	}
	restarts := 0
	for i := range replicas {
		replica := &replicas[i]
		if !c.isReady(view.hash, replica.Cell, replica.Slot, view.digest) {
			return
		}
		for _, instance := range c.endpointOf(view.hash, replica.Cell).Instances {
			if instance.Slot == replica.Slot && instance.Digest == view.digest {
				restarts += int(instance.Restarts)
			}
		}
	}
	p := c.rollout.proofs[view.hash]
	if p == nil || p.dots != view.dots || p.restarts != restarts {
		p = &proof{dots: view.dots, restarts: restarts, since: c.now}
		c.rollout.proofs[view.hash] = p
	}
	p.seen = true
	end := p.since.Add(goodAfter + time.Duration(view.spec.Update.MinReadySeconds)*time.Second)
	if !end.Reached(c.now) {
		c.rollout.due = clock.Earliest(c.rollout.due, end)
		return
	}
	c.publish(state.RolloutKey(name, state.RolloutGood), view.raw)
	if rollout != nil && len(rollout.verdicts) > 0 {
		c.publish(state.RolloutKey(name, state.RolloutVerdict), nil)
	}
}
