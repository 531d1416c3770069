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
}

// Comparing twice gives slightly different offsets; only a difference that suspend alone can make
// is taken over, so that the clock never runs backwards.
const (
	offsetNoise   = int64(time.Millisecond)
	checkInterval = int64(100 * time.Millisecond)
)

// boot is shared by all reactors of the process so that their instants can be compared.
var boot = newBootClock()

func newBootClock() *bootClock {
	c := &bootClock{start: time.Now()}
	c.compare()
	return c
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
	var ts unix.Timespec
	before := int64(time.Since(c.start))
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil {
		return // CLOCK_BOOTTIME exists since Linux 2.6.39
	}
	after := int64(time.Since(c.start))
	if after-before > offsetNoise/2 {
		return // interrupted between the readings: compared again after the next sleep
	}
	c.checked.Store(after)
	c.raise(ts.Nano()-after, offsetNoise)
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
