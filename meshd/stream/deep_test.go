package stream

import (
	"fmt"
	"testing"
	"time"

	"colloid.net/meshd/wire"
)

// deep is a queue that never fills, as those of many routers.
const deep = 24_000_000

// Streams that begin one after another at a narrow place with a queue without end share it within 2x a few
// seconds after the last began, use it, and do not fill the queue, whatever their round trips (F151). Streams
// that trusted what they saw at their beginning once had 34 times as much as those before them, with 6 s of
// queue.
func TestF151_LatecomersShareDeepQueues(t *testing.T) {
	ms := time.Millisecond
	for _, c := range []struct {
		rate   float64 // bytes per second
		delays []time.Duration
		later  time.Duration
		settle time.Duration // after the last began
		times  float64       // one may have as much as another
		most   time.Duration // of the queue, on average
	}{
		{100e3, []time.Duration{25 * ms, 25 * ms}, time.Second, 3 * time.Second, 1.5, 160 * ms},
		{400e3, []time.Duration{25 * ms}, 0, 3 * time.Second, 1.5, 20 * ms},
		{400e3, []time.Duration{25 * ms, 25 * ms}, time.Second, time.Second, 1.5, 60 * ms},
		{400e3, []time.Duration{25 * ms, 25 * ms}, 5 * time.Second, time.Second, 1.5, 60 * ms},
		{400e3, []time.Duration{25 * ms, 25 * ms, 25 * ms, 25 * ms}, time.Second, 3 * time.Second, 1.5, 100 * ms},
		{4e6, []time.Duration{25 * ms, 25 * ms}, time.Second, 4 * time.Second, 2, 25 * ms},
		{4e6, []time.Duration{25 * ms, 25 * ms, 25 * ms}, 2 * time.Second, 4 * time.Second, 2, 25 * ms},
		{4e6, []time.Duration{25 * ms, 25 * ms, 25 * ms, 25 * ms}, time.Second, 4 * time.Second, 2, 25 * ms},
		{4e6, []time.Duration{5 * ms, 25 * ms}, 2 * time.Second, 4 * time.Second, 2, 25 * ms},
		{4e6, []time.Duration{25 * ms, 5 * ms}, 2 * time.Second, 4 * time.Second, 2, 25 * ms},
		{20e6, []time.Duration{2 * ms, 2 * ms}, time.Second, time.Second, 1.5, 15 * ms},
	} {
		t.Run(fmt.Sprintf("%.1f MB per s %v later by %v", c.rate/1e6, c.delays, c.later), func(t *testing.T) {
			if testing.Short() && c.rate > 1e6 {
				t.Skip("needs many datagrams; the short ones show the same")
			}
			b := newBench(t, 3, link{})
			neck := &link{rate: c.rate, queue: deep}
			got := b.meet(t, neck, c.delays, c.later)
			b.run(c.settle, nil)
			from := make([]int, len(got()))
			for i, e := range got() {
				from[i] = e.got
			}
			const span, steps = 3 * time.Second, 60
			var queue time.Duration
			for range steps {
				b.run(span/steps, nil)
				queue += max(0, neck.free.Sub(b.now)) / steps
			}
			low, high, sum := c.rate, 0.0, 0.0
			for i, e := range got() {
				rate := float64(e.got-from[i]) / span.Seconds()
				low, high, sum = min(low, rate), max(high, rate), sum+rate
			}
			t.Logf("%.2f to %.2f of %.2f MB/s, %.2f times, queue %v", low/1e6, high/1e6, c.rate/1e6, high/low, queue)
			if high > c.times*low {
				t.Errorf("one has %.1f times as much as another", high/low)
			}
			if sum < 0.82*c.rate { // headers and seals take 8 %
				t.Errorf("they use %.0f %%", 100*sum/c.rate)
			}
			if queue > c.most {
				t.Errorf("the queue is %v on average, want at most %v", queue, c.most)
			}
		})
	}
}

// meet opens a stream per delay, one later than the other, from cells of their own through one narrow place
// to cell 100. It returns the receiving ends so far.
func (b *bench) meet(t *testing.T, neck *link, delays []time.Duration, later time.Duration) func() []*end {
	var got []*end
	b.add(100, discard(t, &got))
	for i, delay := range delays {
		id := wire.CellID(i + 1)
		b.add(id, nil)
		*b.link(id, 100) = link{delay: delay, neck: neck}
		*b.link(100, id) = link{delay: delay}
		if i > 0 {
			b.run(later, nil)
		}
		b.open(id, 100, wire.StreamVolume, &end{write: 1 << 40})
	}
	return func() []*end { return got }
}

// A stream leaves a connection of another kind, which fills queues until something is lost, more than half of
// a narrow place with a queue, and has something of it. Where the queue is short it once left a tenth.
func TestF151_LossBasedNeighboursAreNotStarved(t *testing.T) {
	const rate, roundTrip = 400e3, 50 * time.Millisecond
	for _, products := range []float64{1, 4} { // of what the path holds
		t.Run(fmt.Sprint(products), func(t *testing.T) {
			b := newBench(t, 1, link{})
			neck := &link{rate: rate, queue: int(products * rate * roundTrip.Seconds())}
			other := &lossBased{b: b, neck: neck, roundTrip: roundTrip, window: 10, threshold: 1 << 20}
			other.fill()
			b.run(2*time.Second, nil)
			got := b.meet(t, neck, []time.Duration{roundTrip / 2}, 0)
			b.run(3*time.Second, nil)
			ours, theirs := got()[0].got, other.got
			b.run(15*time.Second, nil)
			share := float64(got()[0].got-ours) / float64(got()[0].got-ours+other.got-theirs)
			t.Logf("a stream has %.0f %%", 100*share)
			if share > 0.6 || share < 0.05 {
				t.Error("not shared")
			}
		})
	}
}

// lossBased is a connection that adds a datagram per round trip to its window and takes 30 % off when one is
// lost, as CUBIC does on short paths.
type lossBased struct {
	b                 *bench
	neck              *link
	roundTrip         time.Duration
	window, threshold float64
	out, recovering   int // under way; so many acknowledgements belong to what was sent before a loss
	got               int
}

func (l *lossBased) fill() {
	const size = 1240
	for l.out < int(l.window) {
		l.out++
		at, passed := l.neck.pass(l.b.now, size)
		if !passed { // it is missed when those that wait before it have arrived
			at = l.neck.free
		}
		l.b.after(at.Sub(l.b.now)+l.roundTrip, func() {
			l.out--
			l.recovering--
			l.acknowledged(passed)
			if passed {
				l.got += size
			}
			l.fill()
		})
	}
}

func (l *lossBased) acknowledged(passed bool) {
	switch {
	case !passed && l.recovering <= 0:
		l.window = max(0.7*l.window, 2)
		l.threshold, l.recovering = l.window, l.out
	case !passed:
	case l.window < l.threshold:
		l.window++
	default:
		l.window += 1 / l.window
	}
}
