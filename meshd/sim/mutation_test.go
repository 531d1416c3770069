package sim

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/cell"
	"colloid.net/meshd/crdt"
	"colloid.net/meshd/placement"
	"colloid.net/meshd/reconcile"
	"colloid.net/meshd/seal"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
	"colloid.net/workload"
)

// A checker that never fires proves nothing. Each rule is broken here once, on purpose, in a world that
// obeys it otherwise; exactly that rule must object.

// broken plays a quiet scenario in which something breaks a rule, and wants to see the rule's name.
func broken(t *testing.T, rule string, faults []Fault, breaking func(w *World)) {
	t.Helper()
	brokenFor(t, nil, rule, faults, breaking)
}

func brokenFor(t *testing.T, checkers []*Checker, rule string, faults []Fault, breaking func(w *World)) {
	t.Helper()
	brokenIn(t, 2*time.Minute, checkers, rule, faults, breaking)
}

func brokenIn(t *testing.T, d time.Duration, checkers []*Checker, rule string, faults []Fault, breaking func(w *World)) {
	t.Helper()
	s := Scenario{Seed: 1, Cells: 4, Duration: d, Faults: faults, Checkers: checkers}
	if result := s.Run(nil); result.Failure != nil {
		t.Fatalf("the world is not sound before it is broken: %v", result.Failure)
	}
	s.Prepare = breaking
	result := s.Run(nil)
	if got := RuleOf(result.Failure); got != rule {
		t.Fatalf("rule %q objected, not %q: %v", got, rule, result.Failure)
	}
}

// quietWorkload is one workload and nothing else.
func quietWorkload() []Fault {
	return []Fault{{At: 15 * time.Second, Verb: Write, Key: "spread.web", Replicas: 2, Image: "/bin/web"}}
}

// conflict is a partition with a write on both sides.
func conflict() []Fault {
	return append(quietWorkload(),
		Fault{At: 20 * time.Second, For: time.Second, Verb: Partition, Groups: []int{0, 1, 0, 1}},
		Fault{At: 20200 * time.Millisecond, Verb: Write, Node: 0, Key: "spread.web", Replicas: 3, Image: "/bin/a"},
		Fault{At: 20200 * time.Millisecond, Verb: Write, Node: 1, Key: "spread.web", Replicas: 4, Image: "/bin/b"})
}

func TestSAFE1_CheckerFires(t *testing.T) {
	broken(t, "SAFE-1", conflict(), func(w *World) {
		w.After(40*time.Second, func() { // a cell stops what is frozen
			n := w.Node(0)
			n.host.Do(reconcile.Action{Kind: reconcile.Stop, Key: "spread.web",
				ID: reconcile.InstanceID{KeyHash: n.cell.Store().Hash([]byte("spread.web"))}})
		})
	})
}

func TestSAFE2_CheckerFires(t *testing.T) {
	broken(t, "SAFE-2", conflict(), func(w *World) {
		w.After(40*time.Second, func() { clear(w.Node(2).cell.ConflictKeys()) }) // a cell overlooks it
	})
}

// A value is written again under its dot with other words, on one cell only, as a store would do that
// breaks a tie by a rule of its own.
func TestSAFE3_SAFE4_CheckerFiresForAValueNobodyWrote(t *testing.T) {
	broken(t, "SAFE-4", conflict(), func(w *World) {
		w.After(40*time.Second, func() {
			dot := wire.Dot{Actor: 77, Sequence: 1 << wire.CounterBits}
			forge(w.Node(1).cell.Store(), "spread.web", dot, Spec(9, "/bin/x"), nil)
		})
	})
}

// A value vanishes from all cells: last writer wins, or a full table.
func TestSAFE4_CheckerFiresForALostValue(t *testing.T) {
	breaks := false
	lose := &Checker{Name: "nothing", Calm: func(w *World) error {
		for _, n := range w.Nodes() {
			store := n.cell.Store()
			register, _ := store.Get([]byte("spread.web"))
			record := wire.Record{KeyHash: register.KeyHash(), Name: []byte("spread.web"),
				Context: append([]byte(nil), register.Context()...)}
			if breaks {
				store.Merge(&record)
			}
		}
		return nil
	}}
	brokenFor(t, []*Checker{lose}, "SAFE-4", quietWorkload(), func(*World) { breaks = true })
}

// Even a storage that forgets to raise the incarnation loses nothing: what the others remember tells the cell
// that it counts again where it was (F1).
func TestF1_SAFE4_RepeatedIncarnationIsNoticed(t *testing.T) {
	faults := append(quietWorkload(),
		Fault{At: 20 * time.Second, Verb: Write, Node: 1, Key: "spread.web", Replicas: 3, Image: "/bin/a"},
		Fault{At: 40 * time.Second, For: time.Second, Verb: Crash, Node: 1},
		Fault{At: 50 * time.Second, Verb: Write, Node: 1, Key: "spread.web", Replicas: 1, Image: "/bin/b"})
	s := Scenario{Seed: 1, Cells: 4, Duration: 2 * time.Minute, Faults: faults,
		Prepare: func(w *World) {
			n := w.Node(1)
			n.disk.keepsIncarnation = true
			w.After(40*time.Second, func() { w.losing(n, w.now) }) // so it vouches for nothing of its own for a day (F45 i)
		}}
	if result := s.Run(nil); result.Failure != nil {
		t.Fatal(result.Failure)
	}
}

// The storage says that a write is durable and does not write it.
func TestF157_SAFE4_CheckerFiresForForgottenWrites(t *testing.T) {
	faults := []Fault{
		{At: 15 * time.Second, For: 40 * time.Second, Verb: Partition, Groups: []int{0, 0, 0, 1}},
		{At: 16 * time.Second, Verb: Write, Node: 3, Key: "spread.web", Replicas: 1, Image: "/bin/a"},
		{At: 17 * time.Second, For: time.Second, Verb: Crash, Node: 3},
	}
	broken(t, "SAFE-4", faults, func(w *World) {
		n := w.Node(3)
		n.disk.forgetsWrites = true
		frozen := n.disk.snapshot
		w.After(17*time.Second, func() { n.disk.snapshot = frozen })
	})
}

func TestF5_CheckerFires(t *testing.T) {
	broken(t, "F5", append(quietWorkload(), Fault{At: 40 * time.Second, For: 5 * time.Second, Verb: Kill, Node: 1}),
		func(w *World) {
			w.After(45001*time.Millisecond, func() {
				n := w.Node(1)
				if n.cell == nil {
					t.Fatal("n1 is down")
				}
				n.host.Do(reconcile.Action{Kind: reconcile.Stop, Key: "spread.web"})
			})
		})
}

func TestSAFE5_CheckerFires(t *testing.T) {
	broken(t, "SAFE-5", nil, func(w *World) {
		hash := w.Node(0).cell.Store().Hash([]byte("stateful.db"))
		start := reconcile.Action{Kind: reconcile.Start, Key: "stateful.db", ID: reconcile.InstanceID{KeyHash: hash}}
		w.After(40*time.Second, func() {
			w.Node(0).host.leave() // else meshd would stop what nobody wants
			w.Node(0).host.instances[start.ID] = &instance{id: start.ID, key: start.Key, started: w.now}
		})
		w.After(80*time.Second, func() { w.Node(1).host.Do(start) })
	})
}

func TestSAFE5_CheckerFiresForTwoOwners(t *testing.T) {
	w := form(t, Options{Seed: 1, Cells: 3})
	run(t, w, 20*time.Second)
	for _, n := range w.Nodes()[:2] {
		id := reconcile.InstanceID{KeyHash: n.cell.Store().Hash([]byte("stateful.db"))}
		n.host.instances[id] = &instance{id: id, key: "stateful.db", started: w.now}
	}
	if err := oneOwner(w); err != nil {
		t.Fatalf("too early: %v", err)
	}
	w.now += oneOwnerWithin // nothing happens meanwhile, so nobody stops them
	if err := oneOwner(w); err == nil {
		t.Fatal("two owners are taken for one")
	}
}

func TestF62_CheckerFires(t *testing.T) {
	broken(t, "F62", nil, func(w *World) {
		w.After(50*time.Second, func() { // a cell buries one that is well
			status := state.CellStatus{Life: state.Dead, Claimants: []wire.CellID{w.Node(0).ID()}}
			dot := wire.Dot{Actor: w.Node(0).ID(), Sequence: 9 << wire.CounterBits}
			record := wire.Record{Name: []byte(state.StatusKey(w.Node(1).ID())), EntryCount: 1,
				Entries: wire.AppendEntry(nil, dot, state.AppendCellStatus(nil, status)),
				Context: wire.AppendDot(nil, dot)}
			w.written(w.Node(0), wire.AppendStateRecord(nil, &record))
		})
	})
}

func TestSEC_CONV2_CheckerFires(t *testing.T) {
	broken(t, "CONV-2", quietWorkload(), func(w *World) {
		// One cell never hears of changes: both ways of propagation are broken.
		drop := func(kind wire.Type) bool { return kind == wire.TypeDelta || kind == wire.TypeAEState }
		w.network.drop = func(_, to *Node, datagram []byte) bool {
			return to.Index == 2 && drop(wire.Type(datagram[1]))
		}
	})
}

func TestSEC_CheckerFires(t *testing.T) {
	w := form(t, Options{Seed: 1, Cells: 3})
	run(t, w, 20*time.Second)
	dot := wire.Dot{Actor: 77, Sequence: 1 << wire.CounterBits}
	forge(w.Node(1).cell.Store(), "spread.web", dot, Spec(1, "/bin/a"), nil)
	if err := checkSameState().Calm(w); err == nil {
		t.Fatal("two states are taken for one")
	}
}

func TestEXEC2_CheckerFires(t *testing.T) {
	w := form(t, Options{Seed: 1, Cells: 3})
	run(t, w, 15*time.Second)
	w.Node(0).Set("spread.web", Spec(2, "/bin/a"), uds.ExpectAny, nil)
	run(t, w, 30*time.Second)
	check := checkSamePlan()
	if err := check.Calm(w); err != nil {
		t.Fatal(err)
	}
	*w.Node(1).cell.Plan() = *placement.NewPlanner(1, 2).Compute(nil, nil) // one cell plans nothing
	if err := check.Calm(w); err == nil {
		t.Fatal("different plans are taken for equal")
	}
}

func TestEXEC1_CheckerFires(t *testing.T) {
	broken(t, "EXEC-1", quietWorkload(), func(w *World) {
		for _, n := range w.Nodes() { // hosts that never get a workload ready
			n.host.StartDelay = time.Hour
		}
	})
}

func TestAVAIL4_CheckerFires(t *testing.T) {
	broken(t, "AVAIL-4", nil, func(w *World) {
		var chatter func()
		chatter = func() {
			w.network.send(w.Node(0), w.Node(0).Address, w.Node(1).Address, append([]byte{wire.Version}, make([]byte, 100)...))
			w.After(20*time.Millisecond, chatter)
		}
		chatter()
	})
}

func TestF14_CheckerFires(t *testing.T) {
	broken(t, "F14", []Fault{{At: 30 * time.Second, For: 20 * time.Second, Verb: Spoof, Node: 1}}, func(w *World) {
		w.After(40*time.Second, func() { // a cell answers strangers generously
			for source := range w.network.foreign {
				for range 100 {
					w.network.send(w.Node(1), w.Node(1).Address, source, make([]byte, 1200))
				}
			}
		})
	})
}

func TestRES2_CheckerFires(t *testing.T) {
	broken(t, "RES-2", nil, func(w *World) {
		w.After(time.Second, func() { w.network.send(w.Node(0), w.Node(0).Address, w.Node(1).Address, make([]byte, 1201)) })
	})
}

// forge puts an entry into one store behind the back of its cell.
func forge(store *crdt.Store, key string, dot wire.Dot, value, context []byte) {
	if context == nil {
		context = wire.AppendDot(nil, dot)
	}
	record := wire.Record{KeyHash: store.Hash([]byte(key)), Name: []byte(key), EntryCount: 1,
		Entries: wire.AppendEntry(nil, dot, value), Context: context}
	store.Merge(&record)
}

func TestF26_CheckerFires(t *testing.T) {
	broken(t, "F26", []Fault{{At: time.Second, For: time.Hour, Verb: Upgrade, Node: 1}}, func(w *World) {
		w.After(110*time.Second, func() { // a cell that does not look at contacts
			datagram := wire.AppendHeader(nil, wire.Header{
				Version: NextVersions.Max, Type: wire.TypeLeave, Sender: w.Node(0).ID()})
			w.network.send(w.Node(0), w.Node(0).Address, w.Node(2).Address, datagram)
		})
	})
}

// A placement that ranks the cells anew whenever one dies: replicas of cells that live move too.
func TestEXEC3_CheckerFires(t *testing.T) {
	faults := append(quietWorkload(), Fault{At: 40 * time.Second, For: 30 * time.Second, Verb: Crash, Node: 1})
	for i := range 4 {
		faults = append(faults, Fault{At: 16 * time.Second, Verb: Write, Key: "spread.w" + string(rune('a'+i)),
			Replicas: 2, Image: "/bin/w"})
	}
	breaks := false
	breaker := &Checker{Name: "nothing", Step: func(w *World, n *Node) error {
		if !breaks || n.Index != 0 || n.cell == nil {
			return nil
		}
		if cells, workloads, current := n.cell.PlanInput(); current && len(cells) == 3 {
			*n.cell.Plan() = *placement.NewPlanner(uint64(len(cells)), 2).Compute(cells, workloads)
		}
		return nil
	}}
	brokenFor(t, []*Checker{breaker, checkMovement()}, "EXEC-3", faults, func(*World) { breaks = true })
}

// A table without a bound: the cells hold more in it than they say is the most.
func TestBounds_CheckerFiresForATableThatGrows(t *testing.T) {
	breaks := false
	bounds := checkOccupancies(func(n *Node) []cell.Occupancy {
		list := n.cell.Occupancies()
		for i := range list {
			if breaks && list[i].Name == "instances" {
				list[i].Most = list[i].Used - 1
			}
		}
		return list
	})
	brokenFor(t, []*Checker{bounds}, "bounds", quietWorkload(), func(*World) { breaks = true })
}

// Timers that make timers: work under way that only grows.
func TestBounds_CheckerFiresForEndlessWork(t *testing.T) {
	broken(t, "bounds", nil, func(w *World) {
		var breed func()
		breed = func() {
			for range 2 {
				w.After(2*time.Second, breed)
			}
		}
		breed()
	})
}

// Operators resolve and nothing comes of it: the disks take no more writes.
func TestSAFE3_CheckerFires(t *testing.T) {
	broken(t, "SAFE-3", conflict(), func(w *World) {
		w.After(100*time.Second, func() {
			for _, n := range w.Nodes() {
				n.disk.latency = 24 * time.Hour
			}
		})
	})
}

func TestBOOT2_CheckerFires(t *testing.T) {
	s := Scenario{Seed: 1, Cells: 3, Duration: time.Minute, Network: NetworkOptions{Loss: 1}}
	if result := s.Run(nil); RuleOf(result.Failure) != "BOOT-2" {
		t.Fatalf("nobody reaches anybody, and the rule that objects is: %v", result.Failure)
	}
}

func TestPanic_CheckerFires(t *testing.T) {
	broken(t, "panic", nil, func(w *World) { w.After(time.Second, func() { panic("an assertion") }) })
}

func TestStorage_CheckerFires(t *testing.T) {
	broken(t, "storage", nil, func(w *World) {
		w.After(time.Second, func() { w.Node(0).disk.AppendWrite(1<<40, []byte("no record")) })
	})
}

func TestF75_CheckerFires(t *testing.T) {
	broken(t, "F75", quietWorkload(), func(w *World) {
		w.After(90*time.Second, func() { // two cells stop what serves at the same time
			for _, n := range w.Nodes() {
				for _, i := range n.host.sorted() {
					n.host.Do(reconcile.Action{Kind: reconcile.Stop, ID: i.id, Key: i.key})
					delete(n.host.instances, i.id)
				}
			}
		})
	})
}

func TestF83_CheckerFires(t *testing.T) {
	broken(t, "F83", quietWorkload(), func(w *World) {
		w.After(90*time.Second, func() { // a cell starts without the environment
			raw, _ := workload.Encode(&workload.Spec{Runtime: workload.RuntimeProcess, Image: "/bin/x", EnvironmentDigest: [32]byte{1}})
			w.Node(0).host.Do(reconcile.Action{Kind: reconcile.Start, Key: "spread.web", Spec: raw})
		})
	})
}

// A cell starts something with the environment of another version, or of another workload.
func TestF83_CheckerFiresForAnotherEnvironment(t *testing.T) {
	broken(t, "F83", quietWorkload(), func(w *World) {
		w.After(90*time.Second, func() {
			e := &workload.Environment{Variables: []workload.Variable{{Name: "TOKEN", Value: "old"}}}
			plain, _ := workload.EncodeEnvironment(e)
			n := w.Node(0)
			start := func(digest [32]byte) {
				raw, _ := workload.Encode(&workload.Spec{Runtime: workload.RuntimeProcess, Image: "/bin/x", EnvironmentDigest: digest})
				n.host.Do(reconcile.Action{Kind: reconcile.Start, Key: "spread.web", Spec: raw, Environment: e})
			}
			start(seal.EnvironmentDigest(n.disk.cluster.Key, "web", plain)) // this one is in order
			if w.Failure != nil {
				t.Errorf("the right environment: %v", w.Failure)
			}
			start(seal.EnvironmentDigest(n.disk.cluster.Key, "db", plain))
		})
	})
}

func TestSOCKET_CheckerFires(t *testing.T) {
	broken(t, "SOCKET", nil, func(w *World) {
		w.After(time.Second, func() { // a cell goes on with a socket that it has closed
			n := (*port)(w.Node(0))
			n.OpenSocket(1)
			n.SendVia(1, w.Node(1).Address, make([]byte, 100))
			if w.Failure != nil {
				t.Errorf("an open socket: %v", w.Failure)
			}
			n.CloseSocket(1)
			n.SendVia(1, w.Node(1).Address, make([]byte, 100))
		})
	})
}

// Every rule that can end a run has been broken above, and the table in docs/testing.md says where.
func TestSim_EveryRuleHasAMutation(t *testing.T) {
	var source []byte
	for _, file := range []string{"mutation_test.go", "mutation_load_test.go"} {
		part, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		source = append(source, part...)
	}
	table, err := os.ReadFile("../../docs/testing.md")
	if err != nil {
		t.Fatal(err)
	}
	names := append(Rules(), "panic")
	functions := regexp.MustCompile(`func (Test\w*CheckerFires\w*)\(`).FindAllStringSubmatch(string(source), -1)
	for _, name := range names {
		wanted := strings.ToLower(strings.ReplaceAll(name, "-", ""))
		found := ""
		for _, f := range functions {
			if slices.Contains(strings.Split(strings.ToLower(strings.TrimPrefix(f[1], "Test")), "_"), wanted) {
				found = f[1]
				if !strings.Contains(string(table), "`"+found+"`") {
					t.Errorf("docs/testing.md does not list %s", found)
				}
			}
		}
		if found == "" {
			t.Errorf("no mutation test for %s", name)
		}
	}
}
