package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"colloid.net/e2e/cluster"
)

// several workloads with one, two and three replicas, each at a port of its own.
func (f *fixture) several() (file string, ports map[string]int) {
	f.t.Helper()
	ports = map[string]int{}
	var text strings.Builder
	for i := range 3 {
		name := fmt.Sprintf("copies%d", i+1)
		ports[name] = portWish + 1 + i
		fmt.Fprintf(&text, "spread %s {\n\tprocess %s\n\treplicas %d\n\tport %d\n\thealth http %d /healthz interval=200ms\n}\n",
			name, f.Program("hello"), i+1, ports[name], ports[name])
	}
	file = filepath.Join(f.t.TempDir(), "several.colloid")
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		f.t.Fatal(err)
	}
	return file, ports
}

// copies are the processes of hello that listen at a port: process id -> cell number. They are read from the
// machine, so that both sides of a partition are seen.
func (f *fixture) copies(port int) map[int]int {
	found := map[int]int{}
	for number, cell := range f.Cells {
		for id, environment := range cell.Running("hello") {
			if slices.Contains(environment, fmt.Sprintf("PORT=%d", port)) {
				found[id] = number
			}
		}
	}
	return found
}

// A cell is cut off and comes back. What runs is not restarted without need: a short cut changes nothing,
// after a long one surplus copies go only after as many others answer (F66, F69, F71). The table says what moved.
func TestF66_CutOffAndBack(t *testing.T) {
	t.Parallel()
	needRoot(t, "cuts the link of a cell")
	times := []time.Duration{5 * time.Second}
	if long() {
		times = append(times, 30*time.Second, 5*time.Minute)
	}
	if text := os.Getenv("COLLOID_E2E_CUTS"); text != "" {
		times = nil
		for _, word := range strings.Split(text, ",") {
			duration, err := time.ParseDuration(word)
			if err != nil {
				t.Fatal(err)
			}
			times = append(times, duration)
		}
	}
	for _, duration := range times {
		t.Run(duration.String(), func(t *testing.T) {
			t.Parallel()
			cutOff(t, duration)
		})
	}
}

func cutOff(t *testing.T, duration time.Duration) {
	f := start(t, 3)
	file, ports := f.several()
	f.run(f.Cells[0], 0, "apply", "-f", file)
	before := map[string]map[int]int{}
	for name, port := range ports {
		wanted := int(name[len(name)-1] - '0')
		f.wait(name, func(ctx context.Context) error { return f.settled(ctx, f.Cells[0], name, wanted) })
		before[name] = f.copies(port)
	}
	// The cell with the only copy of the first workload is the one that matters.
	victim := 0
	for _, cell := range before["copies1"] {
		victim = cell
	}
	if err := f.Cells[victim].Cut(); err != nil {
		t.Fatal(err)
	}
	// The deadline counts from the cut: what was started meanwhile is seen at the end of it.
	time.Sleep(duration)
	during := map[string]map[int]int{}
	for name, port := range ports {
		during[name] = f.copies(port)
	}
	if err := f.Cells[victim].Heal(); err != nil {
		t.Fatal(err)
	}
	healed := time.Now()
	if err := f.WaitConverged(t.Context(), patience); err != nil {
		t.Fatal(err)
	}
	t.Logf("in step %v after the link came back", time.Since(healed).Round(10*time.Millisecond))
	witness := f.Cells[(victim+1)%len(f.Cells)]
	least := f.watchSettling(witness, ports)
	rows := []string{"workload  before                during                after                 kept started fewest"}
	for _, name := range []string{"copies1", "copies2", "copies3"} {
		wanted := int(name[len(name)-1] - '0')
		after := f.copies(ports[name])
		kept := 0
		for id := range before[name] {
			if _, ok := after[id]; ok {
				kept++
			}
		}
		started := 0
		for id := range union(during[name], after) {
			if _, ok := before[name][id]; !ok {
				started++
			}
		}
		rows = append(rows, fmt.Sprintf("%-9s %-21s %-21s %-21s %d/%d  %d       %d", name, describe(before[name]),
			describe(during[name]), describe(after), kept, wanted, started, least[name]))
		if len(after) != wanted {
			t.Errorf("%s: %d copies afterwards, want %d", name, len(after), wanted)
		}
		for id, cell := range before[name] {
			if _, ok := during[name][id]; !ok && cell != victim {
				t.Errorf("%s: the cut stopped process %d on a cell that was not cut off", name, id)
			}
		}
		if least[name] < wanted {
			t.Errorf("%s: only %d copies ran at a moment after the link came back, want %d", name, least[name], wanted)
		}
		// Every instance that is gone has a successor that the cut made necessary.
		if kept+started < wanted || len(before[name])-kept > started {
			t.Errorf("%s: %d of %d kept, %d started", name, kept, wanted, started)
		}
		if duration <= 5*time.Second && (kept != wanted || started > 1) {
			t.Errorf("%s: a short cut moved copies: %d of %d kept, %d started", name, kept, wanted, started)
		}
	}
	t.Logf("cell-%d cut off for %v:\n%s", victim+1, duration, strings.Join(rows, "\n"))
}

// settled demands that a workload has exactly so many instances, all of which are ready and placed.
func (f *fixture) settled(ctx context.Context, cell *cluster.Cell, name string, wanted int) error {
	status, err := cell.Status(ctx)
	if err != nil {
		return err
	}
	for _, w := range status.Workloads {
		if w.Key != "spread."+name {
			continue
		}
		for _, i := range w.Instances {
			if i.State != "ready" || !i.Placed {
				return fmt.Errorf("%s on %s is %s, placed %v", name, i.Cell, i.State, i.Placed)
			}
		}
		if len(w.Instances) != wanted {
			return fmt.Errorf("%s has %d instances, want %d", name, len(w.Instances), wanted)
		}
		return nil
	}
	return fmt.Errorf("%s is not known", name)
}

// watchSettling waits until every workload is settled again, for three seconds on end, and returns the fewest
// copies of each that answered HTTP at any moment.
func (f *fixture) watchSettling(from *cluster.Cell, ports map[string]int) map[string]int {
	f.t.Helper()
	least := map[string]int{}
	var calm time.Time
	f.wait("the workloads to settle", func(ctx context.Context) error {
		for name, port := range ports {
			answer := 0
			for _, cell := range f.Cells {
				if _, err := f.Get(ctx, fmt.Sprintf("http://%s:%d/", cell.Address, port)); err == nil {
					answer++
				}
			}
			if fewest, seen := least[name]; !seen || answer < fewest {
				least[name] = answer
			}
		}
		for name := range ports {
			if err := f.settled(ctx, from, name, int(name[len(name)-1]-'0')); err != nil {
				calm = time.Time{}
				return err
			}
		}
		if calm.IsZero() {
			calm = time.Now()
		}
		if time.Since(calm) < 3*time.Second {
			return fmt.Errorf("calm for %v only", time.Since(calm))
		}
		return nil
	})
	return least
}

func union(a, b map[int]int) map[int]int {
	all := map[int]int{}
	for _, m := range []map[int]int{a, b} {
		for id, cell := range m {
			all[id] = cell
		}
	}
	return all
}

// describe lists processes as "CELL:PID".
func describe(copies map[int]int) string {
	var words []string
	for id, cell := range copies {
		words = append(words, fmt.Sprintf("%d:%d", cell+1, id))
	}
	slices.Sort(words)
	return strings.Join(words, " ")
}
