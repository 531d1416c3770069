package stream

import (
	"testing"
	"time"
)

// On a busy host cells are stopped for times that come close to the round trip, many times a second. What they
// measure meanwhile says nothing about the path, and must not make them slow (F151).
func TestF151_BusyHostsStayFast(t *testing.T) {
	path := link{delay: 25 * time.Millisecond}
	lossy := link{delay: 25 * time.Millisecond, loss: 0.01}
	for _, c := range []struct {
		name  string
		link  link
		noise noise
		want  float64 // MB/s
	}{
		{"5 ms", path, noise{every: 20 * time.Millisecond, atMost: 5 * time.Millisecond}, 20},
		{"20 ms", path, noise{every: 40 * time.Millisecond, atMost: 20 * time.Millisecond}, 20},
		{"40 ms", path, noise{every: 80 * time.Millisecond, atMost: 40 * time.Millisecond}, 20},
		{"100 ms", path, noise{every: 200 * time.Millisecond, atMost: 100 * time.Millisecond}, 8},
		{"5 ms, loss", lossy, noise{every: 20 * time.Millisecond, atMost: 5 * time.Millisecond}, 3},
		{"20 ms, loss", lossy, noise{every: 40 * time.Millisecond, atMost: 20 * time.Millisecond}, 3},
		{"40 ms, loss", lossy, noise{every: 80 * time.Millisecond, atMost: 40 * time.Millisecond}, 3},
		{"100 ms, loss", lossy, noise{every: 200 * time.Millisecond, atMost: 100 * time.Millisecond}, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.noise.cost = 20 * time.Microsecond
			for seed := range uint64(4) {
				got := noisyThroughput(t, seed+1, c.link, c.noise, 24<<20) / 1e6
				t.Logf("%.1f MB/s", got)
				if got < c.want {
					t.Errorf("%.1f MB/s, want %.0f", got, c.want)
				}
			}
		})
	}
}
