package antientropy

import (
	"slices"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/wire"
)

// A BEGIN that comes while both incoming sessions are taken waits in line instead of being dropped:
// when many cells join through one, they would otherwise spend their time repeating. A place in the line
// is good for as long as its sender certainly still wants the session.
const (
	waitingMax      = 128
	waitingLifetime = 2 * time.Second
)

type waitingBegin struct {
	peer    wire.CellID
	nonce   uint32
	since   clock.Instant
	payload []byte
}

// wait puts a BEGIN into the line; a newer one of the same peer takes the place of the older. When the
// line is full it is dropped, and its sender repeats.
func (a *Sessions) wait(now clock.Instant, from wire.CellID, nonce uint32, payload []byte) {
	for i := range a.waiting {
		if w := &a.waiting[i]; w.peer == from {
			w.nonce, w.since, w.payload = nonce, now, append(w.payload[:0], payload...)
			return
		}
	}
	a.stats.Busy++
	if len(a.waiting) >= waitingMax {
		return
	}
	a.waiting = append(a.waiting, waitingBegin{from, nonce, now, append([]byte(nil), payload...)})
}

// serveWaiting answers the first BEGINs in line for which a session is free now.
func (a *Sessions) serveWaiting(now clock.Instant) {
	for len(a.waiting) > 0 && a.idle() != nil {
		w := a.waiting[0]
		a.waiting = a.waiting[:copy(a.waiting, a.waiting[1:])]
		if now.Sub(w.since) > waitingLifetime || a.find(w.peer) != nil {
			continue
		}
		if begin, err := wire.ParseBegin(w.payload); err == nil {
			a.respond(now, w.peer, w.nonce, begin, false)
			a.advance(now, w.peer)
		}
	}
}

// forgetWaiting takes a peer out of the line: there is a session with it now.
func (a *Sessions) forgetWaiting(peer wire.CellID) {
	a.waiting = slices.DeleteFunc(a.waiting, func(w waitingBegin) bool { return w.peer == peer })
}
