package wasm

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestF144_OneTimerServesAllDeadlines: the context ends when the present invocation misses its deadline, whatever
// the deadlines before were, and an idle watchdog sleeps.
func TestF144_OneTimerServesAllDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d watchdog
		ended := func(c context.Context) bool {
			synctest.Wait()
			select {
			case <-c.Done():
				if c.Err() != context.DeadlineExceeded {
					t.Fatalf("%v", c.Err())
				}
				return true
			default:
				if c.Err() != nil {
					t.Fatalf("%v", c.Err())
				}
				return false
			}
		}
		first := d.begin(time.Second)
		time.Sleep(900 * time.Millisecond)
		d.end()
		if second := d.begin(time.Second); second != first { // the timer of the first fires in the second
			t.Fatal("a context that has not ended was replaced")
		}
		time.Sleep(999 * time.Millisecond)
		if ended(first) {
			t.Fatal("ended before the deadline")
		}
		time.Sleep(2 * time.Millisecond)
		if !ended(first) {
			t.Fatal("did not end at the deadline")
		}
		d.end()
		long := d.begin(time.Minute)
		if long == first || ended(long) {
			t.Fatal("an ended context serves the next invocation")
		}
		d.end()
		short := d.begin(10 * time.Millisecond) // before what the timer is set to
		time.Sleep(11 * time.Millisecond)
		if !ended(short) {
			t.Fatal("the timer waited for the longer deadline of before")
		}
		d.end()
		idle := d.begin(time.Second)
		d.end()
		time.Sleep(time.Hour)
		if ended(idle) || !d.fires.IsZero() {
			t.Fatalf("idle: ended %v, armed until %v", ended(idle), d.fires)
		}
	})
}
