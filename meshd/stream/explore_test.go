package stream

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"colloid.net/meshd/wire"
)

func TestExplore(t *testing.T) {
	if os.Getenv("EXPLORE") == "" {
		t.Skip()
	}
	for _, c := range []struct {
		name   string
		rate   float64
		queue  int
		delays []int // ms one way
		later  time.Duration
	}{
		{"0.1 1", 0.1e6, 24e6, []int{25}, 0},
		{"0.4 1", 0.4e6, 24e6, []int{25}, 0},
		{"4 1", 4e6, 24e6, []int{25}, 0},
		{"4 1 200", 4e6, 24e6, []int{100}, 0},
		{"20 1", 20e6, 24e6, []int{25}, 0},
		{"20 1 2", 20e6, 24e6, []int{1}, 0},
		{"0.1 2 1s", 0.1e6, 24e6, []int{25, 25}, time.Second},
		{"0.4 2 same 1s", 0.4e6, 24e6, []int{25, 25}, time.Second},
		{"0.4 2 same 0s", 0.4e6, 24e6, []int{25, 25}, 0},
		{"0.4 2 same 5s", 0.4e6, 24e6, []int{25, 25}, 5 * time.Second},
		{"0.4 4 same 1s", 0.4e6, 24e6, []int{25, 25, 25, 25}, time.Second},
		{"4 2 same 1s", 4e6, 24e6, []int{25, 25}, time.Second},
		{"4 2 same 5s", 4e6, 24e6, []int{25, 25}, 5 * time.Second},
		{"4 3 same 3s", 4e6, 24e6, []int{25, 25, 25}, 3 * time.Second},
		{"4 4 same 1s", 4e6, 24e6, []int{25, 25, 25, 25}, time.Second},
		{"4 2 shallow 3s", 4e6, 200e3, []int{25, 25}, 3 * time.Second},
		{"4 2 10/50 2s", 4e6, 24e6, []int{5, 25}, 2 * time.Second},
		{"4 2 50/10 2s", 4e6, 24e6, []int{25, 5}, 2 * time.Second},
		{"4 3 10/50/100 2s", 4e6, 24e6, []int{5, 25, 50}, 2 * time.Second},
		{"20 2 same 2s", 20e6, 24e6, []int{25, 25}, 2 * time.Second},
		{"20 2 5ms 2s", 20e6, 24e6, []int{2, 2}, 2 * time.Second},
	} {
		if w := os.Getenv("ONLY"); w != "" && !strings.Contains(c.name, w) {
			continue
		}
		for seed := uint64(1); seed <= 1; seed++ {
			b := newBench(t, seed, link{delay: 25 * time.Millisecond})
			var got []*end
			b.add(100, discard(t, &got))
			neck := &link{rate: c.rate, queue: c.queue}
			var s []*Stream
			for i, d := range c.delays {
				id := wire.CellID(i + 1)
				b.add(id, nil)
				*b.link(id, 100) = link{delay: time.Duration(d) * time.Millisecond, neck: neck}
				*b.link(100, id) = link{delay: time.Duration(d) * time.Millisecond}
				if i > 0 {
					b.run(c.later, nil)
				}
				s = append(s, b.open(id, 100, wire.StreamVolume, &end{write: 1 << 40}))
			}
			out := fmt.Sprintf("%-18s", c.name)
			for w := 0; w < 7; w++ {
				if w == 0 {
					b.run(time.Second, nil)
				}
				from := make([]int, len(got))
				for i := range got {
					from[i] = got[i].got
				}
				q := 0.0
				for k := 0; k < 20; k++ {
					b.run(100*time.Millisecond, nil)
					q += max(0, neck.free.Sub(b.now).Seconds()) * 1e3 / 20
				}
				if os.Getenv("EXPLORE") == "2" {
					for i, x := range s {
						k := &x.control
						fmt.Printf("    %d: mode %d window %d rate %.0f min %v srtt %v ceiling %.0f queued %v g %.2f share %.2f\n", i, k.mode, k.window, k.rate, k.minRTT, k.srtt, k.ceiling, k.queued(), k.slack().Seconds()*1e3, float64(got[i].got-from[i])/2e6)
					}
				}
				lo, hi, sum := 1e9, 0.0, 0.0
				for i := range got {
					r := float64(got[i].got-from[i]) / 2e6
					lo, hi, sum = min(lo, r), max(hi, r), sum+r
				}
				out += fmt.Sprintf(" | %5.2fx %2.0f%% q%4.0f", hi/lo, sum/c.rate*1e8, q)
			}
			fmt.Println(out)

		}
	}
}
