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
	"colloid.net/workload"
)

// standing gives a cluster in which workloads run, with the rules that hold in every run.
func standing(t *testing.T, options Options, change func(n *Node)) *World {
	t.Helper()
	w := form(t, options)
	for _, n := range w.nodes {
		change(n)
	}
	for _, c := range Checkers() {
		w.AddChecker(c)
	}
	run(t, w, 15*time.Second)
	return w
}

func slowFetch(n *Node) { n.host.Fetch = 40 * time.Second }

func encoded(t *testing.T, s *workload.Spec) []byte {
	t.Helper()
	raw, err := workload.Encode(s)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// container is one with a port of the host, of which the old one must end before the new one begins.
func container(name string, change func(*workload.Spec)) *workload.Spec {
	s := &workload.Spec{Runtime: workload.RuntimeOCI, Replicas: 1, Image: "registry.example/" + name,
		Ports: []workload.Port{{Host: 80, Container: 80}}}
	if change != nil {
		change(s)
	}
	return s
}

// serves reports on how many machines a program is ready.
func serves(w *World, name string) (count int) {
	for _, n := range w.nodes {
		for _, i := range n.host.sorted() {
			if i.state == reconcile.Ready && i.runs.Image == name {
				count++
			}
		}
	}
	return count
}

func (n *Node) explain(t *testing.T, key string) (e uds.Explanation) {
	t.Helper()
	n.Command(request(uds.CodeExplain, key), func(r cell.Response) {
		if err := json.Unmarshal(r.Payload, &e); err != nil {
			t.Fatal(err)
		}
	})
	return e
}

// verdictOf is what explain says of a cell on one that is asked.
func verdictOf(t *testing.T, asked, about *Node) string {
	t.Helper()
	for _, line := range asked.explain(t, "spread.web").Ranking {
		if line.Cell == about.ID().String() {
			return line.Verdict
		}
	}
	return ""
}

// standbyOf is the machine that stands by for a workload, nil if none.
func (w *World) standbyOf(key string) *Node {
	for _, n := range w.nodes {
		if n.cell == nil {
			continue
		}
		if _, ok := n.cell.Plan().StandsBy(n.cell.Store().Hash([]byte(key)), n.ID()); ok {
			return n
		}
	}
	return nil
}

func (w *World) runner(t *testing.T, key string) *Node {
	t.Helper()
	for _, n := range w.nodes {
		for _, i := range n.host.sorted() {
			if i.key == key {
				return n
			}
		}
	}
	t.Fatal("nobody runs " + key)
	return nil
}

// A death costs no pull: what stands by has been fetched, and the replica of an image or a module is back as soon as one
// of a process, though a fetch takes far longer than that.
func TestStandBy_FailoverCostsNoPull(t *testing.T) {
	kinds := []struct {
		key  string
		spec workload.Spec
	}{
		{"spread.web", workload.Spec{Runtime: workload.RuntimeProcess, Image: "/bin/a"}},
		{"spread.web", workload.Spec{Runtime: workload.RuntimeOCI, Image: "registry.example/a"}},
		{"wasm.web", workload.Spec{Runtime: workload.RuntimeWasm, Image: "file:///bin/a.wasm"}},
	}
	for _, seed := range seeds(3) {
		var process time.Duration
		for i, kind := range kinds {
			w := standing(t, Options{Seed: seed, Cells: 5}, slowFetch)
			kind.spec.Replicas = 2
			w.Node(0).Set(kind.key, encoded(t, &kind.spec), uds.ExpectAny, nil)
			until(t, w, 2*time.Minute, "2 replicas", func() bool { return serves(w, kind.spec.Image) == 2 })
			run(t, w, time.Minute)
			victim := w.runner(t, kind.key)
			victim.PowerOff()
			took := until(t, w, 5*time.Minute, "the replica elsewhere", func() bool { return serves(w, kind.spec.Image) == 2 })
			t.Logf("seed %d, %s %v: %v", seed, kind.key, kind.spec.Runtime, took)
			if i == 0 {
				process = took
			} else if took > process+2*time.Second {
				t.Errorf("seed %d: %s took %v, a process %v", seed, kind.key, took, process)
			}
		}
	}
}

// Without standing by the same death costs the pull, so the test above looks at something.
func TestStandBy_AnOlderRunnerdIsAskedNothing(t *testing.T) {
	w := standing(t, Options{Seed: 1, Cells: 5}, func(n *Node) {
		n.host.Fetch, n.host.Old = 40*time.Second, true
		n.host.connect()
	})
	s := container("a", func(s *workload.Spec) { s.Replicas = 2 })
	w.Node(0).Set("spread.web", encoded(t, s), uds.ExpectAny, nil)
	until(t, w, 2*time.Minute, "2 replicas", func() bool { return serves(w, s.Image) == 2 })
	run(t, w, time.Minute)
	if v := verdictOf(t, w.standbyOf("spread.web"), w.standbyOf("spread.web")); !strings.HasSuffix(v, "stands by, its runnerd is too old to prepare") {
		t.Errorf("%q", v)
	}
	w.runner(t, "spread.web").PowerOff()
	if took := until(t, w, 5*time.Minute, "the replica elsewhere", func() bool { return serves(w, s.Image) == 2 }); took < 40*time.Second {
		t.Errorf("%v with a pull of 40 s", took)
	}
	next := container("b", func(s *workload.Spec) { s.Replicas = 2 })
	w.runner(t, "spread.web").Set("spread.web", encoded(t, next), uds.ExpectAny, nil)
	until(t, w, 5*time.Minute, "the update", func() bool { return serves(w, next.Image) == 2 })
	for _, n := range w.nodes {
		if n.host.Prepared != 0 {
			t.Errorf("n%d was asked to prepare", n.Index)
		}
	}
}

// One cell of those without a replica prepares, once, and explain names it: it says how far it is on its own cell, and no
// more than that it stands by elsewhere. A restart of meshd or runnerd asks again, and the answer comes at once.
func TestStandBy_OnePreparesAndExplainNamesIt(t *testing.T) {
	w := standing(t, Options{Seed: 2, Cells: 5}, func(n *Node) { n.host.Fetch = 20 * time.Second })
	s := container("a", nil)
	w.Node(0).Set("spread.web", encoded(t, s), uds.ExpectAny, nil)
	run(t, w, 18*time.Second)
	next := w.standbyOf("spread.web")
	if v := verdictOf(t, next, next); !strings.HasSuffix(v, "; stands by, is being prepared") {
		t.Errorf("%q", v)
	}
	run(t, w, 3*time.Hour)
	asked := func() (list []string) {
		for _, n := range w.nodes {
			list = append(list, fmt.Sprint(n.host.Prepared))
		}
		return list
	}
	total := 0
	for _, n := range w.nodes {
		total += n.host.Prepared
	}
	if total != 1 || next.host.Prepared != 1 {
		t.Errorf("asked %v times", asked())
	}
	if v := verdictOf(t, next, next); !strings.HasSuffix(v, "; stands by, prepared") {
		t.Errorf("%q", v)
	}
	if v := verdictOf(t, w.runner(t, "spread.web"), next); !strings.HasSuffix(v, "; stands by") {
		t.Errorf("%q", v)
	}
	next.Kill()
	run(t, w, time.Second)
	next.Boot()
	until(t, w, time.Minute, "asked after a restart of meshd", func() bool { return next.host.Prepared == 2 })
	next.host.leave()
	run(t, w, time.Second)
	next.host.comeBack()
	until(t, w, time.Minute, "asked after a restart of runnerd", func() bool { return next.host.Prepared == 3 })
	run(t, w, time.Second)
	if v := verdictOf(t, next, next); !strings.HasSuffix(v, "; stands by, prepared") {
		t.Errorf("%q", v)
	}
	run(t, w, 7*time.Hour)
	if next.host.Prepared != 4 { // it may have had to make room
		t.Errorf("asked %v times", asked())
	}
}

// A host that refuses what it would only stand by for says so once, the next stands by instead, and what runs is not
// touched (D2).
func TestD2_ARefusalMovesTheStandbyOnAndNothingElse(t *testing.T) {
	w := standing(t, Options{Seed: 3, Cells: 6}, func(n *Node) {
		n.host.Fetch = time.Second
	})
	s := container("a", func(s *workload.Spec) { s.Replicas = 2 })
	refused := make(map[int]int)
	refuse := func(n *Node) {
		n.host.Deny = func(*workload.Spec) string { refused[n.Index]++; return "not on this host" }
	}
	w.Node(0).Set("spread.web", encoded(t, s), uds.ExpectAny, nil)
	until(t, w, time.Minute, "2 replicas", func() bool { return serves(w, s.Image) == 2 })
	for _, n := range w.nodes { // before it is asked
		if n == w.standbyOf("spread.web") {
			refuse(n)
		}
	}
	first := w.standbyOf("spread.web")
	starts := w.starts()
	run(t, w, time.Hour)
	next := w.standbyOf("spread.web")
	if next == nil || next == first || next.host.Prepared != 1 || first.host.Prepared != 1 || refused[first.Index] != 1 {
		t.Errorf("refused %v, then %v stands by", refused, next)
	}
	if w.starts() != starts || len(first.host.instances) != 0 {
		t.Error("the refusal moved something")
	}
	for _, n := range w.nodes {
		if got := n.Workload("spread.web"); got.State != "ok" {
			t.Errorf("n%d: %s, %s", n.Index, got.State, got.Reason)
		}
	}
}

func (w *World) starts() (total int) {
	for _, n := range w.nodes {
		total += n.host.Starts + n.host.Stops
	}
	return total
}

// What serves goes on until its successor is fetched, however long that takes: not one moment longer without a copy than
// a stop and a start take, and no rollout is failed for a long pull.
func TestF75_AnUpdateEndsWhatServesWhenItsSuccessorIsHere(t *testing.T) {
	w := standing(t, Options{Seed: 4, Cells: 3}, func(n *Node) { n.host.Fetch = 5 * time.Minute })
	first := container("a", func(s *workload.Spec) { s.Update.DeadlineSeconds = 20 })
	w.Node(0).Set("spread.web", encoded(t, first), uds.ExpectAny, nil)
	until(t, w, 10*time.Minute, "the first", func() bool { return serves(w, first.Image) == 1 })
	run(t, w, time.Minute)
	second := container("b", func(s *workload.Spec) { s.Update.DeadlineSeconds = 20 })
	w.Node(0).Set("spread.web", encoded(t, second), uds.ExpectAny, nil)
	n := w.runner(t, "spread.web")
	run(t, w, 10*time.Second)
	if got := n.Workload("spread.web"); got.State != "updating" || !strings.Contains(got.Reason, "what it needs is being fetched") {
		t.Errorf("%s: %s", got.State, got.Reason)
	}
	gone := w.now
	until(t, w, 10*time.Minute, "the end of the first", func() bool { return serves(w, first.Image) == 0 })
	if w.now-gone < 4*time.Minute {
		t.Errorf("it served for %v of a pull of 5 min", w.now-gone)
	}
	if took := until(t, w, time.Minute, "the second", func() bool { return serves(w, second.Image) == 1 }); took > 3*time.Second {
		t.Errorf("%v without a copy", took)
	}
	run(t, w, time.Minute)
	if got := n.Workload("spread.web"); got.State != "ok" || !got.Good {
		t.Errorf("%+v", got)
	}
}

// A helper says hello again when its policy or an alarm changes. That ends no connection, so the answer is as welcome as it
// was before.
func TestF75_AHelloInBetweenDelaysNoUpdate(t *testing.T) {
	w := standing(t, Options{Seed: 4, Cells: 3}, func(n *Node) { n.host.Fetch = time.Minute })
	w.Node(0).Set("spread.web", encoded(t, container("a", nil)), uds.ExpectAny, nil)
	until(t, w, 2*time.Minute, "the first", func() bool { return serves(w, "registry.example/a") == 1 })
	n := w.runner(t, "spread.web")
	w.Node(0).Set("spread.web", encoded(t, container("b", nil)), uds.ExpectAny, nil)
	run(t, w, 50*time.Second)
	for range 2 {
		n.host.greet()
		run(t, w, time.Second)
	}
	until(t, w, 15*time.Second, "the second", func() bool { return serves(w, "registry.example/b") == 1 })
}

// An update to an image that does not exist ends nothing and says why. When its deadline is over it has failed: with
// rollback the good version is what all want again, without it all stops where it is, until the image is there.
func TestF75_F84_AnUpdateToWhatIsNotThereEndsNothing(t *testing.T) {
	for _, rollback := range []bool{true, false} {
		w := standing(t, Options{Seed: 5, Cells: 3}, func(n *Node) { n.host.Fetch = time.Second })
		missing := true
		for _, n := range w.nodes {
			n.host.Missing = func(s *workload.Spec) string {
				if missing && strings.HasSuffix(s.Image, "/missing") {
					return "the registry has no such image"
				}
				return ""
			}
		}
		update := func(s *workload.Spec) { s.Replicas, s.Update.AutoRollback = 2, rollback }
		first, second := container("a", update), container("missing", update)
		w.Node(0).Set("spread.web", encoded(t, first), uds.ExpectAny, nil)
		until(t, w, time.Minute, "2 replicas", func() bool { return serves(w, first.Image) == 2 })
		run(t, w, time.Minute)
		starts := w.starts()
		w.Node(0).Set("spread.web", encoded(t, second), uds.ExpectAny, nil)
		run(t, w, 90*time.Second)
		said := false
		for _, n := range w.nodes {
			got := n.Workload("spread.web")
			said = said || strings.Contains(got.Reason, "it cannot be prepared: the registry has no such image")
			if got.State != "updating" || got.Serving != 2 {
				t.Errorf("n%d: %s, %d serve: %s", n.Index, got.State, got.Serving, got.Reason)
			}
		}
		if !said {
			t.Error("nobody says why the update waits")
		}
		run(t, w, 2*time.Minute)
		state := map[bool]string{true: "held", false: "stalled"}[rollback]
		for _, n := range w.nodes {
			got := n.Workload("spread.web")
			if got.State != state || !strings.Contains(got.Reason, "could not be prepared for 2m0s: the registry has no such image") {
				t.Errorf("n%d: %s: %s", n.Index, got.State, got.Reason)
			}
		}
		if w.starts() != starts || serves(w, first.Image) != 2 {
			t.Error("something was started or stopped")
		}
		for _, n := range w.nodes { // what failed outlives who found that out
			n.Kill()
			run(t, w, 5*time.Second)
			n.Boot()
			run(t, w, time.Minute)
		}
		if got := w.Node(0).Workload("spread.web"); got.State != state || serves(w, first.Image) != 2 {
			t.Errorf("after a restart: %+v", got)
		}
		missing = false
		if rollback {
			run(t, w, time.Hour)
			if serves(w, first.Image) != 2 {
				t.Error("what was rolled back is not left alone")
			}
			continue
		}
		until(t, w, 40*time.Minute, "the update goes on", func() bool { return serves(w, second.Image) == 2 })
		run(t, w, time.Minute)
		if got := w.Node(0).Workload("spread.web"); got.State != "ok" || !got.Good {
			t.Errorf("%+v", got)
		}
	}
}

// What changes or is deleted while it is prepared is not waited for: the answer about a former version starts nothing, and
// a runnerd that answers nothing holds an update up for a quarter of an hour.
func TestF75_ChangesWhileItIsPrepared(t *testing.T) {
	w := standing(t, Options{Seed: 6, Cells: 3}, slowFetch)
	specs := []*workload.Spec{container("a", nil), container("b", nil), container("c", nil)}
	set := func(i int) { w.Node(0).Set("spread.web", encoded(t, specs[i]), uds.ExpectAny, nil) }
	set(0)
	until(t, w, 2*time.Minute, "the first", func() bool { return serves(w, specs[0].Image) == 1 })
	run(t, w, 2*time.Minute)
	set(1)
	run(t, w, 20*time.Second)
	set(2)
	run(t, w, 25*time.Second) // b has been prepared, c has not
	if serves(w, specs[0].Image) != 1 {
		t.Fatal("the first has ended for the second, which nobody wants any more")
	}
	until(t, w, 2*time.Minute, "the third", func() bool { return serves(w, specs[2].Image) == 1 })
	run(t, w, 2*time.Minute)
	for _, n := range w.nodes {
		n.host.Mute = true
	}
	set(1)
	n := w.runner(t, "spread.web")
	if !n.host.here[specs[1].Image] {
		t.Fatal("what was prepared in vain is gone")
	}
	run(t, w, 14*time.Minute)
	if serves(w, specs[2].Image) != 1 {
		t.Error("what serves has ended though nobody has answered")
	}
	until(t, w, 3*time.Minute, "the update goes on without an answer", func() bool { return serves(w, specs[1].Image) == 1 })
	set(0)
	run(t, w, 30*time.Second)
	w.Node(0).Delete("spread.web")
	until(t, w, time.Minute, "the end", func() bool { return running(w) == 0 })
	run(t, w, 20*time.Minute)
	if err := w.CheckCalm(); err != nil {
		t.Error(err)
	}
}

// A power failure takes what was asked for, and not what was fetched.
func TestStandBy_WhatWasFetchedOutlivesAPowerFailure(t *testing.T) {
	w := standing(t, Options{Seed: 7, Cells: 3}, slowFetch)
	s := container("a", nil)
	w.Node(0).Set("spread.web", encoded(t, s), uds.ExpectAny, nil)
	until(t, w, 2*time.Minute, "the first", func() bool { return serves(w, s.Image) == 1 })
	next := w.standbyOf("spread.web")
	until(t, w, 2*time.Minute, "prepared", func() bool { return next.host.here[s.Image] })
	next.PowerOff()
	run(t, w, time.Second)
	next.Boot()
	run(t, w, 90*time.Second)
	w.runner(t, "spread.web").PowerOff()
	if took := until(t, w, 2*time.Minute, "the replica elsewhere", func() bool { return serves(w, s.Image) == 1 }); took > 20*time.Second {
		t.Errorf("%v", took)
	}
}
