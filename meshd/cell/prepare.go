package cell

import (
	"fmt"
	"strings"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/placement"
	"colloid.net/meshd/reconcile"
	"colloid.net/meshd/state"
	"colloid.net/workload"
)

// prepareFailureMax bounds what is kept of a sentence of runnerd about a preparation, in bytes.
const prepareFailureMax = 200

// HelperPrepared is runnerd's answer to a Prepare: all that a start needs is here, or failure says why not. What nobody
// waits for, because the specification has changed meanwhile, is ignored: the id has its digest.
func (c *Cell) HelperPrepared(now clock.Instant, id reconcile.InstanceID, failure string) {
	c.now = now
	if failure != "" {
		failure = string(state.Printable(failure, prepareFailureMax))
	}
	if !c.reconciler.Prepared(now, id, failure) {
		return
	}
	if view := c.views.byHash[id.KeyHash]; view != nil && failure != "" {
		c.log(LevelWarning, "cannot prepare "+view.key+" ("+hex64(id.Digest)+"): "+failure)
	}
	c.views.runDirty = true
	c.drain()
}

// Preparation returns what this cell knows of an instance that it prepares, for tests.
func (c *Cell) Preparation(id reconcile.InstanceID) (reconcile.Preparation, bool) {
	return c.reconciler.Preparation(id)
}

// preparing returns what this cell prepares of a workload in the version that counts, for an update of what it runs or
// because it stands by.
func (c *Cell) preparing(view *workloadView) (reconcile.InstanceID, reconcile.Preparation, bool) {
	for _, replica := range c.plan.Of(view.hash) {
		if replica.Cell != c.config.Self {
			continue
		}
		id := reconcile.InstanceID{KeyHash: view.hash, Slot: replica.Slot, Digest: view.digest}
		if p, ok := c.reconciler.Preparation(id); ok && p.ForUpdate {
			return id, p, true
		}
	}
	if slot, ok := c.plan.StandsBy(view.hash, c.config.Self); ok {
		id := reconcile.InstanceID{KeyHash: view.hash, Slot: slot, Digest: view.digest}
		p, ok := c.reconciler.Preparation(id)
		return id, p, ok
	}
	return reconcile.InstanceID{}, reconcile.Preparation{}, false
}

// waitsForPreparation says why what serves here is not replaced yet, "" if the preparation is not the reason.
func (c *Cell) waitsForPreparation(view *workloadView) string {
	_, p, ok := c.preparing(view)
	if !ok || !p.ForUpdate || p.Done {
		return ""
	}
	text := "on cell " + c.config.Self.String() + ": the update waits, "
	if p.Failure != "" {
		return text + "it cannot be prepared: " + p.Failure
	}
	return text + "what it needs is being fetched"
}

// standbyVerdict adds to a verdict that a cell stands by, and for this cell how far it is. Of others nobody is told.
func (c *Cell) standbyVerdict(view *workloadView, ranked *placement.Ranked) string {
	text := ranked.Verdict + "; stands by"
	if ranked.Cell != c.config.Self {
		return text
	}
	_, p, _ := c.preparing(view)
	switch {
	case p.Failure != "":
		return text + ", cannot be prepared: " + p.Failure
	case p.Done:
		return text + ", prepared"
	case p.Asked:
		return text + ", is being prepared"
	case c.runner.known && !c.runner.hello.TakesPrepare:
		return text + ", its runnerd is too old to prepare"
	}
	return text + ", not prepared yet"
}

// unprepared begins the reason of a verdict about what could not be prepared.
const unprepared = "could not be prepared"

// saysUnprepared reports whether a rollout has failed because this cell could not prepare it.
func (c *Cell) saysUnprepared(view *workloadView) bool {
	v := view.verdict
	return v != nil && v.Cell == c.config.Self && strings.HasPrefix(v.Reason, unprepared)
}

// judgePreparation looks at what cannot be prepared for an update here. It has failed when it could not for as long as an
// instance may take to become ready. What takes long and does not fail is not judged: what serves goes on meanwhile.
func (c *Cell) judgePreparation(view *workloadView) {
	if c.reconciler.Preparations() == 0 || !placement.Fetches(view.spec) {
		return
	}
	id, p, ok := c.preparing(view)
	if !ok || !p.ForUpdate || !c.onTrial(view) {
		return
	}
	if p.Failure == "" {
		if p.Done && c.saysUnprepared(view) {
			c.publish(state.RolloutKey(state.WorkloadName(view.key), state.RolloutVerdict), nil) // now it would go
		}
		return
	}
	a := c.rollout.attempts[id]
	if a == nil || a.dots != view.dots {
		a = &attempt{dots: view.dots, since: c.now}
		c.rollout.attempts[id] = a
	}
	a.seen = true
	limit := rolloutDeadline(view.spec)
	if end := a.since.Add(limit); !end.Reached(c.now) {
		c.rollout.due = clock.Earliest(c.rollout.due, end)
		return
	}
	if view.verdict == nil {
		c.condemn(view, &reconcile.Actual{Reason: p.Failure}, fmt.Sprintf("%s for %s", unprepared, limit))
	}
}

// rolloutDeadline is how long an instance of a specification may take to become ready.
func rolloutDeadline(spec *workload.Spec) time.Duration {
	if spec.Update.DeadlineSeconds != 0 {
		return time.Duration(spec.Update.DeadlineSeconds) * time.Second
	}
	return deadlineDefault
}
