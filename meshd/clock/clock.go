// Package clock gives the core its only notion of time: an Instant handed in by the driver.
//
// The core never reads a clock. The reactor passes CLOCK_BOOTTIME (which goes on during suspend,
// F11), the simulator passes virtual time. Instants of different cells are not comparable.
package clock

import "time"

// Instant is a moment in nanoseconds since an arbitrary origin of one cell. Zero means "never".
type Instant int64

// Never is the deadline of a part that has nothing to wait for.
const Never Instant = 1<<63 - 1

// Add returns the instant d later; it saturates at Never.
func (i Instant) Add(d time.Duration) Instant {
	if i == Never || d > 0 && i > Never-Instant(d) {
		return Never
	}
	return i + Instant(d)
}

// Sub returns the time from earlier to i.
func (i Instant) Sub(earlier Instant) time.Duration { return time.Duration(i - earlier) }

// Reached reports whether a deadline i lies at or before now.
func (i Instant) Reached(now Instant) bool { return i <= now }

// Earliest returns the smaller of two deadlines.
func Earliest(a, b Instant) Instant { return min(a, b) }
