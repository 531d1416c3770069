package sim

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/crdt"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
	"colloid.net/workload"
)

// Flaws whose tests are asked for in a simulation of whole cells.

// Ten restarts leave the number of cells as it was, and every identity (F3).
func TestF3_TenRestartsLeaveNoGhosts(t *testing.T) {
	for _, seed := range seeds(3) {
		w := form(t, Options{Seed: seed, Cells: 3})
		run(t, w, 15*time.Second)
		n := w.Node(1)
		id := n.ID()
		for range 10 {
			n.PowerOff()
			run(t, w, time.Duration(w.Random().Int64N(int64(8*time.Second))))
			n.Boot()
			run(t, w, 8*time.Second)
		}
		until(t, w, time.Minute, "whole again", w.Formed)
		for _, m := range w.Nodes() {
			contacts := 0
			m.cell.Store().Walk(state.PrefixHealth, func(r crdt.Register) bool {
				if _, field, ok := state.HealthKey(string(r.Name())); ok && field == "contact" && !r.Absent() {
					contacts++
				}
				return true
			})
			if contacts != 3 || n.ID() != id {
				t.Fatalf("seed %d: n%d knows %d cells after ten restarts of one", seed, m.Index, contacts)
			}
		}
	}
}

// Any subset of the machines is switched off and comes back in any order: one cluster results (F4).
func TestF4_AnySubsetRebootsInAnyOrder(t *testing.T) {
	orders := [][]int{{0}, {1}, {2}, {0, 1}, {1, 0}, {0, 2}, {2, 0}, {1, 2}, {2, 1},
		{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}
	for _, seed := range seeds(2) {
		w := form(t, Options{Seed: seed, Cells: 3})
		run(t, w, 15*time.Second)
		for _, order := range orders {
			for _, i := range order {
				w.Node(i).PowerOff()
			}
			run(t, w, time.Second)
			for _, i := range order {
				w.Node(i).Boot()
				run(t, w, 300*time.Millisecond)
			}
			until(t, w, time.Minute, fmt.Sprintf("one cluster after %v", order), func() bool {
				return w.Formed() && settled(w)
			})
			for _, n := range w.Nodes() {
				if n.cell.ClusterID() != w.cluster {
					t.Fatalf("seed %d: n%d is in another cluster after %v", seed, n.Index, order)
				}
			}
		}
	}
}

// Datagrams of all types without the cluster's key, with and without a trailer, change nothing in a cell (F12).
func TestF12_UnauthenticatedDatagramsOfAllTypesChangeNothing(t *testing.T) {
	w := form(t, Options{Seed: 1, Cells: 3})
	run(t, w, 15*time.Second)
	w.Node(0).Set("spread.web", spec(t, 2, "/bin/a"), uds.ExpectAny, nil)
	until(t, w, 15*time.Second, "2 replicas", func() bool { return running(w) == 2 })
	run(t, w, time.Minute)
	before := make([]uint64, 3)
	for i, n := range w.Nodes() {
		before[i] = n.cell.Store().Root()
		n.Host().Starts, n.Host().Stops = 0, 0
	}
	victim := w.Node(1)
	evil := wire.Record{KeyHash: victim.cell.Store().Hash([]byte("spread.evil")), Name: []byte("spread.evil"), EntryCount: 1,
		Entries: wire.AppendEntry(nil, wire.Dot{Actor: w.Node(0).ID(), Sequence: 9 << wire.CounterBits}, spec(t, 3, "/bin/evil")),
		Context: wire.AppendDot(nil, wire.Dot{Actor: w.Node(0).ID(), Sequence: 9 << wire.CounterBits})}
	payloads := [][]byte{nil, wire.AppendDelta(nil, &evil), wire.AppendStateRecord(nil, &evil), make([]byte, 18), make([]byte, 1160)}
	for kind := range 256 {
		for _, payload := range payloads {
			for _, trailer := range []int{0, wire.TrailerSize} {
				datagram := []byte{wire.Version, byte(kind)}
				datagram = binary.BigEndian.AppendUint16(datagram, uint16(len(payload)))
				datagram = binary.BigEndian.AppendUint64(datagram, uint64(w.Node(0).ID()))
				datagram = binary.BigEndian.AppendUint32(datagram, w.Random().Uint32())
				datagram = append(append(datagram, payload...), make([]byte, trailer)...)
				if trailer > 0 {
					datagram[len(datagram)-trailer+7] = 200 // a counter that is not 0
				}
				for _, source := range []netip.AddrPort{w.Node(0).Address, netip.MustParseAddrPort("192.0.2.1:999")} {
					w.Inject(source, victim, datagram)
				}
			}
		}
	}
	run(t, w, 20*time.Second)
	for i, n := range w.Nodes() {
		if n.cell.Store().Root() != before[i] || n.Host().Starts+n.Host().Stops != 0 || n.cell.AliveCount() != 3 {
			t.Errorf("n%d changed", n.Index)
		}
	}
}

// A hundred restarts, orderly and not, never seal two datagrams under one counter (F13).
func TestF13_HundredRestartsReuseNoCounter(t *testing.T) {
	w := form(t, Options{Seed: 1, Cells: 2})
	n := w.Node(1)
	used := make(map[uint64]string)
	w.AddChecker(&Checker{Name: "F13", Datagram: func(_ *World, from, _ *Node, datagram []byte) error {
		if from != n || wire.Type(datagram[1]).Joining() {
			return nil
		}
		counter := binary.BigEndian.Uint64(datagram[len(datagram)-wire.TrailerSize:])
		if other, again := used[counter]; again && other != string(datagram) {
			return fmt.Errorf("counter %x seals two datagrams", counter)
		}
		used[counter] = string(datagram)
		return nil
	}})
	for range 100 {
		run(t, w, time.Duration(w.Random().Int64N(int64(2*time.Second))))
		n.Kill()
		run(t, w, 20*time.Millisecond)
		n.Boot()
	}
	run(t, w, 5*time.Second)
	if len(used) < 200 {
		t.Fatalf("only %d datagrams", len(used))
	}
}

// Vectors of 75 and, in the long run, 200 actors are longer than one message; they arrive complete, and what
// was deleted is freed (F44).
func TestF44_GarbageIsFreedInLargeClusters(t *testing.T) {
	cells := 75
	if long() {
		cells = 200 // freed after 12 minutes, which take half a minute to simulate
	}
	w := world(t, Options{Seed: 1, Cells: cells})
	w.options.Timing.AntiEntropyInterval = time.Second
	w.options.Timing.GarbageInterval = 10 * time.Second
	if err := w.Form(2 * time.Minute); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		w.Node(i*7).Set(fmt.Sprintf("spread.k%d", i), Spec(0, "/bin/a"), uds.ExpectAny, nil)
	}
	run(t, w, 5*time.Second)
	for i := range 10 {
		w.Node(i * 7).Delete(fmt.Sprintf("spread.k%d", i))
	}
	took := until(t, w, 2*time.Hour, "all tombstones are freed", func() bool {
		if w.Now()%(10*time.Second) > 100*time.Millisecond {
			return false
		}
		for _, n := range w.Nodes() {
			for i := range 10 {
				if register, found := n.cell.Store().Get(fmt.Appendf(nil, "spread.k%d", i)); found && register.EntryCount() > 0 {
					return false
				}
			}
		}
		return true
	})
	t.Logf("freed after %v", took)
}

// Nothing reaches one of five cells, and what it sends arrives: it is declared dead once, and nobody calls it
// alive until it hears again. Between just two cells a drop in one direction changes no status at all: the
// third reaches both (F64).
func TestF64_DeafCellDiesOnce(t *testing.T) {
	for _, seed := range seeds(3) {
		w := form(t, Options{Seed: seed, Cells: 5})
		run(t, w, 20*time.Second)
		statuses := make(map[state.Life]int)
		deaf := w.Node(2)
		w.AddChecker(&Checker{Name: "F64", Write: func(_ *World, _ *Node, record *wire.Record) error {
			if id, field, ok := state.HealthKey(string(record.Name)); ok && field == "status" && id == deaf.ID() {
				_, raw, _, _ := wire.NextEntry(record.Entries)
				if status, err := state.ParseCellStatus(raw); err == nil {
					statuses[status.Life]++
				}
			}
			return nil
		}})
		w.Cut(w.Node(0), w.Node(1))
		run(t, w, 2*time.Minute)
		w.Mend(w.Node(0), w.Node(1))
		if len(statuses) != 0 {
			t.Fatalf("seed %d: statuses written because of one direction of one link: %v", seed, statuses)
		}
		w.Apply(Fault{Verb: Deaf, Node: 2, For: 5 * time.Minute})
		run(t, w, 5*time.Minute-time.Second)
		if statuses[state.Alive] != 0 || statuses[state.Dead] == 0 {
			t.Fatalf("seed %d: statuses of the deaf cell: %v", seed, statuses)
		}
		for _, n := range w.Nodes() {
			register, _ := n.cell.Store().Get([]byte(state.StatusKey(deaf.ID())))
			raw, _ := register.Live()
			if status, err := state.ParseCellStatus(raw); n != deaf && (err != nil || status.Life != state.Dead) {
				t.Fatalf("seed %d: n%d takes the deaf cell for %v", seed, n.Index, status.Life)
			}
		}
		run(t, w, time.Minute)
		if statuses[state.Alive] != 1 || !w.Formed() {
			t.Fatalf("seed %d: after it hears again: %v", seed, statuses)
		}
	}
}

// Ten machines boot together after a power loss: each replica is started once (F69).
func TestF69_TenMachinesBootAndStartEachReplicaOnce(t *testing.T) {
	for _, seed := range seeds(3) {
		w := form(t, Options{Seed: seed, Cells: 10})
		run(t, w, 15*time.Second)
		for i := range 6 {
			w.Node(i).Set(fmt.Sprintf("spread.w%d", i), spec(t, 3, "/bin/a"), uds.ExpectAny, nil)
		}
		until(t, w, 20*time.Second, "18 replicas", func() bool { return running(w) == 18 })
		run(t, w, 20*time.Second)
		for _, n := range w.Nodes() {
			n.PowerOff()
			n.Host().Starts = 0
		}
		run(t, w, 10*time.Second)
		for _, i := range w.Random().Perm(10) {
			w.Node(i).Boot()
			run(t, w, time.Duration(w.Random().Int64N(int64(time.Second))))
		}
		run(t, w, 2*time.Minute)
		starts := 0
		for _, n := range w.Nodes() {
			starts += n.Host().Starts
		}
		if running(w) != 18 || starts != 18 {
			t.Fatalf("seed %d: %d running after %d starts", seed, running(w), starts)
		}
	}
}

// Placement reads the replicated state only: cells that reach half of the others directly, each another half,
// compute one plan, which knows what every host offers (F73, F77).
func TestF73_F77_CellsThatReachFewPlanTheSame(t *testing.T) {
	for _, seed := range seeds(3) {
		w := world(t, Options{Seed: seed, Cells: 8})
		for i, n := range w.Nodes() {
			n.arch = []string{"amd64", "arm64"}[i/4]
			if i%2 == 1 {
				n.host.Flags = state.FlagOCI // no processes here
			}
		}
		if err := w.Form(30 * time.Second); err != nil {
			t.Fatal(err)
		}
		run(t, w, 20*time.Second)
		for i, a := range w.Nodes() {
			for j, b := range w.Nodes() {
				if i/4 != j/4 && i%4 != j%4 { // two racks, with one link for each pair of places
					w.Cut(a, b)
				}
			}
		}
		run(t, w, 20*time.Second)
		for i := range 3 {
			w.Node(i).Set(fmt.Sprintf("spread.any%d", i), spec(t, 2+i, "/bin/a"), uds.ExpectAny, nil)
		}
		raw, err := workload.Encode(&workload.Spec{Runtime: workload.RuntimeProcess, Replicas: 2, Image: "/bin/b",
			Architecture: "arm64"})
		if err != nil {
			t.Fatal(err)
		}
		w.Node(5).Set("spread.arm", raw, uds.ExpectAny, nil)
		until(t, w, 3*time.Minute, "equal state", func() bool {
			arrived, _ := value(w.Node(7), "spread.arm") // the writes were still on their way to the disk
			return arrived == 1 && settled(w)
		})
		run(t, w, 5*time.Second)
		for _, n := range w.Nodes() {
			if n.cell.Plan().Len() != 2+3+4+2 {
				t.Errorf("seed %d: n%d places %d replicas", seed, n.Index, n.cell.Plan().Len())
			}
			if n.cell.Store().Root() == w.Node(0).cell.Store().Root() {
				if err := samePlan(w.Node(0), n); err != nil {
					t.Errorf("seed %d: %v", seed, err)
				}
			}
			for _, i := range n.Host().sorted() {
				if n.Index%2 == 1 || i.key == "spread.arm" && n.arch != "arm64" {
					t.Errorf("seed %d: n%d cannot run %s and does", seed, n.Index, i.key)
				}
			}
		}
	}
}

// A ring to runnerd that holds one command delays and loses nothing (F131).
func TestF131_RingOfOneCommand(t *testing.T) {
	for _, seed := range seeds(3) {
		w := form(t, Options{Seed: seed, Cells: 3})
		for _, n := range w.Nodes() {
			n.Host().Room = 1
		}
		run(t, w, 15*time.Second)
		for i := range 20 {
			w.Node(i%3).Set(fmt.Sprintf("spread.w%02d", i), spec(t, 3, "/bin/a"), uds.ExpectAny, nil)
		}
		until(t, w, 3*time.Minute, "60 replicas", func() bool { return running(w) == 60 })
		for i := range 20 {
			w.Node(i % 3).Delete(fmt.Sprintf("spread.w%02d", i))
		}
		until(t, w, 5*time.Minute, "none", func() bool { return running(w) == 0 })
		for _, n := range w.Nodes() {
			if n.Host().Starts != 20 || n.Host().Stops != 20 {
				t.Errorf("seed %d: n%d: %d starts, %d stops", seed, n.Index, n.Host().Starts, n.Host().Stops)
			}
		}
	}
}

// Every crash in a large cluster is detected by all, with 500 cells in the long run (F41).
func TestF41_EveryCrashIsKnownInLargeClusters(t *testing.T) {
	cells := 100
	if long() {
		cells = 500
	}
	w := form(t, Options{Seed: 1, Cells: cells})
	run(t, w, 5*time.Second)
	for i := 0; i < cells; i += 10 {
		w.Node(i + 3).PowerOff()
		run(t, w, 500*time.Millisecond)
	}
	polled(t, w, 30*time.Second, "all crashes known to all", func() bool {
		for _, n := range w.Nodes() {
			if n.Up() && n.cell.AliveCount() != cells-cells/10 {
				return false
			}
		}
		return true
	})
}
