package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"colloid.net/e2e/cluster"
	"golang.org/x/sys/unix"
)

// instances lists the processes of hello in the whole cluster as "CELL PID", sorted.
func (f *fixture) instances() []string {
	var all []string
	for _, cell := range f.Cells {
		for id := range cell.Running("hello") {
			all = append(all, fmt.Sprintf("%s %d", cell.Name, id))
		}
	}
	slices.Sort(all)
	return all
}

// hammer sends requests to each of the cells' instances, without a second address to try.
func (f *fixture) hammer(cells []*cluster.Cell) (stop func(what string)) {
	var loads []*cluster.Load
	for _, cell := range cells {
		url := f.url(cell)
		loads = append(loads, f.StartLoad(f.t.Context(), 5*time.Millisecond, func() []string { return []string{url} }))
	}
	return func(what string) {
		f.t.Helper()
		for i, load := range loads {
			result := load.Stop()
			if result.Errors > 0 || result.Requests < 50 {
				f.t.Errorf("%s: %d of %d requests to %s failed, last with %v", what, result.Errors, result.Requests,
					cells[i].Name, result.LastError)
			}
			f.t.Logf("%s: %d requests to %s, %d failed, longest %v", what, result.Requests, cells[i].Name, result.Errors,
				result.Longest.Round(time.Millisecond))
		}
	}
}

// Every daemon of a cell ends alone, by kill -9 or by SIGTERM, while requests run: the workloads keep their
// processes and no request fails (F134, F5). A file that is applied again changes nothing (F156).
func TestF134_DaemonsDieAndWorkloadsLive(t *testing.T) {
	f := start(t, 3)
	first := f.Cells[0]
	file := f.config(2, "restart always")
	f.run(first, 0, "apply", "-f", file)
	answers := f.answers(first, 2)
	if out := f.run(first, 0, "apply", "-f", file); out != key+" unchanged\n" {
		t.Errorf("second apply: %q", out)
	}
	holders, _ := f.holders()
	before := f.instances()
	stop := f.hammer(holders)
	for _, signal := range []unix.Signal{unix.SIGKILL, unix.SIGTERM} {
		for _, program := range []string{"meshd", "runnerd", "colloid"} {
			what := fmt.Sprintf("%s of %s", unix.SignalName(signal), program)
			began := time.Now()
			for _, cell := range holders {
				endProgram(t, cell, program, signal)
			}
			f.wait("the cells to be active", func(ctx context.Context) error { return active(ctx, holders) })
			if err := f.WaitConverged(t.Context(), patience); err != nil {
				t.Fatal(err)
			}
			took := time.Since(began)
			t.Logf("%s on both cells: in step after %v", what, took.Round(10*time.Millisecond))
			if took > 10*time.Second {
				t.Errorf("%s: in step after %v", what, took)
			}
			same(t, "processes after "+what, before, f.instances())
			same(t, "replicas after "+what, answers, f.answers(first, 2))
		}
	}
	// Longer than the boot settle and a reconcile: a late stop would show.
	time.Sleep(3 * time.Second)
	stop("restarts")
	same(t, "processes after a while", before, f.instances())
}

func endProgram(t *testing.T, cell *cluster.Cell, program string, signal unix.Signal) {
	t.Helper()
	if n, err := cell.SignalProgram(program, signal); err != nil || n != 1 {
		t.Fatalf("signalled %d processes %s of %s, %v", n, program, cell.Name, err)
	}
	if program == "colloid" {
		if err := cell.Relaunch(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func active(ctx context.Context, cells []*cluster.Cell) error {
	for _, cell := range cells {
		status, err := cell.Status(ctx)
		if err != nil {
			return err
		}
		if status.Cell.State != "active" {
			return fmt.Errorf("%s is %s", cell.Name, status.Cell.State)
		}
		for _, helper := range status.Cell.Helpers {
			if !helper.Connected {
				return fmt.Errorf("%s of %s is not connected", helper.Name, cell.Name)
			}
		}
	}
	return nil
}

// Single processes are killed at random under load, the shims of the instances among them: no workload stops, none is
// started twice (F134).
func TestF134_RandomDeathsOfDaemons(t *testing.T) {
	t.Parallel()
	f := start(t, 3)
	duration := 12 * time.Second
	if long() {
		duration = 10 * time.Minute
	}
	f.run(f.Cells[0], 0, "apply", "-f", f.config(3, "restart always"))
	f.answers(f.Cells[0], 3)
	before := f.instances()
	stop := f.hammer(f.Cells)
	random := rand.New(rand.NewPCG(1, 2))
	deaths := map[string]int{}
	for began := time.Now(); time.Since(began) < duration; {
		cell := f.Cells[random.IntN(len(f.Cells))]
		program := []string{"meshd", "runnerd", "colloid", "shim"}[random.IntN(4)]
		if program == "shim" {
			deaths[program] += cell.KillShims()
		} else if n, err := cell.KillProgram(program); err != nil {
			t.Fatal(err)
		} else if n == 1 {
			deaths[program]++
			if program == "colloid" {
				if err := cell.Relaunch(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
		time.Sleep(time.Duration(random.IntN(700)) * time.Millisecond)
		same(t, fmt.Sprintf("processes after the death of %s on %s", program, cell.Name), before, f.instances())
	}
	t.Logf("deaths: %v", deaths)
	f.wait("the cells to be active", func(ctx context.Context) error { return active(ctx, f.Cells) })
	if err := f.WaitConverged(t.Context(), patience); err != nil {
		t.Fatal(err)
	}
	f.answers(f.Cells[0], 3)
	stop("random deaths")
	same(t, "processes at the end", before, f.instances())
}

// A daemon that panics ends with status 2, as one does that gets SIGABRT or SIGQUIT: it is started again like one that was
// killed, workloads keep their processes, and status says how often that happened and what was said (F134).
func TestF134_PanicsAreCrashes(t *testing.T) {
	f := start(t, 2)
	first := f.Cells[0]
	f.run(first, 0, "apply", "-f", f.config(2, "restart always"))
	f.answers(first, 2)
	before := f.instances()
	for n, program := range []string{"runnerd", "meshd", "runnerd", "runnerd"} {
		signal := unix.SIGABRT
		if program == "meshd" {
			signal = unix.SIGQUIT
		}
		endProgram(t, first, program, signal)
		f.wait("its end", func(context.Context) error {
			if ends := strings.Count(first.LogTail(1<<20), " ended (exit status 2); starting it again"); ends != n+1 {
				return fmt.Errorf("%d ends with status 2", ends)
			}
			return nil
		})
		f.wait("the cell to be active", func(ctx context.Context) error { return active(ctx, f.Cells) })
		if err := f.WaitConverged(t.Context(), patience); err != nil {
			t.Fatal(err)
		}
	}
	same(t, "processes after panics", before, f.instances())
	f.wait("the alarm", func(ctx context.Context) error {
		result, err := first.Run(ctx, "status")
		const want = "runnerd ended 3 times within 10m0s and was started again, the last time: exit status 2: SIGABRT: abort"
		if err == nil && (result.Exit != 3 || !strings.Contains(result.Output, want)) {
			err = fmt.Errorf("exit %d: %s", result.Exit, result.Output)
		}
		return err
	})
}

// The founder dies right after its first cells have joined, then everything does; whatever the order they
// come back in, it is one cluster with the same configuration (F4, D5).
func TestF4_FounderDiesRightAfterTheFirstJoin(t *testing.T) {
	t.Parallel()
	f := start(t, 3)
	founder := f.Cells[0]
	if err := founder.Kill(); err != nil {
		t.Fatal(err)
	}
	f.run(f.Cells[1], 0, "apply", "-f", f.config(2, ""))
	for _, cell := range f.Cells[1:] {
		if err := cell.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	// The founder alone first: it must not found again, but look for those it met.
	for _, cell := range f.Cells {
		if err := cell.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(500 * time.Millisecond)
	}
	if err := f.WaitConverged(t.Context(), patience); err != nil {
		t.Fatal(err)
	}
	f.answers(founder, 2)
	var clusters []string
	for _, cell := range f.Cells {
		status, err := cell.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		clusters = append(clusters, status.Cell.Cluster)
	}
	if len(slices.Compact(clusters)) != 1 {
		t.Errorf("clusters %v", clusters)
	}
}
