package reconcile

import (
	"slices"
	"testing"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/placement"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
	"colloid.net/workload"
)

// bench is one cell whose whole input a test sets by hand.
type bench struct {
	t          testing.TB
	r          *Reconciler
	now        clock.Instant
	planner    *placement.Planner
	cells      []placement.Cell
	workloads  []placement.Workload
	ready      map[wire.CellID]uint64 // digest READY on a cell, any key and slot
	frozen     bool
	frozenKey  uint64 // this one, too
	hold       bool
	unsure     bool
	prepares   bool // the helper takes a Prepare
	halted     bool
	unready    bool // what an instance needs besides its specification is not here
	actual     []Actual
	lastAction []Action
}

const (
	self  wire.CellID = 1
	other wire.CellID = 2
)

// newBench has one workload of one replica and digest 1, which runs on the cell where says.
func newBench(t testing.TB, where wire.CellID) *bench {
	b := &bench{
		t: t, r: New(self), now: 1e9, planner: placement.NewPlanner(1, 2), ready: map[wire.CellID]uint64{},
	}
	for _, id := range []wire.CellID{self, other} {
		b.cells = append(b.cells, placement.Cell{ID: id, Flags: state.FlagProcess})
	}
	b.workloads = []placement.Workload{{
		Key: "spread.web", KeyHash: 10, Digest: 1, Encoded: []byte("spec"),
		Spec: &workload.Spec{Runtime: workload.RuntimeProcess, Replicas: 1},
	}}
	b.moveTo(where)
	return b
}

// moveTo leaves only one cell open for replicas.
func (b *bench) moveTo(where wire.CellID) {
	for i := range b.cells {
		b.cells[i].NoNew = b.cells[i].ID != where
	}
}

// rankFirst finds a hash key that gives the cell rank 0.
func (b *bench) rankFirst(cell wire.CellID) {
	for k := uint64(0); b.planner.Compute(b.cells, b.workloads).Of(10)[0].Cell != cell; k++ {
		b.planner = placement.NewPlanner(k, 0)
	}
}

func (b *bench) spec(change func(*workload.Spec)) {
	spec := *b.workloads[0].Spec
	change(&spec)
	b.workloads[0].Spec = &spec
}

func (b *bench) input() *Input {
	return &Input{
		Self: self, Authoritative: !b.unsure, HoldStarts: b.hold,
		Plan: b.planner.Compute(b.cells, b.workloads), Workloads: b.workloads,
		Frozen: func(key uint64) bool { return b.frozen || key == b.frozenKey },
		Ready: func(_ uint64, cell wire.CellID, _ uint16, digest uint64) bool {
			return b.ready[cell] == digest
		},
		ReadyOld: func(_ uint64, cell wire.CellID, _ uint16) bool { return b.ready[cell] != 0 },
		Actual:   b.actual, Prepares: b.prepares,
		Halted:    func(uint64) bool { return b.halted },
		Startable: func(*placement.Workload) bool { return !b.unready },
	}
}

// expect runs the reconciler and compares the kinds and digests of the actions.
func (b *bench) expect(want ...Action) {
	b.t.Helper()
	got := slices.Clone(b.r.Run(b.now, b.input()))
	b.lastAction = got
	same := func(x, y Action) bool { return x.Kind == y.Kind && x.ID == y.ID }
	if !slices.EqualFunc(got, want, same) {
		b.t.Fatalf("got %+v, want %+v", got, want)
	}
}

func (b *bench) wait(d time.Duration) { b.now = b.now.Add(d) }

func instance(digest uint64, s State, ports ...uint16) Actual {
	return Actual{ID: InstanceID{10, 0, digest}, Key: "spread.web", State: s, Ports: ports}
}

func TestF131_ActionsAreRepeatedUntilTheyShow(t *testing.T) {
	b := newBench(t, self)
	b.expect(start(1))
	if a := b.lastAction[0]; a.Key != "spread.web" || string(a.Spec) != "spec" {
		t.Errorf("start carries %+v", a)
	}
	if d := b.r.Deadline(); d != b.now.Add(RepeatInterval) {
		t.Errorf("deadline %d", d)
	}
	b.wait(time.Second)
	b.expect()
	if d := b.r.Deadline(); d != b.now.Add(RepeatInterval-time.Second) {
		t.Errorf("deadline %d after a run in between", d)
	}
	b.wait(time.Second)
	b.expect(start(1))
	b.r.Unsent(b.lastAction[0])
	b.expect(start(1))
	b.actual = []Actual{instance(1, Starting)}
	b.wait(time.Minute)
	b.expect()
	if b.r.Deadline() != clock.Never {
		t.Error("nothing to wait for, but a deadline")
	}
	b.workloads = nil
	b.expect(stop(1))
	b.wait(RepeatInterval)
	b.expect(stop(1))
	b.actual[0].State = Stopping
	b.wait(RepeatInterval)
	b.expect()
}

// An action that was not wanted for one Run is asked for at once when it is wanted again.
func TestF131_RepetitionIsPerWish(t *testing.T) {
	b := newBench(t, self)
	b.expect(start(1))
	b.hold = true
	b.expect()
	b.hold = false
	b.expect(start(1))
}

func TestF69_Settle(t *testing.T) {
	b := newBench(t, self)
	begin := b.now
	for b.now.Sub(begin) < SettleMax-time.Second {
		b.r.Changed(b.now)
		b.wait(SettleQuiet - 1)
		b.expect()
	}
	b.r.Changed(b.now)
	if d := b.r.Deadline(); d != begin.Add(SettleMax) {
		t.Fatalf("deadline %d s after the first change", d.Sub(begin)/time.Second)
	}
	b.now = begin.Add(SettleMax)
	b.expect(start(1))
	b.r.Changed(b.now)
	b.wait(SettleQuiet)
	if b.r.Deadline() != b.now {
		t.Fatal("a new change opens no new window")
	}
	b.wait(RepeatInterval)
	b.expect(start(1))
}

// An instance with the wanted identity is never started or stopped, whatever its state (F74, F76).
func TestF74_WantedInstanceIsAdopted(t *testing.T) {
	for s := Unknown; s < Gone; s++ {
		b := newBench(t, self)
		b.actual = []Actual{instance(1, s)}
		b.expect()
	}
	b := newBench(t, self)
	b.actual = []Actual{instance(1, Gone)}
	b.expect(start(1))
}

func TestF57_FrozenKeyInTheList(t *testing.T) {
	b := newBench(t, self)
	b.frozen = true
	b.expect()
	for _, where := range []wire.CellID{self, other} {
		b.moveTo(where)
		b.ready[other] = 1
		b.actual = []Actual{instance(7, Ready), instance(1, Denied)}
		b.wait(SurplusMax)
		b.expect()
	}
}

func TestF75_SurplusIsKeptUntilReplaced(t *testing.T) {
	b := newBench(t, other)
	b.actual = []Actual{instance(1, Ready)}
	b.expect()
	if b.r.Deadline() != b.now.Add(SurplusMax) {
		t.Fatal("no deadline for the surplus")
	}
	b.ready[other] = 9 // an old version there does not count
	b.expect()
	b.ready[other] = 1
	b.expect() // announced as draining first
	b.wait(Linger)
	b.expect(stop(1))
}

func TestF75_SurplusEnds(t *testing.T) {
	b := newBench(t, other)
	b.actual = []Actual{instance(1, Ready)}
	b.expect()
	b.wait(SurplusMax - 1)
	b.expect()
	b.moveTo(self) // wanted again: the time starts anew
	b.expect()
	b.moveTo(other)
	b.expect()
	b.wait(SurplusMax - 1)
	b.expect()
	b.wait(1)
	b.expect(stop(1))
}

// The time of a hold does not count, nor does a replacement seen in it (F64, F66).
func TestF66_HoldKeepsSurplus(t *testing.T) {
	for _, unsure := range []bool{false, true} {
		b := newBench(t, other)
		b.actual, b.ready[other] = []Actual{instance(1, Ready)}, 1
		b.hold, b.unsure = !unsure, unsure
		b.expect()
		b.wait(2 * SurplusMax)
		b.expect()
		b.hold, b.unsure, b.ready[other] = false, false, 0
		b.expect()
		b.wait(SurplusMax)
		b.expect(stop(1))
	}
}

// During a hold an operator's deletion still works, and nothing is updated.
func TestF66_HoldAndOperators(t *testing.T) {
	b := newBench(t, self)
	b.hold, b.actual = true, []Actual{instance(7, Ready)}
	b.expect()
	b.workloads = nil
	b.expect(stop(7))
}

func TestF75_WhatDoesNotRunIsNotKept(t *testing.T) {
	for _, s := range []State{Denied, Exited} {
		b := newBench(t, other)
		b.actual = []Actual{instance(1, s)}
		b.expect(stop(1))
	}
	b := newBench(t, other)
	b.actual = []Actual{instance(1, Backoff)}
	b.expect()
}

// max_unavailable counts higher ranks that have no READY instance at all.
func TestF75_HigherRanksCount(t *testing.T) {
	b := newBench(t, self)
	b.cells[1].NoNew = false
	b.spec(func(s *workload.Spec) { s.Replicas = 2 })
	b.rankFirst(self)
	b.actual = []Actual{instance(7, Ready)}
	b.expect()
	b.ready[other] = 7
	b.expect(start(1))
	b.ready[other] = 0
	b.spec(func(s *workload.Spec) { s.Update.UnavailableMax = 2 })
	b.wait(RepeatInterval)
	b.expect(start(1))
	b.spec(func(s *workload.Spec) { s.Update.UnavailableMax = 1 })
	b.actual[0].State = Unready // it does not serve, so its end makes nothing worse
	b.wait(RepeatInterval)
	b.expect(start(1))
}

// The wait of min_ready starts anew when the lower ranks were not READY in between.
func TestF75_MinReadyIsContinuous(t *testing.T) {
	b := newBench(t, self)
	b.cells[1].NoNew = false
	b.spec(func(s *workload.Spec) { s.Replicas, s.Update.MinReadySeconds = 2, 10 })
	b.rankFirst(other)
	b.actual, b.ready[other] = []Actual{instance(7, Ready)}, 1
	b.expect()
	b.wait(9 * time.Second)
	b.ready[other] = 7
	b.expect()
	b.ready[other] = 1
	b.expect()
	b.wait(9 * time.Second)
	b.expect()
	if b.r.Deadline() != b.now.Add(time.Second) {
		t.Error("no deadline for the end of the wait")
	}
	b.wait(time.Second)
	b.expect(start(1))
}

func TestF75_StartFirstAndStopFirst(t *testing.T) {
	b := newBench(t, self)
	b.actual = []Actual{instance(7, Ready)}
	b.expect(start(1))
	b.actual = []Actual{instance(7, Ready), instance(1, Starting)}
	b.expect()
	b.actual[1].State = Ready
	b.expect()
	b.wait(Linger)
	b.expect(stop(7))

	for _, change := range []func(*workload.Spec){
		func(s *workload.Spec) { s.Ports = []workload.Port{{Host: 80, Container: 80}} },
		func(s *workload.Spec) { s.Volumes = []workload.Volume{{Name: "v", MountPath: "/v"}} },
		func(s *workload.Spec) { s.Stateful = true },
	} {
		b = newBench(t, self)
		b.spec(change)
		b.actual = []Actual{instance(7, Ready)}
		b.expect(check(1))
		b.wait(AdmissionPatience)
		b.expect(stop(7))
		b.actual[0].State = Stopping
		b.wait(RepeatInterval)
		b.expect()
		b.actual = nil
		b.expect(start(1))
	}
}

// A third version comes while the second is not READY: the second goes, the first serves on.
func TestF75_HalfwayVersionGoes(t *testing.T) {
	b := newBench(t, self)
	b.actual = []Actual{instance(7, Ready), instance(8, Starting), instance(1, Starting)}
	b.expect(stop(8))
	b.hold = true
	b.wait(RepeatInterval)
	b.expect()
}

// A wanted instance that is stopping is started when it is gone, not before.
func TestF131_StoppingInstanceIsAwaited(t *testing.T) {
	b := newBench(t, self)
	b.actual = []Actual{instance(1, Stopping)}
	b.expect()
	b.actual = nil
	b.expect(start(1))
}

// A start waits for the host port of an instance that leaves (F77).
func TestF77_StartWaitsForThePort(t *testing.T) {
	b := newBench(t, self)
	b.spec(func(s *workload.Spec) { s.Ports = []workload.Port{{Host: 80, Container: 80}} })
	leaving := instance(5, Ready, 443, 80)
	leaving.ID.KeyHash = 99
	b.actual = []Actual{leaving}
	b.expect(Action{Kind: Stop, ID: leaving.ID})
	b.actual[0].State = Stopping
	b.expect()
	b.actual[0].Ports = []uint16{443}
	b.expect(start(1))
}

func TestStopGrace(t *testing.T) {
	b := newBench(t, self)
	b.actual = []Actual{instance(7, Ready)}
	b.spec(func(s *workload.Spec) { s.Replicas, s.StopGraceSeconds = 0, 3 })
	b.expect(stop(7))
	if g := b.lastAction[0].Grace; g != 3*time.Second {
		t.Errorf("grace of the specification: %s", g)
	}
	b.actual[0].Grace = 5 * time.Second
	b.wait(RepeatInterval)
	b.expect(stop(7))
	if g := b.lastAction[0].Grace; g != 5*time.Second {
		t.Errorf("grace of the instance: %s", g)
	}
	b.actual[0].Grace, b.workloads = 0, nil
	b.wait(RepeatInterval)
	b.expect(stop(7))
	if g := b.lastAction[0].Grace; g != GraceDefault {
		t.Errorf("grace by default: %s", g)
	}
}

// Stops come first, then starts by priority (F66).
func TestF66_OrderOfActions(t *testing.T) {
	b := newBench(t, self)
	high := b.workloads[0]
	spec := *high.Spec
	spec.Priority = 1
	high.KeyHash, high.Spec = 20, &spec
	b.workloads = append(b.workloads, high)
	gone := instance(5, Ready)
	gone.ID.KeyHash = 30
	b.actual = []Actual{gone}
	b.expect(Action{Kind: Stop, ID: gone.ID}, Action{Kind: Start, ID: InstanceID{20, 0, 1}}, start(1))
}

// Replicas of an oversubscribed workload on one cell are updated one after the other.
func TestF75_OversubscribedSlots(t *testing.T) {
	b := newBench(t, self)
	b.spec(func(s *workload.Spec) { s.Replicas, s.Oversubscribe = 3, true })
	inSlot := func(slot uint16, digest uint64) Actual {
		a := instance(digest, Ready)
		a.ID.Slot = slot
		return a
	}
	b.actual = []Actual{inSlot(0, 7), inSlot(1, 7), inSlot(2, 7), inSlot(3, 7)}
	in := b.input()
	updated := uint16(1)
	in.Ready = func(_ uint64, _ wire.CellID, slot uint16, _ uint64) bool { return slot < updated }
	in.ReadyOld = func(uint64, wire.CellID, uint16) bool { return true }
	in.Actual[0] = inSlot(0, 1)
	b.r.Run(b.now, in)
	b.wait(Linger)
	got := b.r.Run(b.now, in)
	// Slot 3 is one too many; slot 1 may update because slot 0 is READY; slot 2 waits.
	if len(got) != 2 || got[0].Kind != Stop || got[0].ID.Slot != 3 ||
		got[1].Kind != Start || got[1].ID.Slot != 1 {
		t.Fatalf("%+v", got)
	}
}

func TestRunRejectsBrokenInput(t *testing.T) {
	b := newBench(t, self)
	for name, breakIt := range map[string]func(*Input){
		"another cell": func(in *Input) { in.Self = other },
		"unsorted":     func(in *Input) { in.Workloads = append(in.Workloads, in.Workloads[0]) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			in := b.input()
			breakIt(in)
			New(self).Run(b.now, in)
		}()
	}
	if got := New(self).Run(b.now, &Input{Self: self}); got != nil {
		t.Errorf("without a plan: %+v", got)
	}
}
