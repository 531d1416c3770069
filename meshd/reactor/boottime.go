package reactor

import (
	"sync/atomic"
	"time"

	"colloid.net/meshd/clock"
	"golang.org/x/sys/unix"
)

// bootClock computes CLOCK_BOOTTIME from Go's monotonic clock, which costs no system call, and the
// difference between the two, which only grows, and only when the host was suspended.
type bootClock struct {
	start  time.Time
	offset atomic.Int64
	// checked is the monotonic reading at the last comparison with the kernel.
	checked atomic.Int64
	read    func(start time.Time) reading
}

// Comparing twice gives slightly different offsets; only a difference that suspend alone can make
// is taken over, so that the clock never runs backwards.
const (
	offsetNoise   = int64(time.Millisecond)
	checkInterval = int64(100 * time.Millisecond)
)

// boot is shared by all reactors of the process so that their instants can be compared.
var boot = newBootClock(readBootTime)

// firstReadings bounds the attempts to begin with a comparison that nothing interrupted.
const firstReadings = 100

// newBootClock begins with the best of some comparisons. Without any, instants would count from the start of
// the process until one succeeds, and then jump by the age of the host: a cell that boots on a busy machine
// would take that for minutes in which nobody answered.
func newBootClock(read func(start time.Time) reading) *bootClock {
	c := &bootClock{start: time.Now(), read: read}
	best := reading{after: 1<<63 - 1}
	for range firstReadings {
		r := c.read(c.start)
		if !r.known {
			return c // CLOCK_BOOTTIME exists since Linux 2.6.39
		}
		if r.gap() < best.gap() {
			best = r
		}
		if best.gap() <= offsetNoise/2 {
			break
		}
	}
	c.checked.Store(best.after)
	c.offset.Store(best.boot - best.after)
	return c
}

// reading is the kernel's clock between two readings of Go's, in nanoseconds.
type reading struct {
	before, boot, after int64
	known               bool
}

func (r reading) gap() int64 { return r.after - r.before }

func readBootTime(start time.Time) (r reading) {
	var ts unix.Timespec
	r.before = int64(time.Since(start))
	r.known = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) == nil
	r.boot, r.after = ts.Nano(), int64(time.Since(start))
	return r
}

func (c *bootClock) now() clock.Instant {
	return clock.Instant(int64(time.Since(c.start)) + c.offset.Load())
}

// refresh notices a suspend. It is called after each sleep and asks the kernel at most every 100 ms.
func (c *bootClock) refresh() {
	if int64(time.Since(c.start))-c.checked.Load() >= checkInterval {
		c.compare()
	}
}

func (c *bootClock) compare() {
	r := c.read(c.start)
	if !r.known || r.gap() > offsetNoise/2 {
		return // interrupted between the readings: compared again after the next sleep
	}
	c.checked.Store(r.after)
	c.raise(r.boot-r.after, offsetNoise)
}

// reached takes over the kernel's statement that the instant has come.
func (c *bootClock) reached(instant clock.Instant) {
	c.raise(int64(instant)-int64(time.Since(c.start)), 0)
}

func (c *bootClock) raise(offset, noise int64) {
	for {
		old := c.offset.Load()
		if offset-old <= noise || c.offset.CompareAndSwap(old, offset) {
			return
		}
	}
}
