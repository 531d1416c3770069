package reactor

import (
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/meshd/clock"
)

// F130: moving the deadline with each datagram costs no timer each, and an idle reactor sleeps.
func TestF130_IdleReactorSleeps(t *testing.T) {
	onBothDrivers(t, func(t *testing.T, driver string) {
		r := open(t, small(driver, loopback4))
		run(t, r, &script{deadline: func() clock.Instant { return r.Now().Add(time.Minute) }})
		roundTripEventually(t, r)
		before, used := r.Counters().Sleeps, processorTime(t)
		time.Sleep(300 * time.Millisecond)
		if sleeps := r.Counters().Sleeps - before; sleeps > 2 {
			t.Errorf("%d wake-ups while nothing happened", sleeps)
		}
		// One that asks again and again without sleeping would use all of it.
		if used = processorTime(t) - used; used > 150*time.Millisecond {
			t.Errorf("used %v of 300 ms while nothing happened", used)
		}
	})
}

// F130: a batch that is as large as what was asked for and empties the socket is no reason to go on asking.
func TestF130_ReactorSleepsAfterAFullBatch(t *testing.T) {
	onBothDrivers(t, func(t *testing.T, driver string) {
		r := open(t, small(driver, loopback4))
		var received atomic.Int32
		run(t, r, &script{datagram: func(netip.AddrPort, netip.Addr, []byte) {
			if received.Add(1) == 1 {
				time.Sleep(100 * time.Millisecond) // the batch gathers meanwhile
			}
		}})
		c := dial(t, r.LocalAddress())
		for n := range 1 + receiveFirst {
			if _, err := c.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			if n == 0 {
				time.Sleep(20 * time.Millisecond)
			}
		}
		eventually(t, "all have arrived", func() bool { return received.Load() == 1+receiveFirst })
		used := processorTime(t)
		time.Sleep(300 * time.Millisecond)
		if used = processorTime(t) - used; used > 150*time.Millisecond {
			t.Errorf("used %v of 300 ms while nothing happened", used)
		}
	})
}

// processorTime is what this process has used so far.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
