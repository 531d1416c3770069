package antientropy

import (
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/wire"
)

// kind says what a message in the window waits for.
type kind uint8

const (
	kindFree   kind = iota
	kindBegin       // the peer's BEGIN
	kindEnd         // the peer's END
	kindDrill       // a response for each range in payload
	kindAsk         // 0x06
	kindVector      // 0x06
	kindState       // 0x06
	kindAnswer      // 0x06; releases the acknowledgement of the frame that it objects to
)

var kindTypes = [...]wire.Type{kindBegin: wire.TypeAEBegin, kindEnd: wire.TypeAEEnd,
	kindDrill: wire.TypeAEMerkleReq, kindAsk: wire.TypeAEMerkleReq, kindVector: wire.TypeAEVector,
	kindState: wire.TypeAEState, kindAnswer: wire.TypeAEState}

// outstanding is a message that was sent and has not been answered.
type outstanding struct {
	kind     kind
	attempts uint8
	nonce    uint32
	due      clock.Instant // of the next attempt
	sent     clock.Instant // of the last one
	payload  []byte        // capacity kept for the next message
	// kindAnswer: what to acknowledge once the answer is.
	ackNonce uint32
	ackHash  uint64
}

// window holds the unanswered messages of a session. Answers have places of their own: a peer keeps to
// its own window, so there is always one left for each of its frames.
type window struct {
	frames  [slotsMax]outstanding
	answers [slotsMax]outstanding
	used    int // of frames
	objects int // of answers

	credit   time.Duration // what may be sent now, in the time that it costs
	creditAt clock.Instant
	smoothed time.Duration // round trip, 0 = not measured
	variance time.Duration
	nonce    uint32 // last one used
}

// reset empties the window. now is when the session starts, with a full burst to spend.
func (w *window) reset(now clock.Instant, nonce uint32) {
	for i := range w.frames {
		w.frames[i].kind = kindFree
		w.answers[i].kind = kindFree
	}
	w.used, w.objects = 0, 0
	w.credit, w.creditAt = steadyBurst, now
	w.smoothed, w.variance = 0, 0
	w.nonce = nonce
}

// take returns a free place for a message, nil if there is none.
func (w *window) take(k kind) *outstanding {
	places, used := &w.frames, &w.used
	if k == kindAnswer {
		places, used = &w.answers, &w.objects
	}
	if *used == slotsMax {
		return nil
	}
	for i := range places {
		if o := &places[i]; o.kind == kindFree {
			*used++
			w.nonce++
			if o.payload == nil {
				o.payload = make([]byte, 0, wire.SealedPayloadMax)
			}
			*o = outstanding{kind: k, nonce: w.nonce, payload: o.payload[:0]}
			return o
		}
	}
	panic("antientropy: window count is wrong")
}

func (w *window) free(o *outstanding) {
	if o.kind == kindAnswer {
		w.objects--
	} else {
		w.used--
	}
	o.kind = kindFree
}

// find returns the message with a nonce.
func (w *window) find(nonce uint32) (*outstanding, bool) {
	for i := range w.frames {
		if o := &w.frames[i]; o.kind != kindFree && o.nonce == nonce {
			return o, true
		}
	}
	if w.objects == 0 {
		return nil, false
	}
	for i := range w.answers {
		if o := &w.answers[i]; o.kind != kindFree && o.nonce == nonce {
			return o, true
		}
	}
	return nil, false
}

// objecting reports whether an answer to the peer's frame with this nonce is under way.
func (w *window) objecting(nonce uint32) bool {
	for i := range w.answers {
		if o := &w.answers[i]; o.kind == kindAnswer && o.ackNonce == nonce {
			return true
		}
	}
	return false
}

// refill adds credit for the time since the last call.
func (w *window) refill(now clock.Instant, burst time.Duration) {
	if now > w.creditAt {
		w.credit += now.Sub(w.creditAt)
		w.creditAt = now
	}
	w.credit = min(w.credit, burst)
}

// measure takes the round trip of a message that was answered at its first attempt (weights as in TCP).
func (w *window) measure(now clock.Instant, o *outstanding) {
	if o.attempts != 1 {
		return
	}
	sample := now.Sub(o.sent)
	if w.smoothed == 0 {
		w.smoothed, w.variance = max(sample, 1), sample/2
		return
	}
	difference := w.smoothed - sample
	if difference < 0 {
		difference = -difference
	}
	w.variance += (difference - w.variance) / 4
	w.smoothed = max(w.smoothed+(sample-w.smoothed)/8, 1)
}

// patience is how long to wait for an answer to a message after the given number of attempts.
func (w *window) patience(attempts uint8) time.Duration {
	wait := retryInitial
	if w.smoothed > 0 {
		wait = max(w.smoothed+4*w.variance, retryMin)
	}
	return min(wait<<min(attempts-1, 6), retryMax)
}

// next returns the earliest time at which an unanswered message is due again.
func (w *window) next() clock.Instant {
	next := clock.Never
	for i := range w.frames {
		if w.used > 0 && w.frames[i].kind != kindFree {
			next = clock.Earliest(next, w.frames[i].due)
		}
		if w.objects > 0 && w.answers[i].kind != kindFree {
			next = clock.Earliest(next, w.answers[i].due)
		}
	}
	return next
}
