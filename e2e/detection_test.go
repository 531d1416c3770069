package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"colloid.net/e2e/cluster"
	"golang.org/x/sys/unix"
)

// verdicts is what a cell wrote about who is alive, since its meshd started.
type verdicts struct {
	accusations, deaths, refutations float64
}

func (f *fixture) verdicts(cell *cluster.Cell) verdicts {
	f.t.Helper()
	all := f.metrics(cell)
	if _, found := all["colloid_deaths_declared_total"]; !found {
		f.t.Fatalf("%s does not count deaths: %v", cell.Name, all)
	}
	return verdicts{all["colloid_accusations_total"], all["colloid_deaths_declared_total"], all["colloid_refutations_total"]}
}

// allVerdicts are those of all cells, in their order.
func (f *fixture) allVerdicts() (all []verdicts) {
	f.t.Helper()
	for _, cell := range f.Cells {
		all = append(all, f.verdicts(cell))
	}
	return all
}

// stateOf is what a cell says of another one.
func stateOf(ctx context.Context, from *cluster.Cell, id string) (string, error) {
	status, err := from.Status(ctx)
	if err != nil {
		return "", err
	}
	for _, c := range status.Cells {
		if c.ID == id {
			return c.State, nil
		}
	}
	return "", fmt.Errorf("%s does not know %s", from.Name, id)
}

func (f *fixture) id(cell *cluster.Cell) string {
	f.t.Helper()
	status, err := cell.Status(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	return status.Cell.ID
}

// A cell that sends and does not hear is dead once, and nobody revives it until it hears: it alone can answer. One
// direction of one link between two of five cells is nothing to write about, since others are asked (F64).
func TestF64_DeafCellIsDeadOnce(t *testing.T) {
	needRoot(t, "drops what arrives at a cell")
	t.Parallel()
	f := start(t, 5)
	oneWay, silent := 8*time.Second, 10*time.Second
	if long() {
		oneWay, silent = time.Minute, 5*time.Minute
	}
	before := f.allVerdicts()
	if err := f.Cells[0].Deafen(f.Cells[1]); err != nil {
		t.Fatal(err)
	}
	time.Sleep(oneWay)
	for i, now := range f.allVerdicts() {
		if now != before[i] {
			t.Errorf("one direction of a link was cut: %s wrote %+v, before that %+v", f.Cells[i].Name, now, before[i])
		}
	}
	if err := f.Cells[0].Hear(); err != nil {
		t.Fatal(err)
	}
	f.deafCell(f.Cells[4], silent)
}

// deafCell lets one cell hear nothing until every other one calls it dead, and for some time more.
func (f *fixture) deafCell(deaf *cluster.Cell, silent time.Duration) {
	t := f.t
	t.Helper()
	id, before := f.id(deaf), f.allVerdicts()
	began := time.Now()
	if err := deaf.Deafen(); err != nil {
		t.Fatal(err)
	}
	others := f.Cells[:len(f.Cells)-1]
	for _, cell := range others {
		f.wait("the deaf cell to be dead on "+cell.Name, func(ctx context.Context) error {
			life, err := stateOf(ctx, cell, id)
			if err == nil && life != "dead" {
				err = fmt.Errorf("it is %s", life)
			}
			return err
		})
	}
	t.Logf("dead on all after %v", time.Since(began).Round(10*time.Millisecond))
	for began := time.Now(); time.Since(began) < silent; time.Sleep(300 * time.Millisecond) {
		for _, cell := range others {
			if life, err := stateOf(t.Context(), cell, id); err != nil || life != "dead" {
				t.Fatalf("%s says %q of a cell that hears nothing; %v", cell.Name, life, err)
			}
		}
	}
	after := f.allVerdicts()
	deaths := 0.0
	for i := range others {
		written := after[i].deaths - before[i].deaths
		if deaths += written; written > 1 || after[i].refutations != before[i].refutations {
			t.Errorf("%s wrote %+v, before that %+v", others[i].Name, after[i], before[i])
		}
	}
	// Two may have come to it in the same moment, which is one state all the same.
	if deaths < 1 || deaths > 2 {
		t.Errorf("%v deaths were declared, want one", deaths)
	}
	if last := len(after) - 1; after[last] != before[last] {
		t.Errorf("the deaf cell wrote %+v, before that %+v", after[last], before[last])
	}
	if err := deaf.Hear(); err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	if err := f.WaitConverged(t.Context(), patience); err != nil {
		t.Fatal(err)
	}
	t.Logf("alive on all %v after it heard again", time.Since(began).Round(10*time.Millisecond))
	if n := f.verdicts(deaf).refutations - before[len(before)-1].refutations; n < 1 || n > 2 {
		t.Errorf("it contradicted %v times, want once", n)
	}
}

// signalDaemons sends a signal to launcher, meshd and runnerd of a cell, and to none of its workloads.
func (f *fixture) signalDaemons(cell *cluster.Cell, signal unix.Signal) {
	f.t.Helper()
	for _, program := range []string{"colloid", "runnerd", "meshd"} {
		if n, err := cell.SignalProgram(program, signal); err != nil || n != 1 {
			f.t.Fatalf("%s to %d processes %s of %s, %v", unix.SignalName(signal), n, program, cell.Name, err)
		}
	}
}

// All daemons of a cell stand still while the world goes on, as on a machine that was suspended: the cell that wakes
// accuses nobody, though all its timers have expired, and leaves its workloads alone. Then all cells stand still, as
// when their host does, while they wait for one to answer: what they waited for proves nothing (F11, F65).
func TestF11_F65_StoppedCellsAccuseNobody(t *testing.T) {
	t.Parallel()
	f := start(t, 3)
	pause := 10 * time.Second
	if long() {
		pause = 20 * time.Second
	}
	f.run(f.Cells[0], 0, "apply", "-f", f.config(3, ""))
	f.answers(f.Cells[0], 3)
	workloads := f.instances()
	stop := f.hammer(f.Cells)

	sleeper := f.Cells[2]
	before := f.verdicts(sleeper)
	f.signalDaemons(sleeper, unix.SIGSTOP)
	time.Sleep(pause)
	if life, err := stateOf(t.Context(), f.Cells[0], f.id(f.Cells[0])); err != nil || life != "alive" {
		t.Errorf("%s calls itself %q; %v", f.Cells[0].Name, life, err)
	}
	f.signalDaemons(sleeper, unix.SIGCONT)
	time.Sleep(3 * time.Second) // two rounds of probes
	f.accusedNobody(sleeper, before)
	f.rejoined("a cell woke", workloads)
	f.accusedNobody(sleeper, before)

	// The two others are about to declare it dead, for good reason, when they stand still as well.
	all := f.allVerdicts()
	f.signalDaemons(sleeper, unix.SIGSTOP)
	f.wait("an accusation", func(context.Context) error {
		for i, cell := range f.Cells[:2] {
			if f.verdicts(cell).accusations > all[i].accusations {
				return nil
			}
		}
		return errors.New("none")
	})
	for _, cell := range f.Cells[:2] {
		f.signalDaemons(cell, unix.SIGSTOP)
	}
	declared := []int{deathsLogged(f.Cells[0]), deathsLogged(f.Cells[1]), deathsLogged(sleeper)}
	time.Sleep(pause)
	for _, cell := range f.Cells {
		f.signalDaemons(cell, unix.SIGCONT)
	}
	time.Sleep(3 * time.Second)
	f.rejoined("all cells woke", workloads)
	for i, cell := range f.Cells {
		if now := deathsLogged(cell); now != declared[i] {
			t.Errorf("%s declared %d cells dead after it woke", cell.Name, now-declared[i])
		}
	}
	stop("while daemons stood still")
}

// rejoined waits until every cell sees every other one again and demands that no workload was touched.
func (f *fixture) rejoined(what string, workloads []string) {
	f.t.Helper()
	if err := f.WaitConverged(f.t.Context(), patience); err != nil {
		f.t.Fatal(err)
	}
	same(f.t, "processes after "+what, workloads, f.instances())
	f.answers(f.Cells[0], len(workloads))
	same(f.t, "processes a moment after "+what, workloads, f.instances())
}

func (f *fixture) accusedNobody(cell *cluster.Cell, before verdicts) {
	f.t.Helper()
	now := f.verdicts(cell)
	if now.accusations != before.accusations || now.deaths != before.deaths {
		f.t.Errorf("%s accused somebody: %+v, before that %+v", cell.Name, now, before)
	}
}

// deathsLogged is how many cells a cell declared dead, readable also while it stands still.
func deathsLogged(cell *cluster.Cell) int {
	return strings.Count(cell.LogTail(1<<20), "declared dead")
}
