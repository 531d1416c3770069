package cell_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/cell"
	"colloid.net/meshd/clock"
	"colloid.net/meshd/sim"
	"colloid.net/meshd/state"
	"colloid.net/workload"
)

func statusOf(t *testing.T, w *sim.World, n *sim.Node) (status uds.Status) {
	t.Helper()
	if err := json.Unmarshal(ask(t, w, n, cell.Request{Code: uds.CodeStatus}).Payload, &status); err != nil {
		t.Fatal(err)
	}
	return status
}

func alarmOf(status uds.Status, part string) uds.Alarm {
	i := slices.IndexFunc(status.Alarms, func(a uds.Alarm) bool { return strings.Contains(a.Text, part) })
	if i < 0 {
		return uds.Alarm{}
	}
	return status.Alarms[i]
}

func loseRunnerd(n *sim.Node) { n.Input(func(now clock.Instant) { n.Cell().HelperGone(now) }) }

// running gives a cluster of which every cell runs one copy of spread.web.
func running(t *testing.T, cells int) *sim.World {
	t.Helper()
	w := cluster(t, sim.Options{Seed: 1, Cells: cells})
	w.Run(15 * time.Second)
	digest(t, ask(t, w, w.Node(0), write(uds.CodeSet, "spread.web", spec(t, cells), uds.ExpectAny)))
	if _, ok := w.Until(time.Minute, func() bool { return w.Node(0).Workload("spread.web").State == "ok" }); !ok {
		t.Fatal("the workload does not become ok")
	}
	return w
}

// F134: a runnerd that does not come back waits for a person, on its cell and on the others; what ran there is not
// known, and is not absent. A restart alone is a warning at most.
func TestF134_ALostRunnerdIsCritical(t *testing.T) {
	w := running(t, 2)
	lost, other := w.Node(1), w.Node(0)
	loseRunnerd(lost)
	w.Run(15 * time.Second) // as long as a restart takes
	if s := statusOf(t, w, lost); s.NeedsHuman || alarmOf(s, "runnerd is not connected").Severity != "warning" {
		t.Errorf("after 15 s: %+v", s.Alarms)
	}
	w.Run(10 * time.Second)
	for _, n := range []*sim.Node{lost, other} {
		s := statusOf(t, w, n)
		part := "runnerd has been gone for"
		if n == other {
			part = "cell " + lost.ID().String() + " has lost its runnerd"
		}
		if a := alarmOf(s, part); a.Severity != "critical" || !strings.Contains(a.Text, "1 instance") || !s.NeedsHuman {
			t.Errorf("n%d: %+v", n.Index, s.Alarms)
		}
		web := n.Workload("spread.web")
		if web.State != "unsupervised" || web.Ready != 1 || len(web.Instances) != 2 || !strings.Contains(web.Reason, lost.ID().String()) {
			t.Errorf("n%d: %+v", n.Index, web)
		}
		for _, c := range s.Cells {
			if c.Instances != 1 || len(c.Runtimes) == 0 {
				t.Errorf("n%d: cell %s has %d instances and %v", n.Index, c.ID, c.Instances, c.Runtimes)
			}
		}
	}
	lost.Input(func(now clock.Instant) {
		lost.Cell().HelperHello(now, cell.HelperHello{Flags: state.FlagProcess})
	})
	w.Run(3 * time.Second)
	if s := statusOf(t, w, other); alarmOf(s, "has lost its runnerd").Text != "" {
		t.Errorf("runnerd is back: %+v", s.Alarms)
	}
}

// A program that keeps ending is critical, with how often and why, until it has been quiet for the launcher's window.
func TestF134_AProgramThatKeepsEndingIsCritical(t *testing.T) {
	w := running(t, 1)
	n := w.Node(0)
	notice := cell.ProgramNotice{Program: "runnerd", Ends: 2, Window: 10 * time.Minute, Reason: "exit status 2: panic: nil"}
	tell := func() { n.Input(func(now clock.Instant) { n.Cell().ProgramEnded(now, notice) }) }
	tell()
	if s := statusOf(t, w, n); s.NeedsHuman {
		t.Errorf("two ends: %+v", s.Alarms)
	}
	notice.Ends, notice.Ago = 7, time.Minute
	tell()
	a := alarmOf(statusOf(t, w, n), "runnerd ended 7 times within 10m0s")
	if a.Severity != "critical" || !strings.HasSuffix(a.Text, "exit status 2: panic: nil") {
		t.Errorf("%+v", a)
	}
	w.Run(9*time.Minute + time.Second)
	if s := statusOf(t, w, n); s.NeedsHuman {
		t.Errorf("after the window: %+v", s.Alarms)
	}
	notice = cell.ProgramNotice{Program: "runnerd", Down: true, Reason: "no such policy"}
	tell()
	loseRunnerd(n)
	if a := alarmOf(statusOf(t, w, n), "is not started again: no such policy"); a.Severity != "critical" {
		t.Errorf("%+v", statusOf(t, w, n).Alarms)
	}
	n.Input(func(now clock.Instant) { n.Cell().ProgramEnded(now, cell.ProgramNotice{Program: "x", Down: true}) })
	if s := statusOf(t, w, n); alarmOf(s, "x cannot run").Text != "" {
		t.Error("a program that is none of ours")
	}
}

// F8: a cell does not leave while what runs here cannot be stopped, unless it is forced, and then it says what runs on.
func TestF8_LeaveWithoutRunnerdSaysWhatRunsOn(t *testing.T) {
	w := running(t, 1)
	n := w.Node(0)
	loseRunnerd(n)
	leave := func(flags ...byte) cell.Response {
		return ask(t, w, n, cell.Request{Code: uds.CodeLeave, Payload: append([]byte{0, 5}, flags...)})
	}
	r := leave()
	if r.Status != uds.Error || !strings.Contains(r.Text, "spread.web/0 (process ") || !strings.Contains(r.Text, "--force") {
		t.Errorf("%d %s", r.Status, r.Text)
	}
	if n.Cell().Phase() != cell.Active {
		t.Errorf("phase %v after a refusal", n.Cell().Phase())
	}
	r = leave(1)
	var reply uds.LeaveReply
	if err := json.Unmarshal(r.Payload, &reply); r.Status != uds.OK || err != nil || len(reply.Left) != 1 ||
		reply.Left[0].Key != "spread.web" || reply.Left[0].PID == 0 {
		t.Errorf("%d %s %s", r.Status, r.Text, r.Payload)
	}
}

// A cell with volumes of stateful workloads is taken away only by somebody who says that this is meant, and whoever has
// a replica afterwards says where its data is; so it does after a death.
func TestVolumesAreNotLeftSilently(t *testing.T) {
	for name, take := range map[string]func(w *sim.World, n *sim.Node){
		"leave": func(w *sim.World, n *sim.Node) {
			request := cell.Request{Code: uds.CodeLeave, Payload: []byte{0, 60}}
			if r := ask(t, w, n, request); r.Status != uds.Error || !strings.Contains(r.Text, "stateful.st/0") ||
				!strings.Contains(r.Text, "`colloid leave --abandon-volumes`") {
				t.Errorf("leave: %d %s", r.Status, r.Text)
			}
			request.Payload = []byte{0, 60, 2}
			if r := ask(t, w, n, request); r.Status != uds.OK || len(r.Payload) > 0 {
				t.Errorf("leave: %d %s", r.Status, r.Text)
			}
		},
		"drain": func(w *sim.World, n *sim.Node) {
			payload := append(binaryID(uint64(n.ID())), 1)
			other := w.Node((n.Index + 1) % 3)
			if r := ask(t, w, other, cell.Request{Code: uds.CodeDrain, Payload: payload}); r.Status != uds.Error ||
				!strings.Contains(r.Text, "`colloid drain "+n.ID().String()+" --abandon-volumes`") {
				t.Errorf("drain: %d %s", r.Status, r.Text)
			}
			payload[8] = 2
			if r := ask(t, w, other, cell.Request{Code: uds.CodeDrain, Payload: payload}); r.Status != uds.OK {
				t.Errorf("drain: %d %s", r.Status, r.Text)
			}
		},
		"death": func(_ *sim.World, n *sim.Node) { n.PowerOff() },
	} {
		t.Run(name, func(t *testing.T) {
			w := cluster(t, sim.Options{Seed: 1, Cells: 3})
			w.Run(15 * time.Second)
			raw, err := workload.Encode(&workload.Spec{Runtime: workload.RuntimeProcess, Replicas: 1, Image: "/bin/db", Stateful: true,
				Volumes: []workload.Volume{{Name: "data", MountPath: "/data"}}})
			if err != nil {
				t.Fatal(err)
			}
			digest(t, ask(t, w, w.Node(0), write(uds.CodeSet, "stateful.st", raw, uds.ExpectAny)))
			var holder *sim.Node
			held := func() bool {
				for _, n := range w.Nodes() {
					if n.Up() && n != holder && len(n.Running()) == 1 && n.Workload("stateful.st").State == "ok" {
						holder = n
						return true
					}
				}
				return false
			}
			if _, ok := w.Until(time.Minute, held); !ok {
				t.Fatal("the replica does not start")
			}
			first := holder
			if s := statusOf(t, w, first); alarmOf(s, "without the data").Text != "" {
				t.Errorf("a first start: %+v", s.Alarms)
			}
			take(w, first)
			if _, ok := w.Until(2*time.Minute, held); !ok {
				t.Fatal("the replica does not start elsewhere")
			}
			w.Run(5 * time.Second)
			want := "stateful.st/0 began on cell " + holder.ID().String() + " without the data of its volumes: that is on cell " +
				first.ID().String()
			for range 2 {
				for _, n := range w.Nodes() {
					if n == first {
						continue
					}
					if s := statusOf(t, w, n); alarmOf(s, want).Severity != "warning" {
						t.Errorf("n%d: %+v", n.Index, s.Alarms)
					}
				}
				holder.Kill() // meshd alone: a restart does not forget it
				w.Run(time.Second)
				holder.Boot()
				w.Run(40 * time.Second)
			}
		})
	}
}

func binaryID(id uint64) (raw []byte) {
	for shift := 56; shift >= 0; shift -= 8 {
		raw = append(raw, byte(id>>shift))
	}
	return raw
}

// A cell that starts does not take away what its runnerd offered before: that would say of what runs that it has no
// place. Only runnerd withdraws it.
func TestF134_AStartKeepsWhatRunnerdOffered(t *testing.T) {
	w := running(t, 1)
	n := w.Node(0)
	w.Run(15 * time.Second) // a snapshot is written
	n.Kill()
	w.Run(time.Second)
	n.Boot() // nothing happens after that before the world runs on: runnerd has not spoken
	register, found := n.Cell().Store().Get([]byte(state.ContactKey(n.ID())))
	if !found {
		t.Fatal("no contact")
	}
	_, value, _ := register.Latest()
	contact, err := state.ParseCellContact(value)
	if err != nil || contact.Flags&state.FlagProcess == 0 {
		t.Errorf("flags %x, %v", contact.Flags, err)
	}
	if s := statusOf(t, w, n); s.Workloads[0].State == "unsatisfied" {
		t.Errorf("%+v", s.Workloads[0])
	}
}
