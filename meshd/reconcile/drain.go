package reconcile

import (
	"cmp"
	"slices"
	"time"

	"colloid.net/meshd/placement"
)

// Linger is how long an instance that serves is announced as draining before it is stopped. A change of an
// endpoint reaches every cell in about a second, so whoever sends requests has turned to others by then (F75).
const Linger = 2 * time.Second

// Draining reports whether the last Run decided that an instance leaves service: its endpoint must not be
// called ready any more.
func (r *Reconciler) Draining(id InstanceID) bool {
	_, ok := r.draining[id]
	return ok
}

// DrainingChanged lists the instances whose Draining is another than before the last Run, sorted. It is valid
// until the next Run.
func (r *Reconciler) DrainingChanged() []InstanceID { return r.drainingChanged }

// retireServing ends an instance for which there are others to serve: it lingers first.
func (r *run) retireServing(w *placement.Workload, instance *Actual) {
	if instance.State != Ready {
		r.stop(w, instance)
		return
	}
	if !r.Draining(instance.ID) {
		r.drainingChanged = append(r.drainingChanged, instance.ID)
	}
	end := renew(r.draining, instance.ID, r.now, r.round).Add(Linger)
	if end.Reached(r.now) {
		r.stop(w, instance)
		return
	}
	r.going = append(r.going, instance)
	r.wake(end)
}

// endDraining drops the marks that this Run did not renew: their instances are gone, or stay after all.
func (r *Reconciler) endDraining() {
	for id, m := range r.draining {
		if m.round != r.round {
			delete(r.draining, id)
			r.drainingChanged = append(r.drainingChanged, id)
		}
	}
	slices.SortFunc(r.drainingChanged, func(a, b InstanceID) int { return a.Compare(b) })
}

// fits reports whether this cell has room for one more instance beside all that are here, by what was asked
// for. Figures that are 0 set no limit (F72).
func (r *run) fits(w *placement.Workload) bool { return r.fitsWithout(w, nil) }

// fitsWithout is fits as if some instances had gone already.
func (r *run) fitsWithout(w *placement.Workload, gone []*Actual) bool {
	processor, memory, count := r.startingCPU+uint64(w.Spec.CPUMillicores), r.startingMemory+uint64(w.Spec.MemoryMiB),
		r.startingCount+1
	for _, instance := range r.actual {
		if instance.State != Denied && !slices.Contains(gone, instance) {
			processor += uint64(instance.CPUMillicores)
			memory += uint64(instance.MemoryMiB)
			count++
		}
	}
	limit := &r.Capacity
	return (limit.CPUMillicores == 0 || w.Spec.CPUMillicores == 0 || processor <= uint64(limit.CPUMillicores)) &&
		(limit.MemoryMiB == 0 || w.Spec.MemoryMiB == 0 || memory <= uint64(limit.MemoryMiB)) &&
		(limit.InstancesMax == 0 || count <= uint64(limit.InstancesMax))
}

// displace ends instances that only stay because no cell may run their workload, where a start that is planned here
// needs their ports or their room and is of no lower priority. The plan reserves nothing for them, so nobody else
// would make way, and runnerd would refuse the start again and again (F72).
func (r *run) displace(w *placement.Workload) {
	for _, h := range r.homeless {
		if h.workload.Spec.Priority <= w.Spec.Priority && !slices.Contains(r.going, h.instance) &&
			(wantsPortOf(w, h.instance) || !r.fitsWithout(w, r.going)) {
			r.stop(h.workload, h.instance)
		}
	}
}

// relieve ends instances that only stay because no cell may run their workload, of the lowest priority first, where this
// cell has become smaller than what is here: what else would leave, if nothing is to start that needs the room (F72)?
func (r *run) relieve() {
	for !r.withinCapacity() {
		var least *yield
		for i := range r.homeless {
			h := &r.homeless[i]
			if !slices.Contains(r.going, h.instance) && (least == nil || h.workload.Spec.Priority < least.workload.Spec.Priority) {
				least = h
			}
		}
		if least == nil {
			return
		}
		r.stop(least.workload, least.instance)
	}
}

// withinCapacity reports whether what is here and stays is no more than this cell has. Figures that are 0 set no limit.
func (r *run) withinCapacity() bool {
	var processor, memory, count uint64
	for _, instance := range r.actual {
		if instance.State != Denied && !slices.Contains(r.going, instance) {
			processor += uint64(instance.CPUMillicores)
			memory += uint64(instance.MemoryMiB)
			count++
		}
	}
	limit := &r.Capacity
	return (limit.CPUMillicores == 0 || processor <= uint64(limit.CPUMillicores)) &&
		(limit.MemoryMiB == 0 || memory <= uint64(limit.MemoryMiB)) &&
		(limit.InstancesMax == 0 || count <= uint64(limit.InstancesMax))
}

// yield is an instance that lost its place to others for lack of room.
type yield struct {
	workload *placement.Workload
	instance *Actual
}

// crowded reports whether a start has to wait for the room of instances that leave, or for a port. Those that lost their
// place to a workload of higher priority are told to leave now: nobody is going to replace them.
func (r *run) crowded(w *placement.Workload) bool {
	if r.blocked(w) {
		return true
	}
	if r.fits(w) {
		return false
	}
	for _, y := range r.yields {
		if cmp.Compare(y.workload.Spec.Priority, w.Spec.Priority) < 0 {
			r.stopNow(y.workload, y.instance)
		}
	}
	return len(r.going) > 0
}
