package sim

import (
	"strings"
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/cell"
	"colloid.net/meshd/state"
)

// conflicted makes spread.web a key in CONFLICT of which every cell runs an instance.
func conflicted(t *testing.T, seed uint64) *World {
	t.Helper()
	w := form(t, Options{Seed: seed, Cells: 3})
	run(t, w, 15*time.Second)
	w.Node(0).Set("spread.web", spec(t, 3, "/bin/a"), uds.ExpectAny, nil)
	until(t, w, 10*time.Second, "3 replicas", func() bool { return running(w) == 3 })
	makeConflict(t, w, "spread.web")
	return w
}

// makeConflict has two operators change a key in two partitions.
func makeConflict(t *testing.T, w *World, key string) {
	t.Helper()
	w.Isolate(w.Node(0))
	w.Node(0).Set(key, spec(t, 3, "/bin/b"), uds.ExpectAny, nil)
	w.Node(1).Set(key, spec(t, 3, "/bin/c"), uds.ExpectAny, nil)
	run(t, w, 500*time.Millisecond)
	w.Heal()
	until(t, w, 40*time.Second, "conflict everywhere", func() bool {
		for _, n := range w.Nodes() {
			if entries, _ := value(n, key); entries != 2 {
				return false
			}
		}
		return true
	})
}

// A cell does not leave with an instance of a key in CONFLICT: nobody would take it over. The refusal names the
// key and both ways out; with force, the cell leaves and stops it (SAFE-1, F8).
func TestSAFE1_F8_LeaveRefusesAConflict(t *testing.T) {
	for _, seed := range seeds(3) {
		w := conflicted(t, seed)
		n := w.Node(1)
		before := running(w)
		var answers []cell.Response
		leave := func(payload ...byte) {
			n.Command(cell.Request{Code: uds.CodeLeave, Payload: payload}, func(r cell.Response) { answers = append(answers, r) })
		}
		leave(0, 5)
		run(t, w, 30*time.Second)
		if len(answers) != 1 || answers[0].Status != uds.Error || !strings.Contains(answers[0].Text, "spread.web") ||
			!strings.Contains(answers[0].Text, "resolve") || !strings.Contains(answers[0].Text, "--force") {
			t.Fatalf("seed %d: leave with a conflict was answered with %+v", seed, answers)
		}
		if running(w) != before || n.cell.Phase() != cell.Active {
			t.Fatalf("seed %d: %d instances ran, now %d; %v", seed, before, running(w), n.cell.Phase())
		}
		n.forced = true
		leave(0, 5, leaveForce)
		until(t, w, time.Minute, "left", func() bool { return len(answers) == 2 && answers[1].Status == uds.OK })
		run(t, w, 5*time.Second)
		if len(n.Running()) != 0 {
			t.Fatalf("seed %d: a cell that has left runs %v", seed, n.Running())
		}
	}
}

// leaveForce is the flag of a LEAVE request.
const leaveForce = 1

// A key that gets into CONFLICT while a cell leaves ends the leaving: the cell is alive again and still runs it.
func TestSAFE1_F8_ConflictDuringALeave(t *testing.T) {
	for _, seed := range seeds(3) {
		w := form(t, Options{Seed: seed, Cells: 3})
		run(t, w, 15*time.Second)
		w.Node(0).Set("spread.web", spec(t, 3, "/bin/a"), uds.ExpectAny, nil)
		until(t, w, 10*time.Second, "3 replicas", func() bool { return running(w) == 3 })
		n := w.Node(1)
		var answers []cell.Response
		n.Command(cell.Request{Code: uds.CodeLeave, Payload: []byte{0, 60}}, func(r cell.Response) { answers = append(answers, r) })
		makeConflict(t, w, "spread.web") // a copy that no other cell has room for keeps the leaver waiting
		if n.cell.Phase() != cell.Leaving {
			t.Skipf("seed %d: left before the conflict", seed)
		}
		before := len(n.Running())
		until(t, w, 2*time.Minute, "an answer", func() bool { return len(answers) == 1 })
		run(t, w, 10*time.Second)
		if before == 0 {
			continue // it was handed over before the conflict
		}
		raw, _ := w.Node(0).cell.Store().Get([]byte(state.StatusKey(n.ID())))
		encoded, _ := raw.Live()
		status, _ := state.ParseCellStatus(encoded)
		if answers[0].Status != uds.Error || len(n.Running()) != before || status.Life != state.Alive {
			t.Fatalf("seed %d: answer %+v, runs %v, is %v", seed, answers, n.Running(), status.Life)
		}
	}
}

// A cell that was drained, left and joined again is a new one: it takes work, also where nobody heard it leave. A restart
// does not end the wish.
func TestDrainEndsWithTheLifeOfTheCell(t *testing.T) {
	for _, unheard := range []bool{false, true} {
		w := form(t, Options{Seed: 8, Cells: 3})
		run(t, w, 15*time.Second)
		w.Node(0).Set("spread.web", Spec(3, "/bin/a"), uds.ExpectAny, nil)
		drained := w.Node(2)
		w.Node(0).Drain(drained, true)
		until(t, w, time.Minute, "empty", func() bool { return len(drained.Running()) == 0 && running(w) == 2 })
		drained.Kill()
		run(t, w, 5*time.Second)
		drained.Boot()
		run(t, w, 30*time.Second)
		if len(drained.Running()) != 0 {
			t.Fatal("new work on a drained cell that was restarted")
		}
		if unheard {
			w.Partition(func(i int) int { return i / 2 })
			run(t, w, 30*time.Second)
		}
		var answer cell.Response
		drained.Command(cell.Request{Code: uds.CodeLeave, Payload: []byte{0, 5}}, func(r cell.Response) { answer = r })
		run(t, w, 30*time.Second)
		if answer.Status != uds.OK {
			t.Fatalf("%+v", answer)
		}
		register, found := w.Node(1).cell.Store().Get([]byte(state.DrainKey(drained.ID())))
		if wanted := found && !register.Absent(); wanted != unheard {
			t.Errorf("unheard %v: after the leave it is to be empty: %v", unheard, wanted)
		}
		w.Heal()
		drained.Connect(w.Node(1))
		until(t, w, time.Minute, "work on the cell that joined again", func() bool { return len(drained.Running()) == 1 && running(w) == 3 })
	}
}
