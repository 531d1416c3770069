package stream

import (
	"time"

	"colloid.net/meshd/clock"
)

// Congestion control (F151). It measures what the path carries, as BBR does, instead of taking every lost
// datagram for congestion: the greatest rate of acknowledgements of the last rounds and the least round
// trip are a model of the path; datagrams leave at that rate, and at most twice the product of both is
// under way, less where a queue stands (queue.go). Only heavy loss, which random errors do not explain,
// lowers the amount further.

const (
	windowInitial = 8
	windowMin     = 4
	// WindowMax bounds the datagrams of a stream that are under way, and those a receiver holds (F151).
	// F151 says 1024, which at 50 ms carries 20 MB/s only between hosts that never make anything wait.
	WindowMax = 2048

	rtoMin     = 200 * time.Millisecond
	rtoMax     = 2 * time.Second // STREAM_TIMEOUT
	rtoInitial = time.Second

	rateRounds = 10 // over which the greatest rate counts
	// rateRoundsCrowded take their place where a queue stands: there the rate is a share of what others use
	// too, and whoever remembers a greater one for long does not give it back.
	rateRoundsCrowded = 4
	startupGain       = 2.77
	drainGain         = 0.4
	// pacingQuantum is how much time one burst may cover: timers are not exact, and one wake-up per
	// datagram would cost more than it smoothes.
	pacingQuantum = 500 * time.Microsecond
	// catchUpMin and catchUpMax bound what a late timer may make up for, half a round trip between them: a
	// host that is busy stops a process for longer than a timer of its own is late.
	catchUpMin = 4 * time.Millisecond
	catchUpMax = 25 * time.Millisecond
	// lossHeavy is the part of what was sent that must be lost to be taken for congestion, judged over at
	// least lossSpan datagrams and half a window: a round in which little was under way says nothing.
	lossHeavy = 0.12
	lossSpan  = 64
	lossCut   = 0.8
	// lossCutMost bounds what one judgement may take away.
	lossCutMost = 0.5
	// fullRounds without growth end the start when a queue has built up, fullRoundsMax in any case: on a busy
	// host several rounds in a row may bring less than the path would.
	fullRounds    = 3
	fullRoundsMax = 8
)

// cycle is how the rate is varied in steady state, one step per round trip: more, to find out whether
// the path carries more, then less, so that a queue that came of it empties.
var cycle = [...]float64{1.25, 0.75, 1, 1, 1, 1, 1, 1}

// gentleCycle is used while streams of people share the way: a step of it queues a fiftieth of a round trip,
// which is a millisecond of 50 and leaves as much for the burst of a timer.
var gentleCycle = [...]float64{1.02, 0.96, 1, 1, 1, 1, 1, 1}

type congestionMode uint8

const (
	modeStartup congestionMode = iota
	modeDrain
	modeSteady
)

// congestion is the model of one direction of one stream.
type congestion struct {
	mode   congestionMode
	gentle bool
	window int

	srtt, rttvar, minRTT, lastRTT time.Duration
	minRTTAt                      clock.Instant
	roundRTT, formerRTT           time.Duration // least of this round and the one before, 0 = none yet
	crowded                       int           // rounds in a row in which a queue stood
	probe                         probe

	rates     [rateRounds]float64 // datagrams per second, greatest of each round that told something
	rateSlot  int
	told      bool    // this round had something to send all the time
	rate      float64 // greatest of all
	full      float64 // greatest when growth was last seen
	fullCount int

	delivered   uint64
	deliveredAt clock.Instant
	firstSentAt clock.Instant
	limited     uint64 // up to this count the sender had too little to send
	round       uint64
	roundEnd    uint64

	step   int
	stepAt clock.Instant
	// What the step began with and has seen: a path that turns out wider is followed at once.
	stepRate float64
	stepRTT  time.Duration // least of this step, 0 = none yet

	spanLost, spanDelivered int     // since loss was judged last
	ceiling                 float64 // datagrams under way at most, 0 = no bound known

	nextSend clock.Instant
	paced    bool // a datagram waits for it, or what should have left meanwhile follows
}

func (c *congestion) init(step int) {
	c.window = windowInitial
	c.step = step % len(cycle)
}

// sample is what a sender remembers of a transmission.
type sample struct {
	sentAt, deliveredAt, firstSentAt clock.Instant
	delivered                        uint64
	limited                          bool
}

// sent is called for each transmission.
func (c *congestion) sent(now clock.Instant, s *sample, inFlight int) {
	if inFlight == 0 {
		c.firstSentAt, c.deliveredAt = now, now
	}
	*s = sample{now, c.deliveredAt, c.firstSentAt, c.delivered, c.delivered < c.limited}
	if rate := c.pacingRate(); rate > 0 {
		earliest := now
		if c.paced { // the timer came late: what should have left already may follow
			earliest = now.Add(-max(min(c.minRTT/2, catchUpMax), catchUpMin))
		}
		c.nextSend = max(c.nextSend, earliest).Add(time.Duration(1e9 / rate))
		c.paced = c.paced && c.nextSend < now
	}
}

// pace reports whether the next datagram may leave now.
func (c *congestion) pace(now clock.Instant) bool {
	if c.nextSend > now.Add(pacingQuantum) {
		c.paced = true
		return false
	}
	return true
}

// pacingRate is in datagrams per second, 0 without bound.
func (c *congestion) pacingRate() float64 {
	if c.srtt == 0 {
		return 0
	}
	rate := c.rate * c.pacingGain()
	if rate == 0 || c.mode == modeStartup { // the first samples are of a few datagrams and say little
		rate = max(rate, 2*float64(c.window)/c.srtt.Seconds())
	}
	return max(rate, 20)
}

func (c *congestion) pacingGain() float64 {
	switch c.mode {
	case modeStartup:
		return startupGain
	case modeDrain:
		return drainGain
	}
	if c.gentle {
		return gentleCycle[c.step]
	}
	return cycle[c.step]
}

func abs(d time.Duration) time.Duration {
	if d < 0 {
		return -d
	}
	return d
}

// rto is the time without acknowledgement after which a datagram is sent again.
func (c *congestion) rto(backoff int) time.Duration {
	rto := rtoInitial
	if c.srtt != 0 {
		rto = max(c.srtt+4*c.rttvar, rtoMin)
	}
	return min(rto<<min(backoff, 5), rtoMax)
}

// reorder is how much later than its successors a datagram may arrive before it counts as lost.
func (c *congestion) reorder() time.Duration { return min(max(c.minRTT/4, c.rttvar), c.srtt) }

// acknowledged takes n datagrams that have arrived; newest is the sample of the one sent last.
func (c *congestion) acknowledged(now clock.Instant, n int, newest *sample, inFlight int) {
	c.delivered += uint64(n)
	c.deliveredAt = now
	c.spanDelivered += n
	c.firstSentAt = max(c.firstSentAt, newest.sentAt)
	roundStart := newest.delivered >= c.roundEnd
	if roundStart {
		c.endRound()
	}
	interval := max(now.Sub(newest.deliveredAt), newest.sentAt.Sub(newest.firstSentAt))
	if interval > 0 && interval >= c.minRTT {
		rate := float64(c.delivered-newest.delivered) / interval.Seconds()
		if !newest.limited || rate >= c.rate {
			c.told = true
			c.observeRate(rate)
		}
	}
	if roundStart && !newest.limited {
		c.checkFull()
	}
	c.advance(now, inFlight)
	c.probeRTT(now, inFlight)
	c.setWindow(n)
}

func (c *congestion) observeRate(rate float64) {
	slot := &c.rates[c.rateSlot]
	*slot = max(*slot, rate)
	c.rate = max(c.rate, rate)
}

func (c *congestion) endRound() {
	c.round++
	c.roundEnd = c.delivered
	c.endRoundOfQueue()
	if c.told { // rounds in which the sender had too little say nothing, and nothing is forgotten for them
		c.told = false
		c.rateSlot = (c.rateSlot + 1) % rateRounds
		c.rates[c.rateSlot] = 0
		c.rate = 0
		rounds := rateRounds
		if c.crowded >= crowdedFew {
			rounds = rateRoundsCrowded
		}
		for i := range rounds {
			c.rate = max(c.rate, c.rates[(c.rateSlot+rateRounds-i)%rateRounds])
		}
	}
	c.judgeLoss()
}

// judgeLoss lowers the amount under way when much of it is lost.
func (c *congestion) judgeLoss() {
	total := c.spanLost + c.spanDelivered
	if total < max(lossSpan, c.window/2) && c.spanLost < c.window {
		if c.ceiling != 0 && c.spanLost == 0 {
			c.raiseCeiling()
		}
		return
	}
	if float64(c.spanLost) > lossHeavy*float64(total) {
		bound := max(float64(c.spanDelivered)*lossCut, float64(c.window)*lossCutMost, 2*windowMin)
		if c.ceiling == 0 || bound < c.ceiling {
			c.ceiling = bound
		}
		if c.mode == modeStartup {
			c.mode = modeDrain
		}
	} else if c.ceiling != 0 {
		c.raiseCeiling()
	}
	c.spanLost, c.spanDelivered = 0, 0
}

func (c *congestion) raiseCeiling() {
	if c.ceiling *= 1.06; c.ceiling > WindowMax {
		c.ceiling = 0
	}
}

// checkFull ends the start once enough rounds brought no growth.
func (c *congestion) checkFull() {
	if c.mode != modeStartup {
		return
	}
	queue := c.stepRTT > c.minRTT+c.minRTT/4+time.Millisecond
	c.stepRTT = 0
	if c.crowded >= crowdedFew { // what comes now is taken from others, or only queues
		c.mode = modeDrain
		return
	}
	if c.rate >= c.full*1.25 {
		c.full, c.fullCount = c.rate, 0
		return
	}
	if c.fullCount++; c.fullCount >= fullRounds && queue || c.fullCount >= fullRoundsMax {
		c.mode = modeDrain
	}
}

func (c *congestion) advance(now clock.Instant, inFlight int) {
	if c.mode == modeDrain && float64(inFlight) <= c.product() {
		c.mode = modeSteady
		c.begin(now, c.step)
	}
	if c.mode != modeSteady {
		return
	}
	lasted := now.Sub(c.stepAt) > c.minRTT
	switch gain := c.pacingGain(); {
	case gain < 1:
		lasted = lasted || float64(inFlight) <= c.product()
	case gain > 1:
		lasted = lasted && (c.spanLost > 0 || float64(inFlight) >= min(gain*c.product(), float64(c.window-1)))
		lasted = lasted || now.Sub(c.stepAt) > 4*c.minRTT
	}
	switch {
	case !lasted:
	case c.pacingGain() > 1 && c.widened():
		c.begin(now, c.step)
	default:
		c.begin(now, (c.step+1)%len(cycle))
	}
}

func (c *congestion) begin(now clock.Instant, step int) {
	c.step, c.stepAt, c.stepRate, c.stepRTT = step, now, c.rate, 0
}

// widened reports whether this step found that the path carries more, without a queue. Then the search goes
// on: one step of eight would take seconds to come back from what a busy host has made of the start.
func (c *congestion) widened() bool {
	return !c.gentle && c.rate > c.stepRate*1.1 && c.stepRTT != 0 && c.stepRTT < c.minRTT+c.minRTT/8+time.Millisecond
}

// product is the number of datagrams that fill the path without a queue.
func (c *congestion) product() float64 { return c.rate * c.minRTT.Seconds() }

func (c *congestion) setWindow(n int) {
	quantum := min(c.rate*pacingQuantum.Seconds(), 256)
	target := c.rate*(c.minRTT+c.slack()).Seconds() + 3*quantum + c.standing()
	if c.ceiling != 0 {
		target = min(target, c.ceiling)
	}
	switch {
	case c.rate == 0:
		c.window += n
	case c.mode == modeStartup && c.ceiling == 0:
		if c.roundRTT < c.minRTT+c.queueLimit() {
			c.window += n
		}
	case float64(c.window+n) <= target:
		c.window += n
	default:
		c.window = int(target)
	}
	c.window = max(min(c.window, WindowMax), windowMin)
}

// lost takes n datagrams that were found missing.
func (c *congestion) lost(n int) { c.spanLost += n }

// timedOut starts again carefully; what is known of the path stays.
func (c *congestion) timedOut() { c.window = windowMin }

// idle notes that the sender has nothing to send while it might.
func (c *congestion) idle(inFlight int) { c.limited = c.delivered + uint64(max(inFlight, 1)) }
