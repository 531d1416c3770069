package sim

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/cell"
	"colloid.net/meshd/state"
)

// A machine without configuration is a cluster of one; the next needs one address (BOOT-1, BOOT-2).
func TestBOOT1_BOOT2_ClusterForms(t *testing.T) {
	for _, cells := range []int{1, 2, 3, 10} {
		for _, seed := range seeds(3) {
			w := form(t, Options{Seed: seed, Cells: cells})
			until(t, w, 10*time.Second, "equal state", func() bool { return settled(w) })
		}
	}
}

// Same seed, same run, byte for byte.
func TestSim_SameSeedSameRun(t *testing.T) {
	timeline := func() []byte {
		var out bytes.Buffer
		w := New(Options{
			Seed: 7, Cells: 5, Network: NetworkOptions{Loss: 0.1, Duplicate: 0.05, Reorder: 0.1, DelayMax: 5 * time.Millisecond},
			Trace: func(line string) { out.WriteString(line + "\n") },
		})
		if err := w.Form(time.Minute); err != nil {
			t.Fatal(err)
		}
		w.Node(1).Set("spread.web", spec(t, 3, "/bin/a"), uds.ExpectAny, nil)
		w.Run(20 * time.Second)
		w.Node(2).PowerOff()
		w.Run(30 * time.Second)
		datagrams, size := w.Traffic()
		fmt.Fprintf(&out, "%d datagrams, %d bytes, %d steps", datagrams, size, w.Steps)
		return out.Bytes()
	}
	if a, b := timeline(), timeline(); !bytes.Equal(a, b) {
		t.Fatal("two runs of one seed differ")
	}
}

// A write reaches every cell and its replicas start, once each (EXEC-1, EXEC-2, F69).
func TestEXEC1_WorkloadRunsOnce(t *testing.T) {
	for _, seed := range seeds(5) {
		w := form(t, Options{Seed: seed, Cells: 5})
		run(t, w, 15*time.Second)
		w.Node(3).Set("spread.web", spec(t, 3, "/bin/a"), uds.ExpectAbsent, nil)
		until(t, w, 10*time.Second, "3 replicas", func() bool { return running(w) == 3 })
		run(t, w, time.Minute)
		starts := 0
		for _, n := range w.Nodes() {
			starts += n.Host().Starts
		}
		if running(w) != 3 || starts != 3 {
			t.Fatalf("seed %d: %d running after %d starts", seed, running(w), starts)
		}
	}
}

// The replicas of a dead machine run elsewhere within 10 s, and nothing else moves (EXEC-3).
func TestEXEC3_DeathMovesOnlyTheDeadCellsReplicas(t *testing.T) {
	for _, seed := range seeds(10) {
		w := form(t, Options{Seed: seed, Cells: 3})
		run(t, w, 15*time.Second)
		w.Node(0).Set("spread.web", spec(t, 2, "/bin/a"), uds.ExpectAny, nil)
		until(t, w, 10*time.Second, "2 replicas", func() bool { return running(w) == 2 })
		run(t, w, 5*time.Second)
		var victim *Node
		for _, n := range w.Nodes() {
			if len(n.Running()) == 1 {
				victim = n
			}
		}
		victim.PowerOff()
		took := until(t, w, 10*time.Second, "2 replicas again", func() bool { return running(w) == 2 })
		t.Logf("seed %d: failover after %v", seed, took)
		run(t, w, time.Minute)
		if running(w) != 2 {
			t.Fatalf("seed %d: %d running", seed, running(w))
		}
		for _, n := range w.Nodes() {
			if n != victim && n.Host().Stops > 0 {
				t.Fatalf("seed %d: n%d stopped something", seed, n.Index)
			}
		}
	}
}

// A surplus copy stays while the cell of one that is to be kept is suspected: that one may be dead (F75).
func TestF75_ASurplusCopyOutlivesASuspectedReplacement(t *testing.T) {
	for _, seed := range seeds(10) {
		w := form(t, Options{Seed: seed, Cells: 3})
		run(t, w, 15*time.Second)
		w.Node(0).Set("spread.web", spec(t, 2, "/bin/a"), uds.ExpectAny, nil)
		until(t, w, 10*time.Second, "2 replicas", func() bool { return running(w) == 2 })
		run(t, w, 5*time.Second)
		var first, second, third *Node
		for _, n := range w.Nodes() {
			switch {
			case len(n.Running()) == 0:
				third = n
			case first == nil:
				first = n
			default:
				second = n
			}
		}
		first.PowerOff()
		until(t, w, 10*time.Second, "2 replicas again", func() bool { return running(w) == 2 })
		run(t, w, 10*time.Second)
		first.Boot()
		until(t, w, 20*time.Second, "a replica too many", func() bool { return running(w) == 3 })
		run(t, w, 6500*time.Millisecond) // until shortly before the first cell counts again for the others
		third.Host().Stops = 0
		second.Pause()
		run(t, w, time.Minute)
		if third.Host().Stops > 0 {
			t.Errorf("seed %d: n%d stopped its copy for one on a cell that was dying", seed, third.Index)
		}
	}
}

// meshd restarts while its workloads run: nothing is stopped or started (F5, F134).
func TestF5_RestartTouchesNothing(t *testing.T) {
	for _, seed := range seeds(5) {
		w := form(t, Options{Seed: seed, Cells: 3})
		run(t, w, 15*time.Second)
		w.Node(0).Set("spread.web", spec(t, 3, "/bin/a"), uds.ExpectAny, nil)
		until(t, w, 10*time.Second, "3 replicas", func() bool { return running(w) == 3 })
		run(t, w, 12*time.Second)
		for round := range 6 {
			n := w.Node(round % 3)
			n.Kill()
			run(t, w, time.Duration(round)*400*time.Millisecond)
			n.Boot()
			until(t, w, 20*time.Second, "active again", func() bool { return phases(w) == 3 })
			run(t, w, 10*time.Second)
		}
		for _, n := range w.Nodes() {
			if n.Host().Starts != 1 || n.Host().Stops != 0 {
				t.Fatalf("seed %d: n%d: %d starts, %d stops", seed, n.Index, n.Host().Starts, n.Host().Stops)
			}
		}
	}
}

// A cell that is cut off for a while and returns: no kept replica restarts, surplus goes only after the
// kept one answers.
func TestAVAIL2_CutOffCellReturnsWithoutNeedlessRestarts(t *testing.T) {
	for _, cut := range []time.Duration{5 * time.Second, 30 * time.Second, 5 * time.Minute} {
		for _, seed := range seeds(4) {
			w := form(t, Options{Seed: seed, Cells: 3})
			run(t, w, 15*time.Second)
			for i := range 3 {
				w.Node(0).Set(fmt.Sprintf("spread.w%d", i), spec(t, i+1, "/bin/a"), uds.ExpectAny, nil)
				run(t, w, 100*time.Millisecond)
			}
			until(t, w, 10*time.Second, "6 replicas", func() bool { return running(w) == 6 })
			run(t, w, 20*time.Second)
			before := make([][]string, 3)
			for i, n := range w.Nodes() {
				before[i] = n.Running()
				n.Host().Starts, n.Host().Stops = 0, 0
			}
			w.Isolate(w.Node(1))
			run(t, w, cut)
			w.Heal()
			run(t, w, 3*time.Minute)
			for i, n := range w.Nodes() {
				if after := n.Running(); fmt.Sprint(after) != fmt.Sprint(before[i]) {
					t.Errorf("seed %d cut %v: n%d ran %v, now %v", seed, cut, i, before[i], after)
				}
				// Every start on a cell must have been undone by exactly one stop: the replicas that
				// ran before were never touched.
				if n.Host().Starts != n.Host().Stops {
					t.Errorf("seed %d cut %v: n%d: %d starts, %d stops", seed, cut, i, n.Host().Starts, n.Host().Stops)
				}
				if cut == 5*time.Second && n.Host().Starts > 0 {
					t.Errorf("seed %d: a cut of 5 s moved something on n%d", seed, i)
				}
			}
			if !settled(w) {
				t.Errorf("seed %d cut %v: states differ", seed, cut)
			}
		}
	}
}

// All machines lose power and come back in any order: one cluster, same configuration, same workloads
// (D5, F4, F157).
func TestF157_TotalOutage(t *testing.T) {
	for _, seed := range seeds(5) {
		w := form(t, Options{Seed: seed, Cells: 3})
		run(t, w, 15*time.Second)
		w.Node(2).Set("spread.web", spec(t, 2, "/bin/a"), uds.ExpectAny, nil)
		until(t, w, 10*time.Second, "2 replicas", func() bool { return running(w) == 2 })
		run(t, w, time.Duration(w.Random().Int64N(int64(15*time.Second))))
		cluster := w.Node(0).cell.ClusterID()
		for _, n := range w.Nodes() {
			n.PowerOff()
		}
		run(t, w, 10*time.Second)
		for _, i := range w.Random().Perm(3) {
			w.Node(i).Boot()
			run(t, w, time.Duration(w.Random().Int64N(int64(8*time.Second))))
		}
		until(t, w, time.Minute, "2 replicas again", func() bool { return running(w) == 2 && w.Formed() })
		run(t, w, time.Minute)
		if running(w) != 2 {
			t.Fatalf("seed %d: %d running", seed, running(w))
		}
		for _, n := range w.Nodes() {
			if n.cell.ClusterID() != cluster {
				t.Fatalf("seed %d: n%d founded another cluster", seed, n.Index)
			}
		}
	}
}

// Two operators edit one key in two partitions: both values are shown after healing, nothing is stopped,
// resolve clears it (SAFE-1 to SAFE-4, AVAIL-1).
func TestSAFE1_SAFE2_SAFE3_SAFE4_ConflictFreezesAndResolves(t *testing.T) {
	for _, seed := range seeds(5) {
		w := form(t, Options{Seed: seed, Cells: 4})
		run(t, w, 15*time.Second)
		w.Node(0).Set("spread.web", spec(t, 2, "/bin/a"), uds.ExpectAny, nil)
		until(t, w, 10*time.Second, "2 replicas", func() bool { return running(w) == 2 })
		run(t, w, 5*time.Second)
		w.Partition(func(i int) int { return i % 2 })
		run(t, w, 500*time.Millisecond)
		w.Node(0).Set("spread.web", spec(t, 3, "/bin/a"), uds.ExpectAny, nil)
		w.Node(1).Set("spread.web", spec(t, 4, "/bin/a"), uds.ExpectAny, nil)
		run(t, w, 500*time.Millisecond)
		w.Heal()
		until(t, w, 40*time.Second, "conflict everywhere", func() bool {
			for _, n := range w.Nodes() {
				if entries, _ := value(n, "spread.web"); entries != 2 {
					return false
				}
			}
			return true
		})
		kept := running(w)
		run(t, w, 2*time.Minute)
		if running(w) != kept {
			t.Fatalf("seed %d: %d instances ran at the conflict, now %d", seed, kept, running(w))
		}
		w.Node(2).Resolve("spread.web", spec(t, 3, "/bin/a"))
		until(t, w, 10*time.Second, "resolved", func() bool { return settled(w) && running(w) == 3 })
	}
}

// Leaving hands over first, then goes; the cell is a cluster of one afterwards (F8).
func TestF8_LeaveHandsOver(t *testing.T) {
	for _, seed := range seeds(5) {
		w := form(t, Options{Seed: seed, Cells: 3})
		run(t, w, 15*time.Second)
		w.Node(0).Set("spread.web", spec(t, 2, "/bin/a"), uds.ExpectAny, nil)
		until(t, w, 10*time.Second, "2 replicas", func() bool { return running(w) == 2 })
		run(t, w, 5*time.Second)
		var leaver *Node
		for _, n := range w.Nodes() {
			if len(n.Running()) > 0 {
				leaver = n
			}
		}
		left := false
		leaver.Command(cell.Request{Code: uds.CodeLeave, Payload: []byte{0, 60}}, func(r cell.Response) {
			left = r.Status == uds.OK
		})
		until(t, w, 20*time.Second, "left", func() bool {
			if running(w) < 2 {
				t.Fatalf("seed %d: only %d replicas while leaving", seed, running(w))
			}
			return left
		})
		run(t, w, 10*time.Second)
		if len(leaver.Running()) != 0 || leaver.cell.AliveCount() != 1 {
			t.Fatalf("seed %d: leaver runs %v among %d", seed, leaver.Running(), leaver.cell.AliveCount())
		}
		for _, n := range w.Nodes() {
			if n == leaver {
				continue
			}
			raw, _ := n.cell.Store().Get([]byte(state.StatusKey(leaver.ID())))
			encoded, _ := raw.Live()
			if status, err := state.ParseCellStatus(encoded); err != nil || status.Life != state.Gone {
				t.Fatalf("seed %d: n%d thinks %v (%v)", seed, n.Index, status, err)
			}
		}
	}
}
