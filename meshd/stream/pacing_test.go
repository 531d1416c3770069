package stream

import (
	"testing"
	"time"

	"colloid.net/meshd/clock"
)

// leaving returns how many datagrams may leave at one instant.
func (c *congestion) leaving(now clock.Instant) (count int) {
	var s sample
	for ; count < 10_000 && c.pace(now); count++ {
		c.sent(now, &s, 1)
	}
	return count
}

// What should have left while a busy host did not run the process follows at once, but not more than half a
// round trip or 25 ms of it; what was not sent because there was nothing to send, or no window, is not made
// up for (F151).
func TestF151_LateTimersMakeUpForTheirTime(t *testing.T) {
	const rate = 10_000 // datagrams per second: 10 in a millisecond
	for _, c := range []struct {
		name      string
		roundTrip time.Duration
		late      time.Duration
		waited    bool // for the pace, not for the window
		least     int
		most      int
	}{
		{"in time", 50 * time.Millisecond, 0, true, 5, 6},
		{"late by 3 ms", 50 * time.Millisecond, 3 * time.Millisecond, true, 35, 36},
		{"late by 1 s", 50 * time.Millisecond, time.Second, true, 255, 256},
		{"late on a short path", time.Millisecond, time.Second, true, 45, 46},
		{"nothing to send for 1 s", 50 * time.Millisecond, time.Second, false, 6, 6},
	} {
		t.Run(c.name, func(t *testing.T) {
			now := clock.Instant(time.Hour)
			model := congestion{
				mode: modeSteady, rate: rate, step: 2, srtt: c.roundTrip, minRTT: c.roundTrip, minRTTAt: now,
			}
			model.leaving(now)
			model.paced = c.waited
			if got := model.leaving(model.nextSend.Add(c.late)); got < c.least || got > c.most {
				t.Errorf("%d datagrams left, want %d to %d", got, c.least, c.most)
			}
		})
	}
}
