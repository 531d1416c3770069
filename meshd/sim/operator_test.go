package sim

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/cell"
	"colloid.net/meshd/reconcile"
)

// What operators do every day must not look like a disk that went back in time: a key is written by several
// cells in turn, the door is locked here and opened there, a cell leaves and comes back (F1).
func TestF1_WritesInTurnRaiseNoAlarm(t *testing.T) {
	for _, seed := range seeds(3) {
		w := form(t, Options{Seed: seed, Cells: 3})
		run(t, w, 15*time.Second)
		calm := func(what string) {
			t.Helper()
			for _, n := range w.Nodes() {
				if alarms := n.alarms(); alarms["warning"]+alarms["critical"] > 0 {
					t.Fatalf("seed %d: n%d warns after %s: %v", seed, n.Index, what, alarms)
				}
			}
		}
		for i := range 12 {
			w.Node(i%3).Set("spread.a", Spec(0, fmt.Sprintf("/bin/%d", i)), uds.ExpectAny, nil)
			run(t, w, time.Second)
		}
		calm("writes in turn")
		for i := range 6 {
			w.Node(i%3).Command(cell.Request{Code: uds.CodeDoor, Payload: []byte{byte((i + 1) % 2)}}, func(r cell.Response) {
				if r.Status != uds.OK {
					t.Fatalf("seed %d: door: %s", seed, r.Text)
				}
			})
			run(t, w, time.Second)
		}
		calm("locking and unlocking")
		leaver := w.Node(2)
		left := false
		leaver.Command(cell.Request{Code: uds.CodeLeave, Payload: []byte{0, 1}}, func(cell.Response) { left = true })
		until(t, w, 20*time.Second, "left", func() bool { return left })
		leaver.connect(w.Node(0), true, nil)
		until(t, w, time.Minute, "back again", func() bool { return settled(w) })
		run(t, w, 20*time.Second)
		calm("leaving and coming back")
	}
}

// Connecting a cell to itself, as with one list of seeds for all machines, is refused and costs it nothing:
// it is no sign of a cloned disk (F2).
func TestF2_ConnectToItselfKeepsTheIdentity(t *testing.T) {
	for _, seed := range seeds(3) {
		w := form(t, Options{Seed: seed, Cells: 2})
		run(t, w, 15*time.Second)
		n := w.Node(1)
		before := n.ID()
		var answer *cell.Response
		n.connect(n, false, func(r cell.Response) { answer = &r })
		until(t, w, 5*time.Second, "an answer", func() bool { return answer != nil })
		if answer.Errno != uds.ErrorInvalid {
			t.Fatalf("seed %d: %d %s", seed, answer.Errno, answer.Text)
		}
		run(t, w, 5*time.Second)
		n.Kill()
		n.Boot()
		run(t, w, 20*time.Second)
		if n.ID() != before || w.Node(0).cell.AliveCount() != 2 {
			t.Fatalf("seed %d: %v became %v, %d alive", seed, before, n.ID(), w.Node(0).cell.AliveCount())
		}
	}
}

// A machine that had to draw a new id is still listed under the old one, at the same address. What it sends
// there comes back to it, which is no sign of a clone either (F2).
func TestF2_OwnDatagramsAreNoClone(t *testing.T) {
	for _, seed := range seeds(3) {
		w := form(t, Options{Seed: seed, Cells: 3})
		run(t, w, 15*time.Second)
		n := w.Node(1)
		n.Kill()
		n.disk.identify()
		n.Boot()
		run(t, w, time.Minute)
		if critical := n.alarms()["critical"]; critical > 0 {
			t.Fatalf("seed %d: %d critical alarms: %s", seed, critical, w.describe())
		}
	}
}

// Whatever nobody can take over is stopped by leaving: on the last cell at once, elsewhere when the hand-over
// has taken too long, and also when the workload is in conflict (F8).
func TestF8_LeaveStopsWhatIsLeft(t *testing.T) {
	for _, seed := range seeds(3) {
		for _, cells := range []int{1, 2} {
			w := form(t, Options{Seed: seed, Cells: cells})
			run(t, w, 15*time.Second)
			w.Node(0).Set("spread.web", Spec(cells, "/bin/a"), uds.ExpectAny, nil)
			until(t, w, 20*time.Second, "running", func() bool { return running(w) == cells })
			run(t, w, 5*time.Second)
			n := w.Node(0)
			var left *cell.Response
			n.Command(cell.Request{Code: uds.CodeLeave, Payload: []byte{0, 20}}, func(r cell.Response) { left = &r })
			took := until(t, w, time.Minute, "left", func() bool { return left != nil })
			for _, i := range n.host.sorted() {
				if i.state != reconcile.Gone {
					t.Errorf("seed %d, %d cells: still %v after leaving", seed, cells, i.state)
				}
			}
			if left.Status != uds.OK || cells == 1 && took > 15*time.Second {
				t.Errorf("seed %d, %d cells: %v after %v", seed, cells, left.Status, took)
			}
		}
	}
}

// A name belongs to one workload, whatever its kind: what a cell says of its instances and of what its host
// denies is kept under the name, and a second workload would overwrite it.
func TestF101_NamesAreUniqueAcrossKinds(t *testing.T) {
	w := form(t, Options{Seed: 1, Cells: 2})
	run(t, w, 15*time.Second)
	n := w.Node(0)
	var first, second, third *cell.Response
	n.Set("spread.a", Spec(1, "/bin/a"), uds.ExpectAny, func(r cell.Response) { first = &r })
	n.Set("stateful.a", StatefulSpec("/bin/b"), uds.ExpectAny, func(r cell.Response) { second = &r })
	run(t, w, 10*time.Second)
	w.Node(1).Set("stateful.a", StatefulSpec("/bin/b"), uds.ExpectAny, func(r cell.Response) { third = &r })
	n.Set("spread.a", Spec(2, "/bin/a"), uds.ExpectAny, func(r cell.Response) { first = &r })
	run(t, w, 10*time.Second)
	if first.Status != uds.OK || second.Errno != uds.ErrorExists || third.Errno != uds.ErrorExists {
		t.Fatalf("%+v, %+v, %+v", first, second, third)
	}
	n.Delete("spread.a")
	run(t, w, 5*time.Second)
	w.Node(1).Set("stateful.a", StatefulSpec("/bin/b"), uds.ExpectAny, func(r cell.Response) { third = &r })
	run(t, w, 5*time.Second)
	if third.Status != uds.OK {
		t.Fatalf("the name is not free again: %+v", third)
	}
}

// Whoever asks why a workload does not run is told, on its cell, how it ended.
func TestF158_ExplainSaysHowAnInstanceEnded(t *testing.T) {
	w := form(t, Options{Seed: 1, Cells: 1})
	run(t, w, 15*time.Second)
	n := w.Node(0)
	n.Set("spread.a", Spec(1, "/bin/a"), uds.ExpectAny, nil)
	until(t, w, 20*time.Second, "running", func() bool { return running(w) == 1 })
	run(t, w, 5*time.Second)
	n.host.exit(0)
	run(t, w, 200*time.Millisecond)
	var explanation uds.Explanation
	n.Command(cell.Request{Code: uds.CodeExplain, Payload: []byte("spread.a")}, func(r cell.Response) {
		if err := json.Unmarshal(r.Payload, &explanation); err != nil {
			t.Fatal(err)
		}
	})
	if !strings.Contains(explanation.Reason, "ended with exit code 0") || !strings.Contains(explanation.Reason, n.ID().String()) {
		t.Errorf("reason %q", explanation.Reason)
	}
	if got := explanation.Ranking[0].Instance; got != "backoff: ended with exit code 0" {
		t.Fatalf("%q", got)
	}
}

// A cell that hears nobody when it starts says so, instead of catching up for ever without a word. So does the
// copy of a directory whose original runs: the others take what it sends for repetitions (F2, F5).
func TestF5_SilentBootIsAnAlarm(t *testing.T) {
	w := form(t, Options{Seed: 1, Cells: 2})
	run(t, w, 30*time.Second)
	n := w.Node(1)
	n.Kill()
	w.Node(0).Kill()
	n.Boot()
	run(t, w, 10*time.Second)
	if alarms := n.alarms(); alarms["warning"]+alarms["critical"] > 0 {
		t.Fatalf("too early: %v", alarms)
	}
	run(t, w, 20*time.Second)
	if n.alarms()["warning"] != 1 {
		t.Fatalf("alarms %v: %s", n.alarms(), w.describe())
	}
	w.Node(0).Boot()
	run(t, w, time.Minute)
	if alarms := n.alarms(); alarms["warning"]+alarms["critical"] > 0 {
		t.Fatalf("still %v: %s", alarms, w.describe())
	}
}
