package sim

import (
	"fmt"
	"time"

	"colloid.net/meshd/reconcile"
	"colloid.net/meshd/wire"
)

// Checker holds one rule. Each of its functions may be nil; an error ends the run. Cheap rules look at
// every step, action or write; expensive ones at intervals or once the world has become calm.
type Checker struct {
	Name string
	// Begin looks at the world as it is when the rule is added to it.
	Begin func(w *World)
	// Step follows every input to a cell.
	Step func(w *World, n *Node) error
	// Action sees every command a cell gives to its runnerd, at the moment it is given.
	Action func(w *World, n *Node, action reconcile.Action) error
	// Write sees every own write of a cell on its way to the disk.
	Write func(w *World, n *Node, record *wire.Record) error
	// Synced sees every own write when it is on the disk, which is when the cell hears of that and applies it.
	Synced func(w *World, n *Node, record *wire.Record)
	// Lost hears that a machine is about to lose what its disk has learnt.
	Lost func(w *World, n *Node)
	// Datagram sees every datagram as it is sent to a machine.
	Datagram func(w *World, from, to *Node, datagram []byte) error
	// Periodic is called every Every of virtual time, if Every is not 0.
	Every    time.Duration
	Periodic func(w *World) error
	// Calm is called when the last fault was so long ago that its effects must be over.
	Calm func(w *World) error
}

// AddChecker installs a checker.
func (w *World) AddChecker(c *Checker) {
	w.checks = append(w.checks, c)
	if c.Begin != nil {
		c.Begin(w)
	}
	if c.Step != nil {
		w.stepChecks = append(w.stepChecks, c)
	}
	if c.Datagram != nil {
		w.sendChecks = append(w.sendChecks, c)
	}
	if c.Lost != nil {
		w.lost = append(w.lost, func(n *Node, _ time.Duration) { c.Lost(w, n) })
	}
	if c.Synced != nil {
		w.synced = append(w.synced, func(n *Node, record *wire.Record) { c.Synced(w, n, record) })
	}
	if c.Periodic != nil && c.Every > 0 {
		w.every(c)
	}
}

func (w *World) every(c *Checker) {
	w.After(c.Every, func() {
		w.note(c, c.Periodic(w))
		w.every(c)
	})
}

// note keeps the first violation.
func (w *World) note(c *Checker, err error) {
	if err != nil {
		w.fail(c.Name, "%w", err)
	}
}

func (w *World) fail(rule, format string, arguments ...any) {
	if w.Failure != nil {
		return
	}
	w.Failure = fmt.Errorf("seed %d at %.3f s, %w",
		w.options.Seed, w.now.Seconds(), &Violation{rule, fmt.Errorf(format, arguments...)})
	w.Tracef("VIOLATION %v", w.Failure)
}

// touched runs the checkers after an input to a node.
func (w *World) touched(n *Node) {
	for _, check := range w.stepChecks {
		w.note(check, check.Step(w, n))
	}
}

func (w *World) acting(n *Node, action reconcile.Action) {
	for _, check := range w.checks {
		if check.Action != nil {
			w.note(check, check.Action(w, n, action))
		}
	}
}

func (w *World) written(n *Node, raw []byte) {
	for len(raw) > 0 {
		var record wire.Record
		rest, err := wire.NextStateRecord(raw, &record)
		if err != nil {
			w.fail("storage", "n%d logs a record that does not parse: %w", n.Index, err)
			return
		}
		raw = rest
		w.examined("storage")
		for _, check := range w.checks {
			if check.Write != nil {
				w.note(check, check.Write(w, n, &record))
			}
		}
	}
}

// losing tells the checkers that a machine is about to lose what its disk learnt since a moment.
func (w *World) losing(n *Node, since time.Duration) {
	w.losesNow = n
	for _, lost := range w.lost {
		lost(n, since)
	}
	w.losesNow = nil
}

func (w *World) syncedWrite(n *Node, raw []byte) {
	for len(raw) > 0 && len(w.synced) > 0 {
		var record wire.Record
		rest, err := wire.NextStateRecord(raw, &record)
		if err != nil {
			return
		}
		raw = rest
		for _, synced := range w.synced {
			synced(n, &record)
		}
	}
}

// CheckCalm runs what must hold when no fault is left.
func (w *World) CheckCalm() error {
	for _, check := range w.checks {
		if check.Calm != nil {
			w.note(check, check.Calm(w))
		}
	}
	return w.Failure
}

// disturb notes that something is being done to a machine, its process or its links.
func (w *World) disturb(n *Node) { n.disturbed = w.now }

// QuietFor returns how long ago a node was last disturbed; 0 while it is down, paused, out of the cluster or cut off
// from anybody.
func (n *Node) QuietFor() time.Duration {
	if n.cell == nil || n.paused || n.starved || n.outside || n.world.network.touches(n.Index) {
		return 0
	}
	quiet := n.world.now - n.disturbed
	if n.router != nil && n.router.off() {
		return 0
	}
	if n.router != nil { // others reach it through machines without a router, so it depends on them
		for _, other := range n.world.nodes {
			if other.router == nil && other != n {
				quiet = min(quiet, other.QuietFor())
			}
		}
	}
	return quiet
}

// touches reports whether a link of a node is cut now.
func (n *network) touches(i int) bool {
	for pair := range n.cut {
		if pair[0] == i || pair[1] == i {
			return true
		}
	}
	for j := range n.group {
		if n.groupOf(j) != n.groupOf(i) {
			return true
		}
	}
	return false
}
