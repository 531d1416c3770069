package nat

import (
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/wire"
)

// Limits of what this cell carries for others (F36), and does because of them (F14).
const (
	// relayPerSecond datagrams of one origin are passed on, relayBurst at once. Bulk data has streams.
	relayPerSecond = 500
	relayBurst     = 1000
	// punchesPerSecond attempts of others are joined because one cell says so, punchesBurst at once: a home brings
	// all its clients together when they start. The address comes from that cell, so a hostile one could make this
	// one send to anybody.
	punchesPerSecond = 10
	punchesBurst     = 64
	// originsMax bounds the origins whose rate is counted; a power of two.
	originsMax = 1024
)

// Limiter counts what is done for each origin: the zero value, what is relayed. Of the cells whose ids meet in one place the one that was
// idle for longest gives way.
type Limiter struct {
	perSecond, burst time.Duration // 0 = relayPerSecond, relayBurst

	origins [originsMax]struct {
		id    wire.CellID
		ready clock.Instant // theoretical arrival time of the generic cell rate algorithm
	}
}

// Allow reports whether one more datagram of an origin may be passed on, and counts it if so.
func (l *Limiter) Allow(now clock.Instant, origin wire.CellID) bool {
	interval, burst := time.Second/relayPerSecond, time.Duration(relayBurst)
	if l.perSecond != 0 {
		interval, burst = time.Second/l.perSecond, l.burst
	}
	burst *= interval
	at := uint64(origin) * 0x9e3779b97f4a7c15 >> 32 % originsMax
	o := &l.origins[at]
	if o.id != origin {
		if o.id != 0 && o.ready > now {
			return false // its place is taken by somebody busy
		}
		o.id, o.ready = origin, 0
	}
	if o.ready > now.Add(burst) {
		return false
	}
	o.ready = max(o.ready, now).Add(interval)
	return true
}
