package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"colloid.net/e2e/cluster"
	"colloid.net/ipc/uds"
)

func runKeeper() { cluster.RunKeeper() }

const (
	applianceCells    = 3
	applianceReplicas = 2
	applianceKey      = "spread.hello"
	appliancePort     = 18080 // wanted by the workload
	applianceLimit    = 2 * time.Minute
)

// startAppliance runs three cells with all their helpers and two replicas of examples/hello.
func startAppliance(ctx context.Context) (c *cluster.Cluster, err error) {
	programs, err := filepath.Abs(*binaries)
	if err != nil {
		return nil, err
	}
	c, err = cluster.Start(ctx, cluster.Options{Name: "colloid-bench", Cells: applianceCells, Binaries: programs,
		Programs: []string{"hello"}})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	port, err := c.FreePort(appliancePort)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(c.Directory, "hello.colloid")
	text := fmt.Sprintf("spread hello {\n\tprocess %s\n\treplicas %d\n\tport %d\n\thealth http %d /healthz interval=500ms\n}\n",
		c.Program("hello"), applianceReplicas, port, port)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return nil, err
	}
	if _, err := c.Cells[0].Command(ctx, "apply", "-f", file); err != nil {
		return nil, err
	}
	return c, replicasAnswer(ctx, c, c.Cells[0])
}

func replicasAnswer(ctx context.Context, c *cluster.Cluster, from *cluster.Cell) error {
	return cluster.WaitFor(ctx, applianceLimit, "all replicas to answer", func(ctx context.Context) error {
		answers, err := c.Ask(ctx, from, applianceKey)
		if err == nil && len(answers) < applianceReplicas {
			err = fmt.Errorf("%d of %d answer", len(answers), applianceReplicas)
		}
		return err
	})
}

// deathsPerAppliance bounds the deaths in one cluster: cells that die again and again within minutes are
// held back from placement for longer and longer, which is not what a single death shows.
const deathsPerAppliance = 3

// measureFailover kills every process of a cell that holds a replica and takes the time until as many
// replicas as before answer over HTTP from the cells that are left.
func measureFailover(ctx context.Context) error {
	var times []float64
	for len(times) < *rounds {
		some, err := failovers(ctx, min(deathsPerAppliance, *rounds-len(times)))
		if err != nil {
			return fmt.Errorf("after %d deaths: %w", len(times)+len(some), err)
		}
		times = append(times, some...)
	}
	bench("failover3_p50_s", quantile(times, 0.5))
	bench("failover3_p90_s", quantile(times, 0.9))
	fmt.Fprintf(os.Stderr, "failover of %d deaths: longest %.3f s, all %.2f\n", len(times), quantile(times, 1), times)
	return nil
}

func failovers(ctx context.Context, deaths int) (times []float64, err error) {
	c, err := startAppliance(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	for death := range deaths {
		// Deaths come at any time of the protocols' periods.
		pause(ctx, time.Duration(1000+(death*deaths+os.Getpid())*137%1000)*time.Millisecond)
		victim, witness, err := chooseVictim(ctx, c)
		if err != nil {
			return times, err
		}
		began := time.Now()
		if err := victim.Kill(); err != nil {
			return times, err
		}
		if err := replicasAnswer(ctx, c, witness); err != nil {
			return times, err
		}
		times = append(times, time.Since(began).Seconds())
		if err := victim.Start(ctx); err != nil {
			return times, err
		}
		if err := c.WaitConverged(ctx, applianceLimit); err != nil {
			return times, err
		}
	}
	return times, nil
}

// chooseVictim finds a running cell that holds a replica, and another one to watch from.
func chooseVictim(ctx context.Context, c *cluster.Cluster) (victim, witness *cluster.Cell, err error) {
	for _, cell := range c.Running() {
		status, err := cell.Status(ctx)
		if err != nil {
			return nil, nil, err
		}
		holds := slices.ContainsFunc(cluster.ReadyInstances(status, applianceKey),
			func(i uds.InstanceInfo) bool { return i.Cell == status.Cell.ID })
		switch {
		case holds && victim == nil:
			victim = cell
		case witness == nil:
			witness = cell
		}
	}
	if victim == nil || witness == nil {
		return nil, nil, errors.New("no cell holds a replica, or no other is left")
	}
	return victim, witness, nil
}

var idleTime = time.Minute

// measureIdle leaves an appliance alone for a minute and looks at what a cell with a workload costs.
func measureIdle(ctx context.Context) (err error) {
	c, err := startAppliance(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	cell, _, err := chooseVictim(ctx, c)
	if err != nil {
		return err
	}
	pause(ctx, 5*time.Second) // joining and starting is over
	before, err := observe(ctx, c, cell)
	if err != nil {
		return err
	}
	pause(ctx, idleTime)
	after, err := observe(ctx, c, cell)
	if err != nil {
		return err
	}
	seconds := after.time.Sub(before.time).Seconds()
	bench("idle_meshd_rss_mb", float64(after.meshdBytes)/1e6)
	bench("idle_meshd_cpu_pct", 100*(after.meshdCPU-before.meshdCPU).Seconds()/seconds)
	bench("idle_cell_rss_mb", float64(after.cellBytes)/1e6)
	fmt.Fprintf(os.Stderr, "idle meshd: %.1f datagrams sent and %.1f received per second\n",
		(after.sent-before.sent)/seconds, (after.received-before.received)/seconds)
	fmt.Fprintf(os.Stderr, "processes of the cell: %s\n", strings.Join(after.processes, ", "))
	return nil
}

type observation struct {
	time                  time.Time
	meshdBytes, cellBytes uint64
	meshdCPU              time.Duration
	sent, received        float64 // datagrams since start
	processes             []string
}

func observe(ctx context.Context, c *cluster.Cluster, cell *cluster.Cell) (o observation, err error) {
	output, err := cell.Command(ctx, "status", "--metrics")
	if err != nil {
		return o, err
	}
	for line := range strings.Lines(output) {
		fields := strings.Fields(line)
		if len(fields) != 2 {
			continue
		}
		switch fields[0] {
		case "colloid_datagrams_sent_total":
			o.sent, err = strconv.ParseFloat(fields[1], 64)
		case "colloid_datagrams_received_total":
			o.received, err = strconv.ParseFloat(fields[1], 64)
		}
		if err != nil {
			return o, fmt.Errorf("metrics: %w", err)
		}
	}
	o.time = time.Now()
	for _, id := range cell.Processes() {
		executable, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", id))
		if err != nil || !strings.HasPrefix(executable, c.Directory) {
			continue // the keeper is of this program, not of the product
		}
		resident, err := residentBytes(id)
		if err != nil {
			return o, err
		}
		o.cellBytes += resident
		o.processes = append(o.processes, fmt.Sprintf("%s %.1f MB", filepath.Base(executable), float64(resident)/1e6))
		if executable == c.Program("meshd") {
			o.meshdBytes += resident
			if o.meshdCPU, err = processorTime(id); err != nil {
				return o, err
			}
		}
	}
	return o, nil
}

func residentBytes(id int) (uint64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", id))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0, fmt.Errorf("/proc/%d/statm holds %q", id, text)
	}
	pages, err := strconv.ParseUint(fields[1], 10, 64)
	return pages * uint64(os.Getpagesize()), err
}

// processorTime adds what all threads of a process have run, in nanoseconds by the scheduler.
func processorTime(id int) (time.Duration, error) {
	paths, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", id))
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // the thread ended
		}
		run, _, _ := strings.Cut(string(text), " ")
		nanoseconds, err := strconv.ParseInt(run, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", path, err)
		}
		sum += time.Duration(nanoseconds)
	}
	return sum, nil
}
