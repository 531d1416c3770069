package sim

import (
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/cell"
	"colloid.net/meshd/seal"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// Bugs that random scenarios found, each in a world of its own that does not depend on the seed.

// A cell writes, leaves, and joins again through a member that missed the write: it has lost its own writes,
// so it must not tell the others that they are superseded (F45 i; sim seed 462).
func TestF45_F8_LeaverWhoReturnsDoesNotVouchForItsLostWrites(t *testing.T) {
	for _, seed := range seeds(5) {
		w := form(t, Options{Seed: seed, Cells: 3})
		run(t, w, 15*time.Second)
		missed, author, keeper := w.Node(0), w.Node(1), w.Node(2)
		w.Isolate(missed)
		run(t, w, 15*time.Second)
		author.Set("spread.b", spec(t, 1, "/bin/b"), uds.ExpectAny, nil)
		run(t, w, 10*time.Second)
		author.Command(cell.Request{Code: uds.CodeLeave, Payload: []byte{0, 5}}, func(cell.Response) {})
		until(t, w, 20*time.Second, "left", func() bool { return author.cell.ClusterID() != w.cluster })
		w.Isolate(keeper)
		run(t, w, time.Second)
		author.Connect(missed)
		until(t, w, 30*time.Second, "joined again", func() bool {
			return author.cell.ClusterID() == w.cluster && author.cell.Phase() == cell.Active
		})
		run(t, w, time.Second)
		w.Heal()
		until(t, w, 3*time.Minute, "equal state", func() bool { return w.Formed() && settled(w) })
		for _, n := range w.Nodes() {
			if _, got := value(n, "spread.b"); got != string(spec(t, 1, "/bin/b")) {
				t.Fatalf("seed %d: n%d has lost spread.b", seed, n.Index)
			}
		}
	}
}

// everywhere reports whether all machines that are up hold exactly one value of a key, the given one.
func everywhere(w *World, key string, want []byte) func() bool {
	return func() bool {
		for _, n := range w.Nodes() {
			if entries, got := value(n, key); n.Up() && (entries != 1 || got != string(want)) {
				return false
			}
		}
		return true
	}
}

// While a write waits for the disk the cell says something about itself. What it vouches for must not reach over
// the waiting write, which the store would then refuse as superseded (F45 i, F157; sim seed 5137).
func TestF45_F157_WriteThatWaitsForTheDiskIsNotYetStable(t *testing.T) {
	for _, seed := range seeds(3) {
		w := form(t, Options{Seed: seed, Cells: 3})
		run(t, w, 15*time.Second)
		n := w.Node(1)
		n.Set("spread.web", spec(t, 3, "/bin/a"), uds.ExpectAny, nil)
		until(t, w, 15*time.Second, "3 replicas", func() bool { return running(w) == 3 })
		run(t, w, 15*time.Second)
		n.disk.latency = 500 * time.Millisecond
		n.Set("spread.slow", spec(t, 0, "/bin/b"), uds.ExpectAny, nil)
		run(t, w, 10*time.Millisecond)
		n.Host().exit(0) // its endpoint changes
		run(t, w, 5*time.Second)
		if !everywhere(w, "spread.slow", spec(t, 0, "/bin/b"))() {
			t.Fatalf("seed %d: an acknowledged write is lost", seed)
		}
	}
}

// A directory restored from an older copy lacks own writes that others hold. The cell vouches for none of its
// writes before it has compared its state with somebody's (F1, F45 i; sim seed 10601).
func TestF1_F45_RestoredCellVouchesForNothingBeforeItCompares(t *testing.T) {
	for _, seed := range seeds(3) {
		w := form(t, Options{Seed: seed, Cells: 3})
		run(t, w, 15*time.Second)
		n := w.Node(1)
		w.Apply(Fault{Verb: Backup, Node: 1})
		for i := range 5 {
			n.Set("spread.a", spec(t, 0, "/bin/"+string(rune('a'+i))), uds.ExpectAny, nil)
			run(t, w, time.Second)
		}
		run(t, w, 15*time.Second)
		w.Isolate(n)
		w.Apply(Fault{Verb: Restore, Node: 1, For: 3 * time.Second})
		run(t, w, 6*time.Minute) // after five it acts alone, and says so
		w.Heal()
		run(t, w, 3*time.Minute)
		if !everywhere(w, "spread.a", spec(t, 0, "/bin/e"))() || !w.Formed() {
			t.Fatalf("seed %d: the last write before the restore is lost: %s", seed, w.describe())
		}
	}
}

// Both sides of a partition gave the other up. No cell looks for one that it was told to forget, so an operator
// connects them; the cluster is the same, and that must be enough (sim seed 10026).
func TestF54_ConnectHealsMutualForgetting(t *testing.T) {
	for _, seed := range seeds(3) {
		w := form(t, Options{Seed: seed, Cells: 4})
		run(t, w, 15*time.Second)
		w.Partition(func(i int) int { return i % 2 })
		run(t, w, 20*time.Second)
		for _, pair := range [][2]int{{0, 1}, {0, 3}, {1, 0}, {1, 2}} {
			w.Apply(Fault{Verb: Forget, Node: pair[0], Other: pair[1]})
			run(t, w, 100*time.Millisecond)
		}
		run(t, w, 20*time.Second)
		w.Heal()
		run(t, w, time.Minute)
		w.Node(0).Connect(w.Node(1))
		run(t, w, 30*time.Second)
		for _, n := range w.Nodes() { // who heard of its own end through a friend may still be alone
			if n.cell.AliveCount() < 4 {
				n.Connect(w.Node((n.Index + 1) % 4))
			}
		}
		until(t, w, 2*time.Minute, "one cluster", func() bool { return w.Formed() && settled(w) })
	}
}

// A cell that joined and has lost its list of peers asks whoever speaks to it: the others still look for it.
func TestF4_CellWithoutPeersAsksWhoeverSpeaksToIt(t *testing.T) {
	for _, seed := range seeds(3) {
		w := form(t, Options{Seed: seed, Cells: 3})
		run(t, w, time.Second)
		n := w.Node(0)
		n.Kill()
		n.disk.peers, n.disk.snapshot, n.disk.writes = nil, nil, nil
		run(t, w, time.Minute)
		n.Boot()
		until(t, w, 3*time.Minute, "back in the cluster", func() bool { return w.Formed() && settled(w) })
	}
}

// The founder's directory is replaced by a copy from before it met anybody. What it then says of itself is
// overruled by what the cluster remembers of it, so it has to say it again (F1).
func TestF1_FounderRestoredFromBeforeItMetAnybody(t *testing.T) {
	for _, seed := range seeds(3) {
		w := world(t, Options{Seed: seed, Cells: 3})
		founder := w.Node(0)
		founder.Boot()
		run(t, w, 12*time.Second)
		w.Apply(Fault{Verb: Backup, Node: 0})
		if err := w.Form(30 * time.Second); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			run(t, w, 15*time.Second)
			founder.Kill()
			founder.Boot()
		}
		run(t, w, 15*time.Second)
		w.Apply(Fault{Verb: Restore, Node: 0, For: 2 * time.Second})
		run(t, w, 2*time.Minute)
		for _, n := range w.Nodes() {
			if cells, _, current := n.cell.PlanInput(); !current || len(cells) != 3 {
				t.Fatalf("seed %d: n%d places on %d cells: %s", seed, n.Index, len(cells), w.describe())
			}
		}
	}
}

// What placement reserves for a key in CONFLICT does not depend on which value a cell saw first, or on whether it
// was there at all (EXEC-2; sim seeds 3 and 5).
func TestEXEC2_F57_ConflictIsPlannedAlikeWhateverWasSeenFirst(t *testing.T) {
	for _, seed := range seeds(5) {
		w := form(t, Options{Seed: seed, Cells: 4})
		run(t, w, 15*time.Second)
		w.Partition(func(i int) int { return i % 2 })
		w.Node(0).Set("spread.web", spec(t, 1, "/bin/a"), uds.ExpectAny, nil)
		w.Node(1).Set("spread.web", spec(t, 4, "/bin/b"), uds.ExpectAny, nil)
		run(t, w, 3*time.Second)
		w.Heal()
		until(t, w, time.Minute, "conflict everywhere", func() bool { return settled(w) && len(w.conflicts()) == 1 })
		run(t, w, 15*time.Second)
		w.Node(2).Kill()
		w.Node(2).Boot()
		run(t, w, 30*time.Second)
		if !settled(w) {
			t.Fatalf("seed %d: states differ", seed)
		}
		for _, n := range w.Nodes() {
			if err := samePlan(w.Node(0), n); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
	}
}

// A run of a cell sends and is never answered; then the directory is replaced by a copy from before it. The next
// run counts where that one counted, though it wrote nothing: all it sends looks like a replay, and its status
// tells it nothing new. It finds a free incarnation by itself (F1, F13; sim seed 32039).
func TestF1_F13_CellBehindARunThatSaidNothing(t *testing.T) {
	for _, seed := range seeds(3) {
		w := form(t, Options{Seed: seed, Cells: 3})
		run(t, w, 20*time.Second)
		n := w.Node(1)
		n.Kill()
		// The last of twenty thousand datagrams of the run that said nothing.
		sealer := seal.NewSealer(n.disk.cluster.Key, n.ID(), n.disk.incarnation+1)
		var last []byte
		for range 20000 {
			header := wire.Header{Type: wire.TypeLeave, Sender: n.ID()}
			last = sealer.Seal(wire.AppendHeader(make([]byte, 0, wire.DatagramMax), header))
		}
		for _, m := range w.Nodes() {
			if m != n {
				w.network.schedule(n.Index, n.Address, m, last)
			}
		}
		run(t, w, time.Second)
		n.Boot()
		until(t, w, 20*time.Second, "active again", func() bool { return phases(w) == 3 })
	}
}

// A machine leaves by force while one of its workloads is in CONFLICT: nothing runs on where nobody watches it (F8; sim
// seed 496).
func TestF8_LeaverStopsWhatIsInConflict(t *testing.T) {
	for _, seed := range seeds(3) {
		w := form(t, Options{Seed: seed, Cells: 3})
		run(t, w, 15*time.Second)
		w.Node(0).Set("spread.web", spec(t, 3, "/bin/a"), uds.ExpectAny, nil)
		until(t, w, 15*time.Second, "3 replicas", func() bool { return running(w) == 3 })
		run(t, w, 5*time.Second)
		w.Isolate(w.Node(0))
		w.Node(0).Set("spread.web", spec(t, 3, "/bin/b"), uds.ExpectAny, nil)
		w.Node(1).Set("spread.web", spec(t, 3, "/bin/c"), uds.ExpectAny, nil)
		run(t, w, 500*time.Millisecond)
		w.Heal()
		until(t, w, time.Minute, "conflict", func() bool { return settled(w) && len(w.conflicts()) == 1 })
		leaver := w.Node(2)
		leaver.Command(cell.Request{Code: uds.CodeLeave, Payload: []byte{0, 5, 1}}, func(cell.Response) {})
		until(t, w, time.Minute, "left", func() bool { return leaver.cell.ClusterID() != w.cluster })
		run(t, w, time.Second)
		if len(leaver.Running()) != 0 || len(w.Node(0).Running()) != 1 || len(w.Node(1).Running()) != 1 {
			t.Fatalf("seed %d: %s", seed, w.describe())
		}
	}
}

// A joiner is killed as soon as it is in. It has saved who let it in, and comes back to that cluster (F4; sim
// seed 5205).
func TestF4_JoinerKilledAtOnceComesBack(t *testing.T) {
	for _, seed := range seeds(10) {
		w := form(t, Options{Seed: seed, Cells: 2})
		run(t, w, 15*time.Second)
		joiner := w.AddNode()
		joiner.Boot()
		run(t, w, time.Second)
		joiner.Connect(w.Node(0))
		until(t, w, 10*time.Second, "in", func() bool { return joiner.cell.ClusterID() == w.cluster })
		w.Isolate(joiner)
		run(t, w, 20*time.Millisecond)
		joiner.Kill()
		w.Heal()
		run(t, w, time.Second)
		joiner.Boot()
		until(t, w, 30*time.Second, "back in the cluster", func() bool { return w.Formed() && settled(w) })
	}
}

// What runnerd reports of an instance is said to the others at once, and not when the cell's next timer is due
// (sim seeds 189 and 833).
func TestF101_EndpointsAreSpreadAtOnce(t *testing.T) {
	for _, seed := range seeds(5) {
		w := form(t, Options{Seed: seed, Cells: 3})
		run(t, w, 15*time.Second)
		w.Node(0).Set("spread.web", spec(t, 1, "/bin/a"), uds.ExpectAny, nil)
		until(t, w, 15*time.Second, "1 replica", func() bool { return running(w) == 1 })
		run(t, w, 20*time.Second)
		for _, n := range w.Nodes() {
			if len(n.Running()) == 0 {
				continue
			}
			n.Host().exit(0)
			key := state.EndpointKey(n.ID(), "web")
			until(t, w, 20*time.Millisecond, "everybody knows of the exit", func() bool {
				for _, m := range w.Nodes() {
					register, _ := m.cell.Store().Get([]byte(key))
					raw, _ := register.Live()
					endpoint, err := state.ParseCellEndpoint(raw)
					if err != nil || len(endpoint.Instances) != 1 || endpoint.Instances[0].State != state.EndpointBackoff {
						return false
					}
				}
				return true
			})
		}
	}
}
