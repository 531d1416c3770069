package stream

import (
	"math"
	"time"

	"colloid.net/meshd/clock"
)

// What round trips say about queues (F151). A stream that has a path for itself keeps its queues empty by its
// pace. Where several meet at a narrow place, each measures as its rate what it had, and all together send
// more than the place carries: without more the queue would hold as much again as the path, or without end
// where it is deep, because who comes later takes the queue of the others for a part of the path. So
//
//   - the window falls to what the path holds and a few datagrams once a queue stands. These few are the same for all
//     with the same rate and grow more slowly than the rate, so whoever has less gets more, whatever the round trips;
//   - the start ends when a queue stands, and does not go on growing meanwhile;
//   - who sees a queue for several rounds sends next to nothing for a round trip, to see the path without its own
//     part, and who sees that another does so joins in: then all see the path as it is.
const (
	// queueLow is the queue that changes nothing: the pace of several streams, and the timers of hosts.
	queueLow = 3 * time.Millisecond
	// queueHigh is the queue from which on nothing is sent for the sake of a greater rate. Both are times and
	// no parts of the round trip, so that streams with different ones mean the same.
	queueHigh = 7 * time.Millisecond
	// queueSeen in each of crowdedFew rounds shortens what is remembered of the rate, in crowdedMany it is
	// worth a probe.
	queueSeen   = 6 * time.Millisecond
	crowdedFew  = 2
	crowdedMany = 3
	// minRTTLifetime is how long the least round trip is believed without being seen again.
	minRTTLifetime = 10 * time.Second
	// probePauseMin lies between two probes; the pause doubles, up to probePauseMax, while they find nothing
	// new, and is at least probePauseRounds round trips, because a probe costs about two of them.
	probePauseMin    = time.Second
	probePauseMax    = 8 * time.Second
	probePauseRounds = 20
	// probeMin is the least time for which a path is kept nearly empty.
	probeMin = 10 * time.Millisecond
)

// probe is a time during which the path is kept nearly empty, to see the least round trip anew.
type probe struct {
	phase probePhase
	until clock.Instant // of the phase
	least time.Duration // seen while it holds
	at    clock.Instant // when the last one began
	pause time.Duration // until the next
}

type probePhase uint8

const (
	probeNone  probePhase = iota
	probeDrain            // until as little is under way as shall be
	probeHold             // until what was sent since then is acknowledged
)

// observeRTT takes the round trip of a datagram that was sent once.
func (c *congestion) observeRTT(now clock.Instant, rtt time.Duration) {
	rtt = max(rtt, time.Microsecond)
	c.lastRTT = rtt
	if c.srtt == 0 {
		c.srtt, c.rttvar = rtt, rtt/2
	} else {
		c.rttvar += (abs(c.srtt-rtt) - c.rttvar) / 4
		c.srtt += (rtt - c.srtt) / 8
	}
	c.stepRTT = least(c.stepRTT, rtt)
	c.roundRTT = least(c.roundRTT, rtt)
	c.probe.least = least(c.probe.least, rtt)
	if c.minRTT == 0 || rtt <= c.minRTT {
		if rtt < c.minRTT-queueLow { // the queue of others was taken for a part of the path
			c.probe.pause = probePauseMin
		}
		c.minRTT, c.minRTTAt = rtt, now
	}
}

// least is the lesser of two times of which 0 means none.
func least(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// queued is the least round trip of this round and the last beyond the least that is known: a queue that
// stands. That one took longer says nothing, and neither does a busy host.
func (c *congestion) queued() time.Duration {
	return max(least(c.roundRTT, c.formerRTT)-c.minRTT, 0)
}

// queueLimit is the queue that counts as one. The start looks for the rate of the path and may queue more.
func (c *congestion) queueLimit() time.Duration {
	if c.mode == modeStartup {
		return queueHigh + c.minRTT/4
	}
	return queueSeen
}

func (c *congestion) endRoundOfQueue() {
	if c.formerRTT, c.roundRTT = c.roundRTT, 0; c.formerRTT > c.minRTT+c.queueLimit() {
		c.crowded++
	} else {
		c.crowded = 0
	}
}

// slack is for how much longer than the least round trip datagrams may be under way.
func (c *congestion) slack() time.Duration {
	queue := c.queued()
	if queue < queueLow {
		return c.minRTT
	}
	return min(c.minRTT, max(queueHigh-queue, 0))
}

// standing is how many datagrams may wait in a queue: the acknowledgements of fast paths come in clusters,
// those of slow ones at least two at a time.
func (c *congestion) standing() float64 { return 3 + math.Sqrt(c.rate)/4 }

// probeRTT begins, continues and ends a probe.
func (c *congestion) probeRTT(now clock.Instant, inFlight int) {
	p := &c.probe
	switch p.phase {
	case probeNone:
		if c.mode != modeStartup && c.probeDue(now) {
			p.phase, p.at = probeDrain, now
			p.until = now.Add(2*c.srtt + probeMin)
		}
	case probeDrain:
		if inFlight <= c.allowed() || p.until.Reached(now) {
			p.phase, p.least = probeHold, c.lastRTT
			p.until = now.Add(max(c.srtt, probeMin))
		}
	case probeHold:
		if !p.until.Reached(now) {
			return
		}
		p.phase = probeNone
		p.pause = min(max(2*p.pause, probePauseMin), probePauseMax)
		// What is known is believed for its time even if others did not empty their part of the queue.
		if p.least <= c.minRTT || now.Sub(c.minRTTAt) > minRTTLifetime {
			c.minRTT, c.minRTTAt = p.least, now
		}
		c.crowded, c.formerRTT = 0, 0
	}
}

// probeDue reports whether it is time to look for the least round trip.
func (c *congestion) probeDue(now clock.Instant) bool {
	if c.crowded < crowdedMany {
		return now.Sub(c.minRTTAt) > minRTTLifetime
	}
	since := now.Sub(c.probe.at)
	if c.lastRTT < c.formerRTT-max(queueSeen, (c.formerRTT-c.minRTT)/2) { // another stream empties its part
		return since > probePauseMin
	}
	return since > max(c.probe.pause, probePauseRounds*c.minRTT)
}

// allowed is the number of datagrams that may be under way now.
func (c *congestion) allowed() int {
	switch {
	case c.probe.phase == probeNone:
		return c.window
	case c.queued() > queueSeen:
		return windowMin
	}
	return max(min(c.window, int(c.product()/2)), windowMin)
}
