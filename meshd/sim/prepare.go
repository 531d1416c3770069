package sim

import (
	"fmt"
	"slices"
	"time"

	"colloid.net/meshd/cell"
	"colloid.net/meshd/clock"
	"colloid.net/meshd/placement"
	"colloid.net/meshd/reconcile"
	"colloid.net/workload"
)

// preparing is what a host fetches ahead, one after the other. What it has fetched is on its disk and survives a loss of
// power, what it was asked for does not.
type preparing struct {
	// Fetch is how long it takes to fetch and compile what an image or a module needs. A start of what is not here takes
	// as much longer.
	Fetch time.Duration
	// Missing says why a specification cannot be prepared, "" if it can.
	Missing func(spec *workload.Spec) string
	// Old is a runnerd that knows no Prepare.
	Old bool
	// Mute is one that never answers any.
	Mute bool

	Prepared int             // how often it was asked to
	here     map[string]bool // images and modules on the disk
	line     []reconcile.Action
	busy     bool
	fetched  int // how often it has tried
}

// fetchFailsOneIn is how often fetching ahead fails in random runs: until it is tried again.
const fetchFailsOneIn = 5

// prepareTime is what random runs have; long enough that much happens meanwhile.
const prepareTime = 700 * time.Millisecond

// prepare takes one request. A repeated one is answered once more, at once if all is here.
func (h *host) prepare(action reconcile.Action) {
	h.Prepared++
	spec, err := workload.Decode(action.Spec)
	if err != nil {
		panic("sim: an invalid specification of " + action.Key + " is to be prepared: " + err.Error())
	}
	if h.instances[action.ID] != nil {
		h.answer(action, "")
		return
	}
	if h.Deny != nil {
		if reason := h.Deny(spec); reason != "" {
			h.deny(&instance{id: action.ID, key: action.Key, spec: action.Spec, runs: spec}, reason)
			return
		}
	}
	if h.Mute {
		return
	}
	h.line = append(h.line, action)
	h.work()
}

// withdraw takes a request back that waits; one that is under way is answered, and nobody listens.
func (h *host) withdraw(action reconcile.Action) {
	h.line = slices.DeleteFunc(h.line, func(a reconcile.Action) bool { return a.ID == action.ID })
}

// work prepares the first in line.
func (h *host) work() {
	if h.busy || len(h.line) == 0 {
		return
	}
	action := h.line[0]
	spec, _ := workload.Decode(action.Spec)
	h.line = h.line[1:]
	h.busy = true
	run, connection := h.run, h.connection
	took := h.Fetch
	if h.here[spec.Image] {
		took = time.Millisecond
	}
	h.node.world.After(took, func() {
		if h.run != run || h.connection != connection {
			return
		}
		h.busy = false
		failure := ""
		if h.fetched++; h.node.world.flaky && h.fetched%fetchFailsOneIn == 0 && !h.here[spec.Image] {
			failure = "the registry does not answer"
		} else if h.Missing != nil {
			failure = h.Missing(spec)
		}
		if failure == "" {
			h.here[spec.Image] = true
		}
		h.node.world.Tracef("n%d has prepared %s%s", h.node.Index, action.Key, map[bool]string{true: " in vain: " + failure}[failure != ""])
		h.answer(action, failure)
		h.work()
	})
}

func (h *host) answer(action reconcile.Action, failure string) {
	if !h.away {
		h.node.input(func(now clock.Instant) { h.node.cell.HelperPrepared(now, action.ID, failure) })
	}
}

// dropPreparing is the end of a connection, of runnerd or of the machine: nobody is answered any more.
func (h *host) dropPreparing() {
	h.line, h.busy = nil, false
	h.connection++
}

// fetchTime is how much longer a start takes because not all that it needs is here.
func (h *host) fetchTime(spec *workload.Spec) time.Duration {
	if !placement.Fetches(spec) || h.here[spec.Image] {
		return 0
	}
	h.here[spec.Image] = true
	return h.Fetch
}

// checkStandingBy is that a cell prepares only what it runs an older version of, or stands by for, never while it boots or
// before its state is known to be the cluster's, and asks its host for a bounded number at a time.
func checkStandingBy() *Checker {
	return &Checker{Name: "STANDBY", Action: func(w *World, n *Node, action reconcile.Action) error {
		if action.Kind != reconcile.Prepare {
			return nil
		}
		w.examined("STANDBY")
		spec, err := workload.Decode(action.Spec)
		switch {
		case err != nil || !placement.Fetches(spec):
			return fmt.Errorf("n%d prepares %s, which needs nothing", n.Index, action.Key)
		case n.cell.Phase() != cell.Active || !n.cell.MayStart():
			return fmt.Errorf("n%d prepares %s while it is %s and may start nothing", n.Index, action.Key, n.cell.Phase())
		case n.host.Old:
			return fmt.Errorf("n%d asks a runnerd to prepare %s that knows nothing of it", n.Index, action.Key)
		case len(n.host.line)+1 > reconcile.PreparesMax:
			return fmt.Errorf("n%d has %d requests to prepare under way", n.Index, len(n.host.line)+1)
		}
		if _, ok := n.cell.Plan().StandsBy(action.ID.KeyHash, n.ID()); ok || n.updates(action.ID) {
			return nil
		}
		return fmt.Errorf("n%d prepares %s, for which it does not stand by", n.Index, action.Key)
	}}
}

// updates reports whether an older version of an instance is here.
func (n *Node) updates(id reconcile.InstanceID) bool {
	for other := range n.host.instances {
		if other.KeyHash == id.KeyHash && other.Slot == id.Slot && other.Digest != id.Digest {
			return true
		}
	}
	return false
}
