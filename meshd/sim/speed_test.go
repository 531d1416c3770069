package sim

import (
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"

	"colloid.net/ipc/uds"
)

// BenchmarkSim50 tells how many seconds of a cluster of 50 cells one second of one core simulates, by CPU
// time, so that other work on the machine does not count. Every five minutes somebody writes.
func BenchmarkSim50(b *testing.B) {
	w := New(Options{Seed: 1, Cells: 50})
	if err := w.Form(time.Minute); err != nil {
		b.Fatal(err)
	}
	if err := w.Run(time.Minute); err != nil {
		b.Fatal(err)
	}
	begin, used := w.now, cpu()
	for b.Loop() {
		w.Node(int(w.random.Uint32()%50)).Set("spread.web", Spec(10, "/bin/a"), uds.ExpectAny, nil)
		if err := w.Run(5 * time.Minute); err != nil {
			b.Fatal(err)
		}
	}
	speedup := (w.now - begin).Seconds() / (cpu() - used).Seconds()
	b.ReportMetric(speedup, "x")
	fmt.Printf("BENCH sim50_speedup_x %.0f\n", speedup)
}

// What a quiet cell does must not grow with the cluster. Counted is what does not depend on the machine: how often
// a cell is called, what it allocates, and at how many members it looks in search of one to keep unknown to its
// router, once at every tick of which had halved the speed of BenchmarkSim50.
func TestF60_QuietCellsDoLittle(t *testing.T) {
	const cells, virtual = 30, 5 * time.Minute
	w := form(t, Options{Seed: 1, Cells: cells})
	run(t, w, 2*time.Minute)
	looked := func() (n uint64) {
		for _, n2 := range w.Nodes() {
			n += n2.cell.Traversal().Looked
		}
		return n
	}
	var before, after runtime.MemStats
	steps, looks := w.Steps, looked()
	runtime.ReadMemStats(&before)
	run(t, w, virtual)
	runtime.ReadMemStats(&after)
	each := virtual.Seconds() * cells
	calls := float64(w.Steps-steps) / each
	objects := float64(after.Mallocs-before.Mallocs) / each
	size := float64(after.TotalAlloc-before.TotalAlloc) / each
	searches := float64(looked()-looks) / each * 60 / cells
	t.Logf("per cell and second: called %.1f times, %.1f objects of %.0f bytes in all; per minute %.2f looks at all members",
		calls, objects, size, searches)
	if calls > 7 || objects > 8 || size > 4096 || searches > 1.5 {
		t.Error("more than a quiet cell should do: 7 calls, 8 objects, 4096 bytes per second, 1.5 searches per minute")
	}
}

// cpu returns the CPU time that this process has used.
func cpu() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
