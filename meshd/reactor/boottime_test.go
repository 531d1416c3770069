package reactor

import (
	"testing"
	"time"
)

// interrupted gives readings of a host that has run for a day, with this much time between the two of Go's
// clock.
func interrupted(gaps ...time.Duration) func(time.Time) reading {
	const age = int64(24 * time.Hour)
	calls := 0
	return func(time.Time) reading {
		gap := gaps[min(calls, len(gaps)-1)]
		before := int64(calls) * int64(10*time.Millisecond)
		calls++
		return reading{before: before, boot: age + before + int64(gap)/2, after: before + int64(gap), known: true}
	}
}

// On a busy host the first comparison is interrupted as likely as any other: the clock is right from the
// beginning all the same. It once began at zero, and the next comparison was a jump by the age of the host,
// at which a cell that had just started gave up waiting for the others and acted on an old snapshot (F5,
// F11).
func TestF5_F11_TheFirstInstantIsRightOnABusyHost(t *testing.T) {
	for name, gaps := range map[string][]time.Duration{
		"quiet":  {time.Microsecond},
		"once":   {40 * time.Millisecond, time.Microsecond},
		"always": {40 * time.Millisecond, 9 * time.Millisecond, 12 * time.Millisecond},
	} {
		c := newBootClock(interrupted(gaps...))
		before := c.offset.Load()
		if late := int64(24*time.Hour) - before; late < 0 || late > int64(9*time.Millisecond) {
			t.Errorf("%s: begins %v late", name, time.Duration(late))
		}
		c.read = interrupted(time.Microsecond)
		c.compare()
		if jump := c.offset.Load() - before; jump < 0 || jump > int64(9*time.Millisecond) {
			t.Errorf("%s: jumps by %v", name, time.Duration(jump))
		}
	}
}
