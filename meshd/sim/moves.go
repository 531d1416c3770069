package sim

import (
	"fmt"
	"strings"
	"time"

	"colloid.net/meshd/cell"
	"colloid.net/meshd/placement"
	"colloid.net/meshd/reconcile"
	"colloid.net/meshd/state"
)

// surplusID is an instance on a machine.
type surplusID struct {
	node *Node
	id   reconcile.InstanceID
}

// surplus is how long the plan of its own cell has had no place for an instance.
type surplus struct {
	since time.Duration // first moment without a place
	back  time.Duration // since when it has a place again, 0 = it has none
}

// moves is what checkMoves remembers.
type moves struct {
	plans   map[*Node]*placement.Plan
	surplus map[surplusID]surplus
}

// briefly is how long an instance must have a place again before its time without one is forgotten. The cell may not
// have looked meanwhile.
const briefly = 10 * time.Second

// answersFor is how long a machine must be undisturbed before others can rely on what it said last.
const answersFor = 15 * time.Second

// checkMoves is make before break (F75): a replica that moves is stopped when all that are placed elsewhere really serve, or
// after 120 s, so that nobody is without it because of a move.
func checkMoves() *Checker {
	m := &moves{plans: make(map[*Node]*placement.Plan), surplus: make(map[surplusID]surplus)}
	return &Checker{Name: "F75-move", Step: m.note, Action: m.stops}
}

// note keeps the times without a place.
func (m *moves) note(w *World, n *Node) error {
	if n.cell == nil || n.cell.Plan() == m.plans[n] {
		return nil
	}
	plan := n.cell.Plan()
	m.plans[n] = plan
	for id := range m.surplus {
		if id.node == n && n.host.instances[id.id] == nil {
			delete(m.surplus, id)
		}
	}
	for id := range n.host.instances {
		s, known := m.surplus[surplusID{n, id}]
		placed := hasSlot(plan, n, id)
		switch {
		case placed && known && s.back == 0:
			s.back = w.now
		case placed:
			continue
		case !known || s.back != 0 && w.now-s.back > briefly:
			s = surplus{since: w.now}
		default:
			s.back = 0
		}
		m.surplus[surplusID{n, id}] = s
	}
	return nil
}

// hasSlot reports whether a plan has a replica in the slot of an instance.
func hasSlot(plan *placement.Plan, n *Node, id reconcile.InstanceID) bool {
	return plan != nil && placedOn(plan.Of(id.KeyHash), placement.Replica{Cell: n.cell.Self(), Slot: id.Slot})
}

// stops judges a stop of something that serves and has no place here any more.
func (m *moves) stops(w *World, n *Node, action reconcile.Action) error {
	stopped := n.host.instances[action.ID]
	if action.Kind != reconcile.Stop || stopped == nil || stopped.state != reconcile.Ready ||
		strings.HasPrefix(action.Key, state.PrefixStateful) || n.cell.Phase() == cell.Leaving ||
		hasSlot(n.cell.Plan(), n, action.ID) {
		return nil
	}
	if s, known := m.surplus[surplusID{n, action.ID}]; known && w.now-s.since >= reconcile.SurplusMax {
		return nil
	}
	_, workloads, current := n.cell.PlanInput()
	if !current {
		return nil
	}
	for i := range workloads {
		if wanted := &workloads[i]; wanted.KeyHash == action.ID.KeyHash && wanted.Spec.Replicas > 0 {
			return w.served(n, wanted)
		}
	}
	return nil // nobody wants it any more
}

// served reports a replica that a cell has placed elsewhere and that does not serve there, although nothing has happened
// to its machine.
func (w *World) served(n *Node, wanted *placement.Workload) error {
	replicas := n.cell.Plan().Of(wanted.KeyHash)
	if len(replicas) > 0 {
		w.examined("F75-move")
	}
	for _, replica := range replicas {
		other := w.holder(replica)
		if other == nil || other == n || other.QuietFor() < answersFor || other.host.away || w.now < w.trouble+answersFor {
			continue
		}
		i := other.host.instances[reconcile.InstanceID{KeyHash: wanted.KeyHash, Slot: replica.Slot, Digest: wanted.Digest}]
		if i == nil || i.state != reconcile.Ready {
			return fmt.Errorf("n%d stops %s, which is to move, and n%d does not serve it yet", n.Index, wanted.Key, other.Index)
		}
	}
	return nil
}

// holder is the machine of a placed replica.
func (w *World) holder(replica placement.Replica) *Node {
	for _, n := range w.nodes {
		if n.cell != nil && n.cell.Self() == replica.Cell {
			return n
		}
	}
	return nil
}
