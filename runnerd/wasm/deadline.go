package wasm

import (
	"context"
	"sync"
	"time"
)

// watchdog bounds invocations in time. Arming a timer for each would wake a second thread each time; so one
// timer stays armed over many invocations, and looks at the deadline of the present one when it fires. The
// engine watches the context, and that serves all invocations until one of them misses its deadline.
type watchdog struct {
	mutex    sync.Mutex // guards what follows
	context  *deadlineContext
	timer    *time.Timer
	fires    time.Time // when the timer does, zero = it is not armed
	deadline time.Time // of the present invocation, zero = there is none
}

// begin starts an invocation that may take so long, and gives its context. Its end must follow before the next
// begin.
func (d *watchdog) begin(patience time.Duration) context.Context {
	deadline := time.Now().Add(patience)
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.context == nil || d.context.over {
		d.context = &deadlineContext{watchdog: d, done: make(chan struct{})}
	}
	d.deadline = deadline
	if d.fires.IsZero() || deadline.Before(d.fires) {
		d.arm(deadline, patience)
	}
	return d.context
}

// arm sets the timer. The caller holds the lock.
func (d *watchdog) arm(when time.Time, after time.Duration) {
	d.fires = when
	if d.timer == nil {
		d.timer = time.AfterFunc(after, d.look)
		return
	}
	d.timer.Reset(after)
}

// end ends the invocation; its context may serve the next one.
func (d *watchdog) end() {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.deadline = time.Time{}
}

// look runs when the timer fires. Without an invocation it stays unarmed: an idle worker is not woken again.
func (d *watchdog) look() {
	now := time.Now()
	d.mutex.Lock()
	defer d.mutex.Unlock()
	switch {
	case now.Before(d.fires): // it was set anew meanwhile
		return
	case d.deadline.IsZero():
		d.fires = time.Time{}
	case now.Before(d.deadline):
		d.arm(d.deadline, d.deadline.Sub(now))
	default:
		d.fires = time.Time{}
		if !d.context.over {
			d.context.over = true
			close(d.context.done)
		}
	}
}

// deadlineContext ends when an invocation misses its deadline.
type deadlineContext struct {
	watchdog *watchdog
	done     chan struct{}
	over     bool // done is closed; guarded by the watchdog's lock
}

// Deadline implements context.Context: it is not told.
func (*deadlineContext) Deadline() (time.Time, bool) { return time.Time{}, false }

// Done implements context.Context.
func (c *deadlineContext) Done() <-chan struct{} { return c.done }

// Err implements context.Context.
func (c *deadlineContext) Err() error {
	c.watchdog.mutex.Lock()
	defer c.watchdog.mutex.Unlock()
	if c.over {
		return context.DeadlineExceeded
	}
	return nil
}

// Value implements context.Context.
func (*deadlineContext) Value(any) any { return nil }
