package sim

import (
	"fmt"
	"time"

	"colloid.net/meshd/crdt"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// ownWrites remembers up to which sequence each machine's own writes of a key were given to its disk, and were on it.
type ownWrites struct {
	given, synced map[ownKey]uint64
}

type ownKey struct {
	node *Node
	key  string
}

// checkLogged is F157 for what is told: no cell holds a write of its own that it has not given to its log, nor an
// operator's write that is not on the disk. Else the next process of this machine would give the same dot to something
// else.
func checkLogged() *Checker {
	l := &ownWrites{given: make(map[ownKey]uint64), synced: make(map[ownKey]uint64)}
	note := func(at map[ownKey]uint64, n *Node, record *wire.Record) {
		key := ownKey{n, string(record.Name)}
		at[key] = max(at[key], wire.ContextLookup(record.Context, n.disk.self))
	}
	return &Checker{
		Name: "F157", Every: 5 * time.Second, Begin: l.begin, Periodic: l.look, Calm: l.look,
		Write:  func(_ *World, n *Node, record *wire.Record) error { note(l.given, n, record); return nil },
		Synced: func(_ *World, n *Node, record *wire.Record) { note(l.synced, n, record) },
	}
}

// begin trusts what was written before the rule looked.
func (l *ownWrites) begin(w *World) {
	for _, n := range w.nodes {
		if n.cell == nil {
			continue
		}
		n.cell.Store().Walk("", func(r crdt.Register) bool {
			key := ownKey{n, string(r.Name())}
			l.given[key] = wire.ContextLookup(r.Context(), n.cell.Self())
			l.synced[key] = l.given[key]
			return true
		})
	}
}

// look compares what every cell holds of this run of its own with what went to its disk.
func (l *ownWrites) look(w *World) (problem error) {
	for _, n := range w.nodes {
		if n.cell == nil || n.cell.ClusterID() != w.cluster {
			continue
		}
		first := uint64(n.disk.incarnation) << wire.CounterBits // what is older comes from the disk itself
		n.cell.Store().Walk("", func(r crdt.Register) bool {
			own := wire.ContextLookup(r.Context(), n.cell.Self())
			if own <= first {
				return true
			}
			key := ownKey{n, string(r.Name())}
			if r.Category() == state.Operator {
				w.examined("F157")
				if l.synced[key] < own {
					problem = fmt.Errorf("n%d holds %d of %s, and its disk has %d", n.Index, own, key.key, l.synced[key])
				}
			} else if l.given[key] < own {
				problem = fmt.Errorf("n%d holds %d of %s, and has logged %d", n.Index, own, key.key, l.given[key])
			}
			return problem == nil
		})
		if problem != nil {
			return problem
		}
	}
	return nil
}
