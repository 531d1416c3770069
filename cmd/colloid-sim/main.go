// Command colloid-sim runs simulated clusters (package meshd/sim): one scenario with a timeline and a
// shrunk list of faults if it fails, or many seeds. It is a tool for developers and is not installed.
//
//	go run ./cmd/colloid-sim -cells 50 -hours 1 -seed 7 -faults all
//	go run ./cmd/colloid-sim -set ci          the seeds that every change must pass
//	go run ./cmd/colloid-sim -set long        new seeds until it is stopped
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
	"strings"
	"sync"
	"time"

	"colloid.net/meshd/sim"
)

const (
	ciSeeds    = 850
	ciHours    = 200
	shrinkRuns = 400
	linesShown = 200
)

func main() {
	cells := flag.Int("cells", 5, "machines of the cluster")
	hours := flag.Float64("hours", 1, "virtual hours with faults")
	seed := flag.Uint64("seed", 1, "seed; with -set the first one")
	faults := flag.String("faults", "all", "all, none, or verbs separated by commas")
	trace := flag.Bool("trace", false, "print the timeline while it happens")
	set := flag.String("set", "", "ci: the set of continuous integration; long: seeds until stopped")
	count := flag.Int("count", 0, "seeds to play, with -set (0: what the set says)")
	jobs := flag.Int("jobs", runtime.GOMAXPROCS(0), "scenarios at the same time, with -set")
	flag.Parse()
	switch {
	case flag.NArg() > 0:
		refuse(fmt.Sprintf("unexpected argument %q", flag.Arg(0)))
	case *count < 0 || *count > math.MaxInt32:
		refuse(fmt.Sprintf("-count %d: want 0 to %d", *count, math.MaxInt32))
	case *seed > math.MaxUint64-math.MaxInt32:
		refuse(fmt.Sprintf("-seed %d: want at most %d", *seed, uint64(math.MaxUint64-math.MaxInt32)))
	case *jobs < 1 || *jobs > jobsMax:
		refuse(fmt.Sprintf("-jobs %d: want 1 to %d", *jobs, jobsMax))
	}
	var ok bool
	switch *set {
	case "":
		ok = single(*seed, *cells, *hours, *faults, *trace)
	case "ci":
		ok = many(*seed, cmp.Or(*count, ciSeeds), *jobs, *count == 0)
	case "long":
		ok = many(*seed, *count, *jobs, false)
	default:
		refuse(fmt.Sprintf("unknown set %q: want ci or long", *set))
	}
	if !ok {
		os.Exit(1)
	}
}

// Bounds of what is asked for: cells keep a list of all others, and virtual time is counted in nanoseconds.
const (
	cellsMax = 1000
	hoursMax = 10_000
	jobsMax  = 1024
)

// refuse ends the program because of a wrong argument.
func refuse(reason string) {
	fmt.Fprintln(os.Stderr, "colloid-sim: "+reason)
	os.Exit(2)
}

func single(seed uint64, cells int, hours float64, faults string, trace bool) bool {
	verbs, err := sim.ParseVerbs(faults)
	if err != nil {
		refuse(err.Error())
	}
	if cells < 1 || cells > cellsMax {
		refuse(fmt.Sprintf("-cells %d: want 1 to %d", cells, cellsMax))
	}
	if !(hours > 0 && hours <= hoursMax) { // not a number neither
		refuse(fmt.Sprintf("-hours %v: want more than 0 and at most %d", hours, hoursMax))
	}
	scenario := sim.Generate(seed, cells, time.Duration(hours*float64(time.Hour)), verbs)
	var show func(string)
	if trace {
		show = func(line string) { fmt.Println(line) }
	}
	begin := time.Now()
	result := scenario.Run(show)
	took := time.Since(begin)
	fmt.Printf("seed %d: %v\n", seed, result)
	fmt.Printf("%.1f s, %.0f x real time, %d faults\n", took.Seconds(), result.Virtual.Seconds()/took.Seconds(),
		len(scenario.Faults))
	if result.Failure == nil {
		return true
	}
	report(scenario, result.Failure)
	return false
}

// report prints what somebody needs who repairs it: the failure, the faults that are enough for it, and
// what happened.
func report(scenario sim.Scenario, failure error) {
	fmt.Printf("FAIL %v\n", failure)
	shrunk, runs := sim.Shrink(scenario, shrinkRuns)
	fmt.Printf("%d of %d faults are enough (%d runs):\n", len(shrunk.Faults), len(scenario.Faults), runs)
	for _, f := range shrunk.Faults {
		fmt.Printf("  at %v %v\n", f.At, f)
	}
	var lines []string
	result := shrunk.Run(func(line string) { lines = append(lines, line) })
	fmt.Printf("timeline of the shrunk run, which ends with %v:\n", result.Failure)
	if len(lines) > linesShown {
		fmt.Printf("  (%d lines left out; -trace prints all)\n", len(lines)-linesShown)
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

// many plays scenarios of the CI kind, count of them or until interrupted; it reports whether all passed,
// and, if they are the whole set, were enough.
func many(first uint64, count, jobs int, whole bool) bool {
	interrupted, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	t := &tally{begin: time.Now(), reported: time.Now(), next: first, examined: make(map[string]int)}
	var workers sync.WaitGroup
	for range max(1, jobs) {
		workers.Go(func() {
			for interrupted.Err() == nil {
				seed, more := t.take(first, count)
				if !more {
					return
				}
				scenario := sim.Small(seed)
				t.add(scenario, scenario.Run(nil))
			}
		})
	}
	workers.Wait()
	t.show()
	if whole && interrupted.Err() == nil && t.virtual < ciHours*time.Hour {
		fmt.Printf("FAIL only %.0f cluster-hours: want %d\n", t.virtual.Hours(), ciHours)
		return false
	}
	if vacuous := sim.Unexamined(t.examined); whole && interrupted.Err() == nil && len(vacuous) > 0 {
		fmt.Printf("FAIL these rules found nothing to look at in the whole set, so it proves nothing about them: %v\n", vacuous)
		return false
	}
	return len(t.failed) == 0
}

func (t *tally) take(first uint64, count int) (seed uint64, more bool) {
	t.Lock()
	defer t.Unlock()
	seed = t.next
	t.next++
	return seed, count == 0 || seed < first+uint64(count)
}

func (t *tally) add(scenario sim.Scenario, result sim.Result) {
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
			report(scenario, result.Failure)
		} else {
			fmt.Printf("FAIL %v\n", result.Failure)
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
