package placement

import (
	"math/rand/v2"
	"testing"

	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
	"colloid.net/workload"
)

func benchmarkInput(cellCount, workloadCount, replicas int) ([]Cell, []Workload) {
	random := rand.New(rand.NewPCG(1, 2))
	cells := make([]Cell, cellCount)
	for i := range cells {
		cells[i] = Cell{
			ID: wire.CellID(random.Uint64()), Flags: state.FlagOCI | state.FlagProcess, Arch: "amd64",
			Capacity: state.CellCapacity{CPUMillicores: 64000, MemoryMiB: 1 << 18, InstancesMax: 1000},
		}
	}
	cells = sorted(cells, func(c *Cell) uint64 { return uint64(c.ID) }, "cell")
	workloads := make([]Workload, workloadCount)
	for i := range workloads {
		workloads[i] = Workload{
			Key: "spread.w", KeyHash: random.Uint64(), Digest: 1,
			Spec: &workload.Spec{Runtime: workload.RuntimeOCI, Replicas: uint16(replicas), CPUMillicores: 100,
				MemoryMiB: 128},
		}
	}
	workloads = sorted(workloads, func(w *Workload) uint64 { return w.KeyHash }, "key hash")
	return cells, workloads
}

func benchmarkScratch(b *testing.B, workloads, replicas int) {
	cells, list := benchmarkInput(1000, workloads, replicas)
	for b.Loop() {
		if plan := NewPlanner(1, 2).Compute(cells, list); plan.Len() != workloads*replicas {
			b.Fatal(plan.Len())
		}
	}
}

func BenchmarkScratch_100kReplicas_33kWorkloads(b *testing.B)  { benchmarkScratch(b, 33334, 3) }
func BenchmarkScratch_100kReplicas_100kWorkloads(b *testing.B) { benchmarkScratch(b, 100000, 1) }
func BenchmarkScratch_100kReplicas_10kWorkloads(b *testing.B)  { benchmarkScratch(b, 10000, 10) }

func benchmarkDeath(b *testing.B, workloads, replicas int) {
	cells, list := benchmarkInput(1000, workloads, replicas)
	p := NewPlanner(1, 2)
	p.Compute(cells, list)
	for b.Loop() {
		b.StopTimer()
		if len(cells) < 900 {
			cells, list = benchmarkInput(1000, workloads, replicas)
			p.Compute(cells, list)
		}
		cells = append(cells[:len(cells)/2:len(cells)/2], cells[len(cells)/2+1:]...)
		b.StartTimer()
		p.Compute(cells, list)
	}
}

func BenchmarkDeath_100kReplicas_33kWorkloads(b *testing.B)  { benchmarkDeath(b, 33334, 3) }
func BenchmarkDeath_100kReplicas_100kWorkloads(b *testing.B) { benchmarkDeath(b, 100000, 1) }
