package main

import (
	"fmt"
	"log"
	"slices"
	"syscall"
	"time"

	"colloid.net/meshd/cell"
	"colloid.net/meshd/placement"
	"colloid.net/meshd/sim"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
	"colloid.net/workload"
)

const largeStore = 100_000

// measureAntiEntropy lets two simulated cells with 100,000 keys find 10 and 10,000 differing ones, and a
// new cell take them all, at 10 ms round trip.
func measureAntiEntropy() {
	for _, differing := range []int{10, 10_000} {
		bytes, seconds := differ(differing)
		name := "ae_10_of_100k"
		if differing > 10 {
			name = "ae_10k_of_100k"
		}
		bench(name+"_bytes", bytes)
		bench(name+"_s", seconds)
	}
	w := world(2)
	w.Node(0).Boot()
	w.Node(1).Boot()
	w.Run(time.Second)
	fill(w.Node(0).Cell().Store(), largeStore)
	begin, wall := w.Now(), time.Now()
	w.Node(1).Connect(w.Node(0))
	if _, ok := w.Until(time.Minute, func() bool {
		return w.Node(1).Cell().Phase() == cell.Active && w.Node(1).Cell().Store().Len() > largeStore
	}); !ok {
		log.Fatal("bench: the new cell did not catch up")
	}
	bench("join_100k_keys_s", (w.Now() - begin).Seconds())
	bench("join_100k_keys_cpu_s", time.Since(wall).Seconds())
}

func world(cells int) *sim.World {
	return sim.New(sim.Options{
		Seed: 1, Cells: cells, KeysMax: 4 * largeStore,
		Network: sim.NetworkOptions{DelayMin: 5 * time.Millisecond, DelayMax: 5*time.Millisecond + 1},
	})
}

// differ returns the bytes on the wire and the virtual time until two stores are equal again. What the
// two cells say anyway in that time is taken off.
func differ(keys int) (bytes, seconds float64) {
	w := world(2)
	must(w.Form(time.Minute))
	w.Run(20 * time.Second)
	a, b := w.Node(0).Cell().Store(), w.Node(1).Cell().Store()
	fill(a, largeStore)
	fill(b, largeStore)
	_, idleBefore := w.Traffic()
	w.Run(time.Second)
	_, idleAfter := w.Traffic()
	for i := range keys {
		put(a, healthKey(i*(largeStore/keys)), wire.CellID(5), 1<<wire.CounterBits+uint64(i))
	}
	_, before := w.Traffic()
	var last uint64
	var began time.Duration
	if _, ok := w.Until(2*time.Minute, func() bool {
		_, now := w.Traffic()
		if began == 0 && now-before > 20*(idleAfter-idleBefore) {
			began = w.Now()
		}
		last = now
		return a.Root() == b.Root()
	}); !ok {
		log.Fatal("bench: the stores did not become equal")
	}
	w.Run(time.Second)
	_, last = w.Traffic()
	if began == 0 {
		began = w.Now()
	}
	return float64(last - before), (w.Now() - began - time.Second).Seconds()
}

// measurePlacement places 100,000 replicas on 1,000 cells, and again after one of them died.
func measurePlacement() {
	cells := make([]placement.Cell, 1000)
	for i := range cells {
		cells[i] = placement.Cell{
			ID: wire.CellID(uint64(i+1) * 0x9e3779b97f4a7c15), Flags: state.FlagProcess,
			Capacity: state.CellCapacity{CPUMillicores: 64000, MemoryMiB: 1 << 18},
		}
	}
	slices.SortFunc(cells, func(a, b placement.Cell) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	const replicas = 3
	workloads := make([]placement.Workload, 100_000/replicas+1)
	for i := range workloads {
		spec := &workload.Spec{
			Runtime: workload.RuntimeProcess, Replicas: replicas, Image: "/bin/web", CPUMillicores: 100, MemoryMiB: 64,
		}
		workloads[i] = placement.Workload{
			Key: fmt.Sprintf("spread.w%d", i), KeyHash: uint64(i+1) * 0xd1b54a32d192ed03, Spec: spec, Digest: 1,
		}
	}
	slices.SortFunc(workloads, func(a, b placement.Workload) int {
		if a.KeyHash < b.KeyHash {
			return -1
		}
		return 1
	})
	var replace []float64
	bench("place_100k_on_1000_s", medianOf(func() float64 {
		planner := placement.NewPlanner(1, 2)
		begin := time.Now()
		planner.Compute(cells, workloads)
		took := time.Since(begin).Seconds()
		begin = time.Now()
		planner.Compute(slices.Delete(slices.Clone(cells), 500, 501), workloads)
		replace = append(replace, milliseconds(begin))
		return took
	}))
	bench("replace_after_death_ms", median(replace))
}

// measureSimulator tells how many seconds of 50 cells one second of one processor simulates, by processor time, so
// that other work on the machine counts little.
func measureSimulator() {
	bench("sim50_speedup_x", medianOf(func() float64 {
		w := sim.New(sim.Options{Seed: 1, Cells: 50})
		must(w.Form(time.Minute))
		begin := processorTime()
		const virtual = 10 * time.Minute
		must(w.Run(virtual))
		return virtual.Seconds() / (processorTime() - begin).Seconds()
	}))
}

// processorTime returns what this process has used.
func processorTime() time.Duration {
	var usage syscall.Rusage
	must(syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
