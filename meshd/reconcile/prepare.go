package reconcile

import (
	"fmt"
	"slices"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/placement"
)

// What an instance needs is fetched and compiled ahead in two places: on the cell that stands by for a workload
// (placement.Plan.StandsBy), so that a death costs no pull, and where an update has to end what serves before it can
// begin, so that it is not ended for something that never comes. Both ask the helper to prepare, which does nothing else.
const (
	// StandbyDelay is how long a cell that stands by waits for all replicas to be ready, before it prepares without
	// that: those that are to serve have the network and the registry first.
	StandbyDelay = 10 * time.Second
	// PreparesMax is how many requests to prepare a helper has at a time, those of updates included.
	PreparesMax = 16
	// standbysMax is how many of them are of workloads that this cell stands by for. A helper takes one after the other,
	// and an update is not to wait behind many.
	standbysMax = 4
	// A request that failed is repeated after this pause, which doubles.
	prepareBackoff    = 30 * time.Second
	prepareBackoffMax = 30 * time.Minute
	// lostFailures is as how many failures it counts that what was prepared is taken away: the pause is the longest then.
	lostFailures = 8
	// PrepareAgain is when a cell that stands by asks anew: the helper may have had to make room meanwhile.
	PrepareAgain = 6 * time.Hour
	// PreparePatience is how long an answer is waited for. An update goes on then as if it had come.
	PreparePatience = 15 * time.Minute
	// PreparationsMax bounds what a cell stands by for, as much as the policy of a host may admit instances. What is
	// beyond is not prepared.
	PreparationsMax = 1024
)

// preparation is what is known of one instance that is prepared.
type preparation struct {
	Preparation
	round    uint64
	since    clock.Instant // when it was wanted first
	asked    clock.Instant // of the request under way, 0 = none
	done     clock.Instant // when the helper said that all is here, 0 = it did not
	again    clock.Instant // not asked for before
	failures int           // in a row
	tried    bool          // the helper was asked once, on this connection: it may keep what it has for this
	// interrupted counts the connections in a row that ended before the answer: whatever it is that ends them.
	interrupted int
}

// Preparation is what to tell an operator about an instance that is not there yet.
type Preparation struct {
	ForUpdate bool   // what serves waits for it to be prepared; else the cell stands by
	Asked     bool   // the helper was asked and has not answered
	Done      bool   // all that a start needs was here when the helper looked
	Failure   string // why it could not be prepared the last time, "" = it could, or is not known
}

// Preparation returns what is known of an instance that this cell prepares; false if it does not.
func (r *Reconciler) Preparation(id InstanceID) (Preparation, bool) {
	p := r.preparations[id]
	if p == nil || p.round != r.round {
		return Preparation{}, false
	}
	known := p.Preparation
	known.Asked, known.Done = p.asked != 0, p.done != 0
	return known, true
}

// Preparations returns how many instances are known as prepared or to be prepared.
func (r *Reconciler) Preparations() int { return len(r.preparations) }

// Greeted says that a helper said hello. What it told before counts no more: it may be another one, or have another policy,
// so all is asked again. anew is the beginning of a connection, and so the end of one before: what was under way at two
// ends in a row is asked for only after a pause, because it may be why they end.
func (r *Reconciler) Greeted(now clock.Instant, anew bool) {
	for _, p := range r.preparations {
		again := clock.Instant(0)
		switch {
		case !anew:
			if p.interrupted > 1 {
				again = p.again
			}
		case p.asked == 0:
			p.interrupted = 0
		default:
			if p.interrupted++; p.interrupted > 1 {
				again = now.Add(backoff(p.interrupted - 1))
			}
		}
		p.asked, p.done, p.again, p.failures, p.Failure, p.tried = 0, 0, again, 0, "", p.tried && !anew
	}
}

// Prepared takes the answer of the helper; failure is "" when all that a start needs is here. It reports whether this was
// waited for: the answer about a former specification is not. A failure of what was done says that it is here no longer.
func (r *Reconciler) Prepared(now clock.Instant, id InstanceID, failure string) bool {
	p := r.preparations[id]
	if p == nil || p.asked == 0 && (p.done == 0 || failure == "") {
		return false
	}
	if p.asked == 0 && !p.ForUpdate { // somebody took it away on purpose: it is not brought again at once
		p.failures = lostFailures
	}
	p.asked, p.interrupted, p.Failure = 0, 0, failure
	if failure == "" {
		p.done, p.failures, p.again = now, 0, 0
		return true
	}
	p.fail(now, failure)
	return true
}

func (p *preparation) fail(now clock.Instant, why string) {
	p.failures++
	p.asked, p.done, p.Failure = 0, 0, why
	p.again = now.Add(backoff(p.failures))
}

func backoff(failures int) time.Duration {
	return min(prepareBackoff<<min(failures-1, 16), prepareBackoffMax)
}

// preparation returns what is known of an instance, and keeps it for the next Run. It returns nil where there are too many.
func (r *run) preparation(id InstanceID, forUpdate bool) *preparation {
	p := r.preparations[id]
	if p == nil {
		if !forUpdate && len(r.preparations) >= PreparationsMax {
			return nil
		}
		p = &preparation{since: r.now}
		r.preparations[id] = p
	}
	p.round, p.ForUpdate = r.round, forUpdate
	return p
}

// standBy prepares a workload of which this cell has no replica, if it is the one that would get the next.
func (r *run) standBy(w *placement.Workload, replicas []placement.Replica, instances []*Actual) {
	if !r.Prepares || len(replicas) == 0 {
		return
	}
	slot, next := r.Plan.StandsBy(w.KeyHash, r.Self)
	id := InstanceID{w.KeyHash, slot, w.Digest}
	if !next {
		return
	}
	if r.frozen(w.KeyHash) {
		r.keepAsItIs(id)
		return
	}
	for _, instance := range instances {
		if instance.ID.Digest == w.Digest {
			return // it is here, or was refused here
		}
	}
	if !r.Authoritative || r.HoldStarts || r.halted(w.KeyHash) || !r.startable(w) {
		r.keepAsItIs(id)
		return
	}
	p := r.preparation(id, false)
	if p == nil || !r.isDue(p) {
		return
	}
	if p.done != 0 {
		if again := p.done.Add(PrepareAgain); !again.Reached(r.now) {
			r.wake(again)
			return
		}
	} else if delayed := p.since.Add(StandbyDelay); !delayed.Reached(r.now) && !r.replaced(w, replicas) {
		r.wake(delayed)
		return
	}
	r.standbys = append(r.standbys, prepareAction(w, id))
}

func (r *run) keepAsItIs(id InstanceID) {
	if p := r.preparations[id]; p != nil {
		p.round = r.round
	}
}

// prepared reports whether all that an update needs is here, so that what serves may end for it. Until then the helper is
// asked for it.
func (r *run) prepared(w *placement.Workload, slot uint16) bool {
	id := InstanceID{w.KeyHash, slot, w.Digest}
	p := r.preparation(id, true)
	if p.done != 0 {
		return true
	}
	if p.asked != 0 && p.failures == 0 && p.asked.Add(PreparePatience).Reached(r.now) {
		return true
	}
	if r.isDue(p) {
		r.updates = append(r.updates, prepareAction(w, id))
	}
	return false
}

// keepPreparing asks again for what a rollout failed on, so that it is known when the cause is gone.
func (r *run) keepPreparing(w *placement.Workload, slot uint16) {
	p := r.preparations[InstanceID{w.KeyHash, slot, w.Digest}]
	if p != nil && p.ForUpdate || r.Prepares && r.Unprepared != nil && r.Unprepared(w.KeyHash) {
		r.prepared(w, slot)
	}
}

// isDue reports whether the helper may be asked now: it owes no answer, and the pause after a failure is over.
func (r *run) isDue(p *preparation) bool {
	if p.asked != 0 {
		end := p.asked.Add(PreparePatience)
		if !end.Reached(r.now) {
			r.wake(end)
			return false
		}
		p.fail(r.now, fmt.Sprintf("runnerd has not answered for %v", PreparePatience))
	}
	if !p.again.Reached(r.now) {
		r.wake(p.again)
		return false
	}
	return true
}

func prepareAction(w *placement.Workload, id InstanceID) Action {
	return Action{Kind: Prepare, ID: id, Key: w.Key, Spec: w.Encoded}
}

// askPreparations asks for as much as the helper may have at a time: first what updates wait for. What has to wait is asked
// for when an answer comes.
func (r *run) askPreparations() {
	if len(r.updates)+len(r.standbys) == 0 {
		return
	}
	outstanding, standbys := 0, 0
	for _, p := range r.preparations {
		if p.asked != 0 {
			outstanding++
			if !p.ForUpdate {
				standbys++
			}
		}
	}
	ask := func(action Action) {
		p := r.preparations[action.ID]
		p.asked, p.tried = r.now, true
		r.wake(r.now.Add(PreparePatience))
		r.actions = append(r.actions, action)
		outstanding++
	}
	for _, action := range r.updates {
		if outstanding < PreparesMax {
			ask(action)
		}
	}
	for _, action := range r.standbys {
		if outstanding < PreparesMax && standbys < standbysMax {
			standbys++
			ask(action)
		}
	}
}

// endPreparing forgets what this Run did not want. The helper is told: it does not go on with that, which something else may
// wait for, and does not keep for hours what nobody will start. Where an instance is, that is known without.
func (r *run) endPreparing() {
	first := len(r.actions)
	for id, p := range r.preparations {
		if p.round == r.round {
			continue
		}
		delete(r.preparations, id)
		_, here := slices.BinarySearchFunc(r.actual, id, func(i *Actual, id InstanceID) int { return compareID(i.ID, id) })
		_, started := r.asked[actionID{Start, id}]
		if p.tried && r.Prepares && !here && !started {
			r.actions = append(r.actions, Action{Kind: Withdraw, ID: id})
		}
		if p.asked != 0 {
			r.wake(r.now) // another one may wait for its place
		}
	}
	slices.SortFunc(r.actions[first:], func(a, b Action) int { return compareID(a.ID, b.ID) })
}

// refused takes a refusal for the answer to a request to prepare.
func (r *Reconciler) refused(instance *Actual) {
	if p := r.preparations[instance.ID]; p != nil {
		p.asked = 0
	}
}
