package sim

import (
	"fmt"
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/seal"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// A cell writes 57 times, restarts, and writes again, with and without a session in between: the new value
// wins everywhere (F1).
func TestF1_WriteAfterRestartWins(t *testing.T) {
	for _, cut := range []bool{false, true} {
		for _, seed := range seeds(5) {
			w := form(t, Options{Seed: seed, Cells: 3})
			run(t, w, 15*time.Second)
			n := w.Node(1)
			if cut {
				w.Isolate(n)
			}
			for i := range 57 {
				n.Set("spread.a", Spec(0, fmt.Sprintf("/bin/%d", i)), uds.ExpectAny, nil)
				run(t, w, 20*time.Millisecond)
			}
			n.Kill()
			n.Boot()
			w.Heal()
			until(t, w, 30*time.Second, "active again", func() bool { return phases(w) == 3 })
			n.Set("spread.a", Spec(0, "/bin/last"), uds.ExpectAny, nil)
			until(t, w, time.Minute, "the last value everywhere", func() bool {
				for _, m := range w.Nodes() {
					if entries, single := value(m, "spread.a"); entries != 1 || single != string(Spec(0, "/bin/last")) {
						return false
					}
				}
				return true
			})
		}
	}
}

// A running twin of a cell, down to id and secret: both are told, no value of a third is touched, and when the
// twin is stopped, as the alarm asks, the cluster is in order again (F2).
func TestF2_ClonedCell(t *testing.T) {
	for _, seed := range seeds(5) {
		w := form(t, Options{Seed: seed, Cells: 3})
		run(t, w, 15*time.Second)
		w.Node(0).Set("spread.a", Spec(0, "/bin/a"), uds.ExpectAny, nil)
		run(t, w, 15*time.Second)
		twin := w.AddNode()
		twin.disk.restore(&w.Node(1).disk.image)
		twin.Boot()
		// Their contact must have led to one and back three times. That took 14 to 60 s with these seeds: each of
		// the two is isolated now and then, and says nothing then.
		took := until(t, w, 90*time.Second, "everybody shows the twin", func() bool {
			for _, n := range w.Nodes() {
				if n.alarms()["critical"] == 0 {
					return false
				}
			}
			return true
		})
		t.Logf("seed %d: everybody shows the twin after %v", seed, took)
		twin.PowerOff()
		w.Node(1).Kill() // as the alarm asks
		w.Node(1).Boot()
		run(t, w, 3*time.Minute)
		for _, n := range w.Nodes()[:3] {
			if entries, single := value(n, "spread.a"); entries != 1 || single != string(Spec(0, "/bin/a")) {
				t.Fatalf("seed %d: n%d lost the value of another cell", seed, n.Index)
			}
		}
		if !w.Formed() || !settled(w) {
			t.Fatalf("seed %d: not in order again: %s", seed, w.describe())
		}
	}
}

// Somebody with the key writes under the last dot there is of another cell. That cell cannot write any more
// under its id; it draws a new one at its next start and goes on (F10).
func TestF10_ForgedLastDot(t *testing.T) {
	w := form(t, Options{Seed: 1, Cells: 3})
	run(t, w, 15*time.Second)
	victim := w.Node(1)
	id := victim.ID()
	store := w.Node(0).cell.Store()
	forge(store, "spread.a", wire.Dot{Actor: id, Sequence: ^uint64(0)}, Spec(0, "/bin/forged"), nil)
	w.Node(0).Set("spread.b", Spec(0, "/bin/b"), uds.ExpectAny, nil)
	run(t, w, 2*time.Minute)
	if victim.ID() == id {
		t.Fatal("the cell keeps an id under which it cannot write")
	}
	victim.Kill()
	victim.Boot()
	until(t, w, 30*time.Second, "active under a new id", func() bool { return phases(w) == 3 })
	victim.Set("spread.c", Spec(0, "/bin/c"), uds.ExpectAny, nil)
	until(t, w, time.Minute, "its write everywhere", func() bool {
		entries, _ := value(w.Node(2), "spread.c")
		return entries == 1
	})
}

// A laptop sleeps for an hour. When it wakes it accuses nobody, and nobody is declared dead because of it but
// itself (F11, F65).
func TestF11_F65_SleepAccusesNobody(t *testing.T) {
	for _, seed := range seeds(5) {
		w := form(t, Options{Seed: seed, Cells: 5})
		deaths := countDeaths(w)
		run(t, w, 15*time.Second)
		sleeper := w.Node(2)
		sleeper.Pause()
		run(t, w, time.Hour)
		sleeper.Resume()
		run(t, w, 2*time.Minute)
		for id, by := range *deaths {
			if id != sleeper.ID() {
				t.Fatalf("seed %d: %v was declared dead by %v", seed, id, by)
			}
		}
		if !w.Formed() {
			t.Fatalf("seed %d: %s", seed, w.describe())
		}
	}
}

// A clock that jumps forward by an hour expires everything at once and proves nothing (F11).
func TestF11_ClockJump(t *testing.T) {
	for _, seed := range seeds(5) {
		w := form(t, Options{Seed: seed, Cells: 5})
		deaths := countDeaths(w)
		run(t, w, 15*time.Second)
		w.Node(2).JumpClock(time.Hour)
		run(t, w, 2*time.Minute)
		if len(*deaths) > 0 {
			t.Fatalf("seed %d: declared dead: %v", seed, *deaths)
		}
	}
}

// A LEAVE that anybody with the key can send in the name of another changes nothing (F8).
func TestF8_ForgedLeaveChangesNothing(t *testing.T) {
	w := form(t, Options{Seed: 1, Cells: 3})
	run(t, w, 15*time.Second)
	victim, target := w.Node(1), w.Node(0)
	sealer := seal.NewSealer(victim.disk.cluster.Key, victim.ID(), 200)
	before := target.cell.Store().Root()
	for i := range 20 {
		header := wire.Header{Type: wire.TypeLeave, Sender: victim.ID(), Nonce: uint32(i)}
		datagram := sealer.Seal(wire.AppendHeader(make([]byte, 0, wire.DatagramMax), header))
		w.network.schedule(victim.Index, victim.Address, target, datagram)
	}
	run(t, w, 2*time.Second)
	if target.cell.Store().Root() != before || target.cell.AliveCount() != 3 {
		t.Fatal("a forged leave changed the state")
	}
}

// countDeaths notes who is declared dead by whom from now on.
func countDeaths(w *World) *map[wire.CellID]wire.CellID {
	deaths := make(map[wire.CellID]wire.CellID)
	w.AddChecker(&Checker{Name: "deaths", Write: func(_ *World, n *Node, record *wire.Record) error {
		id, field, ok := state.HealthKey(string(record.Name))
		if !ok || field != "status" || id == n.cell.Self() {
			return nil
		}
		_, raw, _, _ := wire.NextEntry(record.Entries)
		if status, err := state.ParseCellStatus(raw); err == nil && status.Life == state.Dead {
			deaths[id] = n.cell.Self()
		}
		return nil
	}})
	return &deaths
}
