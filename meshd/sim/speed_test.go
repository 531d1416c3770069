package sim

import (
	"fmt"
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

// cpu returns the CPU time that this process has used.
func cpu() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
