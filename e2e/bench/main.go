// Command bench measures real cells: how long a workload takes from apply until it answers, and how
// long it takes after the death of a cell until all replicas answer again. It prints one line per
// round and the medians; it judges nothing.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"colloid.net/e2e/cluster"
	"colloid.net/ipc/uds"
)

func main() {
	cluster.RunKeeper()
	binaries := flag.String("bin", "bin", "directory with the programs, hello among them")
	rounds := flag.Int("rounds", 5, "deaths to measure")
	cells := flag.Int("cells", 4, "cells of the cluster")
	loopback := flag.Bool("loopback", false, "no network namespaces, even as root")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := run(ctx, *binaries, *rounds, *cells, *loopback); err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

// replicas of the workload and the port it listens on, unless that is taken.
const (
	replicas   = 2
	portWanted = 18080
)

// limit of one wait.
const limit = 2 * time.Minute

func run(ctx context.Context, binaries string, rounds, cells int, loopback bool) (err error) {
	binaries, err = filepath.Abs(binaries)
	if err != nil {
		return err
	}
	c, err := cluster.Start(ctx, cluster.Options{Name: "colloid-bench", Cells: cells, Binaries: binaries,
		Programs: []string{"hello"}, Loopback: loopback})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	root, err := cluster.ModuleRoot()
	if err != nil {
		return err
	}
	port, err := c.FreePort(portWanted)
	if err != nil {
		return err
	}
	began := time.Now()
	if _, err := c.Cells[0].Command(ctx, "apply", "-f", filepath.Join(root, "examples", "hello.colloid"),
		"--set", "BINARY="+c.Program("hello"), "--set", "PORT="+strconv.Itoa(port)); err != nil {
		return err
	}
	if err := waitAnswers(ctx, c, c.Cells[0]); err != nil {
		return err
	}
	fmt.Printf("apply until %d replicas answer: %v\n", replicas, time.Since(began).Round(time.Millisecond))
	return measureDeaths(ctx, c, rounds)
}

// measureDeaths kills a cell that holds a replica, waits, and brings it back.
func measureDeaths(ctx context.Context, c *cluster.Cluster, rounds int) error {
	var times []time.Duration
	for round := range rounds {
		victim, witness, err := choose(ctx, c)
		if err != nil {
			return err
		}
		began := time.Now()
		if err := victim.Kill(); err != nil {
			return err
		}
		if err := waitAnswers(ctx, c, witness); err != nil {
			return err
		}
		times = append(times, time.Since(began))
		fmt.Printf("round %d: %s died, %v until %d replicas answered\n", round+1, victim.Name,
			times[round].Round(time.Millisecond), replicas)
		if err := victim.Start(ctx); err != nil {
			return err
		}
		if err := c.WaitConverged(ctx, limit); err != nil {
			return err
		}
	}
	slices.Sort(times)
	if len(times) > 0 {
		fmt.Printf("failover of %d deaths: median %v, longest %v\n", len(times),
			times[len(times)/2].Round(time.Millisecond), times[len(times)-1].Round(time.Millisecond))
	}
	return nil
}

// choose finds a running cell that holds a replica, and another one.
func choose(ctx context.Context, c *cluster.Cluster) (victim, witness *cluster.Cell, err error) {
	for _, cell := range c.Running() {
		status, err := cell.Status(ctx)
		if err != nil {
			return nil, nil, err
		}
		holds := slices.ContainsFunc(cluster.ReadyInstances(status, "spread.hello"),
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

func waitAnswers(ctx context.Context, c *cluster.Cluster, from *cluster.Cell) error {
	return cluster.WaitFor(ctx, limit, "all replicas to answer", func(ctx context.Context) error {
		answers, err := c.Ask(ctx, from, "spread.hello")
		if err == nil && len(answers) < replicas {
			err = fmt.Errorf("%d of %d answer", len(answers), replicas)
		}
		return err
	})
}
