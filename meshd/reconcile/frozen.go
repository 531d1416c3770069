package reconcile

import (
	"slices"

	"colloid.net/meshd/placement"
	"colloid.net/workload"
)

// blocked reports whether an instance that nobody may touch, because its key is frozen (F57), has a host port of a
// workload. The plan reserves for a frozen key what it says now, where it would be placed now, and this instance may be
// of another time and place (simulator, seed 76). A start beside it could not succeed, so it waits until somebody has
// decided.
func (r *run) blocked(w *placement.Workload) bool {
	for _, port := range w.Spec.Ports {
		for _, instance := range r.actual {
			if port.Host != 0 && slices.Contains(instance.Ports, port.Host) && instance.ID.KeyHash != w.KeyHash &&
				r.frozen(instance.ID.KeyHash) && publishes(instance, port) {
				return true
			}
		}
	}
	return false
}

// publishes reports whether an instance that has a port of this number has it for this protocol: reports say only the
// number, the specification says both.
func publishes(instance *Actual, port workload.Port) bool {
	spec, err := workload.Decode(instance.Spec)
	return err != nil || slices.ContainsFunc(spec.Ports, func(p workload.Port) bool {
		return p.Host == port.Host && p.Protocol == port.Protocol
	})
}
