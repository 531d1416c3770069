package reconcile

import (
	"slices"
	"testing"
	"time"

	"colloid.net/meshd/placement"
	"colloid.net/meshd/state"
	"colloid.net/workload"
)

// What serves is announced as draining for Linger, then stopped; a change of mind in between takes the
// announcement back.
func TestF75_ServingInstanceLingers(t *testing.T) {
	b := newBench(t, other)
	b.actual, b.ready[other] = []Actual{instance(1, Ready)}, 1
	id := b.actual[0].ID
	b.expect()
	if !b.r.Draining(id) || !slices.Equal(b.r.DrainingChanged(), []InstanceID{id}) {
		t.Fatal("not announced")
	}
	if b.r.Deadline() != b.now.Add(Linger) {
		t.Error("no deadline for the end of the announcement")
	}
	b.wait(Linger - 1)
	b.expect()
	if len(b.r.DrainingChanged()) != 0 {
		t.Error("announced twice")
	}
	b.ready[other] = 0 // the successor fails
	b.expect()
	if b.r.Draining(id) || !slices.Equal(b.r.DrainingChanged(), []InstanceID{id}) {
		t.Fatal("still announced although it stays")
	}
	b.ready[other] = 1
	b.expect()
	b.wait(Linger)
	b.expect(stop(1))
	b.wait(RepeatInterval)
	b.expect(stop(1)) // until it shows
	b.actual[0].State = Stopping
	b.expect()
}

// With a host port the old instance leaves first: it lingers only if other replicas serve meanwhile.
func TestF75_BreakBeforeMakeLingersIfOthersServe(t *testing.T) {
	for _, replicas := range []uint16{1, 2} {
		b := newBench(t, self)
		for i := range b.cells {
			b.cells[i].NoNew = false
		}
		b.spec(func(s *workload.Spec) {
			s.Replicas, s.Ports = replicas, []workload.Port{{Host: 80, Container: 80}}
		})
		b.rankFirst(self)
		b.actual, b.ready[other] = []Actual{instance(7, Ready, 80)}, 7
		b.expect(check(1))
		b.wait(AdmissionPatience)
		if replicas == 1 {
			b.expect(stop(7))
			continue
		}
		b.expect()
		b.wait(Linger)
		b.expect(stop(7))
	}
}

// A failed rollout replaces nothing that serves, and still mends what does not.
func TestF75_HaltedRollout(t *testing.T) {
	b := newBench(t, self)
	b.actual = []Actual{instance(7, Ready)}
	run := func() []Action {
		in := b.input()
		in.Halted = func(key uint64) bool { return key == 10 }
		return b.r.Run(b.now, in)
	}
	if got := run(); len(got) != 0 {
		t.Fatalf("replaces what serves: %+v", got)
	}
	b.actual[0].State = Unready
	if got := run(); len(got) != 1 || got[0].Kind != Start {
		t.Fatalf("does not replace what is broken: %+v", got)
	}
}

// F83: nothing starts before its environment is here, and nothing stops for it.
func TestF83_StartWaitsForTheEnvironment(t *testing.T) {
	here := false
	run := func(b *bench) []Action {
		in := b.input()
		in.Startable = func(*placement.Workload) bool { return here }
		return slices.Clone(b.r.Run(b.now, in))
	}
	for name, actual := range map[string][]Actual{"first": nil, "update": {instance(7, Ready, 80)}} {
		here = false
		b := newBench(t, self)
		b.spec(func(s *workload.Spec) { s.Ports = []workload.Port{{Host: 80, Container: 80}} })
		b.actual = actual
		if got := run(b); len(got) != 0 {
			t.Fatalf("%s: acts without the environment: %+v", name, got)
		}
		here = true
		if got := run(b); len(got) != 1 {
			t.Fatalf("%s: %+v", name, got)
		}
	}
	b := newBench(t, self) // the helper was restarted and has forgotten it
	b.actual = []Actual{instance(1, Backoff)}
	b.actual[0].NeedsEnvironment = true
	here = false
	if got := run(b); len(got) != 0 {
		t.Fatalf("%+v", got)
	}
	here = true
	if got := run(b); len(got) != 1 || got[0].Kind != Start || got[0].ID != b.actual[0].ID {
		t.Fatalf("not handed over again: %+v", got)
	}
}

// F72: on a full cell an update replaces in place, where a second instance would only be refused.
func TestF72_UpdateOnAFullCell(t *testing.T) {
	for _, memory := range []uint32{100, 200} {
		b := newBench(t, self)
		b.spec(func(s *workload.Spec) { s.MemoryMiB = 100 })
		b.actual = []Actual{instance(7, Ready)}
		b.actual[0].MemoryMiB = 100
		in := b.input()
		in.Capacity = state.CellCapacity{MemoryMiB: memory}
		want := Start
		if memory == 100 {
			want = Stop
			if got := b.r.Run(b.now, in); len(got) != 1 || got[0].Kind != Check {
				t.Errorf("%+v, want a check", got)
			}
			b.wait(AdmissionPatience)
		}
		if got := b.r.Run(b.now, in); len(got) != 1 || got[0].Kind != want {
			t.Errorf("%d MiB: %+v, want %v", memory, got, want)
		}
	}
}

// F72: what lost its place stays until a higher priority needs its room; the start waits until it is gone.
func TestF72_HigherPriorityTakesTheRoom(t *testing.T) {
	b := newBench(t, self)
	b.cells = b.cells[:1]
	b.cells[0].Capacity = state.CellCapacity{MemoryMiB: 100}
	b.spec(func(s *workload.Spec) { s.MemoryMiB = 100 })
	low := b.workloads[0]
	high := low
	spec := *low.Spec
	spec.Priority = 5
	high.Key, high.KeyHash, high.Spec = "spread.high", 20, &spec
	b.actual = []Actual{instance(1, Ready)}
	b.actual[0].MemoryMiB = 100
	run := func() []Action {
		in := b.input()
		in.Capacity = b.cells[0].Capacity
		return slices.Clone(b.r.Run(b.now, in))
	}
	if got := run(); len(got) != 0 {
		t.Fatalf("%+v", got)
	}
	b.workloads = append(b.workloads, high)
	if got := run(); len(got) != 1 || got[0].Kind != Stop || got[0].ID != b.actual[0].ID {
		t.Fatalf("%+v, want the lower priority to leave first", got)
	}
	b.actual[0].State = Stopping
	if got := run(); len(got) != 0 {
		t.Fatalf("%+v while the room is not free yet", got)
	}
	b.actual = nil
	if got := run(); len(got) != 1 || got[0].Kind != Start || got[0].ID.KeyHash != 20 {
		t.Fatalf("%+v", got)
	}
}

// F72: an instance that has lost its place for lack of room is told to leave at once only for a higher priority. For an
// equal one it serves on until its replacement does or SurplusMax is over: two equals would drive each other out.
func TestF72_EqualPriorityDoesNotTakeTheRoom(t *testing.T) {
	for priority, stops := range map[int8]int{-1: 0, 0: 0, 1: 1} {
		b := newBench(t, self)
		b.cells = b.cells[:1]
		b.cells[0].Capacity = state.CellCapacity{MemoryMiB: 100}
		b.spec(func(s *workload.Spec) { s.MemoryMiB = 100 })
		web := b.workloads[0]
		spec := *web.Spec
		spec.Priority = priority
		taker := web
		taker.Key, taker.KeyHash, taker.Spec = "spread.taker", 5, &spec // served first among equals
		b.actual = []Actual{instance(1, Ready)}
		b.actual[0].MemoryMiB = 100
		b.workloads = []placement.Workload{taker, web}
		in := b.input()
		in.Capacity = b.cells[0].Capacity
		if placed := len(in.Plan.Of(taker.KeyHash)) == 1; placed != (priority >= 0) {
			t.Fatalf("priority %d: placed %t", priority, placed)
		}
		if got := b.r.Run(b.now, in); len(got) != stops || stops == 1 && (got[0].Kind != Stop || got[0].ID != b.actual[0].ID) {
			t.Errorf("priority %d: %+v, want %d stops", priority, got, stops)
		}
	}
}

// F72: what only stays because no cell may run its workload makes way for what the plan puts here, whether that lacks
// room or a port; a higher priority does not make way for a lower one.
func TestF72_WhatNobodyMayRunMakesWay(t *testing.T) {
	for _, test := range []struct {
		name     string
		priority int8 // of the one that stays
		capacity state.CellCapacity
		port     uint16
		want     int // stops
	}{
		{"instances", 0, state.CellCapacity{InstancesMax: 2}, 0, 1},
		{"memory", 0, state.CellCapacity{MemoryMiB: 250}, 0, 1},
		{"two must go", 0, state.CellCapacity{MemoryMiB: 120}, 0, 2},
		{"port", 0, state.CellCapacity{}, 80, 1},
		{"room for all", 0, state.CellCapacity{InstancesMax: 3, MemoryMiB: 300}, 0, 0},
		{"higher priority", 1, state.CellCapacity{InstancesMax: 2}, 0, 0},
	} {
		b := newBench(t, self)
		b.cells = b.cells[:1]
		b.cells[0].Capacity = test.capacity
		b.spec(func(s *workload.Spec) { s.MemoryMiB = 100 })
		planned := b.workloads[0]
		spec := *planned.Spec
		spec.Ports = []workload.Port{{Host: 80, Container: 80}}
		planned.Spec = &spec
		homeless := spec
		homeless.Ports, homeless.Priority = nil, test.priority
		homeless.Constraints = []workload.Constraint{{Label: "zone", Value: "nowhere"}}
		b.actual = nil
		b.workloads = []placement.Workload{planned}
		for i := range uint64(2) {
			w := planned
			w.Key, w.KeyHash, w.Spec = "spread.stays", 20+i, &homeless
			b.workloads = append(b.workloads, w)
			b.actual = append(b.actual, Actual{ID: InstanceID{20 + i, 0, 1}, Key: w.Key, State: Ready, MemoryMiB: 100})
		}
		if test.port != 0 {
			b.actual[1].Ports = []uint16{test.port}
		}
		run := func() (stops, starts int) {
			in := b.input()
			in.Capacity = test.capacity
			for _, action := range b.r.Run(b.now, in) {
				if action.Kind == Stop {
					stops++
				} else {
					starts++
				}
			}
			return stops, starts
		}
		stops, starts := run()
		if stops != test.want || (starts == 1) != (test.want == 0) {
			t.Errorf("%s: %d stops and %d starts, want %d stops and no start beside them", test.name, stops, starts, test.want)
		}
		if test.want > 0 {
			if b.actual = b.actual[:2-stops]; test.port != 0 {
				b.actual[0].Ports = nil
			}
			if _, starts = run(); starts != 1 {
				t.Errorf("%s: no start when the room is free", test.name)
			}
		}
	}
}

// An emptied machine keeps what no other cell has a place for, and gives up what is replaced.
func TestDrainKeepsWhatNobodyTakes(t *testing.T) {
	b := newBench(t, other)
	b.spec(func(s *workload.Spec) { s.Replicas = 2 })
	b.actual, b.ready[other] = []Actual{instance(1, Ready)}, 1
	run := func() []Action {
		in := b.input()
		in.Drained = true
		return b.r.Run(b.now, in)
	}
	run()
	b.wait(time.Hour)
	if got := run(); len(got) != 0 {
		t.Fatalf("two replicas, one other cell: %+v", got)
	}
	b.cells = append(b.cells, placement.Cell{ID: 3, Flags: state.FlagProcess})
	b.ready[3] = 1
	run()
	b.wait(Linger)
	if got := run(); len(got) != 1 || got[0].Kind != Stop {
		t.Fatalf("both are replaced: %+v", got)
	}
}

// Property of F75 over the whole world: as long as nothing else fails, an update takes at most
// max_unavailable replicas below ready, also when the endpoints reach the cells late.
func TestF75_UpdateStaysWithinMaxUnavailable(t *testing.T) {
	for _, unavailable := range []uint8{1, 2, 3} {
		for _, port := range []uint16{0, 80} {
			w := newWorld(t, 7)
			spec := workload.Spec{Replicas: 5, Update: workload.Update{UnavailableMax: unavailable, MinReadySeconds: 1}}
			if port != 0 {
				spec.Ports = []workload.Port{{Host: port, Container: port}}
			}
			key := w.apply("web", 1, spec)
			w.run(30 * time.Second)
			w.converged()
			least := 5
			w.check = func() { least = min(least, w.readyCount(key, 0)) }
			for digest := uint64(2); digest < 6; digest++ {
				w.apply("web", digest, spec)
				w.run(90 * time.Second)
				if n := w.readyCount(key, digest); n != 5 {
					t.Fatalf("max_unavailable %d: %d of 5 updated", unavailable, n)
				}
			}
			want := 5 - int(unavailable)
			if port == 0 {
				want = 5 // make before break
			}
			if least < want {
				t.Errorf("max_unavailable %d, port %d: only %d ready, want %d", unavailable, port, least, want)
			}
		}
	}
}

// Two sides of a cut never take down more than their own share, and the bound holds within each side.
func TestF75_UpdateDuringACut(t *testing.T) {
	w := newWorld(t, 5)
	key := w.apply("web", 1, workload.Spec{Replicas: 5, Ports: []workload.Port{{Host: 80, Container: 80}}})
	w.run(30 * time.Second)
	w.cells[2].cut()
	w.run(3 * time.Second) // not noticed yet
	w.apply("web", 2, workload.Spec{Replicas: 5, Ports: []workload.Port{{Host: 80, Container: 80}}})
	least := 5
	w.check = func() { least = min(least, w.readyCount(key, 0)) }
	w.run(20 * time.Second)
	if least < 3 {
		t.Errorf("%d ready: more than one on each side of the cut", least)
	}
	w.cells[2].heal()
	w.run(3 * time.Minute)
	if n := w.readyCount(key, 2); n != 5 {
		t.Errorf("%d of 5 updated after the cut", n)
	}
}

// F85: scaling down ends the highest indices.
func TestF85_HighestIndexGoesFirst(t *testing.T) {
	b := newBench(t, self)
	b.workloads[0].Key = "stateful.db"
	b.spec(func(s *workload.Spec) { s.Stateful, s.Replicas, s.Oversubscribe = true, 2, true })
	for slot := range uint16(4) {
		a := instance(1, Ready)
		a.ID.Slot = slot
		b.actual = append(b.actual, a)
	}
	got := b.r.Run(b.now, b.input())
	if len(got) != 2 || got[0].ID.Slot != 2 || got[1].ID.Slot != 3 || got[0].Kind != Stop || got[1].Kind != Stop {
		t.Fatalf("%+v", got)
	}
}
