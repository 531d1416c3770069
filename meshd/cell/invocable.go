package cell

import (
	"cmp"
	"fmt"

	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
	"colloid.net/workload"
)

// Serves reports what a cell says of its instances of a module: 2 = one is ready or, on its way out, still serves;
// 1 = one runs and may be soon, or nothing is known; 0 = all have ended.
func (c *Cell) Serves(workloadName string, on wire.CellID) int {
	endpoint := c.views.endpoints[endpointID{on, workloadName}]
	if endpoint == nil || len(endpoint.Instances) == 0 {
		return 1
	}
	best := 0
	for _, instance := range endpoint.Instances {
		switch instance.State {
		case state.EndpointReady, state.EndpointDraining:
			return 2
		case state.EndpointStarting, state.EndpointUnready:
			best = 1
		}
	}
	return best
}

// WhyNotInvoked says why no instance of a workload of this bare name takes an invocation, as far as this cell knows.
// again: in a moment one may.
func (c *Cell) WhyNotInvoked(workloadName string) (text string, again bool) {
	var view *workloadView
	for _, kind := range workloadKinds {
		if other := c.views.workloads[kind+workloadName]; other != nil && (view == nil || isModule(other)) {
			view = other
		}
	}
	switch {
	case view == nil:
		return fmt.Sprintf("no workload is named %.80q: see `colloid status`", workloadName), false
	case !isModule(view):
		return view.key + " is no module: only modules have functions to invoke", false
	}
	c.freshPlan()
	status := c.workloadStatus(view)
	ended := ""
	for _, instance := range status.Instances {
		of := fmt.Sprintf("the instance of %s on cell %s", view.key, instance.Cell)
		switch instance.State {
		case state.EndpointReady.String(), state.EndpointDraining.String():
			return of + " does not answer or has just ended: try again", true
		case state.EndpointStarting.String(), state.EndpointUnready.String():
			text = of + " is starting"
			if instance.Restarts > 0 {
				text += fmt.Sprintf(", after %d restarts", instance.Restarts)
			}
			if instance.Reason != "" {
				text += ", " + instance.Reason
			}
			return text + ": try again", true
		case "unreachable":
			ended = cmp.Or(ended, fmt.Sprintf("cell %s, which has an instance of %s, is unreachable", instance.Cell, view.key))
		default:
			ended = cmp.Or(ended, of+" has ended: "+cmp.Or(instance.Reason, "see `colloid explain "+view.key+"`"))
		}
	}
	if ended != "" {
		return ended, false
	}
	if status.Reason != "" {
		return fmt.Sprintf("%s has no instance: %s, %s", view.key, status.State, status.Reason), false
	}
	return fmt.Sprintf("%s has no instance yet (%s): try again", view.key, status.State), true
}

// isModule reports whether a workload holds a module, or what cannot be read and may be one.
func isModule(view *workloadView) bool {
	return view.spec == nil || view.spec.Runtime == workload.RuntimeWasm
}
