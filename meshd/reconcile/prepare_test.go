package reconcile

import (
	"fmt"
	"testing"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
	"colloid.net/workload"
)

// standing is a cell that stands by for a workload of one container that the other cell runs.
func standing(t testing.TB) *bench {
	b := newBench(t, other)
	b.prepares = true
	for i := range b.cells {
		b.cells[i].NoNew, b.cells[i].Flags = false, state.FlagOCI|state.FlagProcess
	}
	b.spec(func(s *workload.Spec) { s.Runtime = workload.RuntimeOCI })
	b.rankFirst(other)
	return b
}

// updating is a cell whose container has a port of the host and is to be replaced, while it serves.
func updating(t testing.TB) *bench {
	b := standing(t)
	b.spec(func(s *workload.Spec) { s.Ports = []workload.Port{{Host: 80, Container: 80}} })
	b.moveTo(self)
	b.actual = []Actual{instance(7, Ready, 80)}
	return b
}

func (b *bench) answer(digest uint64, failure string) {
	b.t.Helper()
	if !b.r.Prepared(b.now, InstanceID{10, 0, digest}, failure) {
		b.t.Fatal("the answer is not waited for")
	}
}

// A cell that stands by asks when all replicas are ready, or a while after, and once.
func TestStandBy_AsksOnceWhenAllAreReady(t *testing.T) {
	for _, ready := range []bool{true, false} {
		b := standing(t)
		if ready {
			b.ready[other] = 1
		} else {
			b.ready[other] = 7 // the version before
			b.expect()
			if d := b.r.Deadline(); d != b.now.Add(StandbyDelay) {
				t.Errorf("deadline %d", d)
			}
			b.wait(StandbyDelay - 1)
			b.expect()
			b.wait(1)
		}
		b.expect(prepare(1))
		if a := b.lastAction[0]; a.Key != "spread.web" || string(a.Spec) != "spec" {
			t.Errorf("it carries %+v", a)
		}
		b.wait(RepeatInterval)
		b.expect()
		b.answer(1, "")
		b.expect()
		b.wait(PrepareAgain - 1)
		b.expect()
		b.wait(1)
		b.expect(prepare(1))
		b.answer(1, "")
		b.workloads[0].Digest, b.ready[other] = 2, 2
		b.expect(prepare(2), withdraw(1))
		if b.r.Preparations() != 1 {
			t.Error("a former version is remembered")
		}
	}
}

// What fails is asked for after pauses that double, up to half an hour.
func TestStandBy_FailuresAreRepeatedMoreAndMoreSeldom(t *testing.T) {
	b := standing(t)
	b.ready[other] = 1
	b.expect(prepare(1))
	for _, pause := range []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute,
		16 * time.Minute, 30 * time.Minute, 30 * time.Minute} {
		b.answer(1, "no such image")
		if p, ok := b.r.Preparation(InstanceID{10, 0, 1}); !ok || p.Failure != "no such image" || p.Done || p.Asked || p.ForUpdate {
			t.Fatalf("%+v, %t", p, ok)
		}
		b.wait(pause - 1)
		b.expect()
		b.wait(1)
		b.expect(prepare(1))
	}
	b.answer(1, "")
	b.wait(time.Hour)
	b.expect()
	// One that answers nothing has failed, too.
	b.r.Greeted(b.now, true)
	b.expect(prepare(1))
	b.wait(PreparePatience)
	b.expect()
	b.wait(prepareBackoff)
	b.expect(prepare(1))
}

// After a new connection all is asked again, but what was under way at two ends in a row only after a pause.
func TestStandBy_ANewConnectionAsksAgain(t *testing.T) {
	b := standing(t)
	b.ready[other] = 1
	b.expect(prepare(1))
	b.answer(1, "")
	for range 3 {
		b.r.Greeted(b.now, true)
		b.expect(prepare(1))
		b.answer(1, "no")
	}
	b.r.Greeted(b.now, true)
	b.expect(prepare(1))
	b.r.Greeted(b.now, true) // it is killed, once
	b.expect(prepare(1))
	b.r.Greeted(b.now, true) // and again
	b.expect()
	b.r.Greeted(b.now, false)
	b.expect()
	b.wait(prepareBackoff)
	b.expect(prepare(1))
	b.r.Unsent(b.lastAction[0]) // the ring was full
	b.expect(prepare(1))
	for range 5 { // the same one says hello, as it does when its policy changes: nothing has ended
		b.r.Greeted(b.now, false)
		b.expect(prepare(1))
	}
	b.answer(1, "")
	b.r.Greeted(b.now, false)
	b.expect(prepare(1))
	b.answer(1, "")
}

// Nothing is prepared while this cell must not start anything, for a key that is frozen, by an older helper, or without
// its environment; nor for a rollout that has failed, where an instance is, or where nobody needs it (F57, F64, F66, F83).
func TestStandBy_Holds(t *testing.T) {
	for name, change := range map[string]func(b *bench){
		"hold":          func(b *bench) { b.hold = true },
		"not sure":      func(b *bench) { b.unsure = true },
		"frozen":        func(b *bench) { b.frozen = true },
		"older helper":  func(b *bench) { b.prepares = false },
		"not startable": func(b *bench) { b.unready = true },
		"halted":        func(b *bench) { b.halted = true },
		"refused":       func(b *bench) { b.actual = []Actual{instance(1, Denied)}; b.hold = true },
		"process":       func(b *bench) { b.spec(func(s *workload.Spec) { s.Runtime = workload.RuntimeProcess }) },
		"drained":       func(b *bench) { b.moveTo(other) },
		"everywhere":    func(b *bench) { b.spec(func(s *workload.Spec) { s.Replicas = 2 }); b.hold = true },
	} {
		b := standing(t)
		b.ready[other] = 1
		change(b)
		for range 3 {
			b.expect()
			b.wait(StandbyDelay)
		}
		if n := b.r.Preparations(); n != 0 {
			t.Errorf("%s: %d are known", name, n)
		}
		if name == "hold" {
			b.hold = false
			b.expect(prepare(1))
			b.answer(1, "")
			b.hold = true
			b.expect()
			b.hold = false
			b.expect() // it has not been forgotten meanwhile
		}
	}
}

// A helper has four requests at a time for which this cell stands by, and 16 in all. Those of updates go first.
func TestStandBy_BoundedRequests(t *testing.T) {
	b := standing(t)
	first := b.workloads[0]
	b.workloads = b.workloads[:0]
	for i := range 60 {
		w := first
		w.KeyHash = uint64(100 + i)
		b.workloads = append(b.workloads, w)
	}
	b.ready[other] = 1
	plan := b.planner.Compute(b.cells, b.workloads)
	var updates []InstanceID
	for i := range b.workloads {
		spec := *b.workloads[i].Spec
		if plan.Of(b.workloads[i].KeyHash)[0].Cell == self {
			spec.Ports = []workload.Port{{Host: uint16(1000 + i), Container: 80}}
			b.workloads[i].Spec = &spec
			b.actual = append(b.actual, Actual{ID: InstanceID{b.workloads[i].KeyHash, 0, 7}, State: Ready})
			updates = append(updates, InstanceID{b.workloads[i].KeyHash, 0, 1})
		}
	}
	if len(updates) < PreparesMax+4 || len(b.workloads)-len(updates) < 8 {
		t.Fatalf("%d updates of %d", len(updates), len(b.workloads))
	}
	asked := map[InstanceID]bool{}
	under := 0
	step := func() (news, standbys int) {
		for _, a := range b.r.Run(b.now, b.input()) {
			if a.Kind == Prepare {
				if asked[a.ID] {
					t.Fatalf("%+v is asked for twice", a.ID)
				}
				asked[a.ID] = true
				under++
				news++
				if p, _ := b.r.Preparation(a.ID); !p.ForUpdate {
					standbys++
				}
			}
		}
		if under > PreparesMax {
			t.Fatalf("%d under way", under)
		}
		return news, standbys
	}
	if news, standbys := step(); news != PreparesMax || standbys != 0 {
		t.Errorf("%d, %d of them to stand by", news, standbys)
	}
	total := PreparesMax
	for range 200 {
		for id := range asked {
			if p, ok := b.r.Preparation(id); ok && p.Asked {
				b.r.Prepared(b.now, id, "no")
				under--
				break
			}
		}
		news, _ := step()
		total += news
		b.wait(time.Millisecond)
	}
	if total != len(b.workloads) || under != 0 {
		t.Errorf("%d of %d were asked for, %d under way", total, len(b.workloads), under)
	}
	// Of those that it stands by for alone four are under way.
	b = standing(t)
	b.ready[other] = 1
	b.workloads = b.workloads[:0]
	for i := range 60 {
		w := first
		w.KeyHash = uint64(100 + i)
		b.workloads = append(b.workloads, w)
	}
	asked, under = map[InstanceID]bool{}, 0
	b.rankAllFirst(other)
	if news, _ := step(); news != standbysMax {
		t.Errorf("%d to stand by at a time", news)
	}
}

// rankAllFirst leaves only workloads of which the cell has the replica.
func (b *bench) rankAllFirst(cell wire.CellID) {
	plan := b.planner.Compute(b.cells, b.workloads)
	kept := b.workloads[:0]
	for _, w := range b.workloads {
		if plan.Of(w.KeyHash)[0].Cell == cell {
			kept = append(kept, w)
		}
	}
	b.workloads = kept
}

// What is not wanted any more is withdrawn at once, so that what is wanted now does not wait behind it.
func TestStandBy_WhatIsNotWantedAnyMoreIsNotWaitedFor(t *testing.T) {
	b := standing(t)
	b.ready[other] = 1
	b.expect(prepare(1))
	b.workloads[0].Digest, b.ready[other] = 2, 2
	b.expect(prepare(2), withdraw(1))
	if d := b.r.Deadline(); d != b.now {
		t.Errorf("deadline in %v: who waits for its place is asked for now", d.Sub(b.now))
	}
	if _, ok := b.r.Preparation(InstanceID{10, 0, 1}); ok || b.r.Preparations() != 1 {
		t.Error("the former version is known")
	}
	if b.r.Prepared(b.now, InstanceID{10, 0, 1}, "") || b.r.Prepared(b.now, InstanceID{10, 0, 3}, "") {
		t.Error("an answer that nobody waits for counts")
	}
	b.workloads = nil
	b.expect(withdraw(2))
	b.expect()
}

// While this cell may not start anything, or others update first, what is under way for an update goes on.
func TestF75_APauseWithdrawsNothing(t *testing.T) {
	for _, pause := range []func(b *bench, is bool){
		func(b *bench, is bool) { b.hold = is }, func(b *bench, is bool) { b.unsure = is },
		func(b *bench, is bool) { b.unready = is },
	} {
		b := updating(t)
		b.expect(prepare(1))
		pause(b, true)
		b.expect()
		pause(b, false)
		b.expect()
		b.answer(1, "")
		b.expect(stop(7))
	}
}

func withdraw(digest uint64) Action {
	return Action{Kind: Withdraw, ID: InstanceID{10, 0, digest}}
}

// The helper hears once that what it prepared is not wanted any more, so that it does not keep it: not about an instance,
// not on another connection, and not of a workload in conflict, which is frozen.
func TestStandBy_WhatEndsIsWithdrawn(t *testing.T) {
	prepared := func() *bench {
		b := standing(t)
		b.ready[other] = 1
		b.expect(prepare(1))
		b.answer(1, "")
		b.expect()
		return b
	}
	b := prepared()
	b.workloads = nil
	b.expect(withdraw(1))
	b.r.Unsent(withdraw(1))
	b.expect(withdraw(1))
	b.expect()

	b = prepared()
	b.moveTo(self)
	b.expect(start(1))
	b.actual = []Actual{instance(1, Ready)}
	b.expect()

	b = prepared()
	b.r.Greeted(b.now, true)
	b.workloads = nil
	b.expect()

	b = prepared()
	b.r.Greeted(b.now, false) // the same one still keeps it
	b.workloads = nil
	b.expect(withdraw(1))

	b = prepared()
	b.frozen = true
	b.expect()
	if b.r.Preparations() != 1 {
		t.Error("it is forgotten")
	}
}

// What was prepared and is taken away on purpose is shown, and brought again only much later.
func TestStandBy_WhatIsRemovedIsNotCalledPrepared(t *testing.T) {
	b := standing(t)
	b.ready[other] = 1
	b.expect(prepare(1))
	b.answer(1, "")
	b.expect()
	b.answer(1, "it was removed")
	if p, _ := b.r.Preparation(InstanceID{10, 0, 1}); p.Done || p.Failure != "it was removed" {
		t.Errorf("%+v", p)
	}
	b.wait(prepareBackoffMax - 1)
	b.expect()
	b.wait(1)
	b.expect(prepare(1))
}

// What serves goes on until its successor is prepared, as often as that fails (F75).
func TestF75_WhatServesOutlivesASuccessorThatCannotBePrepared(t *testing.T) {
	for _, change := range []func(*workload.Spec){
		func(s *workload.Spec) {},
		func(s *workload.Spec) { s.Volumes = []workload.Volume{{Name: "v", MountPath: "/v"}} },
		func(s *workload.Spec) { s.Stateful = true },
	} {
		b := updating(t)
		b.spec(change)
		b.expect(prepare(1))
		b.wait(AdmissionPatience)
		b.expect()
		for range 20 {
			b.answer(1, "no such image")
			b.wait(prepareBackoffMax)
			b.expect(prepare(1))
		}
		b.wait(PreparePatience) // an answer that does not come is none after so many
		b.expect()
		b.wait(prepareBackoffMax)
		b.expect(prepare(1))
		b.answer(1, "")
		b.expect(stop(7))
		b.actual = nil
		b.expect(start(1))
		b.actual = []Actual{instance(1, Starting)}
		b.expect()
		if n := b.r.Preparations(); n != 0 {
			t.Errorf("%d are known", n)
		}
	}
}

// A helper that never answers holds an update up for a quarter of an hour; one that dies starts that anew.
func TestF75_AnUpdateDoesNotWaitForEver(t *testing.T) {
	b := updating(t)
	b.expect(prepare(1))
	b.wait(PreparePatience - 1)
	b.expect()
	if d := b.r.Deadline(); d != b.now.Add(1) {
		t.Errorf("deadline in %v", d.Sub(b.now))
	}
	b.r.Greeted(b.now, true)
	b.expect(prepare(1))
	b.wait(PreparePatience - 1)
	b.expect()
	b.wait(1)
	b.expect(stop(7))
	b.wait(RepeatInterval)
	b.expect(stop(7))
}

// A refusal is the answer to a request to prepare, and a rollout that has failed is asked about further, so that it is
// known when it would go; what does not serve, a process and an older helper are as they were (D2, F84).
func TestF75_RefusedHaltedAndOlder(t *testing.T) {
	b := updating(t)
	b.expect(prepare(1))
	b.actual = append(b.actual, instance(1, Denied))
	b.expect()
	if n := b.r.Preparations(); n != 0 {
		t.Errorf("%d are known after the refusal", n)
	}
	b = updating(t)
	b.halted = true
	b.expect() // nothing was known before it failed
	b.halted = false
	b.expect(prepare(1))
	b.answer(1, "no such image")
	b.halted = true
	b.wait(prepareBackoff)
	b.expect(prepare(1))
	b.answer(1, "")
	b.expect()
	b.halted = false
	b.expect(stop(7))

	b = updating(t)
	b.actual[0].State = Backoff
	b.expect(stop(7))
	b = updating(t)
	b.prepares = false
	b.expect(check(1))
	b = updating(t)
	b.spec(func(s *workload.Spec) { s.Runtime = workload.RuntimeProcess })
	b.expect(check(1))
}

// A table beyond its bound is not made: what is beyond is fetched when it is started.
func TestStandBy_BoundedTable(t *testing.T) {
	b := standing(t)
	first := b.workloads[0]
	b.workloads = b.workloads[:0]
	for i := range 3 * PreparationsMax {
		w := first
		w.KeyHash = uint64(100 + i)
		b.workloads = append(b.workloads, w)
	}
	b.rankAllFirst(other)
	if len(b.workloads) <= PreparationsMax {
		t.Fatal(len(b.workloads))
	}
	b.ready[other] = 1
	b.r.Run(b.now, b.input())
	if n := b.r.Preparations(); n != PreparationsMax {
		t.Errorf("%d", n)
	}
}

// Standing by costs nothing while nothing changes.
func TestStandBy_AllocatesNothingWhenNothingChanged(t *testing.T) {
	b := standing(t)
	b.ready[other] = 1
	in := b.input()
	b.r.Run(b.now, in)
	b.answer(1, "")
	if n := testing.AllocsPerRun(20, func() {
		if got := b.r.Run(b.now, in); len(got) != 0 {
			t.Fatal(fmt.Sprint(got))
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if b.r.Deadline() == clock.Never {
		t.Error("it is never asked again")
	}
}
