package cell

import "colloid.net/meshd/state"

// denialPauseMax bounds how long a refusal is believed, in periods of garbageInterval.
const denialPauseMax = 16

// denialID is what a host refused: a workload in one version.
type denialID struct{ keyHash, digest uint64 }

// denialAge is how a refusal of this cell grows old, in periods of garbageInterval.
type denialAge struct {
	left  int // until it is withdrawn
	pause int // how long it was believed the last time
}

// reviewDenials withdraws refusals of this cell once in a while, so that they are earned anew. Not all of them come
// from a policy, whose change withdraws them at once: a registry that had no such image may have it now, and a
// file that was missing may be there. The first time that is after one or two periods, then after twice as many as
// the last time. While every copy has a place elsewhere nothing is gained by asking again, and a refusal stays. One
// of a workload that is no more goes. It runs once per garbageInterval.
func (c *Cell) reviewDenials() {
	for id := range c.runner.denials {
		if view := c.views.byHash[id.keyHash]; view == nil || view.digest != id.digest {
			delete(c.runner.denials, id) // so there are at most as many as workloads
		}
	}
	if !c.runner.listed || c.phase == Booting {
		return
	}
	for _, at := range sortedEndpointIDs(c.views.denials) {
		if at.cell != c.config.Self {
			continue
		}
		denial := c.views.denials[at]
		view := c.views.byHash[denial.KeyHash]
		if view == nil {
			c.publish(state.DenyKey(at.cell, at.workload), nil)
			continue
		}
		if unplaced, _ := c.plan.Unplaced(view.hash); unplaced == 0 || view.digest != denial.Digest {
			continue
		}
		id := denialID{view.hash, view.digest}
		age := c.runner.denials[id]
		if age.pause == 0 {
			age = denialAge{left: 1, pause: 1}
		}
		if age.left--; age.left <= 0 {
			c.publish(state.DenyKey(at.cell, at.workload), nil)
			age.pause = min(2*age.pause, denialPauseMax)
			age.left = age.pause
		}
		c.runner.denials[id] = age
	}
}
