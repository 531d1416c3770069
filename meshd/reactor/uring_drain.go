package reactor

import (
	"time"

	"golang.org/x/sys/unix"
)

// drainRing sends what is queued, cancels all standing requests and waits until they have ended, so
// that the port is free and no memory is in the kernel's hands when Run returns.
func (u *uring) drainRing() {
	u.canceling = true
	u.handler = silent{}
	u.observer, u.many = nil, nil
	if u.enter(false) != nil || u.ring.room() < 2 {
		return
	}
	cancel := u.ring.next()
	cancel.opcode, cancel.operation, cancel.userData = opAsyncCancel, cancelAll|cancelAny, kindIgnore
	// Queued behind the cancellation and so untouched by it: nothing here waits for ever.
	view[unix.Timespec](u.scratch, scratchTimer, 1)[0] = unix.NsecToTimespec(int64(drainLimit))
	alarm := u.ring.next()
	alarm.opcode, alarm.address, alarm.length = opTimeout, address(&u.scratch[scratchTimer]), 1
	alarm.userData = kindIgnore
	for limit := time.Now().Add(drainLimit); u.busy() && time.Now().Before(limit); {
		if u.enter(!u.ring.ready()) != nil || u.reap() != nil {
			return
		}
	}
}

// drainLimit bounds the end of a reactor.
const drainLimit = time.Second

// busy reports whether a request is still out.
func (u *uring) busy() bool {
	for i := range u.watches {
		if u.watching[i] {
			return true
		}
	}
	return u.receiving || u.waking || u.timing || !u.ring.submitted()
}
