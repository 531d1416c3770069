package reconcile

import (
	"cmp"
	"slices"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/placement"
	"colloid.net/meshd/wire"
	"colloid.net/workload"
)

// run is one evaluation of an Input.
type run struct {
	*Reconciler
	*Input
	now clock.Instant
}

// walk visits every key that is wanted or runs, in the order of key hashes.
func (r *run) walk() {
	rest := r.actual
	for i := range r.Workloads {
		w := &r.Workloads[i]
		if i > 0 && r.Workloads[i-1].KeyHash >= w.KeyHash {
			panic("reconcile: workloads are not sorted by key hash at " + w.Key)
		}
		for len(rest) > 0 && rest[0].ID.KeyHash < w.KeyHash {
			rest = r.visit(nil, rest)
		}
		if len(rest) > 0 && rest[0].ID.KeyHash == w.KeyHash {
			rest = r.visit(w, rest)
			continue
		}
		r.key(w, nil)
	}
	for len(rest) > 0 {
		rest = r.visit(nil, rest)
	}
}

// visit handles the instances of the first key in list and returns the others.
func (r *run) visit(w *placement.Workload, list []*Actual) []*Actual {
	end := 1
	for end < len(list) && list[end].ID.KeyHash == list[0].ID.KeyHash {
		end++
	}
	r.key(w, list[:end])
	return list[end:]
}

// key decides about one workload (nil: deleted or frozen) and its instances on this cell.
func (r *run) key(w *placement.Workload, instances []*Actual) {
	if w == nil || w.Spec == nil || w.Spec.Replicas == 0 {
		if len(instances) > 0 && !r.frozen(instances[0].ID.KeyHash) {
			r.stopAll(w, instances)
		}
		return
	}
	replicas := r.Plan.Of(w.KeyHash)
	wanted := false
	for i := range replicas {
		wanted = wanted || replicas[i].Cell == r.self
	}
	if !wanted {
		r.standBy(w, replicas, instances)
	}
	if !wanted && len(instances) == 0 || r.frozen(w.KeyHash) {
		return
	}
	for i := range replicas {
		if replica := &replicas[i]; replica.Cell == r.self {
			r.slot(w, replicas, replica, inSlot(instances, replica.Slot))
		}
	}
	for _, instance := range instances {
		if !isWanted(replicas, r.Self, instance.ID.Slot) {
			r.leave(w, replicas, instance)
		}
	}
}

func (r *run) frozen(keyHash uint64) bool { return r.Frozen != nil && r.Frozen(keyHash) }

// inSlot cuts the instances of one slot out of those of one key, which are sorted by slot.
func inSlot(instances []*Actual, slot uint16) []*Actual {
	start := 0
	for start < len(instances) && instances[start].ID.Slot < slot {
		start++
	}
	end := start
	for end < len(instances) && instances[end].ID.Slot == slot {
		end++
	}
	return instances[start:end]
}

// stopAll ends the instances of a workload that nobody wants any more, at once: there is nothing to
// wait for.
func (r *run) stopAll(w *placement.Workload, instances []*Actual) {
	if !r.Authoritative {
		return
	}
	for _, instance := range instances {
		r.stop(w, instance)
	}
}

// leave decides about an instance in a slot that is placed on another cell or nowhere (F75).
func (r *run) leave(w *placement.Workload, replicas []placement.Replica, instance *Actual) {
	if instance.State == Stopping {
		r.going = append(r.going, instance)
		return
	}
	if !r.Authoritative || r.HoldStarts {
		return // the plan is not to be trusted yet, and the time until it is does not count
	}
	if instance.State == Denied || instance.State == Exited {
		r.stop(w, instance)
		return
	}
	if len(replicas) == 0 && !(r.Plan.ShortOfRoom(w.KeyHash) && r.Plan.TakesNew(r.Self)) {
		r.homeless = append(r.homeless, yield{w, instance})
		return // nobody else may run it, and until this cell needs the room for others it serves on
	}
	if w.Spec.Stateful {
		r.stop(w, instance)
		return
	}
	if unplaced, _ := r.Plan.Unplaced(w.KeyHash); unplaced > 0 && r.Drained {
		return // emptying a machine is no reason to have fewer copies
	}
	end := renew(r.surplus, instance.ID, r.now, r.round).Add(SurplusMax)
	if len(replicas) > 0 && r.replaced(w, replicas) {
		r.retireServing(w, instance)
		return
	}
	if end.Reached(r.now) {
		r.stop(w, instance)
		return
	}
	if len(replicas) == 0 {
		r.yields = append(r.yields, yield{w, instance})
	}
	r.going = append(r.going, instance)
	r.wake(end)
}

// replaced reports whether every replica placed elsewhere is READY with the wanted digest.
func (r *run) replaced(w *placement.Workload, replicas []placement.Replica) bool {
	for i := range replicas {
		replica := &replicas[i]
		if replica.Cell != r.Self && !r.Ready(w.KeyHash, replica.Cell, replica.Slot, w.Digest) {
			return false
		}
	}
	return true
}

// slot decides about one wanted replica and the instances in its slot.
func (r *run) slot(w *placement.Workload, replicas []placement.Replica, mine *placement.Replica,
	instances []*Actual) {
	current := -1
	for i := range instances {
		if instances[i].ID.Digest == w.Digest {
			current = i
		}
	}
	switch {
	case current >= 0:
		r.handOver(w, instances[current])
		r.retire(w, instances, current)
	case len(instances) == 0:
		r.start(w, mine.Slot)
	case r.Authoritative && !r.HoldStarts:
		r.update(w, replicas, mine, instances)
	default:
		r.keepAsItIs(InstanceID{w.KeyHash, mine.Slot, w.Digest})
	}
}

// handOver asks again for the start of an instance whose helper lacks its environment: helpers keep it in
// memory only (F83).
func (r *run) handOver(w *placement.Workload, instance *Actual) {
	if instance.NeedsEnvironment && r.startable(w) {
		r.again = append(r.again, Action{Kind: Start, ID: instance.ID, Key: w.Key, Spec: w.Encoded})
	}
}

// retire stops instances of older digests once the current one took over. One that is not READY is
// not worth keeping.
func (r *run) retire(w *placement.Workload, instances []*Actual, current int) {
	if instances[current].State == Stopping {
		// It was told to stop before it was wanted again; it is started anew when it is gone.
		r.going = append(r.going, instances[current])
		return
	}
	if !r.Authoritative || r.HoldStarts {
		return
	}
	for i, instance := range instances {
		if i != current && (instances[current].State == Ready || instance.State != Ready) {
			r.retireServing(w, instance)
		}
	}
}

// update replaces the instances of older digests in a slot when the order of ranks allows it (F75).
func (r *run) update(w *placement.Workload, replicas []placement.Replica, mine *placement.Replica,
	instances []*Actual) {
	serves := slices.ContainsFunc(instances, func(a *Actual) bool { return a.State == Ready })
	if serves && r.halted(w.KeyHash) {
		r.keepPreparing(w, mine.Slot)
		return
	}
	if serves && !r.mayUpdate(w, replicas, mine) || !r.startable(w) {
		r.keepAsItIs(InstanceID{w.KeyHash, mine.Slot, w.Digest})
		return
	}
	if startsFirst(w) && r.fits(w) {
		r.start(w, mine.Slot)
		return
	}
	if serves && !r.admitted(w, mine.Slot) {
		return
	}
	for _, instance := range instances {
		if w.Spec.Replicas > 1 {
			r.retireServing(w, instance) // the other replicas serve meanwhile
		} else {
			r.stop(w, instance)
		}
	}
}

// halted reports a rollout that has failed: what still serves is not replaced by what does not.
func (r *run) halted(keyHash uint64) bool { return r.Halted != nil && r.Halted(keyHash) }

// startable reports whether all that an instance needs besides its specification is here (F83).
func (r *run) startable(w *placement.Workload) bool { return r.Startable == nil || r.Startable(w) }

// startsFirst reports whether two instances of the workload can live on one cell for a while.
func startsFirst(w *placement.Workload) bool {
	for i := range w.Spec.Ports {
		if w.Spec.Ports[i].Host != 0 {
			return false
		}
	}
	return !w.Spec.Stateful && len(w.Spec.Volumes) == 0
}

// mayUpdate reports whether replacing a READY instance keeps the workload within max_unavailable:
// of the other ranks, fewer than that many lack what they should have, which is the wanted digest for
// lower ranks and any for higher ones. min_ready asks that this has been so for a while.
func (r *run) mayUpdate(w *placement.Workload, replicas []placement.Replica, mine *placement.Replica) bool {
	budget := max(1, int(w.Spec.Update.UnavailableMax))
	for i := range replicas {
		replica := &replicas[i]
		switch {
		case replica.Rank < mine.Rank && !r.Ready(w.KeyHash, replica.Cell, replica.Slot, w.Digest),
			replica.Rank > mine.Rank && !r.ReadyOld(w.KeyHash, replica.Cell, replica.Slot):
			budget--
			if budget == 0 {
				return false
			}
		}
	}
	if w.Spec.Update.MinReadySeconds == 0 || mine.Rank == 0 {
		return true
	}
	open := renew(r.gates, slotID{w.KeyHash, mine.Slot}, r.now, r.round).
		Add(time.Duration(w.Spec.Update.MinReadySeconds) * time.Second)
	if open.Reached(r.now) {
		return true
	}
	r.wake(open)
	return false
}

func (r *run) start(w *placement.Workload, slot uint16) {
	if r.HoldStarts || w.Spec.Stateful && r.Occupied != nil && r.Occupied(w.KeyHash, slot) || !r.startable(w) {
		return
	}
	r.starts = append(r.starts, startRequest{w, slot})
}

// stop asks for the end of an instance unless it is on its way already.
func (r *run) stop(w *placement.Workload, instance *Actual) {
	r.going = append(r.going, instance)
	r.stopNow(w, instance)
}

// stopNow is stop for an instance that is known to leave.
func (r *run) stopNow(w *placement.Workload, instance *Actual) {
	if instance.State == Stopping {
		return
	}
	grace := instance.Grace
	if grace == 0 && w != nil && w.Spec != nil {
		grace = time.Duration(w.Spec.StopGraceSeconds) * time.Second
	}
	if grace == 0 {
		grace = GraceDefault
	}
	r.stops = append(r.stops, Action{Kind: Stop, ID: instance.ID, Key: instance.Key, Grace: grace})
}

// emit turns the decisions into actions, leaving out what was asked for less than RepeatInterval ago
// (F131) and starts whose host ports are still held by an instance that leaves.
func (r *run) emit() {
	slices.SortFunc(r.starts, func(a, b startRequest) int {
		return cmp.Or(cmp.Compare(b.workload.Spec.Priority, a.workload.Spec.Priority),
			cmp.Compare(a.workload.KeyHash, b.workload.KeyHash), cmp.Compare(a.slot, b.slot))
	})
	r.relieve()
	for _, start := range r.starts {
		w := start.workload
		r.displace(w)
		if r.portHeld(w) || r.crowded(w) {
			continue
		}
		r.startingCPU += uint64(w.Spec.CPUMillicores)
		r.startingMemory += uint64(w.Spec.MemoryMiB)
		r.startingCount++
		r.ready = append(r.ready, start)
	}
	for _, action := range r.stops {
		r.ask(action)
	}
	for _, start := range r.ready {
		w := start.workload
		r.ask(Action{Kind: Start, ID: InstanceID{w.KeyHash, start.slot, w.Digest}, Key: w.Key, Spec: w.Encoded})
	}
	for _, action := range r.again {
		r.ask(action)
	}
	for _, action := range r.checks {
		r.ask(action)
	}
	r.askPreparations()
}

// portHeld reports whether an instance that leaves this cell has a host port of the workload. Reports
// carry no protocol, so equal numbers of TCP and UDP wait for each other; that ends at the latest
// SurplusMax later.
func (r *run) portHeld(w *placement.Workload) bool {
	return slices.ContainsFunc(r.going, func(instance *Actual) bool { return wantsPortOf(w, instance) })
}

// wantsPortOf reports whether the workload asks for a host port that an instance has.
func wantsPortOf(w *placement.Workload, instance *Actual) bool {
	return slices.ContainsFunc(w.Spec.Ports, func(port workload.Port) bool {
		return port.Host != 0 && slices.Contains(instance.Ports, port.Host)
	})
}

func (r *run) ask(action Action) {
	key := actionID{action.Kind, action.ID}
	m, ok := r.asked[key]
	m.round = r.round
	if repeat := m.since.Add(RepeatInterval); ok && !repeat.Reached(r.now) {
		r.asked[key] = m
		r.wake(repeat)
		return
	}
	m.since = r.now
	r.asked[key] = m
	if action.Kind == Check {
		r.wake(r.now.Add(AdmissionPatience))
	}
	r.wake(r.now.Add(RepeatInterval))
	r.actions = append(r.actions, action)
}

// isWanted reports whether the plan has the slot on the cell.
func isWanted(replicas []placement.Replica, self wire.CellID, slot uint16) bool {
	for i := range replicas {
		if replicas[i].Cell == self && replicas[i].Slot == slot {
			return true
		}
	}
	return false
}
