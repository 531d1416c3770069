package sim

import (
	"bytes"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"colloid.net/meshd/cell"
	"colloid.net/meshd/crdt"
	"colloid.net/meshd/reconcile"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// Checkers returns a fresh set of all rules that hold in every run, whatever the faults.
func Checkers() []*Checker {
	return []*Checker{
		checkConflictFreezes(), checkConflictIsSeen(), checkNothingStopsEarly(), checkStatefulOnce(),
		checkDeaths(), checkSameState(), checkSamePlan(), checkIdle(), checkAmplification(), checkBounds(),
		checkVersions(), checkMovement(),
		checkUpdates(), checkEnvironments(), checkStandingBy(),
		checkSuspicions(), checkSpreading(), checkMoves(), checkRoom(), checkDrains(), checkCollection(), checkLogged(),
	}
}

func stack() string { return string(debug.Stack()) }

// checkConflictFreezes is SAFE-1: no command for a key in CONFLICT (F57), unless an operator told the cell to
// leave by force.
func checkConflictFreezes() *Checker {
	return &Checker{Name: "SAFE-1", Action: func(w *World, n *Node, action reconcile.Action) error {
		if len(n.cell.ConflictKeys()) > 0 {
			w.examined("SAFE-1")
		}
		register, found := n.cell.Store().Get([]byte(action.Key))
		if found && register.Conflicted() && !(action.Kind == reconcile.Stop && n.forced && n.cell.Phase() == cell.Leaving) {
			return fmt.Errorf("n%d: %v of %s, which is in CONFLICT", n.Index, action.Kind, action.Key)
		}
		return nil
	}}
}

// checkNothingStopsEarly is F5: no stop before the state is authoritative.
func checkNothingStopsEarly() *Checker {
	return &Checker{Name: "F5", Action: func(w *World, n *Node, action reconcile.Action) error {
		if action.Kind == reconcile.Stop {
			w.examined("F5")
		}
		if action.Kind == reconcile.Stop && n.cell.Phase() == cell.Booting {
			return fmt.Errorf("n%d stops %s while booting", n.Index, action.Key)
		}
		return nil
	}}
}

// checkConflictIsSeen is SAFE-2: what a cell shows as CONFLICT is what its registers say, by themselves.
func checkConflictIsSeen() *Checker {
	look := func(w *World) error {
		for _, n := range w.nodes {
			if n.cell == nil || n.paused {
				continue
			}
			shown := n.cell.ConflictKeys()
			count := 0
			var problem error
			n.cell.Store().Conflicts(func(r crdt.Register) bool {
				count++
				w.examined("SAFE-2")
				if _, ok := shown[string(r.Name())]; !ok {
					problem = fmt.Errorf("n%d does not show the conflict of %s", n.Index, r.Name())
				}
				return problem == nil
			})
			if problem == nil && count != len(shown) {
				problem = fmt.Errorf("n%d shows %d conflicts and has %d", n.Index, len(shown), count)
			}
			if problem != nil {
				return problem
			}
		}
		return nil
	}
	return &Checker{Name: "SAFE-2", Every: 5 * time.Second, Periodic: look, Calm: look}
}

// togetherFor is how long two cells must have been undisturbed before they must know of each other.
const togetherFor = 30 * time.Second

// oneOwnerWithin is how long after two cells were last disturbed only one of them may run a stateful slot: the
// longest hold of a cell that came back, and a minute to find out.
const oneOwnerWithin = 6 * time.Minute

// checkStatefulOnce is SAFE-5 as far as it can hold without a lease: a stateful slot is not started where another
// cell of the same partition has run it for a while, and what disturbances made of one owner is one owner again
// in the end. What it does not cover is the time in between: an owner that is paused or cut off while another
// takes over serves on when it is back, until it has heard of that. Only the owner's lease ends that (F90).
func checkStatefulOnce() *Checker {
	return &Checker{Name: "SAFE-5", Every: 5 * time.Second, Periodic: oneOwner, Action: func(w *World, n *Node, action reconcile.Action) error {
		if action.Kind != reconcile.Start || !strings.HasPrefix(action.Key, state.PrefixStateful) ||
			n.QuietFor() < togetherFor {
			return nil
		}
		for _, other := range w.nodes {
			if other == n || other.QuietFor() < togetherFor || other.cell.ClusterID() != n.cell.ClusterID() {
				continue
			}
			w.examined("SAFE-5")
			for _, i := range other.host.sorted() {
				if i.key == action.Key && i.id.Slot == action.ID.Slot && w.now-i.started > togetherFor {
					return fmt.Errorf("n%d starts %s, slot %d, which n%d runs", n.Index, i.key, i.id.Slot, other.Index)
				}
			}
		}
		return nil
	}}
}

// oneOwner looks for stateful slots that two cells run which have known of each other for long. A key in CONFLICT
// keeps what it runs (F57).
func oneOwner(w *World) error {
	type slot struct {
		key    string
		number uint16
	}
	owners := make(map[slot]*Node)
	for _, n := range w.nodes {
		if n.QuietFor() < oneOwnerWithin || n.host.away || n.cell.ClusterID() != w.cluster {
			continue
		}
		for _, i := range n.host.sorted() {
			register, found := n.cell.Store().Get([]byte(i.key))
			if !strings.HasPrefix(i.key, state.PrefixStateful) || found && register.Conflicted() ||
				w.now-i.started < oneOwnerWithin {
				continue
			}
			s := slot{i.key, i.id.Slot}
			if other := owners[s]; other != nil && other != n {
				return fmt.Errorf("n%d and n%d both run %s, slot %d", other.Index, n.Index, s.key, s.number)
			}
			owners[s] = n
			w.examined("SAFE-5")
		}
	}
	return nil
}

// checkDeaths is F62: nobody is declared dead who was up, connected and undisturbed for 30 s in weather
// the detector is made for.
func checkDeaths() *Checker {
	return &Checker{Name: "F62", Write: func(w *World, n *Node, record *wire.Record) error {
		id, field, ok := state.HealthKey(string(record.Name))
		if !ok || field != "status" || id == n.cell.Self() {
			return nil
		}
		_, value, _, ok := wire.NextEntry(record.Entries)
		status, err := state.ParseCellStatus(value)
		if !ok || err != nil || status.Life != state.Dead {
			return nil
		}
		if w.stormedWithin(togetherFor) {
			return nil
		}
		w.examined("F62")
		for _, target := range w.nodes {
			if target.ID() == id && target.QuietFor() >= togetherFor && target.cell.ClusterID() == n.cell.ClusterID() {
				return fmt.Errorf("n%d declares n%d dead, which was not disturbed for %v",
					n.Index, target.Index, target.QuietFor())
			}
		}
		return nil
	}}
}

// checkSameState is SEC: after calm all cells show the same, and in time their Merkle roots are equal, too.
// Roots may differ for a while, when cells free a tombstone one after the other (F45 v, F52).
func checkSameState() *Checker {
	return &Checker{Name: "SEC", Calm: func(w *World) error {
		first := w.nodes[0]
		for _, n := range w.nodes {
			if n.cell == nil || n.cell.ClusterID() != w.cluster {
				return fmt.Errorf("n%d is not in the cluster", n.Index)
			}
			w.examined("SEC")
			if text := difference(first.cell.Store(), n.cell.Store()); text != "" {
				return fmt.Errorf("n%d and n%d differ: %s", first.Index, n.Index, text)
			}
		}
		w.wait(stateWithin, "SEC", w.sameState)
		return nil
	}}
}

// difference names the first key that shows other values in one store than in the other, "" if none.
func difference(a, b *crdt.Store) string {
	text := ""
	compare := func(x, y *crdt.Store) {
		x.Walk("", func(r crdt.Register) bool {
			other, found := y.Get(r.Name())
			switch {
			case r.EntryCount() == 0 || r.Deleted():
			case !found:
				text = fmt.Sprintf("%s is on one side only", r.Name())
			case !bytes.Equal(other.Entries(), r.Entries()):
				text = fmt.Sprintf("%s has %d and %d entries", r.Name(), r.EntryCount(), other.EntryCount())
			}
			return text == ""
		})
	}
	compare(a, b)
	compare(b, a)
	return text
}

// checkSamePlan is EXEC-2: equal state gives equal plans, at any time.
func checkSamePlan() *Checker {
	look := func(w *World) error {
		plans := make(map[uint64]*Node)
		for _, n := range w.nodes {
			if n.cell == nil || n.paused || n.cell.ClusterID() != w.cluster || !n.cell.PlanIsShared() {
				continue
			}
			root := n.cell.Store().Root()
			first := plans[root]
			if first == nil {
				plans[root] = n
				continue
			}
			if first.cell.Plan().Len() > 0 {
				w.examined("EXEC-2")
			}
			if err := samePlan(first, n); err != nil {
				return err
			}
		}
		return nil
	}
	return &Checker{Name: "EXEC-2", Every: 10 * time.Second, Periodic: look, Calm: look}
}

func samePlan(a, b *Node) (problem error) {
	if a.cell.Plan().Len() != b.cell.Plan().Len() {
		return fmt.Errorf("equal state, but n%d places %d replicas and n%d %d",
			a.Index, a.cell.Plan().Len(), b.Index, b.cell.Plan().Len())
	}
	a.cell.Store().Walk("", func(r crdt.Register) bool {
		if !state.IsWorkload(r.Name()) {
			return true
		}
		x, y := a.cell.Plan().Of(r.KeyHash()), b.cell.Plan().Of(r.KeyHash())
		for i := range x {
			if i >= len(y) || x[i] != y[i] {
				problem = fmt.Errorf("equal state, but n%d and n%d place %s differently", a.Index, b.Index, r.Name())
			}
		}
		return problem == nil
	})
	return problem
}

// idleDatagrams is the bound of AVAIL-4 as F60 states it, sent per cell and second: its probe and its answer
// to another's make 2, the rest is for anti-entropy and for what is still to be tidied up after faults.
const idleDatagrams = 4.6

// idleBehind is the bound where some stand behind routers: they keep homes and paths open, and what is relayed
// is sent twice.
const idleBehind = 10

// checkIdle is AVAIL-4: a quiet cluster sends probes and a session now and then, nothing else.
func checkIdle() *Checker {
	return &Checker{Name: "AVAIL-4", Calm: func(w *World) error {
		before, _ := w.Traffic()
		const watched = 60 * time.Second
		if err := w.Run(watched); err != nil {
			return nil
		}
		w.examined("AVAIL-4")
		after, _ := w.Traffic()
		rate := float64(after-before) / watched.Seconds() / float64(len(w.nodes))
		most := idleDatagrams
		if len(w.options.NAT) > 0 {
			most = idleBehind
		}
		if rate > most {
			return fmt.Errorf("%.1f datagrams per cell and second while idle: at most %v", rate, most)
		}
		return nil
	}}
}

// amplification is how many bytes an unproven address may get for each it sent (F14).
const amplification = 3

// checkAmplification is F14: who sends under a false address gains at most a factor of 3.
func checkAmplification() *Checker {
	look := func(w *World) error {
		for source, traffic := range w.network.foreign {
			w.examined("F14")
			if traffic.out > amplification*traffic.in {
				return fmt.Errorf("%v sent %d bytes and got %d", source, traffic.in, traffic.out)
			}
		}
		return nil
	}
	return &Checker{Name: "F14", Every: time.Second, Periodic: look, Calm: look}
}

// checkBounds holds every table and queue to its limit, and the cells to finite work per moment.
func checkBounds() *Checker {
	return checkOccupancies(func(n *Node) []cell.Occupancy { return n.cell.Occupancies() })
}

func checkOccupancies(of func(n *Node) []cell.Occupancy) *Checker {
	return &Checker{Name: "bounds", Every: 5 * time.Second, Periodic: func(w *World) error {
		for _, n := range w.nodes {
			if n.cell == nil {
				continue
			}
			w.examined("bounds")
			for _, o := range of(n) {
				if o.Used > o.Most {
					return fmt.Errorf("n%d: %s: %d, at most %d", n.Index, o.Name, o.Used, o.Most)
				}
			}
		}
		if len(w.events.heap) > 20000*len(w.nodes) {
			return fmt.Errorf("%d events are under way", len(w.events.heap))
		}
		return nil
	}}
}
