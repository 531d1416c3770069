package sim

import (
	"flag"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/cell"
	"colloid.net/meshd/crdt"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "run simulations with this seed only")
	traceFlag = flag.Bool("trace", false, "print the timeline of every simulation")
)

// seeds returns the seeds of one test: a few fixed ones, or those asked for, by -seed or as a list of numbers and
// ranges in COLLOID_SIM_SEEDS (71,104,200-299).
func seeds(n int) []uint64 {
	if *seedFlag != 0 {
		return []uint64{*seedFlag}
	}
	if text := os.Getenv("COLLOID_SIM_SEEDS"); text != "" {
		var list []uint64
		for part := range strings.SplitSeq(text, ",") {
			first, last, isRange := strings.Cut(part, "-")
			if !isRange {
				last = first
			}
			from, err := strconv.ParseUint(first, 10, 64)
			to, err2 := strconv.ParseUint(last, 10, 64)
			if err != nil || err2 != nil || to-from >= 1e6 {
				panic("COLLOID_SIM_SEEDS: " + strconv.Quote(part) + " is neither a number nor a range")
			}
			for seed := from; seed <= to; seed++ {
				list = append(list, seed)
			}
		}
		return list
	}
	list := make([]uint64, n)
	for i := range list {
		list[i] = uint64(i + 1)
	}
	return list
}

// world makes a world whose timeline is printed when the test fails.
func world(t *testing.T, options Options) *World {
	t.Helper()
	var lines []string
	options.Trace = func(line string) {
		if *traceFlag {
			t.Log(line)
			return
		}
		if len(lines) < 2000 {
			lines = append(lines, line)
		}
	}
	t.Cleanup(func() {
		if t.Failed() && !*traceFlag {
			for _, line := range lines {
				t.Log(line)
			}
		}
	})
	return New(options)
}

func form(t *testing.T, options Options) *World {
	t.Helper()
	w := world(t, options)
	if err := w.Form(30 * time.Second); err != nil {
		t.Fatal(err)
	}
	return w
}

func run(t *testing.T, w *World, d time.Duration) {
	t.Helper()
	if err := w.Run(d); err != nil {
		t.Fatal(err)
	}
}

func until(t *testing.T, w *World, limit time.Duration, what string, done func() bool) time.Duration {
	t.Helper()
	took, ok := w.Until(limit, done)
	if !ok {
		t.Fatalf("seed %d: %s: not within %v (failure: %v)", w.options.Seed, what, limit, w.Failure)
	}
	return took
}

// spec encodes a small process workload.
func spec(_ *testing.T, replicas int, image string) []byte { return Spec(replicas, image) }

// value returns what a node holds under a key: the number of entries and, if single, the value.
func value(n *Node, key string) (entries int, single string) {
	register, found := n.cell.Store().Get([]byte(key))
	if !found {
		return 0, ""
	}
	raw, _ := register.Live()
	return register.EntryCount(), string(raw)
}

// running counts the instances of all machines.
func running(w *World) int {
	total := 0
	for _, n := range w.Nodes() {
		total += len(n.Running())
	}
	return total
}

// settled reports whether all running cells have equal state.
func settled(w *World) bool {
	var root uint64
	first := true
	for _, n := range w.Nodes() {
		if !n.Up() {
			continue
		}
		if first {
			root, first = n.cell.Store().Root(), false
		} else if n.cell.Store().Root() != root {
			return false
		}
	}
	return true
}

func phases(w *World) (active int) {
	for _, n := range w.Nodes() {
		if n.Up() && n.cell.Phase() == cell.Active {
			active++
		}
	}
	return active
}

// What tests of commands and registers need, by short names.
type (
	response = cell.Response
	register = crdt.Register
)

func request(code uds.Code, payload string) cell.Request {
	return cell.Request{Code: code, Payload: []byte(payload)}
}
