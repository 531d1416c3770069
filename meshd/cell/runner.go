package cell

import (
	"fmt"
	"slices"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/reconcile"
	"colloid.net/meshd/state"
	"colloid.net/workload"
)

// runnerState is what this cell knows of its runnerd and of the instances on this host.
type runnerState struct {
	connected bool
	hello     HelperHello
	known     bool                                      // a Hello was seen in this run
	listed    bool                                      // the list of instances is complete
	actual    map[reconcile.InstanceID]reconcile.Actual // instances that exist here
	unlisted  map[reconcile.InstanceID]struct{}         // known before this connection, not yet named in it
	published map[string]struct{}                       // workloads with an ep.* key of this cell
	denials   map[denialID]denialAge                    // refusals of this cell that were looked at
	holds     clock.Instant                             // end of the next re-admission hold
	retry     clock.Instant
	away      clock.Instant // since when it is not connected or does not answer, while it is so
	silent    bool          // it is connected and answers nothing
	marked    bool          // the contact says that it is away
	ranBefore bool          // what the state had at the start says that instances are here
}

func (r *runnerState) init() {
	r.actual = make(map[reconcile.InstanceID]reconcile.Actual)
	r.published = make(map[string]struct{})
	r.denials = make(map[denialID]denialAge)
	r.holds = clock.Never
}

// runnerFlagsMask are the flags that runnerd decides about.
const runnerFlagsMask = state.FlagProcess | state.FlagOCI | state.FlagWasm | state.FlagForbidsProcess |
	state.FlagForbidsOCI | state.FlagForbidsWasm

func (r *runnerState) flags(degraded bool) uint32 {
	flags := uint32(0)
	if r.known {
		flags = r.hello.Flags & runnerFlagsMask
	}
	if degraded {
		flags |= state.FlagDegraded
	}
	return flags
}

func (r *runnerState) capacity() state.CellCapacity {
	if !r.known {
		return state.CellCapacity{}
	}
	return r.hello.Capacity
}

// HelperHello starts a connection with runnerd, or a whole listing in one. What the helper does not list afterwards is gone.
func (c *Cell) HelperHello(now clock.Instant, hello HelperHello) {
	c.now = now
	c.reconciler.Greeted(now, !c.runner.connected)
	c.runner.connected, c.runner.known, c.runner.listed, c.runner.marked = true, true, false, false
	c.runner.silent = false
	c.runner.hello = hello
	c.runner.unlisted = make(map[reconcile.InstanceID]struct{}, len(c.runner.actual))
	for id := range c.runner.actual {
		c.runner.unlisted[id] = struct{}{}
	}
	if c.phase != Booting {
		c.restate()
	}
	// The policy may have changed: earlier refusals are withdrawn and earned again (D2).
	for _, id := range sortedEndpointIDs(c.views.denials) {
		if id.cell == c.config.Self {
			c.publish(state.DenyKey(id.cell, id.workload), nil)
		}
	}
	c.views.runDirty = true
	c.drain()
}

// HelperInstance reports one instance.
func (c *Cell) HelperInstance(now clock.Instant, actual reconcile.Actual) {
	c.now = now
	delete(c.runner.unlisted, actual.ID)
	switch actual.State {
	case reconcile.Gone:
		delete(c.runner.actual, actual.ID)
	default:
		if _, known := c.runner.actual[actual.ID]; !known && len(c.runner.actual) >= instancesMax {
			c.counters.rejected++
			return
		}
		if spec, err := workload.Decode(actual.Spec); err == nil {
			actual.CPUMillicores, actual.MemoryMiB = spec.CPUMillicores, spec.MemoryMiB
			if actual.Grace == 0 {
				actual.Grace = time.Duration(spec.StopGraceSeconds) * time.Second
			}
		}
		c.runner.actual[actual.ID] = actual
	}
	if actual.State == reconcile.Denied {
		c.publishDenial(actual)
	}
	c.views.runDirty = true
	c.publishEndpoint(actual.Key)
	c.drain()
}

// instancesMax bounds what a helper may report; more are ignored and counted.
const instancesMax = 4096

// HelperListing ends the list of instances that follows a Hello.
func (c *Cell) HelperListing(now clock.Instant) {
	c.now = now
	for id := range c.runner.unlisted {
		delete(c.runner.actual, id)
	}
	c.runner.unlisted = nil
	c.runner.listed = true
	c.views.runDirty = true
	if c.phase != Booting {
		c.publishEndpoints()
	}
	c.drain()
}

// HelperGone notes that runnerd is not connected. Its instances go on living (F134).
func (c *Cell) HelperGone(now clock.Instant) {
	c.now = now
	if c.runner.connected && !c.runner.silent {
		c.runner.away = now
	}
	c.runner.connected, c.runner.listed, c.runner.silent = false, false, false
}

// HelperSilent notes that runnerd is connected but has answered nothing for a while: it hangs, and nobody looks after
// what runs here, as if it were gone.
func (c *Cell) HelperSilent(now clock.Instant, since time.Duration) {
	c.now = now
	if c.runner.connected && !c.runner.silent {
		c.runner.silent, c.runner.away = true, max(c.started, now.Add(-since))
		c.log(LevelWarning, "runnerd is connected but does not answer")
	}
}

// HelperAnswers ends what HelperSilent said.
func (c *Cell) HelperAnswers(now clock.Instant) {
	c.now = now
	if c.runner.silent {
		c.runner.silent, c.views.runDirty = false, true
		c.log(LevelInfo, "runnerd answers again")
	}
}

// works reports whether runnerd is there and does what it is told.
func (r *runnerState) works() bool { return r.connected && !r.silent }

func (c *Cell) publishDenial(actual reconcile.Actual) {
	denial := state.CellDenial{KeyHash: actual.ID.KeyHash, Digest: actual.ID.Digest, Reason: actual.Reason}
	c.publish(state.DenyKey(c.config.Self, state.WorkloadName(actual.Key)), state.AppendCellDenial(nil, denial))
}

// publishEndpoints states where all instances of this cell answer, and withdraws what is no more.
func (c *Cell) publishEndpoints() {
	if !c.runner.listed {
		return
	}
	names := make(map[string]struct{})
	for _, actual := range c.runner.actual {
		names[actual.Key] = struct{}{}
	}
	for _, id := range sortedEndpointIDs(c.views.endpoints) {
		if id.cell != c.config.Self {
			continue
		}
		alive := false
		for key := range names {
			alive = alive || state.WorkloadName(key) == id.workload
		}
		if !alive {
			c.publish(state.EndpointKey(id.cell, id.workload), nil)
		}
	}
	keys := make([]string, 0, len(names))
	for key := range names {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for _, key := range keys {
		c.publishEndpoint(key)
	}
}

// publishEndpoint states where this cell's instances of one workload answer (F101, F158).
func (c *Cell) publishEndpoint(key string) {
	if c.phase == Booting || !c.runner.listed {
		return
	}
	name := state.WorkloadName(key)
	endpoint := state.CellEndpoint{KeyHash: c.store.Hash([]byte(key)), Address: c.ownAddress()}
	for _, actual := range c.actualSorted() {
		if actual.Key != key {
			continue
		}
		if instance, ok := endpointInstance(actual); ok {
			if instance.State == state.EndpointReady && c.reconciler.Draining(actual.ID) {
				instance.State = state.EndpointDraining
			}
			endpoint.Instances = append(endpoint.Instances, instance)
		}
	}
	if len(endpoint.Instances) == 0 {
		c.publish(state.EndpointKey(c.config.Self, name), nil)
		return
	}
	c.markMoved(key, &endpoint)
	c.publish(state.EndpointKey(c.config.Self, name), state.AppendCellEndpoint(nil, endpoint))
}

func endpointInstance(actual reconcile.Actual) (state.EndpointInstance, bool) {
	instance := state.EndpointInstance{
		Slot: actual.ID.Slot, Digest: actual.ID.Digest, Ports: actual.Ports,
		Restarts: uint16(min(actual.Restarts, 65535)), Pod: actual.Address,
	}
	switch actual.State {
	case reconcile.Starting:
		instance.State = state.EndpointStarting
		if actual.PID != 0 { // before that: how far a pull is, which changes all the time
			instance.Reason = actual.Reason
		}
	case reconcile.Ready:
		instance.State = state.EndpointReady
	case reconcile.Unready:
		instance.State, instance.Reason = state.EndpointUnready, actual.Reason
	case reconcile.Stopping:
		instance.State = state.EndpointDraining
	case reconcile.Backoff:
		instance.State, instance.Reason = state.EndpointBackoff, whyEnded(&actual)
	case reconcile.Exited:
		instance.State, instance.ExitCode, instance.Reason = state.EndpointExited, actual.ExitCode, actual.Reason
	default:
		return instance, false
	}
	return instance, true
}

// whyEnded is the reason of an instance that has ended and will be started again.
func whyEnded(actual *reconcile.Actual) string {
	if actual.Reason == "" {
		return fmt.Sprintf("ended with exit code %d", actual.ExitCode)
	}
	return actual.Reason
}

// actualSorted returns the instances in a fixed order: decisions must not depend on a map's.
// Instances lists what runnerd reports of the instances of a workload on this cell, in order.
func (c *Cell) Instances(key string) []reconcile.Actual {
	return slices.DeleteFunc(c.actualSorted(), func(a reconcile.Actual) bool { return a.Key != key })
}

func (c *Cell) actualSorted() []reconcile.Actual {
	list := make([]reconcile.Actual, 0, len(c.runner.actual))
	for _, actual := range c.runner.actual {
		list = append(list, actual)
	}
	slices.SortFunc(list, func(a, b reconcile.Actual) int { return a.ID.Compare(b.ID) })
	return list
}
