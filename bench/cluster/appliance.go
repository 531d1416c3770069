package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"colloid.net/e2e/cluster"
)

func runKeeper() { cluster.RunKeeper() }

const (
	applianceCells    = 3
	applianceReplicas = 2
	applianceKey      = "spread.hello"
	appliancePort     = 18080 // wanted by the workload
	applianceLimit    = 2 * time.Minute
)

// startAppliance runs three cells with all their helpers and two replicas of examples/hello. The hosts admit the given
// modules too.
func startAppliance(ctx context.Context, modules ...string) (c *cluster.Cluster, err error) {
	programs, err := filepath.Abs(*binaries)
	if err != nil {
		return nil, err
	}
	c, err = cluster.Start(ctx, cluster.Options{Name: "colloid-bench", Cells: applianceCells, Binaries: programs,
		Programs: []string{"hello"}, Modules: modules})
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
	return c, partAnswers(ctx, c, c.Cells[0], 0)
}

var idleTime = time.Minute

// measureIdle leaves an appliance alone for a minute and looks at what a cell with a workload costs.
func measureIdle(ctx context.Context) (err error) {
	c, err := startAppliance(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	cell, _, err := chooseVictim(ctx, c, []string{applianceKey})
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
