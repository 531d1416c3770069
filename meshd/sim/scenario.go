package sim

import (
	"fmt"
	"strings"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/crdt"
	"colloid.net/meshd/state"
)

// Scenario is a run that can be repeated: a seed for everything that chance decides, and what happens
// when.
type Scenario struct {
	Seed     uint64
	Cells    int
	Duration time.Duration // of the part with faults
	Network  NetworkOptions
	NAT      []NATKind // what stands before the machines, see Options
	Faults   []Fault   // by time
	// Prepare, if set, is called when the cluster has formed, before the first fault. Tests use it to
	// break rules.
	Prepare func(w *World)
	// Checkers of this run; nil means all of Checkers().
	Checkers []*Checker
}

// Limits of the calm that ends every scenario: how long after the last fault everything must be well.
const (
	// stateWithin bounds the time to equal state on all cells (CONV-2): a boot may pause for a minute
	// between attempts, and then come up to three anti-entropy rounds.
	stateWithin = 3 * time.Minute
	// workloadsWithin bounds the time until exactly the wanted instances run: re-admission of a cell
	// that flapped takes up to 5 minutes, surplus goes up to 2 minutes later (F64, F75).
	workloadsWithin = 9 * time.Minute
	// idleFor is how long the quiet cluster is watched afterwards.
	idleFor = 30 * time.Second
)

// Result of a run.
type Result struct {
	Failure   error
	Virtual   time.Duration // simulated
	Steps     uint64
	Datagrams uint64
	Bytes     uint64
	Cells     int           // at the end
	Writes    int           // operator writes that were accepted
	Converged time.Duration // from the last fault to equal state
	Settled   time.Duration // from the last fault to the wanted instances
	// Examined counts by rule how often it looked at something that it could have objected to.
	Examined map[string]int
}

// String is the summary of a run in one line.
func (r Result) String() string {
	return fmt.Sprintf("%d cells, %v simulated, %d steps, %d datagrams (%.1f MB), %d writes; "+
		"equal state %v and all instances right %v after the last fault",
		r.Cells, r.Virtual.Round(time.Second), r.Steps, r.Datagrams, float64(r.Bytes)/1e6, r.Writes,
		r.Converged.Round(time.Millisecond), r.Settled.Round(time.Millisecond))
}

// Run plays the scenario: the cluster forms, the faults happen, everything is repaired, and then the
// cluster must find its way back by itself. trace may be nil.
func (s Scenario) Run(trace func(line string)) (result Result) {
	w := New(Options{Seed: s.Seed, Cells: s.Cells, Network: s.Network, NAT: s.NAT, Trace: trace})
	w.flaky = true
	oracle := newOracle(w)
	defer func() {
		result.Failure = w.Failure
		if p := recover(); p != nil {
			result.Failure = fmt.Errorf("seed %d at %.3f s, %w", s.Seed, w.now.Seconds(),
				&Violation{"panic", fmt.Errorf("%v", p)})
			w.Tracef("VIOLATION %v\n%s", result.Failure, stack())
		}
		result.Virtual, result.Steps, result.Cells = w.now, w.Steps, len(w.nodes)
		result.Datagrams, result.Bytes = w.Traffic()
		result.Writes = oracle.accepted
		result.Examined = w.examinations
	}()
	checkers := s.Checkers
	if checkers == nil {
		checkers = Checkers()
	}
	for _, c := range append(checkers, oracle.checker()) {
		w.AddChecker(c)
	}
	w.examined("BOOT-2")
	faults := s.Faults
	for len(faults) > 0 && faults[0].At == 0 && faults[0].Verb == Equip { // so they were installed
		if n := w.node(faults[0].Node); n != nil {
			w.Tracef("* %s", faults[0])
			n.equip(faults[0].Machine)
		}
		faults = faults[1:]
	}
	if err := w.Form(2 * time.Minute); err != nil {
		w.fail("BOOT-2", "%w", err)
		return result
	}
	if s.Prepare != nil {
		s.Prepare(w)
	}
	for _, f := range faults {
		w.After(f.At, func() { w.Apply(f) })
	}
	if w.Run(s.Duration) == nil {
		result.Converged, result.Settled = w.calmDown()
	}
	return result
}

// calmDown repairs everything and checks that the cluster recovers in time.
func (w *World) calmDown() (converged, settled time.Duration) {
	w.repair()
	begin := w.now
	if !w.wait(stateWithin, "CONV-2", func() bool { return w.Formed() && w.sameState() }) {
		return
	}
	converged = w.now - begin
	if !w.wait(workloadsWithin-converged, "EXEC-1", func() bool { return w.placed() == nil && w.sameState() }) {
		return
	}
	settled = w.now - begin
	w.resolveAll()
	if w.Run(idleFor) != nil {
		return
	}
	_ = w.CheckCalm()
	return converged, settled
}

// wait runs until done, checking every 100 ms of virtual time, and fails under the name of a rule.
func (w *World) wait(limit time.Duration, rule string, done func() bool) bool {
	w.examined(rule)
	for begin := w.now; !done(); {
		if w.now-begin >= limit {
			w.fail(rule, "not %v after the last fault: %v; %s", limit, w.placed(), w.describe())
			return false
		}
		if w.Run(100*time.Millisecond) != nil {
			return false
		}
	}
	return true
}

// repair ends all faults and brings every machine back to the cluster, as operators would.
func (w *World) repair() {
	w.Tracef("* repair everything")
	w.calm = true
	w.Heal()
	w.network.epoch++
	w.network.weather, w.network.parted = w.network.epoch, w.network.epoch
	w.SetNetwork(NetworkOptions{})
	for _, n := range w.nodes {
		n.disk.full = false
		n.setRouters(false)
	}
	for _, n := range w.nodes {
		if n.host.away {
			n.host.comeBack()
		}
		if !n.starved {
			n.Resume()
		}
		n.Boot()
		w.rejoin(n)
	}
	w.uncordonAll()
	if w.forgot {
		w.After(time.Minute, w.reconnect)
	}
}

// reconnect is what operators have to do after the two sides of a partition gave each other up: no cell
// looks for one that it was told to forget.
func (w *World) reconnect() {
	for i, n := range w.nodes {
		if n.cell != nil && n.cell.AliveCount() < len(w.nodes) {
			for at := i + 1; ; at++ { // somebody who can be called
				if other := w.nodes[at%len(w.nodes)]; other.router == nil && other != n {
					n.Connect(other)
					break
				}
			}
		}
	}
}

// resolveAll is what operators do with the conflicts that are left, and with programs that do not work; it gives
// the cluster time to act.
func (w *World) resolveAll() {
	resolved, repaired := 0, 0
	for _, key := range w.conflicts() {
		n := w.nodes[w.random.IntN(len(w.nodes))]
		if id, ok := state.SplitDrain(key); ok {
			w.uncordon(n, id)
		} else {
			f := Fault{Key: key, Replicas: 1 + w.random.IntN(3), Image: "/bin/resolved"}
			n.specify(&f, func(value []byte) { n.Resolve(key, value) })
		}
		resolved++
	}
	for _, wanted := range w.wanted() {
		if !wanted.frozen && !works(wanted.spec.Image) {
			f := Fault{Key: wanted.key, Replicas: 1, Image: "/bin/repaired"}
			n := w.nodes[w.random.IntN(len(w.nodes))]
			n.specify(&f, func(value []byte) { n.Set(f.Key, value, uds.ExpectAny, nil) })
			repaired++
		}
	}
	if resolved+repaired == 0 {
		return
	}
	rule := "SAFE-3"
	if resolved == 0 {
		rule = "EXEC-1"
	}
	w.wait(workloadsWithin, rule, func() bool {
		return w.sameState() && len(w.conflicts()) == 0 && w.placed() == nil
	})
}

// conflicts lists the operator keys in CONFLICT on the first machine that is up.
func (w *World) conflicts() (keys []string) {
	for _, n := range w.nodes {
		if n.cell != nil {
			n.cell.Store().Conflicts(func(r crdt.Register) bool {
				keys = append(keys, string(r.Name()))
				return true
			})
			return keys
		}
	}
	return nil
}

// sameState reports whether all cells are up, in the cluster, and hold the same.
func (w *World) sameState() bool {
	for _, n := range w.nodes {
		if n.cell == nil || n.cell.ClusterID() != w.cluster ||
			n.cell.Store().Root() != w.nodes[0].cell.Store().Root() {
			return false
		}
	}
	return true
}

// describe says where the cells stand, for a failure report.
func (w *World) describe() string {
	var b strings.Builder
	for _, n := range w.nodes {
		if n.cell == nil {
			fmt.Fprintf(&b, "n%d down; ", n.Index)
			continue
		}
		where := ""
		if n.cell.ClusterID() != w.cluster {
			where = " in another cluster"
		}
		fmt.Fprintf(&b, "n%d %s%s, %d alive, root %04x, runs %v; ", n.Index, n.cell.Phase(), where,
			n.cell.AliveCount(), n.cell.Store().Root()>>48, n.Running())
	}
	return b.String()
}
