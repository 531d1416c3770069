package sim

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/reconcile"
	"colloid.net/meshd/state"
	"colloid.net/workload"
)

// readyNow counts the instances of all machines that serve.
func readyNow(w *World, image string) (n int) {
	for _, m := range w.Nodes() {
		for _, i := range m.host.sorted() {
			if i.state == reconcile.Ready && (image == "" || program(i.spec) == image) {
				n++
			}
		}
	}
	return n
}

// F75: updates one after the other, also while datagrams are lost, late and twice: never more than
// max_unavailable are missing, and each update ends.
func TestF75_UpdatesInBadWeather(t *testing.T) {
	for _, seed := range seeds(6) {
		unavailable := uint8(1 + seed%2)
		w := form(t, Options{Seed: seed, Cells: 7})
		update := workload.Update{UnavailableMax: unavailable, MinReadySeconds: uint16(seed % 3)}
		run(t, w, 15*time.Second)
		w.Node(0).Set("spread.web", portSpec(5, "/bin/v0", update), uds.ExpectAny, nil)
		until(t, w, 30*time.Second, "5 replicas", func() bool { return readyNow(w, "") == 5 })
		run(t, w, 10*time.Second)
		w.SetNetwork(NetworkOptions{Loss: 0.15, Duplicate: 0.05, Reorder: 0.2, DelayMin: time.Millisecond,
			DelayMax: 200 * time.Millisecond})
		least := 5
		w.AddChecker(&Checker{Name: "least", Every: 50 * time.Millisecond, Periodic: func(w *World) error {
			least = min(least, readyNow(w, ""))
			return nil
		}})
		for version := 1; version <= 3; version++ {
			image := fmt.Sprintf("/bin/v%d", version)
			w.Node(version).Set("spread.web", portSpec(5, image, update), uds.ExpectAny, nil)
			until(t, w, 4*time.Minute, image, func() bool { return readyNow(w, image) == 5 && running(w) == 5 })
		}
		if least < 5-int(unavailable) {
			t.Fatalf("seed %d: only %d ready, max_unavailable %d", seed, least, unavailable)
		}
	}
}

// portSpec has a host port, so that each cell has to stop before it starts.
func portSpec(replicas int, image string, update workload.Update) []byte {
	raw, err := workload.Encode(&workload.Spec{
		Runtime: workload.RuntimeProcess, Replicas: uint16(replicas), Image: image, Update: update,
		Ports: []workload.Port{{Host: 80, Container: 80}},
	})
	if err != nil {
		panic(err)
	}
	return raw
}

// An update while the cluster is cut in two: each side has its own bound, and after the healing every replica runs
// the new version.
func TestF75_UpdateInAPartition(t *testing.T) {
	for _, seed := range seeds(4) {
		w := form(t, Options{Seed: seed, Cells: 6})
		run(t, w, 15*time.Second)
		w.Node(0).Set("spread.web", portSpec(6, "/bin/a", workload.Update{}), uds.ExpectAny, nil)
		until(t, w, 30*time.Second, "6 replicas", func() bool { return readyNow(w, "") == 6 })
		run(t, w, 10*time.Second)
		w.Partition(func(i int) int { return i % 2 })
		w.Node(0).Set("spread.web", portSpec(6, "/bin/b", workload.Update{}), uds.ExpectAny, nil)
		least := 6
		w.AddChecker(&Checker{Name: "least", Every: 50 * time.Millisecond, Periodic: func(w *World) error {
			least = min(least, readyNow(w, ""))
			return nil
		}})
		run(t, w, 60*time.Second)
		w.Heal()
		until(t, w, 9*time.Minute, "all updated", func() bool { return readyNow(w, "/bin/b") == 6 && running(w) == 6 })
		if least < 4 {
			t.Fatalf("seed %d: only %d of 6 ready", seed, least)
		}
	}
}

// F84: the way back to the last good digest needs no leader and no particular cell: it happens in bad weather, when the cell that noticed dies at
// once, and when several notice. The operator's key stays what was written and is in no conflict.
func TestF84_RollbackNeedsNobody(t *testing.T) {
	for _, seed := range seeds(5) {
		w := form(t, Options{Seed: seed, Cells: 5})
		w.AddChecker(checkSamePlan())
		update := workload.Update{AutoRollback: true, DeadlineSeconds: 8, UnavailableMax: uint8(1 + seed%3)}
		run(t, w, 15*time.Second)
		w.Node(0).Set("spread.web", RolloutSpec(3, "/bin/a", update), uds.ExpectAny, nil)
		until(t, w, 30*time.Second, "3 replicas", func() bool { return readyNow(w, "") == 3 })
		run(t, w, 20*time.Second)
		w.SetNetwork(NetworkOptions{Loss: 0.1, DelayMax: 100 * time.Millisecond})
		bad := RolloutSpec(3, imageHangs, update)
		w.Node(1).Set("spread.web", bad, uds.ExpectAny, nil)
		var judge *Node
		until(t, w, 30*time.Second, "a verdict", func() bool {
			for _, n := range w.Nodes() {
				if r, found := n.cell.Store().Get([]byte(state.RolloutKey("web", state.RolloutVerdict))); found && !r.Absent() {
					judge = n
					return true
				}
			}
			return false
		})
		if seed%2 == 0 {
			run(t, w, 300*time.Millisecond)
			judge.PowerOff()
		}
		until(t, w, 2*time.Minute, "the good version everywhere", func() bool { return readyNow(w, "/bin/a") == 3 && running(w) == 3 })
		run(t, w, 5*time.Second) // until everybody has heard
		for _, n := range w.Nodes() {
			if !n.Up() {
				continue
			}
			if entries, held := value(n, "spread.web"); entries != 1 || held != string(bad) {
				t.Fatalf("seed %d: n%d: the operator's key was changed, %d entries", seed, n.Index, entries)
			}
			if got := n.Workload("spread.web"); got.State != "held" || got.Ready != 3 || len(n.cell.ConflictKeys()) != 0 {
				t.Fatalf("seed %d: n%d says %+v", seed, n.Index, got)
			}
		}
		judge.Boot()
		run(t, w, 3*time.Minute)
		if readyNow(w, "/bin/a") != 3 || running(w) != 3 {
			t.Fatalf("seed %d: %s", seed, w.describe())
		}
	}
}

// A version that was ready everywhere is never rolled back, whatever happens to it later; the first one has nothing
// to go back to.
func TestGoodVersionsAreNotJudged(t *testing.T) {
	w := form(t, Options{Seed: 1, Cells: 3})
	update := workload.Update{AutoRollback: true, DeadlineSeconds: 5}
	run(t, w, 15*time.Second)
	w.Node(0).Set("spread.first", RolloutSpec(2, imageCrashes, update), uds.ExpectAny, nil)
	w.Node(0).Set("spread.web", RolloutSpec(2, "/bin/a", update), uds.ExpectAny, nil)
	run(t, w, 30*time.Second)
	w.Node(0).Set("spread.web", RolloutSpec(2, "/bin/b", update), uds.ExpectAny, nil)
	run(t, w, 40*time.Second)
	for range 8 {
		for _, n := range w.Nodes() {
			for _, i := range n.host.sorted() {
				if i.key == "spread.web" {
					i.state, i.restarts = reconcile.Unready, i.restarts+1
					n.host.report(i)
				}
			}
		}
		run(t, w, 5*time.Second)
	}
	if got := w.Node(1).Workload("spread.web"); got.State == "held" || got.State == "stalled" {
		t.Errorf("rolled back after it was good: %+v", got)
	}
	if got := w.Node(1).Workload("spread.first"); got.State != "starting" {
		t.Errorf("the first version: %s %s", got.State, got.Reason)
	}
}

// F76 in virtual time: a crash loop of a first version has at most 8 starts in its first five minutes here, and an
// update that crashes has at most 4 before it is taken back.
func TestF76_CrashLoopOfAnUpdateIsShort(t *testing.T) {
	w := form(t, Options{Seed: 2, Cells: 3})
	run(t, w, 15*time.Second)
	w.Node(0).Set("spread.web", RolloutSpec(3, "/bin/a", workload.Update{AutoRollback: true}), uds.ExpectAny, nil)
	run(t, w, 30*time.Second)
	starts := 0
	w.AddChecker(&Checker{Name: "starts", Every: 10 * time.Millisecond, Periodic: func(w *World) error {
		now := 0
		for _, n := range w.Nodes() {
			for _, i := range n.host.sorted() {
				if program(i.spec) == imageCrashes {
					now += int(i.restarts) + 1
				}
			}
		}
		starts = max(starts, now)
		return nil
	}})
	w.Node(0).Set("spread.web", RolloutSpec(3, imageCrashes, workload.Update{AutoRollback: true}), uds.ExpectAny, nil)
	run(t, w, 5*time.Minute)
	if starts < 2 || starts > 8 || readyNow(w, "/bin/a") != 3 {
		t.Errorf("%d starts, %d ready", starts, readyNow(w, "/bin/a"))
	}
}

// F83: environments and specifications arrive in any order; what starts has the one that its specification names,
// and a workload whose environment is missing keeps what it runs.
func TestF83_ReorderedArrival(t *testing.T) {
	for _, seed := range seeds(5) {
		w := form(t, Options{Seed: seed, Cells: 4, Network: NetworkOptions{Loss: 0.2, Reorder: 0.5, Duplicate: 0.1,
			DelayMin: time.Millisecond, DelayMax: 400 * time.Millisecond}})
		w.AddChecker(checkEnvironments())
		started := map[string]int{} // by content
		digests := map[[32]byte]string{}
		w.AddChecker(&Checker{Name: "content", Action: func(_ *World, n *Node, a reconcile.Action) error {
			if a.Kind != reconcile.Start {
				return nil
			}
			spec, _ := workload.Decode(a.Spec)
			got := a.Environment.Variables[0].Value
			if want := digests[spec.EnvironmentDigest]; got != want {
				return fmt.Errorf("n%d starts with the environment %.10q, its specification is of %.10q", n.Index, got, want)
			}
			started[got]++
			return nil
		}})
		run(t, w, 30*time.Second)
		set := func(n *Node, content string, first bool) {
			e := &workload.Environment{Variables: []workload.Variable{{Name: "V", Value: content}}}
			write := func(digest [32]byte) {
				digests[digest] = content
				raw, err := workload.Encode(&workload.Spec{Runtime: workload.RuntimeProcess, Replicas: 3, Image: "/bin/a",
					EnvironmentDigest: digest})
				if err != nil {
					t.Fatal(err)
				}
				n.Set("spread.web", raw, uds.ExpectAny, nil)
			}
			n.Environment("spread.web", e, first, write)
		}
		small, large := "one", strings.Repeat("two", 1000)
		set(w.Node(0), small, true)
		until(t, w, time.Minute, "3 replicas", func() bool { return readyNow(w, "") == 3 })
		run(t, w, 15*time.Second)
		// The specification comes first, from another cell; its environment seconds later.
		set(w.Node(1), large, false)
		run(t, w, 20*time.Second)
		if started[large] != 0 || readyNow(w, "") != 3 {
			t.Fatalf("seed %d: %d started without their environment, %d ready", seed, started[large], readyNow(w, ""))
		}
		if got := w.Node(1).Workload("spread.web"); !strings.Contains(got.Reason, "has not arrived") {
			t.Errorf("seed %d: status says %q", seed, got.Reason)
		}
		e := &workload.Environment{Variables: []workload.Variable{{Name: "V", Value: large}}}
		w.Node(2).Environment("spread.web", e, true, nil)
		until(t, w, 3*time.Minute, "3 replaced", func() bool { return started[large] >= 3 && running(w) == 3 && readyNow(w, "") == 3 })
	}
}

// F83: nothing of an environment is readable in what a cell stores or sends, also not in its answers.
func TestF83_NothingPlainOnDiskOrWire(t *testing.T) {
	const secret = "correct horse battery staple"
	w := form(t, Options{Seed: 3, Cells: 3})
	leaked := ""
	w.network.tap = func(from, to *Node, datagram []byte) {
		if strings.Contains(string(datagram), secret) {
			leaked = "a datagram"
		}
	}
	run(t, w, 15*time.Second)
	e := &workload.Environment{Variables: []workload.Variable{{Name: "PASSWORD", Value: secret}},
		Files: []workload.File{{Path: "/etc/key", Mode: 0o400, Content: []byte(secret)}}}
	w.Node(0).Environment("spread.web", e, true, func(digest [32]byte) {
		raw, _ := workload.Encode(&workload.Spec{Runtime: workload.RuntimeProcess, Replicas: 2, Image: "/bin/a",
			EnvironmentDigest: digest})
		w.Node(0).Set("spread.web", raw, uds.ExpectAny, nil)
	})
	until(t, w, time.Minute, "2 replicas", func() bool { return readyNow(w, "") == 2 })
	run(t, w, 30*time.Second)
	for _, n := range w.Nodes() {
		if strings.Contains(string(n.cell.Store().AppendSnapshot(nil)), secret) {
			leaked = "a snapshot"
		}
		for _, entry := range n.disk.writes {
			if strings.Contains(string(entry.record), secret) {
				leaked = "the log of own writes"
			}
		}
		if strings.Contains(string(n.disk.snapshot), secret) {
			leaked = "a snapshot on the disk"
		}
		n.Command(request(uds.CodeGet, "spread.web"), func(r response) {
			if strings.Contains(string(r.Payload), secret) {
				leaked = "get"
			}
			if !strings.Contains(string(r.Payload), "secret PASSWORD") || !strings.Contains(string(r.Payload), "/etc/key") {
				t.Errorf("get names nothing: %s", r.Payload)
			}
		})
	}
	if leaked != "" {
		t.Fatalf("the secret is in %s", leaked)
	}
	w.Node(1).Delete("spread.web")
	run(t, w, 10*time.Second)
	for part := range state.EnvironmentPartsMax {
		w.Node(2).cell.Store().Walk(state.PrefixEnv, func(r register) bool {
			if !r.Absent() {
				t.Errorf("%s is left behind, part %d", r.Name(), part)
			}
			return true
		})
	}
}

// The last eight versions are remembered, with their environments; older ones go.
func TestHistoryIsBounded(t *testing.T) {
	w := form(t, Options{Seed: 4, Cells: 3})
	run(t, w, 15*time.Second)
	for version := range 12 {
		n := w.Node(version % 3)
		e := &workload.Environment{Variables: []workload.Variable{{Name: "V", Value: fmt.Sprint(version)}}}
		n.Environment("spread.web", e, true, func(digest [32]byte) {
			raw, _ := workload.Encode(&workload.Spec{Runtime: workload.RuntimeProcess, Replicas: 1, Image: "/bin/a",
				EnvironmentDigest: digest})
			n.Set("spread.web", raw, uds.ExpectAny, nil)
		})
		run(t, w, 20*time.Second)
	}
	count := map[string]int{}
	w.Node(0).cell.Store().Walk("", func(r register) bool {
		if !r.Absent() {
			prefix, _, _ := strings.Cut(string(r.Name()), ".")
			count[prefix]++
		}
		return true
	})
	// Eight former specifications, their list, what became of them and the good one; nine environments.
	if count["rollout"] != state.PastMax+3 || count["env"] != state.PastMax+1 {
		t.Errorf("%v", count)
	}
}

// A machine that is emptied during an update and in bad weather: never fewer ready than before, and it ends empty.
func TestDrainKeepsServing(t *testing.T) {
	for _, seed := range seeds(5) {
		w := form(t, Options{Seed: seed, Cells: 5, Network: NetworkOptions{Loss: 0.05, DelayMax: 50 * time.Millisecond}})
		run(t, w, 20*time.Second)
		w.Node(0).Set("spread.web", Spec(3, "/bin/a"), uds.ExpectAny, nil)
		until(t, w, 30*time.Second, "3 replicas", func() bool { return readyNow(w, "") == 3 })
		run(t, w, 10*time.Second)
		least := 3
		w.AddChecker(&Checker{Name: "least", Every: 20 * time.Millisecond, Periodic: func(w *World) error {
			least = min(least, readyNow(w, ""))
			return nil
		}})
		for _, target := range w.Nodes()[:2] {
			w.Node(4).Drain(target, true)
			w.Node(3).Set("spread.web", Spec(3, fmt.Sprintf("/bin/d%d", target.Index)), uds.ExpectAny, nil)
			until(t, w, 3*time.Minute, "empty", func() bool { return len(target.Running()) == 0 && running(w) == 3 })
			run(t, w, 10*time.Second)
		}
		if least < 3 {
			t.Fatalf("seed %d: only %d of 3 ready", seed, least)
		}
		w.Node(2).Drain(w.Node(0), false)
		w.Node(2).Drain(w.Node(1), false)
		run(t, w, time.Minute)
		if readyNow(w, "") != 3 || running(w) != 3 {
			t.Fatalf("seed %d: %s", seed, w.describe())
		}
	}
}

// Drain on one side of a partition and uncordon on the other are a conflict that is shown; until an operator decides
// the machine counts as drained.
func TestDrainConflictIsShown(t *testing.T) {
	w := form(t, Options{Seed: 1, Cells: 4})
	run(t, w, 15*time.Second)
	w.Node(0).Drain(w.Node(3), true)
	run(t, w, 5*time.Second)
	w.Partition(func(i int) int { return i % 2 })
	w.Node(0).Drain(w.Node(3), false)
	run(t, w, time.Second)
	w.Node(0).Drain(w.Node(3), true)
	w.Node(1).Drain(w.Node(3), false)
	run(t, w, time.Second)
	w.Heal()
	run(t, w, 40*time.Second)
	if _, shown := w.Node(2).cell.ConflictKeys()[state.DrainKey(w.Node(3).ID())]; !shown {
		t.Fatal("no conflict is shown")
	}
	w.Node(2).Set("spread.web", Spec(4, "/bin/a"), uds.ExpectAny, nil)
	run(t, w, 10*time.Second)
	if len(w.Node(3).Running()) != 0 {
		t.Error("new work on a machine that somebody wants empty")
	}
	w.Node(1).Drain(w.Node(3), false)
	run(t, w, 10*time.Second)
	if len(w.Node(3).Running()) != 1 || len(w.Node(0).cell.ConflictKeys()) != 0 {
		t.Errorf("not resolved: %s", w.describe())
	}
}

// Two clusters that become one: the sealed environment is sealed anew with the other key, and the workload runs.
func TestF83_MergeTakesEnvironmentsAlong(t *testing.T) {
	w := form(t, Options{Seed: 6, Cells: 2})
	run(t, w, 15*time.Second)
	stranger := w.AddNode()
	stranger.Boot()
	run(t, w, 15*time.Second)
	e := &workload.Environment{Variables: []workload.Variable{{Name: "V", Value: "carried"}}}
	stranger.Environment("spread.web", e, true, func(digest [32]byte) {
		raw, _ := workload.Encode(&workload.Spec{Runtime: workload.RuntimeProcess, Replicas: 3, Image: "/bin/a",
			EnvironmentDigest: digest})
		stranger.Set("spread.web", raw, uds.ExpectAny, nil)
	})
	run(t, w, 10*time.Second)
	got := map[string]int{}
	w.AddChecker(&Checker{Name: "content", Action: func(_ *World, _ *Node, a reconcile.Action) error {
		if a.Kind == reconcile.Start {
			got[a.Environment.Variables[0].Value]++
		}
		return nil
	}})
	stranger.connect(w.Node(0), true, nil)
	until(t, w, 3*time.Minute, "3 replicas", func() bool { return readyNow(w, "") == 3 && running(w) == 3 })
	if got["carried"] < 2 {
		t.Errorf("%v", got)
	}
}

// Updates that work, crash and hang, drains and their ends, in any order, among partitions, deaths and bad weather:
// every rule holds, and afterwards a version that works gets everywhere.
func TestSim_LifeCycleUnderFaults(t *testing.T) {
	for _, seed := range seeds(8) {
		w := form(t, Options{Seed: seed, Cells: 5})
		for _, c := range append(Checkers(), newOracle(w).checker()) {
			w.AddChecker(c)
		}
		run(t, w, 15*time.Second)
		g := generator{random: w.random, cells: 5, duration: 10 * time.Minute,
			verbs: []Verb{Weather, Partition, Cut, Crash, Kill, Pause, Runnerd, Exit, Delete, Resolve},
			keys:  []string{"spread.a", "spread.b"}}
		images := []string{"/bin/a", "/bin/b", "/bin/c", imageCrashes, imageHangs}
		for range 40 {
			f := g.fault()
			if pick := w.random.IntN(10); pick < 5 {
				f = Fault{Verb: Write, Node: w.random.IntN(5), Key: g.keys[w.random.IntN(2)], Replicas: 1 + w.random.IntN(4),
					Image: images[w.random.IntN(len(images))], Rollback: w.random.IntN(4) > 0}
			} else if pick < 7 {
				node := w.random.IntN(5)
				f = Fault{Verb: []Verb{Drain, Uncordon}[w.random.IntN(2)], Node: node, Other: (node + 1 + w.random.IntN(4)) % 5}
			}
			w.Apply(f)
			run(t, w, time.Duration(1+w.random.IntN(40))*time.Second)
		}
		w.repair()
		if !w.wait(stateWithin, "CONV-2", func() bool { return w.Formed() && w.sameState() }) {
			t.Fatal(w.Failure)
		}
		for _, n := range w.Nodes() { // also where two operators disagreed
			w.Apply(Fault{Verb: Uncordon, Node: 0, Other: n.Index})
			n.Drain(n, false)
			run(t, w, time.Second)
		}
		for _, key := range g.keys {
			w.Node(0).Set(key, RolloutSpec(3, "/bin/final", workload.Update{AutoRollback: true}), uds.ExpectAny, nil)
		}
		if !w.wait(workloadsWithin, "EXEC-1", func() bool { return w.placed() == nil && w.sameState() }) {
			t.Fatal(w.Failure)
		}
		run(t, w, time.Minute)
		for _, key := range g.keys {
			if got := w.Node(1).Workload(key); got.State != "ok" || !got.Good {
				t.Fatalf("seed %d: %+v", seed, got)
			}
		}
		if err := w.CheckCalm(); err != nil {
			t.Fatal(err)
		}
	}
}
