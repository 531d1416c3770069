package join

import (
	"net/netip"
	"time"

	"colloid.net/meshd/clock"
)

// Limits of a seed. A join costs it less than a millisecond of computing, most of it two X25519 operations.
type Limits struct {
	Burst, PerSecond             int // of all joins together
	SourceBurst, SourcePerSecond int // of one /24 (IPv4) or /56 (IPv6); loopback has no such limit
	// SourcesMax bounds the table of sources. It is enough when it exceeds Burst + PerSecond x
	// SourceBurst/SourcePerSecond, because only admitted joins enter it and leave it once their source
	// may do a full burst again. Joins of further sources are refused.
	SourcesMax int
}

// DefaultLimits returns the limits of production.
func DefaultLimits() Limits {
	return Limits{Burst: 256, PerSecond: 200, SourceBurst: 128, SourcePerSecond: 50, SourcesMax: 2048}
}

// bucket is a token bucket kept as one number: the instant at which it will be full again.
type bucket struct{ full clock.Instant }

// rate is the size of a bucket and the time for one token.
type rate struct {
	burst    int
	interval time.Duration
}

func newRate(burst, perSecond int) rate { return rate{burst, time.Second / time.Duration(perSecond)} }

func (b *bucket) ready(now clock.Instant, r rate) bool {
	return b.full <= now || b.full.Sub(now) <= time.Duration(r.burst-1)*r.interval
}

func (b *bucket) take(now clock.Instant, r rate) { b.full = max(b.full, now).Add(r.interval) }

type verdict uint8

const (
	admit verdict = iota
	refuse
	drop
)

// limiter decides which joins are worked on. Refusals are limited as well, so that a flood of joins
// makes at most twice the overall rate of replies.
type limiter struct {
	overallRate, sourceRate rate
	overall, refusals       bucket
	sources                 map[netip.Prefix]bucket
	sourcesMax              int
}

func newLimiter(l Limits) *limiter {
	d := DefaultLimits()
	for _, field := range [...]struct{ value, standard *int }{
		{&l.Burst, &d.Burst}, {&l.PerSecond, &d.PerSecond}, {&l.SourceBurst, &d.SourceBurst},
		{&l.SourcePerSecond, &d.SourcePerSecond}, {&l.SourcesMax, &d.SourcesMax},
	} {
		if *field.value == 0 {
			*field.value = *field.standard
		}
		if *field.value < 0 || *field.value > 1<<20 {
			panic("join: limit out of bounds")
		}
	}
	return &limiter{
		overallRate: newRate(l.Burst, l.PerSecond),
		sourceRate:  newRate(l.SourceBurst, l.SourcePerSecond),
		sources:     make(map[netip.Prefix]bucket),
		sourcesMax:  l.SourcesMax,
	}
}

func (l *limiter) take(now clock.Instant, from netip.Addr) verdict {
	if l.overall.ready(now, l.overallRate) && l.takeSource(now, from.Unmap().WithZone("")) {
		l.overall.take(now, l.overallRate)
		return admit
	}
	if !l.refusals.ready(now, l.overallRate) {
		return drop
	}
	l.refusals.take(now, l.overallRate)
	return refuse
}

func (l *limiter) takeSource(now clock.Instant, from netip.Addr) bool {
	if from.IsLoopback() {
		return true
	}
	bits := 56
	if from.Is4() {
		bits = 24
	}
	source, err := from.Prefix(bits)
	if err != nil {
		return false
	}
	b, known := l.sources[source]
	if !b.ready(now, l.sourceRate) {
		return false
	}
	if !known && len(l.sources) >= l.sourcesMax && !l.sweep(now) {
		return false
	}
	b.take(now, l.sourceRate)
	l.sources[source] = b
	return true
}

// sweep removes all sources whose bucket is full, which are as good as unknown. The order of the walk
// makes no difference.
func (l *limiter) sweep(now clock.Instant) (room bool) {
	for source, b := range l.sources {
		if b.full <= now {
			delete(l.sources, source)
		}
	}
	return len(l.sources) < l.sourcesMax
}
