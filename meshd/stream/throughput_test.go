package stream

import (
	"testing"
	"time"
)

func TestF151_Throughput(t *testing.T) {
	for _, c := range []struct {
		name string
		link link
		size int
		want float64 // MB/s
	}{
		{"50 ms", link{delay: 25 * time.Millisecond}, 64 << 20, 20},
		{"50 ms, 1 % loss", link{delay: 25 * time.Millisecond, loss: 0.01}, 12 << 20, 3},
		{"50 ms, 5 % loss", link{delay: 25 * time.Millisecond, loss: 0.05}, 12 << 20, 1},
		{"50 ms, reordering", link{delay: 25 * time.Millisecond, jitter: 3 * time.Millisecond}, 12 << 20, 8},
		{"50 ms, 10 MB/s", link{delay: 25 * time.Millisecond, rate: 10e6, queue: 500e3}, 12 << 20, 7},
		{"200 ms", link{delay: 100 * time.Millisecond}, 24 << 20, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := throughput(t, 1, c.link, c.size) / 1e6
			t.Logf("%.1f MB/s", got)
			if got < c.want {
				t.Errorf("%.1f MB/s, want %.0f", got, c.want)
			}
		})
	}
}
