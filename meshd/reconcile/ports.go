package reconcile

import (
	"slices"

	"colloid.net/meshd/placement"
	"colloid.net/workload"
)

// blocked reports whether an instance of another workload has a host port of this one. The plan gives a port to one
// workload, but what runs may be of another time: a frozen key keeps what it runs (F57), and an older instance stays
// until the new one of its slot is ready (simulator, seeds 76 and 160). A start beside it could not succeed, so it waits;
// those that leave are waited for as well (portHeld).
func (r *run) blocked(w *placement.Workload) bool {
	for _, port := range w.Spec.Ports {
		for _, instance := range r.actual {
			if port.Host != 0 && slices.Contains(instance.Ports, port.Host) && instance.ID.KeyHash != w.KeyHash &&
				instance.State != Denied && instance.State != Exited && publishes(instance, port) {
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
