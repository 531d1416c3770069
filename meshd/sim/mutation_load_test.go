package sim

import (
	"strings"
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/placement"
	"colloid.net/meshd/reconcile"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
	"colloid.net/workload"
)

// The rules about what gossip, collection, moves and hosts may do, each broken once; see mutation_test.go.

// deletedBehindN3 is a workload that goes while n3 is away; nothing but the tombstone tells it.
func deletedBehindN3() []Fault {
	return append(quietWorkload(),
		Fault{At: 130 * time.Second, For: 40 * time.Second, Verb: Partition, Groups: []int{0, 0, 0, 1}},
		Fault{At: 132 * time.Second, Verb: Delete, Node: 0, Key: "spread.web"})
}

// A cell that asks nobody frees what another one has never heard of.
func TestF45_CheckerFiresForATombstoneFreedEarly(t *testing.T) {
	brokenIn(t, 4*time.Minute, nil, "F45", deletedBehindN3(), func(w *World) {
		w.After(145*time.Second, func() {
			if w.Node(0).cell.Store().Collect(nil) == 0 {
				t.Error("there was nothing to free")
			}
		})
	})
}

// Cells that never tell each other what they have stably seen keep every tombstone.
func TestF45_CheckerFiresForALeak(t *testing.T) {
	faults := append(quietWorkload(), Fault{At: 100 * time.Second, Verb: Delete, Node: 0, Key: "spread.web"})
	broken(t, "F45", faults, func(w *World) {
		w.After(90*time.Second, func() {
			w.network.drop = func(_, _ *Node, datagram []byte) bool { return wire.Type(datagram[1]) == wire.TypeAEBegin }
		})
	})
}

// What has an excuse to stay: the tombstone of a cell whose disk was lost, and all of them while a cell is away that may
// come back.
func TestF46_ExcusesOfTombstones(t *testing.T) {
	w := form(t, Options{Seed: 1, Cells: 3})
	g := newGraves()
	run(t, w, 15*time.Second)
	w.Node(1).Delete("spread.never")
	w.Node(1).Set("spread.a", Spec(0, "/bin/a"), 0, nil)
	run(t, w, time.Second)
	w.Node(1).Delete("spread.a")
	run(t, w, time.Second)
	if leak := g.leak(w); !strings.Contains(leak, "spread.a") {
		t.Fatalf("a tombstone that everybody has is not seen: %q", leak)
	}
	g.lost[w.Node(1)] = true
	if leak := g.leak(w); leak != "" {
		t.Errorf("n1 has lost its disk, and its tombstone is a leak: %s", leak)
	}
	delete(g.lost, w.Node(1))
	w.Node(2).disk.identify() // the others list an id that nobody has any more
	if leak := g.leak(w); leak != "" {
		t.Errorf("the others wait for a cell that may come back: %s", leak)
	}
}

// accuse writes that a cell takes another one for lost.
func accuse(w *World, by, target *Node) {
	status := state.CellStatus{Life: state.Suspect, Claimants: []wire.CellID{by.ID()}}
	dot := wire.Dot{Actor: by.ID(), Sequence: 9 << wire.CounterBits}
	record := wire.Record{Name: []byte(state.StatusKey(target.ID())), EntryCount: 1,
		Entries: wire.AppendEntry(nil, dot, state.AppendCellStatus(nil, status)), Context: wire.AppendDot(nil, dot)}
	w.written(by, wire.AppendStateRecord(nil, &record))
}

func TestSUSPECT_CheckerFires(t *testing.T) {
	broken(t, "SUSPECT", nil, func(w *World) {
		w.After(50*time.Second, func() { accuse(w, w.Node(0), w.Node(1)) })
	})
}

// Where datagrams get lost one accusation is chance, and two are not.
func TestSUSPECT_CheckerFiresForManyInLossyWeather(t *testing.T) {
	s := Scenario{Seed: 1, Cells: 5, Duration: 2 * time.Minute, Network: NetworkOptions{Loss: 0.03}}
	for _, accused := range []int{0, 1, 2} {
		s.Prepare = func(w *World) {
			for i := range accused {
				w.After(time.Duration(50+i)*time.Second, func() { accuse(w, w.Node(0), w.Node(1+i)) })
			}
		}
		rule := RuleOf(s.Run(nil).Failure)
		if want := map[bool]string{true: "SUSPECT"}[accused > unfoundedMax]; rule != want {
			t.Errorf("%d accused: %q objects, not %q", accused, rule, want)
		}
	}
}

func writesWhenCalm() []Fault {
	return append(quietWorkload(), Fault{At: 90 * time.Second, Verb: Write, Key: "spread.web", Replicas: 3, Image: "/bin/web"})
}

// Gossip that sends everything four times, as one with a greater fan-out would in a cluster that is not that small.
func TestF42_CheckerFiresForTooMany(t *testing.T) {
	faults := []Fault{{At: 90 * time.Second, Verb: Write, Key: "spread.web", Image: "/bin/web"}} // nobody starts anything
	broken(t, "F42", faults, func(w *World) {
		again := false
		w.network.tap = func(from, to *Node, datagram []byte) {
			if wire.Type(datagram[1]) == wire.TypeDelta && !again {
				again = true
				for range 3 {
					w.network.send(from, from.Address, to.Address, datagram)
				}
				again = false
			}
		}
	})
}

// Gossip that passes one cell by: anti-entropy would bring it half a minute later.
func TestF42_CheckerFiresForACellThatHearsNothing(t *testing.T) {
	broken(t, "F42", writesWhenCalm(), func(w *World) {
		w.After(80*time.Second, func() {
			w.network.drop = func(_, to *Node, datagram []byte) bool {
				kind := wire.Type(datagram[1])
				return to.Index == 2 && (kind == wire.TypeDelta || kind == wire.TypeAEState)
			}
		})
	})
}

// A cell that stops what is to move as soon as it is placed elsewhere.
func TestF75Move_CheckerFires(t *testing.T) {
	faults := quietWorkload()
	for i := range 2 { // one of them has a replica
		faults = append(faults, Fault{At: 60 * time.Second, Verb: Drain, Node: 3, Other: i})
	}
	breaks := false
	breaker := &Checker{Name: "nothing", Step: func(_ *World, n *Node) error {
		if !breaks || n.cell == nil {
			return nil
		}
		for _, i := range n.host.sorted() {
			if i.state == reconcile.Ready && !hasSlot(n.cell.Plan(), n, i.id) {
				breaks = false
				n.host.Do(reconcile.Action{Kind: reconcile.Stop, ID: i.id, Key: i.key})
			}
		}
		return nil
	}}
	brokenFor(t, []*Checker{checkMoves(), breaker}, "F75-move", faults, func(*World) { breaks = true })
}

// demandingSpec asks for memory and a port of the host.
func demandingSpec(t *testing.T, memory uint32, port uint16) []byte {
	t.Helper()
	s := workload.Spec{Runtime: workload.RuntimeProcess, Replicas: 1, Image: "/bin/x", MemoryMiB: memory}
	if port != 0 {
		s.Ports = []workload.Port{{Protocol: workload.TCP, Container: port, Host: port}}
	}
	raw, err := workload.Encode(&s)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func startOf(key string, hash uint64, spec []byte) reconcile.Action {
	return reconcile.Action{Kind: reconcile.Start, Key: key, ID: reconcile.InstanceID{KeyHash: hash}, Spec: spec}
}

func TestF72_CheckerFiresForMemory(t *testing.T) {
	broken(t, "F72", nil, func(w *World) {
		w.After(20*time.Second, func() { w.Node(0).Set("spread.big", demandingSpec(t, 60000, 0), uds.ExpectAny, nil) })
		w.After(60*time.Second, func() {
			for _, n := range w.Nodes() { // one of them has it
				n.host.Do(startOf("spread.more", 1, demandingSpec(t, 30000, 0)))
			}
		})
	})
}

func TestF72_CheckerFiresForAPort(t *testing.T) {
	broken(t, "F72", nil, func(w *World) {
		w.After(40*time.Second, func() {
			w.Node(0).host.leave()
			w.Node(0).host.away = false
			w.After(10*time.Millisecond, func() { w.Node(0).host.Do(startOf("spread.b", 2, demandingSpec(t, 0, 80))) })
			w.Node(0).host.Do(startOf("spread.a", 1, demandingSpec(t, 0, 80)))
		})
	})
}

// A plan that was made for other cells than those that there are.
func TestF72_CheckerFiresForAPlan(t *testing.T) {
	spec := func(change func(s *workload.Spec)) *workload.Spec {
		s := &workload.Spec{Runtime: workload.RuntimeProcess, Replicas: 2, Image: "/bin/x", MemoryMiB: 60}
		change(s)
		return s
	}
	cell := func(id wire.CellID) placement.Cell {
		return placement.Cell{ID: id, Flags: state.FlagProcess, Arch: "amd64", Labels: [][2]string{{"zone", "a"}},
			Capacity: state.CellCapacity{MemoryMiB: 100}}
	}
	cells := []placement.Cell{cell(1), cell(2)}
	port := []workload.Port{{Protocol: workload.TCP, Container: 80, Host: 80}}
	tests := []struct {
		want  string
		other func(s *workload.Spec)  // a second workload
		then  func(c *placement.Cell) // what has become of a cell since
	}{
		{"", func(s *workload.Spec) { s.MemoryMiB = 40 }, func(*placement.Cell) {}},
		{"MiB of memory", func(*workload.Spec) {}, func(c *placement.Cell) { c.Capacity.MemoryMiB = 50 }},
		{"millicores", func(s *workload.Spec) { s.MemoryMiB, s.CPUMillicores = 0, 9 },
			func(c *placement.Cell) { c.Capacity.CPUMillicores = 5 }},
		{"MiB of disk", func(s *workload.Spec) { s.MemoryMiB, s.DiskMiB = 0, 9 },
			func(c *placement.Cell) { c.Capacity.DiskMiB = 5 }},
		{"instances", func(s *workload.Spec) { s.MemoryMiB = 0 }, func(c *placement.Cell) { c.Capacity.InstancesMax = 1 }},
		{"has not the runtime", func(*workload.Spec) {}, func(c *placement.Cell) { c.Flags = state.FlagOCI }},
		{"store is full", func(*workload.Spec) {}, func(c *placement.Cell) { c.Flags |= state.FlagDegraded }},
		{"another architecture", func(s *workload.Spec) { s.MemoryMiB, s.Architecture = 0, "amd64" },
			func(c *placement.Cell) { c.Arch = "arm64" }},
		{"labels", func(s *workload.Spec) {
			s.MemoryMiB, s.Constraints = 0, []workload.Constraint{{Label: "zone", Value: "a"}}
		}, func(c *placement.Cell) { c.Labels = nil }},
		{"takes nothing new", func(*workload.Spec) {}, func(c *placement.Cell) { c.NoNew = true }},
	}
	for _, test := range tests {
		before := []placement.Cell{cells[0], cells[1]}
		if test.want == "MiB of memory" {
			before[0].Capacity.MemoryMiB, before[1].Capacity.MemoryMiB = 1000, 1000
		}
		workloads := []placement.Workload{
			{Key: "spread.a", KeyHash: 1, Spec: spec(func(*workload.Spec) {})},
			{Key: "spread.b", KeyHash: 2, Spec: spec(test.other)},
		}
		plan := placement.NewPlanner(1, 2).Compute(before, workloads)
		now := []placement.Cell{before[0], before[1]}
		for i := range now {
			test.then(&now[i])
		}
		err := fitting(now, workloads, plan)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("want %q: %v", test.want, err)
		}
	}
	// Two workloads of one port, each planned as if it were alone.
	alone := func(hash uint64, key string) (placement.Workload, *placement.Plan) {
		w := placement.Workload{Key: key, KeyHash: hash, Spec: spec(func(s *workload.Spec) { s.MemoryMiB, s.Ports = 0, port })}
		return w, placement.NewPlanner(1, 2).Compute(cells, []placement.Workload{w})
	}
	a, plan := alone(1, "spread.a")
	if err := fitting(cells, []placement.Workload{a}, plan); err != nil {
		t.Errorf("one workload: %v", err)
	}
	load := &taken{ports: make(map[workload.Port]string)}
	if b, _ := alone(2, "spread.b"); load.add(&a, &cells[0].Capacity) != nil || load.add(&b, &cells[0].Capacity) == nil {
		t.Error("two workloads on one port are taken for well placed")
	}
}

func TestDRAIN_CheckerFires(t *testing.T) {
	faults := append(quietWorkload(), Fault{At: 20 * time.Second, Verb: Drain, Node: 0, Other: 1})
	broken(t, "DRAIN", faults, func(w *World) {
		w.After(60*time.Second, func() {
			w.Node(1).host.Do(startOf("spread.web", w.Node(1).cell.Store().Hash([]byte("spread.web")), Spec(2, "/bin/web")))
		})
	})
}

// A disk that says that it has a write and never gave it a number: the cell shows what only its memory has.
func TestF157_CheckerFiresForWhatIsNotOnTheDisk(t *testing.T) {
	broken(t, "F157", quietWorkload(), func(w *World) {
		w.After(40*time.Second, func() {
			n := w.Node(0)
			dot := wire.Dot{Actor: n.ID(), Sequence: uint64(n.disk.incarnation)<<wire.CounterBits | 1<<20}
			forge(n.cell.Store(), "spread.web", dot, Spec(1, "/bin/a"), nil)
		})
	})
}

// A fact that a cell says of itself and does not log.
func TestF157_CheckerFiresForWhatIsNotLogged(t *testing.T) {
	broken(t, "F157", nil, func(w *World) {
		w.After(40*time.Second, func() {
			n := w.Node(0)
			dot := wire.Dot{Actor: n.ID(), Sequence: uint64(n.disk.incarnation)<<wire.CounterBits | 1<<20}
			forge(n.cell.Store(), state.LoadKey(n.ID(), state.LoadCPU), dot, state.AppendLoad(nil, 7), nil)
		})
	})
}

func TestSTANDBY_CheckerFires(t *testing.T) {
	prepare := func(n *Node, key string, spec *workload.Spec) {
		raw, err := workload.Encode(spec)
		if err != nil {
			panic(err)
		}
		id := reconcile.InstanceID{KeyHash: n.cell.Store().Hash([]byte(key)), Digest: spec.InstanceDigest()}
		n.host.Do(reconcile.Action{Kind: reconcile.Prepare, ID: id, Key: key, Spec: raw})
	}
	shared := []Fault{{At: 15 * time.Second, Verb: Write, Key: "spread.web", Replicas: 2, Image: "registry.example/a"}}
	spec := shared[0].spec()
	for name, breaking := range map[string]func(w *World){
		"for another": func(w *World) {
			for _, n := range w.Nodes() {
				prepare(n, "spread.web", spec)
			}
		},
		"a process": func(w *World) {
			prepare(w.standbyOf("spread.web"), "spread.web", &workload.Spec{Runtime: workload.RuntimeProcess, Replicas: 2, Image: "/bin/a"})
		},
		"an old one": func(w *World) { n := w.standbyOf("spread.web"); n.host.Old = true; prepare(n, "spread.web", spec) },
		"while it is held": func(w *World) {
			n := w.standbyOf("spread.web")
			w.Isolate(n)
			w.After(20*time.Second, func() { prepare(n, "spread.web", spec) })
		},
		"too many": func(w *World) {
			n := w.standbyOf("spread.web")
			n.host.line = make([]reconcile.Action, reconcile.PreparesMax)
			prepare(n, "spread.web", spec)
		},
	} {
		t.Run(name, func(t *testing.T) {
			broken(t, "STANDBY", shared, func(w *World) { w.After(60*time.Second, func() { breaking(w) }) })
		})
	}
}
