package sim

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkSim50 tells how many seconds of a cluster of 50 cells one second of one core simulates.
func BenchmarkSim50(b *testing.B) {
	for b.Loop() {
		w := New(Options{Seed: 1, Cells: 50})
		if err := w.Form(time.Minute); err != nil {
			b.Fatal(err)
		}
		begin := time.Now()
		const virtual = 10 * time.Minute
		if err := w.Run(virtual); err != nil {
			b.Fatal(err)
		}
		speedup := virtual.Seconds() / time.Since(begin).Seconds()
		b.ReportMetric(speedup, "x")
		fmt.Printf("BENCH sim50_speedup_x %.0f\n", speedup)
	}
}
