// Command cluster measures 128 real cells on the loopback interface, with real sockets, state directories,
// command sockets and time, and hashicorp/memberlist in its LAN defaults beside them in the same run:
// how long until everybody lists everybody, until a write reaches the last one, and until everybody
// knows that one of them is dead. All cells are in one process, as all members of the peer are, and wait in
// the runtime's poller (driver epoll), as those do; -only processes measures one process for each cell with
// the io_uring driver instead. Then it measures the failover of a three-cell appliance and what an idle
// cell costs. It prints one line per figure, "BENCH name value", and judges nothing. Each part has a process of
// its own and a pause before it, so that none is measured beside the remains of another.
//
// Every peer gets the same treatment: members are started, then told one address of the first one all
// at once. The state directories lie in TMPDIR; put it on a tmpfs to leave the disk out, as memberlist
// stores nothing.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"runtime/pprof"
	"slices"
	"syscall"
	"time"
)

// subject is one kind of cluster under measurement.
type subject interface {
	// start brings up n members that know nothing of each other.
	start(n int) error
	// join tells all members but the first the address of the first, and returns without waiting.
	join()
	// full reports whether member i lists all n members as alive.
	full(i, n int) bool
	// write makes member i publish a value of the given size under a new name.
	write(i int, name string, size int) error
	// has reports whether member i holds the value.
	has(i int, name string) bool
	// kill silences member i without a farewell.
	kill(i int)
	// knowsDead reports whether member i holds member victim to be dead.
	knowsDead(i, victim int) bool
	stop()
}

var (
	members       = flag.Int("members", 128, "members of each cluster")
	writes        = flag.Int("writes", 20, "writes to measure")
	kills         = flag.Int("kills", 10, "deaths to measure")
	only          = flag.String("only", "", "measure one part: colloid, memberlist, failover, idle, processes")
	driver        = flag.String("driver", "epoll", "reactor driver of the cells in this process")
	processDriver = flag.String("process-driver", "io_uring", "reactor driver of the cells with a process each")
	binaries      = flag.String("bin", "bin", "directory with the programs of the appliance")
	profile       = flag.String("cpuprofile", "", "write a CPU profile of the part of -only to this file")
	rounds        = flag.Int("rounds", 20, "deaths of the three-cell failover")
)

func main() {
	runKeeper()
	runChild()
	flag.Parse()
	log.SetFlags(0)
	if *profile != "" && *only != "" {
		file, err := os.Create(*profile)
		if err != nil {
			log.Fatal(err)
		}
		if err := pprof.StartCPUProfile(file); err != nil {
			log.Fatal(err)
		}
		defer pprof.StopCPUProfile()
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	parts := []part{
		{"colloid", func() error { return measure(ctx, fmt.Sprintf("cluster%d", *members), &colloid{}) }},
		{"memberlist", func() error { return measure(ctx, fmt.Sprintf("memberlist%d", *members), &memberlistCluster{}) }},
		{"failover", func() error { return measureFailover(ctx) }},
		{"idle", func() error { return measureIdle(ctx) }},
		{"processes", func() error { return measure(ctx, fmt.Sprintf("processes%d", *members), &colloidProcesses{}) }},
	}
	for _, part := range parts {
		err := error(nil)
		switch *only {
		case part.name:
			err = part.run()
		case "":
			if part.name != "processes" {
				err = apart(ctx, part.name)
			}
		}
		if err != nil {
			log.Fatalf("bench: %s: %v", part.name, err)
		}
	}
}

// part is what -only names.
type part struct {
	name string
	run  func() error
}

// settle is the pause before a part: sockets, files and processes of the one before are gone by then.
const settle = 5 * time.Second

// apart runs one part in a process of its own.
func apart(ctx context.Context, name string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	pause(ctx, settle)
	command := exec.CommandContext(ctx, self, append(slices.Clone(os.Args[1:]), "-only", name)...)
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	return command.Run()
}

// valueSize is that of the write whose spreading is timed.
const valueSize = 208

func measure(ctx context.Context, prefix string, s subject) error {
	defer s.stop()
	n := *members
	if err := s.start(n); err != nil {
		return err
	}
	begin := time.Now()
	s.join()
	if err := wait(ctx, time.Minute, everybody(n, nil, func(i int) bool { return s.full(i, n) })); err != nil {
		return fmt.Errorf("join: %w", err)
	}
	bench(prefix+"_join_s", time.Since(begin).Seconds())
	pause(ctx, 5*time.Second)
	var spread []float64
	for k := range *writes {
		name := fmt.Sprintf("bench-%d", k)
		begin := time.Now()
		if err := s.write((k*37)%n, name, valueSize); err != nil {
			return err
		}
		if err := wait(ctx, 10*time.Second, everybody(n, nil, func(i int) bool { return s.has(i, name) })); err != nil {
			return fmt.Errorf("write %d: %w", k, err)
		}
		spread = append(spread, float64(time.Since(begin).Microseconds())/1000)
		pause(ctx, 100*time.Millisecond)
	}
	bench(prefix+"_write_ms", quantile(spread, 0.5))
	return measureDeaths(ctx, prefix, s, n)
}

func measureDeaths(ctx context.Context, prefix string, s subject, n int) error {
	dead := make(map[int]bool)
	var times []float64
	for k := range *kills {
		victim := 1 + (k*41)%(n-1)
		for dead[victim] {
			victim = 1 + victim%(n-1)
		}
		pause(ctx, time.Duration(500+k*137%1000)*time.Millisecond)
		begin := time.Now()
		s.kill(victim)
		dead[victim] = true
		if err := wait(ctx, 20*time.Second, everybody(n, dead, func(i int) bool { return s.knowsDead(i, victim) })); err != nil {
			for i := range n {
				if !dead[i] && !s.knowsDead(i, victim) {
					fmt.Fprintln(os.Stderr, "does not know:", i)
				}
			}
			return fmt.Errorf("death %d: %w", k, err)
		}
		times = append(times, time.Since(begin).Seconds())
	}
	bench(prefix+"_death_p50_s", quantile(times, 0.5))
	bench(prefix+"_death_p99_s", quantile(times, 0.99))
	return nil
}

// everybody returns a condition that holds once it has held for each member that is not excepted.
func everybody(n int, except map[int]bool, holds func(i int) bool) func() bool {
	next := 0
	return func() bool {
		for next < n && (except[next] || holds(next)) {
			next++
		}
		return next == n
	}
}

// wait polls a condition every millisecond.
func wait(ctx context.Context, limit time.Duration, done func() bool) error {
	deadline := time.Now().Add(limit)
	for !done() {
		if err := ctx.Err(); err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not within %v", limit)
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func quantile(values []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	if len(sorted) == 0 {
		return math.NaN()
	}
	return sorted[min(len(sorted)-1, int(math.Ceil(q*float64(len(sorted))))-1)]
}

func bench(name string, value float64) { fmt.Printf("BENCH %s %.3f\n", name, value) }
