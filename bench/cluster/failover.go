package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"colloid.net/e2e/cluster"
)

// A module is what the cell that takes over has to compile, unless it did so while it stood by.
const (
	moduleFile = "hello.wasm"
	moduleName = "hello-wasm"
	moduleKey  = "wasm." + moduleName
)

// failoverParts are the workloads whose replicas die; count says how many of one answer.
var failoverParts = []struct {
	key, prefix string
	count       func(ctx context.Context, c *cluster.Cluster, from *cluster.Cell) (int, error)
}{
	{applianceKey, "failover3", countOverHTTP},
	{moduleKey, "failover3_wasm", countInvocable},
}

// deathsPerAppliance bounds the deaths in one cluster: cells that die again and again within minutes are
// held back from placement for longer and longer, which is not what a single death shows.
const deathsPerAppliance = 3

// measureFailover kills every process of a cell that holds replicas and takes the time until as many as before answer
// from the cells that are left: those of a process over HTTP, those of a module to an invocation.
func measureFailover(ctx context.Context) error {
	times := make([][]float64, len(failoverParts))
	for len(times[0]) < *rounds {
		some, err := failovers(ctx, min(deathsPerAppliance, *rounds-len(times[0])))
		if err != nil {
			return fmt.Errorf("after %d deaths: %w", len(times[0]), err)
		}
		for n := range times {
			times[n] = append(times[n], some[n]...)
		}
	}
	for n, part := range failoverParts {
		bench(part.prefix+"_p50_s", quantile(times[n], 0.5))
		bench(part.prefix+"_p90_s", quantile(times[n], 0.9))
		fmt.Fprintf(os.Stderr, "failover of %s, %d deaths: longest %.3f s, all %.2f\n", part.key, len(times[n]),
			quantile(times[n], 1), times[n])
	}
	return nil
}

// failovers measures some deaths in a cluster of their own. A death counts for the workloads of which the cell held a
// replica, and it always held one of the first.
func failovers(ctx context.Context, deaths int) (times [][]float64, err error) {
	c, err := startAppliance(ctx, moduleFile)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if err := applyModule(ctx, c); err != nil {
		return nil, err
	}
	times = make([][]float64, len(failoverParts))
	for death := range deaths {
		// Deaths come at any time of the protocols' periods.
		pause(ctx, time.Duration(1000+(death*deaths+os.Getpid())*137%1000)*time.Millisecond)
		if err := oneDeath(ctx, c, times); err != nil {
			return times, err
		}
	}
	return times, nil
}

func oneDeath(ctx context.Context, c *cluster.Cluster, times [][]float64) error {
	keys := []string{applianceKey, moduleKey}
	victim, witness, err := chooseVictim(ctx, c, keys)
	if err != nil {
		return err
	}
	held, err := holds(ctx, victim, keys)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := victim.Kill(); err != nil {
		return err
	}
	for n, took := range allAnswer(ctx, c, witness, began) {
		if took.problem != nil {
			return took.problem
		}
		if held[n] {
			times[n] = append(times[n], took.seconds)
		}
	}
	if err := victim.Start(ctx); err != nil {
		return err
	}
	return c.WaitConverged(ctx, applianceLimit)
}

type answered struct {
	seconds float64
	problem error
}

// allAnswer waits for the replicas of all workloads at the same time.
func allAnswer(ctx context.Context, c *cluster.Cluster, from *cluster.Cell, since time.Time) []answered {
	results := make(chan struct{})
	list := make([]answered, len(failoverParts))
	for n := range failoverParts {
		go func() {
			err := partAnswers(ctx, c, from, n)
			list[n] = answered{time.Since(since).Seconds(), err}
			results <- struct{}{}
		}()
	}
	for range failoverParts {
		<-results
	}
	return list
}

func partAnswers(ctx context.Context, c *cluster.Cluster, from *cluster.Cell, n int) error {
	part := failoverParts[n]
	return cluster.WaitFor(ctx, applianceLimit, "all replicas of "+part.key+" to answer", func(ctx context.Context) error {
		count, err := part.count(ctx, c, from)
		if err == nil && count < applianceReplicas {
			err = fmt.Errorf("%d of %d answer", count, applianceReplicas)
		}
		return err
	})
}

func countOverHTTP(ctx context.Context, c *cluster.Cluster, from *cluster.Cell) (int, error) {
	answers, err := c.Ask(ctx, from, applianceKey)
	return len(answers), err
}

// countInvocable asks each cell with a replica for a function that the module lacks: only a module that is loaded says so.
func countInvocable(ctx context.Context, c *cluster.Cluster, _ *cluster.Cell) (count int, err error) {
	for _, cell := range c.Running() {
		held, err := holds(ctx, cell, []string{moduleKey})
		if err != nil {
			return 0, err
		}
		if !held[0] {
			continue
		}
		result, err := cell.Run(ctx, "wasm", "invoke", "--function", "none", moduleName)
		if err != nil {
			return 0, err
		}
		if strings.Contains(result.Errors, "has no function") {
			count++
		}
	}
	return count, nil
}

// applyModule runs the module of the examples beside the process.
func applyModule(ctx context.Context, c *cluster.Cluster) error {
	binary, err := os.ReadFile(c.Program(moduleFile))
	if err != nil {
		return err
	}
	file := filepath.Join(c.Directory, moduleName+".colloid")
	text := fmt.Sprintf("wasm %s {\n\tmodule file://%s\n\tsha256 %x\n\treplicas %d\n"+
		"\tcapabilities kv_read,kv_write,clock,random,env,stdio\n\tmem 64mb\n}\n",
		moduleName, c.Program(moduleFile), sha256.Sum256(binary), applianceReplicas)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return err
	}
	if _, err := c.Cells[0].Command(ctx, "apply", "-f", file); err != nil {
		return err
	}
	return partAnswers(ctx, c, c.Cells[0], 1)
}

// holds says of which workloads a cell has a ready replica, by what it says itself.
func holds(ctx context.Context, cell *cluster.Cell, keys []string) ([]bool, error) {
	status, err := cell.Status(ctx)
	if err != nil {
		return nil, err
	}
	held := make([]bool, len(keys))
	for n, key := range keys {
		for _, w := range status.Workloads {
			for _, i := range w.Instances {
				held[n] = held[n] || w.Key == key && i.State == "ready" && i.Cell == status.Cell.ID
			}
		}
	}
	return held, nil
}

// chooseVictim finds the running cell that holds a replica of the most workloads, of the first one in any case, and another
// one to watch from.
func chooseVictim(ctx context.Context, c *cluster.Cluster, keys []string) (victim, witness *cluster.Cell, err error) {
	most := 0
	for _, cell := range c.Running() {
		held, err := holds(ctx, cell, keys)
		if err != nil {
			return nil, nil, err
		}
		count := 0
		for _, holds := range held {
			if holds {
				count++
			}
		}
		if held[0] && count > most {
			victim, most = cell, count
		}
	}
	for _, cell := range c.Running() {
		if cell != victim {
			witness = cell
		}
	}
	if victim == nil || witness == nil {
		return nil, nil, errors.New("no cell holds a replica, or no other is left")
	}
	return victim, witness, nil
}
