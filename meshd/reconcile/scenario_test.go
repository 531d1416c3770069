package reconcile

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"colloid.net/meshd/placement"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
	"colloid.net/workload"
)

func applyMany(w *world, count int, replicas uint16) (keys []uint64) {
	for i := range count {
		keys = append(keys, w.apply(fmt.Sprintf("w%d", i), 1, workload.Spec{Replicas: replicas}))
	}
	return keys
}

// A cell is cut off for 5 s, 30 s or 5 min and comes back. What it keeps according to the placement
// after the cut is not restarted, no workload is ever without a READY instance, and a surplus
// instance goes only while the kept ones are READY.
func TestF75_CutCellComesBack(t *testing.T) {
	for _, length := range []time.Duration{5 * time.Second, 30 * time.Second, 5 * time.Minute} {
		t.Run(length.String(), func(t *testing.T) {
			w := newWorld(t, 5)
			keys := applyMany(w, 12, 2)
			w.run(20 * time.Second)
			w.converged()
			victim := w.cells[2]
			before := victim.pids()
			if len(before) == 0 {
				t.Fatal("the cut cell runs nothing")
			}
			w.check = func() {
				for _, key := range keys {
					if n := w.readyCount(key, 1); n < 1 {
						t.Fatalf("key %x: %d ready", key, n)
					}
				}
			}
			victim.cut()
			started := w.logLength()
			w.run(length)
			if length < detectAfter && w.logLength() != started {
				t.Error("a cut nobody noticed led to action")
			}
			if length == 30*time.Second && len(victim.log) != len(before) {
				t.Errorf("isolated cell acted within the hold: %v", victim.log)
			}
			if length == 5*time.Minute && len(victim.instances) != len(keys) {
				t.Errorf("cell isolated for long runs %d of %d workloads", len(victim.instances), len(keys))
			}
			victim.heal()
			w.run(30 * time.Second)
			w.converged()
			if after := victim.pids(); !maps.Equal(before, after) {
				t.Errorf("instances of the cut cell changed: before %v, after %v", before, after)
			}
		})
	}
}

// While its replacement is not READY a surplus instance stays, but not longer than SurplusMax.
func TestF75_SurplusWaitsForItsReplacement(t *testing.T) {
	for _, healthy := range []bool{true, false} {
		w := newWorld(t, 3)
		key := w.apply("web", 1, workload.Spec{Replicas: 1})
		w.run(10 * time.Second)
		old := w.owner(key)
		old.offer.NoNew = true // leaves
		for _, c := range w.cells {
			c.startupTime = 20 * time.Second
			c.broken[1] = !healthy
		}
		w.run(20 * time.Second)
		if len(old.instances) != 1 || w.count("start spread.web") != 2 {
			t.Fatalf("healthy %t: %d instances on the leaving cell, %d starts", healthy, len(old.instances),
				w.count("start spread.web"))
		}
		w.run(10 * time.Second)
		if gone := len(old.instances) == 0; gone != healthy {
			t.Fatalf("healthy %t: surplus gone = %t", healthy, gone)
		}
		w.run(SurplusMax)
		if len(old.instances) != 0 {
			t.Fatal("surplus outlived SurplusMax")
		}
	}
}

func (w *world) owner(key uint64) *testCell {
	for _, c := range w.cells {
		for id := range c.instances {
			if id.KeyHash == key {
				return c
			}
		}
	}
	w.t.Fatal("nobody runs it")
	return nil
}

// The only cell that may run a workload leaves or is cordoned: nothing replaces the instance, so it
// stays.
func TestF75_SurplusWithoutAnyReplacementStays(t *testing.T) {
	w := newWorld(t, 1)
	w.apply("web", 1, workload.Spec{Replicas: 1})
	w.run(10 * time.Second)
	w.cells[0].offer.NoNew = true
	w.run(10 * time.Minute)
	if len(w.cells[0].instances) != 1 {
		t.Fatal("stopped the only instance")
	}
}

// A workload that loses its place to a more important one goes after SurplusMax.
func TestF72_PreemptedWorkloadGoes(t *testing.T) {
	w := newWorld(t, 1)
	w.cells[0].offer.Capacity = state.CellCapacity{MemoryMiB: 100}
	w.apply("low", 1, workload.Spec{Replicas: 1, MemoryMiB: 80})
	w.run(10 * time.Second)
	w.apply("high", 1, workload.Spec{Replicas: 1, MemoryMiB: 80, Priority: 1})
	w.run(SurplusMax + 10*time.Second)
	w.converged()
	if w.count("stop spread.low") != 1 {
		t.Fatal("the preempted workload still runs")
	}
}

// An image change rolls the replicas in rank order, at most max_unavailable of them unready, each
// replaced exactly once, with host ports (stop first) and without (start first).
func TestF74F75_RollingUpdate(t *testing.T) {
	for _, unavailable := range []uint8{0, 1, 2} {
		for _, ports := range [][]workload.Port{nil, {{Host: 8080, Container: 8080}}} {
			w := newWorld(t, 6)
			spec := workload.Spec{Replicas: 4, Ports: ports, Update: workload.Update{UnavailableMax: unavailable}}
			key := w.apply("web", 1, spec)
			w.run(10 * time.Second)
			w.converged()
			limit, lowest := max(1, int(unavailable)), 4
			if ports == nil {
				limit = 0 // start first: never fewer than before
			}
			w.check = func() {
				lowest = min(lowest, w.readyCount(key, 0))
				w.checkRankOrder(key, 2, max(1, int(unavailable)))
			}
			w.apply("web", 2, spec)
			w.run(60 * time.Second)
			w.converged()
			if lowest != 4-limit {
				t.Errorf("max_unavailable %d, ports %v: lowest ready count %d, want %d", unavailable, ports, lowest,
					4-limit)
			}
			if w.count("start spread.web") != 8 || w.count("stop spread.web") != 4 {
				t.Errorf("%d starts, %d stops", w.count("start spread.web"), w.count("stop spread.web"))
			}
			w.check = nil
			before := w.logLength()
			spec.Replicas = 4
			w.apply("web", 2, spec)
			w.run(30 * time.Second)
			if w.logLength() != before {
				t.Error("an unchanged re-apply led to action (F74)")
			}
		}
	}
}

// checkRankOrder fails when a rank has the new digest although too many lower ranks are not READY
// with it.
func (w *world) checkRankOrder(key, digest uint64, budget int) {
	missing := 0
	for _, r := range w.cells[0].plan.Of(key) {
		for _, c := range w.cells {
			if c.id != r.Cell {
				continue
			}
			instance := c.instances[InstanceID{key, r.Slot, digest}]
			if instance != nil && missing >= budget {
				w.t.Fatalf("rank %d runs the new digest with %d lower ranks not ready", r.Rank, missing)
			}
			if instance == nil || instance.state != Ready {
				missing++
			}
		}
	}
}

// A new version that never gets READY stops the update at rank 0.
func TestF75_BrokenUpdateStopsAtTheFirstRank(t *testing.T) {
	w := newWorld(t, 4)
	key := w.apply("web", 1, workload.Spec{Replicas: 3})
	w.run(10 * time.Second)
	for _, c := range w.cells {
		c.broken[2] = true
	}
	w.apply("web", 2, workload.Spec{Replicas: 3})
	w.run(10 * time.Minute)
	if w.readyCount(key, 1) != 3 || w.count("start spread.web") != 4 {
		t.Fatalf("%d ready, %d starts", w.readyCount(key, 1), w.count("start spread.web"))
	}
	w.apply("web", 1, workload.Spec{Replicas: 3}) // roll back
	w.run(20 * time.Second)
	w.converged()
	if w.count("start spread.web") != 4 {
		t.Error("rolling back restarted what ran")
	}
}

// min_ready delays every rank after the first.
func TestF75_MinReady(t *testing.T) {
	w := newWorld(t, 3)
	spec := workload.Spec{Replicas: 3, Update: workload.Update{MinReadySeconds: 20}}
	key := w.apply("web", 1, spec)
	w.run(10 * time.Second)
	w.apply("web", 2, spec)
	w.run(20 * time.Second)
	if n := w.readyCount(key, 2); n != 1 {
		t.Fatalf("%d updated after 20 s", n)
	}
	w.run(30 * time.Second)
	if n := w.readyCount(key, 2); n != 2 {
		t.Fatalf("%d updated after 50 s", n)
	}
	w.run(30 * time.Second)
	w.converged()
}

// No command is issued for a key in conflict, whatever happens to H, until it is resolved.
func TestF57F58_ConflictFreezes(t *testing.T) {
	w := newWorld(t, 4)
	key := w.apply("web", 1, workload.Spec{Replicas: 2})
	other := w.apply("other", 1, workload.Spec{Replicas: 2})
	w.run(10 * time.Second)
	w.frozen[key] = true
	w.workloads[key] = placement.Workload{} // no single value to be had
	owner := w.owner(key)
	for id, instance := range owner.instances { // F58: it crashes and waits for its restart
		if id.KeyHash == key {
			instance.state = Backoff
		}
	}
	w.run(30 * time.Second)
	w.cells = slices.DeleteFunc(w.cells, func(c *testCell) bool { return c != owner && len(c.instances) > 0 })
	w.run(5 * time.Minute)
	for _, c := range w.cells {
		for _, action := range c.actions {
			if action.ID.KeyHash == key && (action.Kind == Stop || c != owner) {
				t.Fatalf("action on a frozen key: %+v", action)
			}
		}
	}
	if w.readyCount(other, 1) != 2 {
		t.Error("the conflict of one key affected another")
	}
	w.frozen[key] = false
	w.apply("web", 2, workload.Spec{Replicas: 2})
	w.run(20 * time.Second)
	w.converged()
}

// Ten cells boot one by one, each holding starts while it settles: every replica is started once.
func TestF69_BootOfTenStartsEachReplicaOnce(t *testing.T) {
	w := newWorld(t, 0)
	keys := applyMany(w, 30, 3)
	for i := range 10 {
		c := w.boot(wire.CellID(i+1) * 0x0123456789abcdef)
		c.holdUntil = w.now.Add(10 * time.Second)
		w.run(900 * time.Millisecond)
	}
	w.run(30 * time.Second)
	w.converged()
	if n := w.logLength(); n != 3*len(keys) {
		t.Fatalf("%d starts and stops for %d replicas", n, 3*len(keys))
	}
}

// A boot after a total restart adopts what runs at once, without a start, a stop or a wait.
func TestF69_BootAdopts(t *testing.T) {
	w := newWorld(t, 3)
	applyMany(w, 9, 2)
	w.run(15 * time.Second)
	before := w.logLength()
	for _, c := range w.cells {
		c.restart()
		c.holdUntil = w.now.Add(10 * time.Second)
	}
	w.run(time.Minute)
	w.converged()
	if w.logLength() != before {
		t.Fatal("a restart of all daemons touched what runs")
	}
}

func (c *testCell) restart() {
	c.reconciler, c.planner, c.plan = New(c.id), placement.NewPlanner(1, 2), nil
	c.seen, c.lastH, c.lastVersion = map[wire.CellID]map[InstanceID]State{}, nil, ""
}

func TestF78_DeletionAndScaleToZeroStop(t *testing.T) {
	w := newWorld(t, 3)
	deleted := w.apply("deleted", 1, workload.Spec{Replicas: 2})
	w.apply("idle", 1, workload.Spec{Replicas: 3})
	w.run(10 * time.Second)
	delete(w.workloads, deleted)
	w.apply("idle", 1, workload.Spec{Replicas: 0})
	w.run(3 * time.Second)
	w.converged()
	if w.count("stop spread.deleted") != 2 || w.count("stop spread.idle") != 3 {
		t.Fatal(w.count("stop spread.deleted"), w.count("stop spread.idle"))
	}
	w.apply("idle", 1, workload.Spec{Replicas: 3})
	w.run(10 * time.Second)
	w.converged()
}

// meshd restarts with an empty store: nothing stops, however long it takes until it is authoritative.
func TestF5_EmptyStoreStopsNothing(t *testing.T) {
	w := newWorld(t, 2)
	keys := applyMany(w, 6, 2)
	w.run(10 * time.Second)
	full := w.workloads
	w.workloads = map[uint64]placement.Workload{}
	for _, c := range w.cells {
		c.restart()
		c.authoritative = false
		c.actions = nil
	}
	w.run(10 * time.Minute)
	w.workloads = full // the first sync, before it is complete
	w.apply("w0", 7, workload.Spec{Replicas: 2})
	w.run(10 * time.Minute)
	for _, c := range w.cells {
		if len(c.actions) > 0 {
			t.Fatalf("cell %s acted: %+v", c.id, c.actions)
		}
		c.authoritative = true
	}
	w.run(30 * time.Second)
	w.converged()
	if w.readyCount(keys[0], 7) != 2 {
		t.Error("the update was forgotten")
	}
}

// Before the state is authoritative, what the snapshot lists is started.
func TestF5_SnapshotIsStarted(t *testing.T) {
	w := newWorld(t, 1)
	w.cells[0].authoritative = false
	key := w.apply("web", 1, workload.Spec{Replicas: 1})
	w.run(10 * time.Second)
	if w.readyCount(key, 1) != 1 {
		t.Fatal("not started")
	}
}

// The death of a cell restarts only its replicas elsewhere.
func TestEXEC3_DeathMovesOnlyTheDead(t *testing.T) {
	w := newWorld(t, 6)
	applyMany(w, 20, 3)
	w.run(15 * time.Second)
	dead, before := w.cells[3], w.logLength()
	dead.up = false
	w.run(15 * time.Second)
	w.cells = slices.DeleteFunc(w.cells, func(c *testCell) bool { return c == dead })
	w.converged()
	if moved := w.logLength() + len(dead.log) - before; moved != len(dead.instances) {
		t.Fatalf("%d actions for %d lost replicas", moved, len(dead.instances))
	}
}

// A stateful replica never runs on two cells: the old one breaks before the new one makes.
func TestSAFE5_StatefulBreaksBeforeItMakes(t *testing.T) {
	w := newWorld(t, 3)
	key := w.apply("db", 1, workload.Spec{Replicas: 1, Stateful: true})
	w.check = func() {
		running := 0
		for _, c := range w.cells {
			running += len(c.instances)
		}
		if running > 1 {
			t.Fatalf("%d instances of a stateful replica", running)
		}
	}
	w.run(10 * time.Second)
	w.owner(key).offer.NoNew = true
	w.run(15 * time.Second)
	w.converged()
	w.apply("db", 2, workload.Spec{Replicas: 1, Stateful: true})
	w.run(15 * time.Second)
	w.converged()
}

// A helper whose ring takes one action at a time only delays (F131).
func TestF131_RingOfOne(t *testing.T) {
	w := newWorld(t, 3)
	for _, c := range w.cells {
		c.ringSize = 1
	}
	applyMany(w, 10, 2)
	w.run(30 * time.Second)
	w.converged()
	if n := w.logLength(); n != 20 {
		t.Errorf("%d starts and stops for 20 replicas", n)
	}
}
