package gossip

import (
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/overlay"
	"colloid.net/meshd/wire"
)

// Bundles. Changes that are there at the same moment share their targets and travel together, several
// records in one AE_STATE with one acknowledgement for all. A change that comes alone goes out at once, as
// it is; only where the last ones went out less than bundleWindow ago does it wait for company. When a
// hundred cells join together this saves datagrams and wake-ups.

const (
	// queueMax bounds the changes that wait; a full queue is sent on the spot.
	queueMax = 512
	// bundleWindow is long beside a round trip in one building and short beside what anybody notices.
	bundleWindow = 5 * time.Millisecond
	// In a storm, more than stormChanges within stormPeriod, there is company to be had, and what costs is
	// the number of datagrams. These three were chosen, not tuned: with the short window two changes
	// travelled together when 128 cells joined; what this one brings was not measured by itself.
	stormWindow  = 50 * time.Millisecond
	stormPeriod  = 250 * time.Millisecond
	stormChanges = 16
)

// window is how long after the last bundles the next ones may go.
func (g *Gossip) window(now clock.Instant) time.Duration {
	if now.Sub(g.stormSince) > stormPeriod {
		g.stormSince, g.stormBefore, g.stormCount = now, g.stormCount, 0
	}
	g.stormCount++
	if g.stormCount > stormChanges || g.stormBefore > stormChanges {
		return stormWindow
	}
	return bundleWindow
}

type queued struct {
	name   [wire.NameMax]byte
	length uint8
	except wire.CellID
	own    bool // the change was made here
}

// Queue is Spread at the Tick that is due next, together with what else is queued by then.
func (g *Gossip) Queue(now clock.Instant, name []byte, except wire.CellID) {
	if len(name) == 0 || len(name) > wire.NameMax {
		return
	}
	for i := range g.queue {
		if q := &g.queue[i]; string(q.name[:q.length]) == string(name) {
			if q.except != except {
				q.except = 0 // nobody has all of it already
			}
			q.own = q.own || except == 0
			return
		}
	}
	if len(g.queue) == queueMax {
		g.flush(now)
	}
	window := g.window(now)
	if len(g.queue) == 0 {
		g.flushDue = max(now, g.flushed.Add(window))
	}
	g.queue = append(g.queue, queued{except: except, own: except == 0, length: uint8(len(name))})
	copy(g.queue[len(g.queue)-1].name[:], name)
}

// flush sends what is queued.
func (g *Gossip) flush(now clock.Instant) {
	g.flushed = now
	if len(g.queue) == 1 {
		q := &g.queue[0]
		g.spreadTo(now, q.name[:q.length], q.except, q.own)
	} else if len(g.queue) > 1 {
		g.flushBundles(now)
	}
	g.queue = g.queue[:0]
}

// flushBundles chooses targets once for all that is queued. A change that came from one of them is spread
// by itself, so that it still goes to three cells.
func (g *Gossip) flushBundles(now clock.Instant) {
	g.now, g.except = now, 0
	g.choose(false)
	g.bundled = append(g.bundled[:0], g.targets...)
	ring := g.ringFirst
	for i, target := range g.bundled {
		g.startBundle(target, ring && i == 0)
		for j := range g.queue {
			q := &g.queue[j]
			if !g.cameFromTarget(q) {
				g.name, g.except, g.frame = q.name[:q.length], q.except, 0
				g.options.Store.Frames(g.name, wire.SealedPayloadMax, g.join)
			}
		}
		g.sendBundle()
	}
	for j := range g.queue {
		if q := &g.queue[j]; g.cameFromTarget(q) {
			g.spreadTo(now, q.name[:q.length], q.except, q.own)
		}
	}
}

func (g *Gossip) cameFromTarget(q *queued) bool {
	for _, target := range g.bundled {
		if target.ID == q.except {
			return true
		}
	}
	return false
}

// bundle is the AE_STATE under construction for one target.
type bundle struct {
	target  *overlay.Member
	ring    bool
	nonce   uint32
	records int
	payload []byte
}

func (g *Gossip) startBundle(target *overlay.Member, ring bool) {
	g.bundle = bundle{target: target, ring: ring, nonce: g.options.Nonce(), payload: g.bundleBuffer[:0]}
}

// joinFrame adds one frame of a register to the bundle and opens its slot.
func (g *Gossip) joinFrame(r *wire.Record) bool {
	if g.frame == FramesMax {
		return false
	}
	b := &g.bundle
	if b.records > 0 && len(b.payload)+wire.RecordSize(r) > wire.SealedPayloadMax {
		target, ring := b.target, b.ring
		g.sendBundle()
		g.startBundle(target, ring)
	}
	b.payload = wire.AppendStateRecord(b.payload, r)
	b.records++
	at := g.pending.byKey(b.target.ID, r.KeyHash, g.frame)
	if at >= 0 {
		g.stats.Replaced++
	} else {
		at = g.open(b.target.ID, r.KeyHash, g.frame)
	}
	s := &g.pending.slots[at]
	s.nameLength = uint8(copy(s.name[:], g.name))
	s.except = g.except
	s.ring = s.ring || b.ring
	g.pending.sent(at, b.nonce, 1, g.now.Add(g.wait(b.target, 0)))
	g.frame++
	return true
}

func (g *Gossip) sendBundle() {
	if g.bundle.records == 0 {
		return
	}
	g.stats.Sent++
	g.options.Send(g.bundle.target.ID, wire.TypeAEState, g.bundle.nonce, g.bundle.payload)
}
