package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"colloid.net/meshd/sim"
)

const (
	shrinkRuns = 400
	linesShown = 200
)

// fail prints a failure and how to see it again.
func (a *arguments) fail(scenario sim.Scenario, failure error) {
	fmt.Printf("FAIL %v\nagain: %s\n", failure, a.replay(scenario.Seed))
}

// report prints what somebody needs who repairs it: the failure, the faults that are enough for it, and
// what happened.
func (a *arguments) report(ctx context.Context, scenario sim.Scenario, failure error) {
	a.fail(scenario, failure)
	shrunk, runs := sim.Shrink(ctx, scenario, shrinkRuns)
	how := "are enough"
	if ctx.Err() != nil {
		how = "are enough so far, interrupted"
	}
	fmt.Printf("%d of %d faults %s (%d runs):\n", len(shrunk.Faults), len(scenario.Faults), how, runs)
	for _, f := range shrunk.Faults {
		fmt.Printf("  at %v %v\n", f.At, f)
	}
	if ctx.Err() != nil { // one more run may take long
		return
	}
	var lines []string
	result := shrunk.RunUntil(ctx, func(line string) { lines = append(lines, line) })
	fmt.Printf("timeline of the shrunk run, which ends with %v:\n", result.Failure)
	if len(lines) > linesShown {
		fmt.Printf("  (%d lines left out)\n", len(lines)-linesShown)
		lines = lines[len(lines)-linesShown:]
	}
	fmt.Println("  " + strings.Join(lines, "\n  "))
}

// tally sums up results from several goroutines.
type tally struct {
	sync.Mutex
	begin    time.Time
	reported time.Time
	next     uint64
	seeds    int
	virtual  time.Duration
	steps    uint64
	failed   []uint64
	examined map[string]int // by rule
}

// many plays scenarios of the CI kind, count of them or until interrupted (0). All have to pass, and the
// whole set has to be enough.
func (a *arguments) many(ctx context.Context, count int) int {
	t := &tally{begin: time.Now(), reported: time.Now(), next: a.seed, examined: make(map[string]int)}
	var workers sync.WaitGroup
	for range a.jobs {
		workers.Go(func() {
			for ctx.Err() == nil {
				seed, more := t.take(a.seed, count)
				if !more {
					return
				}
				scenario := sim.Small(seed)
				scenario.Prepare = prepare
				result := scenario.RunUntil(ctx, nil)
				if sim.RuleOf(result.Failure) == sim.RuleInterrupted {
					return
				}
				t.add(ctx, a, scenario, result)
			}
		})
	}
	workers.Wait()
	t.show()
	whole := a.set == "ci" && a.count == 0
	switch {
	case len(t.failed) > 0:
		return exitFailed
	case count > 0 && t.seeds < count:
		fmt.Printf("interrupted after %d of %d seeds\n", t.seeds, count)
		return exitInterrupted
	case whole && t.virtual < ciHours*time.Hour:
		fmt.Printf("FAIL only %.0f cluster-hours: want %d\n", t.virtual.Hours(), ciHours)
		return exitFailed
	case whole && len(sim.Unexamined(t.examined)) > 0:
		fmt.Printf("FAIL these rules found nothing to look at in the whole set, so it proves nothing about them: %v\n",
			sim.Unexamined(t.examined))
		return exitFailed
	}
	return exitOK
}

func (t *tally) take(first uint64, count int) (seed uint64, more bool) {
	t.Lock()
	defer t.Unlock()
	seed = t.next
	t.next++
	return seed, count == 0 || seed < first+uint64(count)
}

func (t *tally) add(ctx context.Context, a *arguments, scenario sim.Scenario, result sim.Result) {
	t.Lock()
	defer t.Unlock()
	t.seeds++
	t.virtual += result.Virtual
	t.steps += result.Steps
	for rule, n := range result.Examined {
		t.examined[rule] += n
	}
	if result.Failure != nil {
		t.failed = append(t.failed, scenario.Seed)
		if len(t.failed) == 1 {
			a.report(ctx, scenario, result.Failure)
		} else {
			a.fail(scenario, result.Failure)
		}
	}
	if time.Since(t.reported) > 10*time.Second {
		t.reported = time.Now()
		t.show()
	}
}

func (t *tally) show() {
	took := time.Since(t.begin)
	fmt.Printf("%d seeds, %.1f cluster-hours, %d million steps in %.0f s: %.0f seeds/minute, %.0f x real time; failed: %v\n",
		t.seeds, t.virtual.Hours(), t.steps/1e6, took.Seconds(), float64(t.seeds)/took.Minutes(),
		t.virtual.Seconds()/took.Seconds(), t.failed)
}
