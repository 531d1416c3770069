package sim

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"colloid.net/meshd/crdt"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// write is one write of an operator, as it went to the author's own-write log.
type write struct {
	key     string
	dot     wire.Dot
	seen    map[wire.CellID]uint64 // what the author had seen
	value   []byte                 // empty = delete
	at      time.Duration
	durable bool
	lost    map[*Node]bool // machines whose disks went back behind it
	excused bool           // the only copies were on a disk that was lost: it may be gone, and all it superseded may be back
}

func (w *write) supersedes(other *write) bool {
	return w.seen[other.dot.Actor] >= other.dot.Sequence
}

// oracle remembers every operator write in the cluster and knows, from what its author had seen, what
// every register must hold in the end (SAFE-4): all durable writes that no other supersedes, and none that
// another supersedes. It never looks at how the cells compute that.
type oracle struct {
	world    *World
	writes   map[string][]*write
	accepted int
}

func newOracle(w *World) *oracle {
	o := &oracle{world: w, writes: make(map[string][]*write)}
	w.lost = append(w.lost, o.losing)
	w.synced = append(w.synced, o.synced)
	return o
}

// checker is the oracle as a rule.
func (o *oracle) checker() *Checker {
	return &Checker{
		Name:  "SAFE-4",
		Write: o.note,
		Every: 10 * time.Second, Periodic: o.plausible,
		Calm: o.exact,
	}
}

// note takes down a write.
func (o *oracle) note(_ *World, n *Node, record *wire.Record) error {
	if state.CategoryOf(record.Name) != state.Operator || n.cell.ClusterID() != o.world.cluster {
		return nil
	}
	own := wire.Dot{Actor: n.cell.Self(), Sequence: wire.ContextLookup(record.Context, n.cell.Self())}
	if list := o.writes[string(record.Name)]; own.Sequence == 0 && len(list) > 0 {
		for raw := record.Context; len(raw) >= wire.DotSize; raw = raw[wire.DotSize:] {
			dot := wire.DotAt(raw) // the write before goes on: it had seen more than one record names (F49)
			list[len(list)-1].seen[dot.Actor] = dot.Sequence
		}
		return nil
	}
	w := &write{key: string(record.Name), dot: own, at: o.world.now,
		seen: make(map[wire.CellID]uint64)}
	for raw := record.Entries; len(raw) > 0; {
		dot, value, rest, ok := wire.NextEntry(raw)
		if !ok {
			return fmt.Errorf("a logged record does not parse")
		}
		if raw = rest; dot == own {
			w.value = bytes.Clone(value)
		}
	}
	for raw := record.Context; len(raw) >= wire.DotSize; raw = raw[wire.DotSize:] {
		if dot := wire.DotAt(raw); dot.Actor != own.Actor {
			w.seen[dot.Actor] = dot.Sequence
		}
	}
	// The author had seen its own earlier writes of the key: those its register held.
	if register, found := n.cell.Store().Get(record.Name); found {
		switch earlier := wire.ContextLookup(register.Context(), own.Actor); {
		case earlier == own.Sequence: // it is in the store already: a wish to drain that ends with its cell
			w.seen[own.Actor] = own.Sequence - 1
		case earlier > 0 && earlier < own.Sequence:
			w.seen[own.Actor] = earlier
		}
	}
	for _, other := range o.writes[w.key] {
		if other.dot == w.dot {
			other.excused, w.excused = true, true // a restored disk counts again from where it was (F1)
		}
	}
	o.writes[w.key] = append(o.writes[w.key], w)
	return nil
}

// synced learns that a record is on the author's disk.
func (o *oracle) synced(n *Node, record *wire.Record) {
	list := o.writes[string(record.Name)]
	if len(list) == 0 || n.cell == nil {
		return
	}
	sequence := wire.ContextLookup(record.Context, n.cell.Self())
	for _, w := range slices.Backward(list) {
		if w.dot == (wire.Dot{Actor: n.cell.Self(), Sequence: sequence}) && !w.durable {
			w.durable = true
			o.accepted++
			return
		}
	}
}

// losing excuses the writes of which the last copy may be on a disk that is about to be lost.
func (o *oracle) losing(n *Node, since time.Duration) {
	for _, list := range o.writes {
		for _, w := range list {
			if w.at < since {
				continue
			}
			if w.lost == nil {
				w.lost = make(map[*Node]bool)
			}
			w.lost[n] = true
			w.excused = w.excused || !o.survives(w)
		}
	}
}

// snapshotsWithin is how long a change may wait for a snapshot and its sync.
const snapshotsWithin = 15 * time.Second

// survives reports whether a machine that is not about to lose its disk certainly has the write on it.
func (o *oracle) survives(w *write) bool {
	for _, n := range o.world.nodes {
		switch {
		case n.cell == nil:
			if n.ID() == w.dot.Actor && !w.lost[n] {
				return true // in its own-write log
			}
		case n.cell.ClusterID() != o.world.cluster || w.lost[n] && !o.holds(n, w) || n.disk.full:
		case n.cell.Self() == w.dot.Actor && !w.lost[n],
			o.holds(n, w) && o.world.now-w.at > snapshotsWithin && o.world.now-n.booted > snapshotsWithin:
			if n != o.world.losesNow {
				return true
			}
		}
	}
	return false
}

func (o *oracle) holds(n *Node, w *write) bool {
	if register, found := n.cell.Store().Get([]byte(w.key)); found {
		return wire.ContextLookup(register.Context(), w.dot.Actor) >= w.dot.Sequence
	}
	return n.cell.Store().Stable(w.dot.Actor) >= w.dot.Sequence
}

// plausible looks at all cells while faults are going on: no value out of thin air, and none beside a
// value that supersedes it.
func (o *oracle) plausible(w *World) (problem error) {
	for _, n := range w.nodes {
		if n.cell == nil || n.cell.ClusterID() != w.cluster {
			continue
		}
		n.cell.Store().Walk("", func(r crdt.Register) bool {
			if r.Category() == state.Operator {
				problem = o.plausibleRegister(n, r)
			}
			return problem == nil
		})
	}
	return problem
}

func (o *oracle) plausibleRegister(n *Node, r crdt.Register) error {
	list := o.writes[string(r.Name())]
	for raw := r.Entries(); len(raw) > 0; {
		dot, value, rest, _ := wire.NextEntry(raw)
		raw = rest
		i := slices.IndexFunc(list, func(w *write) bool { return w.dot == dot })
		if i < 0 {
			return fmt.Errorf("n%d holds %s with %v, which nobody wrote", n.Index, r.Name(), dot)
		}
		if !bytes.Equal(list[i].value, value) && !list[i].excused {
			return fmt.Errorf("n%d holds another value under %v of %s than was written", n.Index, dot, r.Name())
		}
		for _, other := range list {
			if !other.excused && other.durable && other.supersedes(list[i]) &&
				wire.ContextLookup(r.Context(), other.dot.Actor) >= other.dot.Sequence {
				return fmt.Errorf("n%d holds %v of %s and knows %v, which supersedes it",
					n.Index, dot, r.Name(), other.dot)
			}
		}
	}
	return nil
}

// exact compares every cell with the writes themselves.
func (o *oracle) exact(w *World) error {
	for _, key := range sortedKeys(o.writes) {
		for _, n := range w.nodes {
			if n.cell == nil || n.cell.ClusterID() != w.cluster {
				continue
			}
			w.examined("SAFE-4")
			if err := o.exactKey(n, key); err != nil {
				return err
			}
		}
	}
	return nil
}

func (o *oracle) exactKey(n *Node, key string) error {
	held := make(map[wire.Dot]bool)
	if register, found := n.cell.Store().Get([]byte(key)); found {
		for raw := register.Entries(); len(raw) > 0; {
			dot, _, rest, _ := wire.NextEntry(raw)
			held[dot], raw = true, rest
		}
	}
	for _, w := range o.writes[key] {
		superseded, certainly := false, false
		for _, other := range o.writes[key] {
			if other.durable && other.supersedes(w) {
				superseded = true
				certainly = certainly || !other.excused
			}
		}
		if held[w.dot] && certainly {
			return fmt.Errorf("n%d: %s: %v is back although it was superseded", n.Index, key, w.dot)
		}
		if !held[w.dot] && w.durable && !w.excused && !superseded && len(w.value) > 0 {
			return fmt.Errorf("n%d: %s: %v of %v is lost", n.Index, key, w.dot, w.at)
		}
	}
	return nil
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
