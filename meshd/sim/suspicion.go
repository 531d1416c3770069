package sim

import (
	"fmt"
	"time"

	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// suspect is one accusation: who, and in which life.
type suspect struct {
	cell        wire.CellID
	incarnation uint32
}

// suspicions is what checkSuspicions remembers of one run.
type suspicions struct {
	lossy     time.Duration // last moment of weather in which a datagram could get lost
	unfounded map[suspect]bool
}

// unfoundedMax is how many cells may be accused in a run because of lost datagrams alone. An accusation takes a lost
// probe and two lost full rounds, each of a direct way and three through helpers: at 5 % loss one in 30 million probes
// of a cluster of five or more (F62 b). A run has some ten thousand.
const unfoundedMax = 1

// helpedCells is how many cells a cluster needs for three helpers.
const helpedCells = 5

// checkSuspicions holds the publication of SUSPECT to a cause: nobody is accused who was up, connected and undisturbed
// for 30 s, never in weather without loss, and hardly ever at the losses that the detector is made for (F62, F63).
func checkSuspicions() *Checker {
	s := &suspicions{unfounded: make(map[suspect]bool)}
	return &Checker{Name: "SUSPECT", Write: s.accused, Every: time.Second, Periodic: func(w *World) error {
		if options := w.network.options; options.Loss > 0 {
			s.lossy = w.now
		}
		return nil
	}}
}

func (s *suspicions) accused(w *World, n *Node, record *wire.Record) error {
	id, field, ok := state.HealthKey(string(record.Name))
	if !ok || field != "status" || id == n.cell.Self() {
		return nil
	}
	_, value, _, ok := wire.NextEntry(record.Entries)
	status, err := state.ParseCellStatus(value)
	if !ok || err != nil || status.Life != state.Suspect || w.stormedWithin(togetherFor) {
		return nil
	}
	w.examined("SUSPECT")
	for _, target := range w.nodes {
		if target.ID() != id || target.QuietFor() < togetherFor || target.cell.ClusterID() != n.cell.ClusterID() {
			continue
		}
		if s.lossy == 0 || w.now-s.lossy >= togetherFor {
			return fmt.Errorf("n%d accuses n%d, which was not disturbed for %v, and nothing was lost",
				n.Index, target.Index, target.QuietFor())
		}
		if w.running() < helpedCells {
			continue
		}
		s.unfounded[suspect{id, status.Incarnation}] = true
		if len(s.unfounded) > unfoundedMax {
			return fmt.Errorf("n%d accuses n%d, the accusation number %d of a cell that was not disturbed",
				n.Index, target.Index, len(s.unfounded))
		}
	}
	return nil
}

// stormedWithin reports whether the weather was such lately that cells may take each other for dead without blame.
func (w *World) stormedWithin(d time.Duration) bool {
	last := w.Storm()
	return last != 0 && w.now-last < d
}

// running counts the cells that take part.
func (w *World) running() (count int) {
	for _, n := range w.nodes {
		if n.cell != nil && !n.paused && n.cell.ClusterID() == w.cluster {
			count++
		}
	}
	return count
}
