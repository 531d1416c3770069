package swim

import (
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"colloid.net/meshd/state"
)

// virtualHours is how long the false-death tests run; COLLOID_SWIM_HOURS=24 is the full proof.
func virtualHours(short int) time.Duration {
	if hours, err := strconv.Atoi(os.Getenv("COLLOID_SWIM_HOURS")); err == nil {
		return time.Duration(hours) * time.Hour
	}
	return time.Duration(short) * time.Hour
}

// TestF62_NoFalseDeaths runs healthy clusters over bad networks: nobody may be declared DEAD, and
// every accusation must have been refuted in the end.
func TestF62_NoFalseDeaths(t *testing.T) {
	for _, c := range []struct {
		name  string
		n     int
		loss  float64
		hours int
	}{
		{"100 cells, 5 percent", 100, 0.05, 1},
		{"30 cells, 20 percent", 30, 0.20, 1},
		{"10 cells, 20 percent", 10, 0.20, 3},
		{"3 cells, 20 percent", 3, 0.20, 6},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(uint64(c.n), c.n, c.loss)
			duration := virtualHours(c.hours)
			w.run(duration)
			for _, dead := range w.deaths(0) {
				t.Errorf("false death after %v: %v", time.Duration(dead.at), dead)
			}
			hours := duration.Hours()
			t.Logf("per hour: %.1f accusations, %.1f refutations; %.2f datagrams/s/cell",
				float64(w.count(state.Suspect))/hours, float64(w.count(state.Alive))/hours,
				float64(w.datagrams)/duration.Seconds()/float64(c.n))
		})
	}
}

// detection measures how long after a crash the first DEAD is written.
func detection(t *testing.T, n, runs int, loss float64) []time.Duration {
	t.Helper()
	var times []time.Duration
	for seed := range uint64(runs) {
		w := newWorld(seed+1, n, loss)
		w.run(8*time.Second + time.Duration(w.random.Int64N(int64(4*time.Second))))
		victim := w.cells[w.random.IntN(n)]
		victim.crashed = true
		crash := w.now
		w.run(12 * time.Second)
		deaths := w.deaths(victim.id)
		if len(deaths) == 0 {
			t.Fatalf("seed %d: crash of %v not found in 12 s", seed+1, victim.id)
		}
		for _, other := range w.deaths(0) {
			if other.target != victim.id {
				t.Fatalf("seed %d: false death: %v", seed+1, other)
			}
		}
		for _, c := range w.cells {
			if c != victim && c.members.Get(victim.id).Life != state.Dead {
				t.Fatalf("seed %d: cell %v does not know of the death", seed+1, c.id)
			}
		}
		times = append(times, deaths[0].at.Sub(crash))
	}
	slices.Sort(times)
	return times
}

func percentile(times []time.Duration, p int) time.Duration { return times[(len(times)-1)*p/100] }

func TestF62_CrashIsFound(t *testing.T) {
	for _, c := range []struct {
		n, runs           int
		loss              float64
		median, p99, most time.Duration
	}{
		{128, 30, 0, 4200 * time.Millisecond, 7500 * time.Millisecond, 8 * time.Second},
		{100, 30, 0.05, 4200 * time.Millisecond, 8 * time.Second, 10 * time.Second},
		{5, 100, 0, 4200 * time.Millisecond, 7500 * time.Millisecond, 8 * time.Second},
		{3, 300, 0, 7500 * time.Millisecond, 7500 * time.Millisecond, 7500 * time.Millisecond},
		{2, 100, 0, 7500 * time.Millisecond, 7500 * time.Millisecond, 7500 * time.Millisecond},
	} {
		times := detection(t, c.n, c.runs, c.loss)
		median, p99, most := percentile(times, 50), percentile(times, 99), times[len(times)-1]
		t.Logf("%d cells, loss %.2f: median %v, p99 %v, worst %v", c.n, c.loss, median, p99, most)
		if median > c.median || p99 > c.p99 || most > c.most {
			t.Errorf("%d cells, loss %.2f: median %v p99 %v worst %v; want at most %v, %v, %v",
				c.n, c.loss, median, p99, most, c.median, c.p99, c.most)
		}
	}
}
