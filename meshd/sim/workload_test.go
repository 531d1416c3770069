package sim

import (
	"fmt"
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/reconcile"
)

// What an expelled cell had forgotten stays deleted when it returns after the tombstones are gone, and what
// was written on it survives (F46).
func TestF46_ExpelledCellResurrectsNothing(t *testing.T) {
	for _, seed := range seeds(3) {
		w := form(t, Options{Seed: seed, Cells: 4})
		oracle := newOracle(w)
		w.AddChecker(oracle.checker())
		run(t, w, 15*time.Second)
		for i := range 100 {
			w.Node(i%4).Set(fmt.Sprintf("spread.k%d", i), Spec(0, "/bin/a"), uds.ExpectAny, nil)
			run(t, w, 20*time.Millisecond)
		}
		run(t, w, 30*time.Second)
		zombie := w.Node(3)
		w.Isolate(zombie)
		run(t, w, 30*time.Second)
		w.Apply(Fault{Verb: Forget, Node: 0, Other: 3})
		for i := range 100 {
			w.Node(i % 3).Delete(fmt.Sprintf("spread.k%d", i))
			run(t, w, 20*time.Millisecond)
		}
		zombie.Set("spread.zombie", Spec(0, "/bin/z"), uds.ExpectAny, nil)
		until(t, w, 30*time.Minute, "tombstones are freed", func() bool {
			// Written by a cell that is still there: only then does everybody learn that it is stable.
			_, found := w.Node(0).cell.Store().Get([]byte("spread.k8"))
			return !found
		})
		w.Heal()
		run(t, w, 10*time.Minute)
		for _, n := range w.Nodes() {
			for i := range 100 {
				if register, found := n.cell.Store().Get(fmt.Appendf(nil, "spread.k%d", i)); found && !register.Absent() {
					t.Fatalf("seed %d: n%d: spread.k%d is back", seed, n.Index, i)
				}
			}
			if entries, _ := value(n, "spread.zombie"); entries != 1 {
				t.Fatalf("seed %d: n%d: the write of the expelled cell is lost", seed, n.Index)
			}
		}
		if err := w.CheckCalm(); err != nil {
			t.Fatal(err)
		}
	}
}

// An instance of a workload in conflict crashes, and its cell restarts: the instance runs on where it was, and
// nowhere else (F57, F58).
func TestF57_F58_CrashDuringConflict(t *testing.T) {
	for _, seed := range seeds(3) {
		w := form(t, Options{Seed: seed, Cells: 4})
		w.AddChecker(checkConflictFreezes())
		run(t, w, 15*time.Second)
		w.Node(0).Set("spread.web", Spec(2, "/bin/a"), uds.ExpectAny, nil)
		until(t, w, 10*time.Second, "2 replicas", func() bool { return running(w) == 2 })
		run(t, w, 5*time.Second)
		w.Partition(func(i int) int { return i % 2 })
		w.Node(0).Set("spread.web", Spec(3, "/bin/b"), uds.ExpectAny, nil)
		w.Node(1).Set("spread.web", Spec(4, "/bin/c"), uds.ExpectAny, nil)
		run(t, w, 500*time.Millisecond)
		w.Heal()
		until(t, w, 40*time.Second, "conflict", func() bool { return settled(w) && len(w.conflicts()) == 1 })
		before := w.describe()
		for _, n := range w.Nodes() {
			n.host.exit(0)
			n.Kill()
			run(t, w, 3*time.Second)
			n.Boot()
			run(t, w, 20*time.Second)
		}
		total := 0
		for _, n := range w.Nodes() {
			for _, i := range n.host.sorted() {
				if i.state != reconcile.Ready {
					t.Fatalf("seed %d: n%d: %v", seed, n.Index, i.state)
				}
				total++
			}
		}
		if total != 2 {
			t.Fatalf("seed %d: %d instances; before: %s", seed, total, before)
		}
	}
}

// A stateful workload moves when its machine dies, and is never started beside a running instance. A cell that
// was paused comes back with its own and gives it up at the end of its re-admission at the latest (SAFE-5).
func TestSAFE5_StatefulRunsOnceInAPartition(t *testing.T) {
	for _, seed := range seeds(5) {
		w := form(t, Options{Seed: seed, Cells: 5})
		w.AddChecker(checkStatefulOnce())
		run(t, w, 15*time.Second)
		w.Node(0).Set("stateful.db", StatefulSpec("/bin/db"), uds.ExpectAny, nil)
		until(t, w, 20*time.Second, "1 instance", func() bool { return running(w) == 1 })
		for round := range 6 {
			for _, n := range w.Nodes() {
				if len(n.Running()) > 0 && round%2 == 0 {
					n.PowerOff()
					run(t, w, 30*time.Second)
					n.Boot()
				} else if len(n.Running()) > 0 {
					n.Pause()
					run(t, w, 30*time.Second)
					n.Resume()
				}
			}
			until(t, w, 8*time.Minute, "1 instance again", func() bool { return running(w) == 1 })
			run(t, w, 3*time.Minute)
		}
	}
}

// A cell that is cut off from nine others starts nothing for 30 s, then what it can (F66).
func TestF66_CutOffCellHoldsStarts(t *testing.T) {
	for _, seed := range seeds(3) {
		w := form(t, Options{Seed: seed, Cells: 10})
		run(t, w, 15*time.Second)
		for i := range 5 {
			w.Node(0).Set(fmt.Sprintf("spread.w%d", i), Spec(3, "/bin/a"), uds.ExpectAny, nil)
			run(t, w, 100*time.Millisecond)
		}
		until(t, w, 20*time.Second, "15 replicas", func() bool { return running(w) == 15 })
		run(t, w, 10*time.Second)
		lonely := w.Node(4)
		before := fmt.Sprint(lonely.Running())
		w.Isolate(lonely)
		run(t, w, 30*time.Second)
		if now := fmt.Sprint(lonely.Running()); now != before {
			t.Fatalf("seed %d: within 30 s from %s to %s", seed, before, now)
		}
		run(t, w, 60*time.Second)
		if got := len(lonely.Running()); got != 5 {
			t.Fatalf("seed %d: %d workloads of 5 run in the partition of one", seed, got)
		}
	}
}

// A new image replaces each replica once; the same file again replaces none (F74).
func TestF74_EachReplicaIsReplacedOnce(t *testing.T) {
	for _, seed := range seeds(5) {
		w := form(t, Options{Seed: seed, Cells: 5})
		run(t, w, 15*time.Second)
		w.Node(0).Set("spread.web", Spec(3, "/bin/a"), uds.ExpectAny, nil)
		until(t, w, 10*time.Second, "3 replicas", func() bool { return running(w) == 3 })
		run(t, w, 5*time.Second)
		starts := func() (n int) {
			for _, m := range w.Nodes() {
				n += m.host.Starts
			}
			return n
		}
		before := starts()
		w.Node(1).Set("spread.web", Spec(3, "/bin/b"), uds.ExpectAny, nil)
		run(t, w, time.Minute)
		w.Node(2).Set("spread.web", Spec(3, "/bin/b"), uds.ExpectAny, nil)
		run(t, w, time.Minute)
		if got := starts() - before; got != 3 || running(w) != 3 {
			t.Fatalf("seed %d: %d starts, %d running", seed, got, running(w))
		}
	}
}
