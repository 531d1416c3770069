package sim

import (
	"fmt"
	"time"

	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// spreadMost is how many datagrams gossip may send per cell and write where nothing is lost: the fan-out of F42, and
// something for what is repeated because an answer took long. With losses it is 5, which package gossip holds.
const spreadMost = 3.5

// spreadWithin is how long a write may take to all cells where nothing is lost: some hops of 40 ms, and the 50 ms that
// changes wait for company in a storm.
const spreadWithin = 2 * time.Second

// spreadWindow is the time over which datagrams and writes are compared.
const spreadWindow = 10 * time.Second

// spreading is what checkSpreading remembers.
type spreading struct {
	writes []time.Duration // of the window and shortly before
	deltas int             // datagrams with one change in the window; changes that travel together are not counted
	quiet  bool            // nothing failed in the window
	lossy  time.Duration   // last moment of weather in which a datagram could get lost
}

// checkSpreading is F42 and AVAIL-4 under load: while nothing fails, gossip brings each write of an operator to all cells
// soon, with few datagrams per cell and write.
func checkSpreading() *Checker {
	s := &spreading{}
	return &Checker{
		Name: "F42", Synced: s.reaches, Every: spreadWindow, Periodic: s.window,
		Write: func(w *World, n *Node, _ *wire.Record) error {
			if n.cell.ClusterID() == w.cluster {
				s.writes = append(s.writes, w.now)
			}
			return nil
		},
		Datagram: func(_ *World, _, _ *Node, datagram []byte) error {
			if wire.Type(datagram[1]) == wire.TypeDelta {
				s.deltas++
			}
			return nil
		},
	}
}

// clear reports whether nothing is being done to the cluster and nothing gets lost.
func (s *spreading) clear(w *World) bool {
	if w.network.options.Loss > 0 {
		s.lossy = w.now
	}
	return w.undisturbed() && (s.lossy == 0 || w.now-s.lossy >= spreadWindow)
}

// window compares what gossip has sent since the last look with what there was to send: what was written, and at most
// one change that a session has brought to a cell which lacked it.
func (s *spreading) window(w *World) error {
	deltas, writes := s.deltas, len(s.writes)
	begin := 0
	for begin < len(s.writes) && s.writes[begin] < w.now-spreadWithin {
		begin++
	}
	s.deltas, s.writes = 0, append(s.writes[:0], s.writes[begin:]...) // the last ones may still be on their way
	quiet := s.quiet
	if s.quiet = s.clear(w); !quiet || !s.quiet || writes == 0 {
		return nil
	}
	w.examined("F42")
	if most := int(spreadMost * float64(len(w.nodes)*(writes+1))); deltas > most {
		return fmt.Errorf("%d datagrams for %d writes in a cluster of %d: at most %d", deltas, writes, len(w.nodes), most)
	}
	return nil
}

// reaches looks some time after an operator's write whether all cells have it.
func (s *spreading) reaches(w *World, n *Node, record *wire.Record) {
	if state.CategoryOf(record.Name) != state.Operator || n.cell == nil || n.cell.ClusterID() != w.cluster || !s.clear(w) {
		return
	}
	dot := wire.Dot{Actor: n.cell.Self(), Sequence: wire.ContextLookup(record.Context, n.cell.Self())}
	if dot.Sequence == 0 {
		return
	}
	name := string(record.Name)
	w.After(spreadWithin, func() {
		if !s.clear(w) {
			return
		}
		w.examined("F42")
		for _, other := range w.nodes {
			store := other.cell.Store()
			register, found := store.Get([]byte(name))
			if store.Stable(dot.Actor) < dot.Sequence &&
				!(found && wire.ContextLookup(register.Context(), dot.Actor) >= dot.Sequence) {
				w.fail("F42", "n%d has not heard of %v of %s after %v", other.Index, dot, name, spreadWithin)
			}
		}
	})
}
