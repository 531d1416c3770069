// Command colloid-sim runs simulated clusters (package meshd/sim): one scenario with a timeline and a
// shrunk list of faults if it fails, or many seeds. It is a tool for developers and is not installed.
//
//	go run ./cmd/colloid-sim -cells 50 -hours 1 -seed 7 -faults all
//	go run ./cmd/colloid-sim -set ci          the seeds that every change must pass
//	go run ./cmd/colloid-sim -set long        new seeds until it is stopped
//
// Ctrl-C ends what is going on, shrinking included, and shows what there is; a second one ends the program.
// Exit status: 1 something failed, 2 wrong arguments, 130 interrupted before the end.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"syscall"
	"time"

	"colloid.net/meshd/sim"
)

const (
	ciSeeds = 850
	ciHours = 200
)

// Bounds of what is asked for: cells keep a list of all others, and virtual time is counted in nanoseconds.
const (
	cellsMax = 1000
	hoursMax = 10_000
	jobsMax  = 1024
)

// Exit statuses.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130
)

// arguments are the flags.
type arguments struct {
	cells  int
	hours  float64
	seed   uint64
	faults string
	trace  bool
	set    string
	count  int
	jobs   int
}

// Flags that mean something for one scenario only, and for a set only.
var (
	ofOne = []string{"cells", "hours", "faults", "trace"}
	ofSet = []string{"count", "jobs"}
)

func parse() *arguments {
	a := &arguments{}
	flag.IntVar(&a.cells, "cells", 5, "machines of the cluster; not with -set")
	flag.Float64Var(&a.hours, "hours", 1, "virtual hours with faults; not with -set")
	flag.Uint64Var(&a.seed, "seed", 1, "seed; with -set the first one")
	flag.StringVar(&a.faults, "faults", "all", "all, none, or verbs separated by commas; not with -set")
	flag.BoolVar(&a.trace, "trace", false, "print the timeline while it happens; not with -set")
	flag.StringVar(&a.set, "set", "", "ci: the set of continuous integration; long: seeds until stopped")
	flag.IntVar(&a.count, "count", 0, "seeds to play, with -set (0: what the set says)")
	flag.IntVar(&a.jobs, "jobs", runtime.GOMAXPROCS(0), "scenarios at the same time, with -set")
	flag.Parse()
	switch {
	case flag.NArg() > 0:
		refuse("unexpected argument %q", flag.Arg(0))
	case a.count < 0 || a.count > math.MaxInt32:
		refuse("-count %d: want 0 to %d", a.count, math.MaxInt32)
	case a.seed > math.MaxUint64-math.MaxInt32:
		refuse("-seed %d: want at most %d", a.seed, uint64(math.MaxUint64-math.MaxInt32))
	case a.jobs < 1 || a.jobs > jobsMax:
		refuse("-jobs %d: want 1 to %d", a.jobs, jobsMax)
	case a.cells < 1 || a.cells > cellsMax:
		refuse("-cells %d: want 1 to %d", a.cells, cellsMax)
	case !(a.hours > 0 && a.hours <= hoursMax): // not a number neither
		refuse("-hours %v: want more than 0 and at most %d", a.hours, hoursMax)
	case a.set != "" && a.set != "ci" && a.set != "long":
		refuse("unknown set %q: want ci or long", a.set)
	}
	flag.Visit(func(f *flag.Flag) { // a flag that is overlooked lets people believe in a run that never was
		if a.set != "" && slices.Contains(ofOne, f.Name) {
			refuse("-%s has no effect with -set, whose scenarios come from their seeds: leave out one of the two", f.Name)
		}
		if a.set == "" && slices.Contains(ofSet, f.Name) {
			refuse("-%s has no effect on a single scenario: add -set ci or -set long, or leave it out", f.Name)
		}
	})
	return a
}

// refuse ends the program because of a wrong argument.
func refuse(format string, values ...any) {
	fmt.Fprintf(os.Stderr, "colloid-sim: "+format+"\n", values...)
	os.Exit(exitUsage)
}

func main() {
	a := parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the next one ends the program at once
	switch a.set {
	case "ci":
		os.Exit(a.many(ctx, cmp.Or(a.count, ciSeeds)))
	case "long":
		os.Exit(a.many(ctx, a.count))
	}
	os.Exit(a.single(ctx))
}

// prepare is done to every cluster before its first fault. Tests break rules with it.
var prepare func(w *sim.World)

// replay is the command that plays a scenario of these arguments with a seed again.
func (a *arguments) replay(seed uint64) string {
	if a.set != "" {
		return fmt.Sprintf("go run ./cmd/colloid-sim -set %s -seed %d -count 1", a.set, seed)
	}
	return fmt.Sprintf("go run ./cmd/colloid-sim -cells %d -hours %v -seed %d -faults %s", a.cells, a.hours, seed, a.faults)
}

func (a *arguments) single(ctx context.Context) int {
	verbs, err := sim.ParseVerbs(a.faults)
	if err != nil {
		refuse("-faults: %v", err)
	}
	scenario := sim.Generate(a.seed, a.cells, time.Duration(a.hours*float64(time.Hour)), verbs)
	scenario.Prepare = prepare
	var show func(string)
	if a.trace {
		show = func(line string) { fmt.Println(line) }
	}
	begin := time.Now()
	result := scenario.RunUntil(ctx, show)
	took := time.Since(begin)
	fmt.Printf("seed %d: %v\n", a.seed, result)
	fmt.Printf("%.1f s, %.0f x real time, %d faults\n", took.Seconds(), result.Virtual.Seconds()/took.Seconds(),
		len(scenario.Faults))
	switch {
	case sim.RuleOf(result.Failure) == sim.RuleInterrupted:
		fmt.Printf("interrupted after %v of the cluster's time\n", result.Virtual.Round(time.Second))
		return exitInterrupted
	case result.Failure == nil:
		return exitOK
	}
	a.report(ctx, scenario, result.Failure)
	return exitFailed
}
