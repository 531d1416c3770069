package sim

import (
	"bytes"
	"fmt"
	"time"

	"colloid.net/meshd/cell"
	"colloid.net/meshd/crdt"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// graves remembers the tombstones of every cell, so that their end can be judged: not before everybody knows
// what was deleted (F45), and not never (F46).
type graves struct {
	held map[*Node]map[string][]byte // name -> context of its tombstone, at the last look
	cell map[*Node]*cell.Cell        // which process that was
	// lost are machines whose disks went back, or that left: what they once stated they may no longer know, and
	// what others say of their writes counts only after a day (F45 i).
	lost map[*Node]bool
}

func newGraves() *graves {
	return &graves{held: make(map[*Node]map[string][]byte), cell: make(map[*Node]*cell.Cell), lost: make(map[*Node]bool)}
}

// checkCollection is F45 and F46 for tombstones: a cell frees one only when every member that counts is known to have
// all that it stands for, and once the world is calm all of them are freed in time.
func checkCollection() *Checker {
	g := newGraves()
	return &Checker{
		Name: "F45", Every: 10 * time.Second, Periodic: g.look, Calm: g.collected,
		Lost: func(_ *World, n *Node) { g.lost[n] = true },
	}
}

// knownFor is how long a cell must run before the others can be expected to count it.
const knownFor = 2 * time.Minute

// look compares the tombstones of each cell with those before.
func (g *graves) look(w *World) error {
	for _, n := range w.nodes {
		if n.cell == nil || n.cell.ClusterID() != w.cluster || n.cell.Phase() != cell.Active {
			delete(g.held, n)
			continue
		}
		before := g.held[n]
		if g.cell[n] != n.cell {
			before = nil
		}
		g.cell[n] = n.cell
		deleted, _ := n.cell.Store().Tombstones()
		if deleted == 0 && len(before) == 0 {
			continue
		}
		for _, name := range sortedKeys(before) {
			if _, found := n.cell.Store().Get([]byte(name)); found {
				continue
			}
			w.examined("F45")
			if err := g.tooEarly(w, n, name, before[name]); err != nil {
				return err
			}
		}
		g.held[n] = tombstones(n)
	}
	return nil
}

// tombstones are the deleted registers of a cell with their contexts.
func tombstones(n *Node) map[string][]byte {
	found := make(map[string][]byte)
	n.cell.Store().Walk("", func(r crdt.Register) bool {
		if r.EntryCount() > 0 && r.Deleted() {
			found[string(r.Name())] = bytes.Clone(r.Context())
		}
		return true
	})
	return found
}

// tooEarly reports a member that counts and does not know what a tombstone stood for which a cell has freed.
func (g *graves) tooEarly(w *World, n *Node, name string, context []byte) error {
	for _, other := range w.nodes {
		if other == n || other.cell == nil || g.lost[other] || other.outside || other.cell.ClusterID() != w.cluster ||
			other.cell.Phase() != cell.Active || w.now-other.booted < knownFor || !countedBy(n, other) {
			continue
		}
		register, found := other.cell.Store().Get([]byte(name))
		for raw := context; len(raw) > 0; raw = raw[wire.DotSize:] {
			dot := wire.DotAt(raw)
			if other.cell.Store().Stable(dot.Actor) < dot.Sequence &&
				!(found && wire.ContextLookup(register.Context(), dot.Actor) >= dot.Sequence) {
				return fmt.Errorf("n%d has freed the tombstone of %s, and n%d does not know %v", n.Index, name, other.Index, dot)
			}
		}
	}
	return nil
}

// countedBy reports whether a cell holds another one for a member that is not GONE.
func countedBy(n, other *Node) bool {
	contact, found := n.cell.Store().Get([]byte(state.ContactKey(other.ID())))
	if !found || contact.Absent() {
		return false
	}
	return !isGone(n, other.ID())
}

// isGone reports whether a cell holds an id for one that has left for good.
func isGone(n *Node, id wire.CellID) bool {
	register, found := n.cell.Store().Get([]byte(state.StatusKey(id)))
	if !found {
		return false
	}
	value, _ := register.Live()
	status, err := state.ParseCellStatus(value)
	return err == nil && status.Life == state.Gone
}

// collectWithin is how long tombstones may stay in a calm cluster. Vectors are learnt in pairs, so each cell has to
// meet every other one: about (N-1) H(N) sessions, of which it begins half (F46). First what is stable has to be known,
// then everybody has to say so, and chance has bad days: three times that, and five minutes.
func collectWithin(cells int) time.Duration {
	harmonic := 0.0
	for i := range cells {
		harmonic += 1 / float64(i+1)
	}
	const session = 30 * time.Second
	return 5*time.Minute + 3*time.Duration(float64(cells-1)*harmonic*float64(session)/2)
}

// collected waits until all tombstones are gone that have no excuse to stay.
func (g *graves) collected(w *World) error {
	for begin := w.now; ; {
		leak := g.leak(w)
		if leak == "" {
			return nil
		}
		w.examined("F45")
		if w.now-begin > collectWithin(len(w.nodes)) {
			return fmt.Errorf("%v after everything is well %s", w.now-begin, leak)
		}
		if w.Run(5*time.Second) != nil {
			return nil
		}
	}
}

// leak names a tombstone without an excuse to be there, "" if there is none.
func (g *graves) leak(w *World) string {
	members := make(map[wire.CellID]bool)
	for _, n := range w.nodes {
		members[n.ID()] = !g.lost[n]
	}
	for _, n := range w.nodes {
		if n.cell == nil || n.cell.ClusterID() != w.cluster || g.waitsForSomebody(n, members) {
			return ""
		}
	}
	for _, n := range w.nodes {
		deleted, _ := n.cell.Store().Tombstones()
		if deleted == 0 {
			continue
		}
		held := tombstones(n)
		for _, name := range sortedKeys(held) {
			if written(held[name], members) {
				return fmt.Sprintf("n%d still has the tombstone of %s", n.Index, name)
			}
		}
	}
	return ""
}

// waitsForSomebody reports whether a cell lists one that is not there and may come back: for a day it keeps everything
// (F46).
func (g *graves) waitsForSomebody(n *Node, members map[wire.CellID]bool) (waits bool) {
	n.cell.Store().Walk(state.PrefixHealth, func(r crdt.Register) bool {
		id, field, ok := state.HealthKey(string(r.Name()))
		if !ok || field != "contact" || r.Absent() {
			return true
		}
		if _, present := members[id]; !present {
			waits = waits || !isGone(n, id)
		}
		return !waits
	})
	return waits
}

// written reports whether all writes of a context are of members that can vouch for them.
func written(context []byte, members map[wire.CellID]bool) bool {
	for raw := context; len(raw) > 0; raw = raw[wire.DotSize:] {
		if !members[wire.DotAt(raw).Actor] {
			return false
		}
	}
	return true
}
