package gossip

import (
	"math/rand/v2"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/overlay"
	"colloid.net/meshd/wire"
)

// Protocol constants (Appendix A) and limits of this implementation.
const (
	Fanout = 3
	// FanoutOrigin is that of the cell that wrote, in a cluster of originMembers times as many: there, one
	// cell sends some thirty datagrams more and every path becomes two hops shorter (measured).
	FanoutOrigin  = 32
	originMembers = 30
	// leapMembers is how many members beyond the ring successor a cell sends to as well when it heard a
	// change from its ring predecessor. Such a cell most probably stands in a row of cells that no random
	// edge has reached, and those rows make the longest paths: without this, 22 hops instead of 16 (1000
	// cells, 30 % dead). Clusters of less than leapCluster members have no rows that long.
	leapMembers = 2
	leapCluster = 256
	PendingMax  = 4096
	// SuccessorsMax bounds the cells that the ring edge of one frame tries one after the other. With 30 %
	// of 1000 cells dead and unnoticed, eight in a row are dead somewhere in 5 % of all clusters, and
	// then 1 % of the writes missed a cell (measured); twelve in a row do not happen.
	SuccessorsMax    = 12
	FramesMax        = 256 // of one register; what is beyond is left to anti-entropy
	attemptsMax      = 4   // of the ring edge: the first and RETRY_MAX 3
	handOverAttempts = 2   // unanswered ones, after which the ring edge is extended
	attemptsRandom   = 1   // of a random edge: it buys speed, the ring alone is complete
	retryBase        = 250 * time.Millisecond
	lastWait         = 500 * time.Millisecond // after the last attempt, for its acknowledgement
	jitterPercent    = 20
	roundTripsToWait = 2
)

// Store renders a register as frames that are valid registers themselves (F43). *crdt.Store is one.
type Store interface {
	// Frames calls yield with every frame of the register, in an order that stays the same while the
	// register does. A record is valid only during the call. budget bounds wire.RecordSize.
	Frames(name []byte, budget int, yield func(*wire.Record) bool)
}

// Options configures a Gossip.
type Options struct {
	Self    wire.CellID
	Random  *rand.Rand
	Members *overlay.Members
	Store   Store
	// Nonce returns an unpredictable number. Optional: Random is used.
	Nonce func() uint32
	// Send sends a message; payload is valid only during the call.
	Send func(to wire.CellID, t wire.Type, nonce uint32, payload []byte)
	// Suspected reports cells that this cell fails to reach at present; nothing is sent to them.
	// Optional.
	Suspected func(wire.CellID) bool
	// Missed reports a member that acknowledged none of the attempts of a ring edge although nobody suspects
	// it: it may be the only one without the news. Optional.
	Missed func(wire.CellID)
}

// Stats counts since the start.
type Stats struct {
	Sent      uint64 // frames, retries included
	Retried   uint64
	Acked     uint64
	Moved     uint64 // ring edges moved to a further successor
	GivenUp   uint64 // after all attempts, or because the peer was found dead
	Displaced uint64 // by the bound on pending frames
	Replaced  uint64 // by a newer change of the same register
	Limited   uint64 // refused by Allow
	Pending   int
}

// Gossip spreads registers for one cell. It is a sans-IO state machine owned by one goroutine.
type Gossip struct {
	options Options
	pending pending
	buckets buckets
	stats   Stats

	// Arguments and results of the callbacks below, which are made once so that none allocates.
	now       clock.Instant
	name      []byte
	except    wire.CellID
	frame     int
	wanted    int
	rendered  []byte
	form      wire.Type
	keyHash   uint64
	targets   []*overlay.Member
	ringFirst bool // targets[0] is the ring successor
	skip      func(*overlay.Member) bool
	spread    func(*wire.Record) bool
	pick      func(*wire.Record) bool
	buffer    [wire.PayloadMax]byte

	queue        []queued
	flushDue     clock.Instant // of the queue
	flushed      clock.Instant // last time
	stormSince   clock.Instant // beginning of the period being counted
	stormCount   int           // changes in it
	stormBefore  int           // changes in the one before
	bundle       bundle
	bundled      []*overlay.Member // targets of the bundles being sent
	join         func(*wire.Record) bool
	bundleBuffer [wire.PayloadMax]byte
}

// New returns a Gossip with nothing pending.
func New(options Options) *Gossip {
	if options.Nonce == nil {
		options.Nonce = options.Random.Uint32
	}
	g := &Gossip{options: options, targets: make([]*overlay.Member, 0, FanoutOrigin)}
	g.pending.init(options.Random.Uint64())
	g.buckets.init(options.Random.Uint64())
	g.skip = g.unfit
	g.spread, g.pick, g.join = g.spreadFrame, g.pickFrame, g.joinFrame
	return g
}

// Spread sends the register's present frames to the ring successor and two random members, never to
// except, the cell the change came from (0 = a local write, which goes to more).
func (g *Gossip) Spread(now clock.Instant, name []byte, except wire.CellID) {
	g.spreadTo(now, name, except, except == 0)
}

// spreadTo is Spread; own says that the change was made here.
func (g *Gossip) spreadTo(now clock.Instant, name []byte, except wire.CellID, own bool) {
	if len(name) == 0 || len(name) > wire.NameMax {
		return
	}
	g.now, g.name, g.except, g.frame = now, name, except, 0
	g.choose(own)
	if len(g.targets) > 0 {
		g.options.Store.Frames(name, wire.SealedPayloadMax, g.spread)
	}
}

// Ack takes an acknowledgement and reports whether a frame of this Gossip was waiting for it. Frames that
// travelled in one bundle are acknowledged together.
func (g *Gossip) Ack(_ clock.Instant, from wire.CellID, nonce uint32) bool {
	known := false
	for i := g.pending.byNonce(from, nonce); i >= 0; i = g.pending.byNonce(from, nonce) {
		g.pending.remove(i)
		g.stats.Acked++
		known = true
	}
	return known
}

// Forget gives up on a peer that left or died: at the next Tick ring edges to it move on, others go.
func (g *Gossip) Forget(peer wire.CellID) {
	for i := range g.pending.slots {
		if s := &g.pending.slots[i]; s.used && s.peer == peer {
			s.lost = true
			g.pending.reschedule(int32(i), 0)
		}
	}
}

// Tick sends what is queued and retries what is due.
func (g *Gossip) Tick(now clock.Instant) {
	if len(g.queue) > 0 && g.flushDue.Reached(now) {
		g.flush(now)
	}
	for {
		i := g.pending.first()
		if i < 0 || !g.pending.slots[i].due.Reached(now) {
			return
		}
		g.retry(now, i)
	}
}

// Deadline returns when the queue or the next retry is due.
func (g *Gossip) Deadline() clock.Instant {
	next := clock.Never
	if len(g.queue) > 0 {
		next = g.flushDue
	}
	if i := g.pending.first(); i >= 0 {
		next = clock.Earliest(next, g.pending.slots[i].due)
	}
	return next
}

// Stats returns the counters.
func (g *Gossip) Stats() Stats {
	stats := g.stats
	stats.Pending = g.pending.count
	return stats
}

// Allow reports whether one more change written by the actor may be forwarded now, and counts it if so
// (F18: 50/s, burst 200). A change that is not forwarded is merged all the same and reaches the others
// by anti-entropy.
func (g *Gossip) Allow(now clock.Instant, actor wire.CellID) bool {
	if g.buckets.allow(now, actor) {
		return true
	}
	g.stats.Limited++
	return false
}

// unfit rejects members that nothing should be sent to.
func (g *Gossip) unfit(m *overlay.Member) bool {
	return m.ID == g.except || m.ID == g.options.Self || !m.InService() || !m.Address.IsValid() ||
		g.options.Suspected != nil && g.options.Suspected(m.ID)
}

// choose draws the targets of one change (F42).
func (g *Gossip) choose(own bool) {
	g.targets = g.targets[:0]
	g.ringFirst = false
	if successor := g.options.Members.Successor(g.options.Self, g.skip); successor != nil {
		g.targets = append(g.targets, successor)
		g.ringFirst = true
	}
	fanout := Fanout
	switch {
	case own:
		fanout = max(Fanout, min(FanoutOrigin, g.options.Members.Len()/originMembers))
	case g.ringFirst && g.options.Members.Len() >= leapCluster && g.except != 0 && g.onRingFrom(g.except):
		if further := g.leap(); further != nil {
			g.targets = append(g.targets, further)
			fanout++
		}
	}
	g.targets = g.options.Members.Random(g.options.Random, fanout-len(g.targets), g.targets, g.skip)
}

// onRingFrom reports whether a cell tries this one on its ring edge: as its successor, or because those in
// between do not answer.
func (g *Gossip) onRingFrom(from wire.CellID) bool {
	for range SuccessorsMax {
		next := g.options.Members.Successor(from, nil)
		if next == nil || next.ID == g.options.Self {
			return next != nil
		}
		from = next.ID
	}
	return false
}

// leap returns the member some places behind the ring successor, nil if the ring is too small.
func (g *Gossip) leap() *overlay.Member {
	m := g.targets[0]
	for range leapMembers {
		next := g.options.Members.Successor(m.ID, g.skip)
		if next == nil || next.ID-g.options.Self <= m.ID-g.options.Self {
			return nil
		}
		m = next
	}
	return m
}

// spreadFrame sends one frame to every target.
func (g *Gossip) spreadFrame(r *wire.Record) bool {
	if g.frame == FramesMax {
		return false
	}
	g.render(r)
	for i, m := range g.targets {
		at := g.pending.byKey(m.ID, r.KeyHash, g.frame)
		if at >= 0 {
			g.stats.Replaced++
		} else {
			at = g.open(m.ID, r.KeyHash, g.frame)
		}
		s := &g.pending.slots[at]
		s.nameLength = uint8(copy(s.name[:], g.name))
		s.except = g.except
		if g.ringFirst && i == 0 {
			s.ring = true
		}
		g.send(g.now, at, m, 0)
	}
	g.frame++
	return true
}

// open takes a slot for a frame; at the bound the frame with the most attempts gives way.
func (g *Gossip) open(peer wire.CellID, keyHash uint64, frame int) int32 {
	if g.pending.count == PendingMax {
		g.pending.remove(g.pending.mostAttempts())
		g.stats.Displaced++
	}
	return g.pending.add(peer, keyHash, frame)
}

// render writes the frame's payload into the buffer and its message type into form.
func (g *Gossip) render(r *wire.Record) {
	g.keyHash = r.KeyHash
	if r.EntryCount == 1 && len(r.Context) <= wire.FrameContextMax*wire.DotSize {
		g.form, g.rendered = wire.TypeDelta, wire.AppendDelta(g.buffer[:0], r)
		return
	}
	g.form, g.rendered = wire.TypeAEState, wire.AppendStateRecord(g.buffer[:0], r)
}

// send transmits the rendered frame for a slot as its attempt number attempts+1.
func (g *Gossip) send(now clock.Instant, at int32, m *overlay.Member, attempts uint8) {
	nonce := g.options.Nonce()
	g.pending.sent(at, nonce, attempts+1, now.Add(g.wait(m, attempts)))
	g.stats.Sent++
	g.options.Send(m.ID, g.form, nonce, g.rendered)
}

// wait is how long an acknowledgement is awaited after attempt number attempts+1.
func (g *Gossip) wait(m *overlay.Member, attempts uint8) time.Duration {
	wait := max(retryBase<<attempts, roundTripsToWait*m.RTT)
	if attempts+1 == attemptsMax { // only its acknowledgement is awaited
		wait = max(lastWait, roundTripsToWait*m.RTT)
	}
	return wait + time.Duration(g.options.Random.Int64N(int64(wait)*2*jitterPercent/100+1)) - wait*jitterPercent/100
}

// retry handles a slot that is due: send again, move the ring edge on, or give up.
func (g *Gossip) retry(now clock.Instant, at int32) {
	s := &g.pending.slots[at]
	m := g.options.Members.Get(s.peer)
	g.except = s.except
	attempts := s.attempts
	if m == nil || s.lost || g.unfit(m) || attempts >= s.attemptsMax() {
		if g.options.Missed != nil && m != nil && s.ring && attempts >= s.attemptsMax() && !g.unfit(m) {
			g.options.Missed(s.peer)
		}
		if m = g.nextSuccessor(s); m == nil {
			g.pending.remove(at)
			g.stats.GivenUp++
			return
		}
		g.pending.readdress(at, m.ID)
		g.stats.Moved++
		attempts = 0
	} else {
		g.stats.Retried++
	}
	g.name, g.frame, g.wanted, g.rendered = s.name[:s.nameLength], 0, int(s.frame), nil
	g.options.Store.Frames(g.name, wire.SealedPayloadMax, g.pick)
	if g.rendered == nil {
		g.pending.remove(at) // the register has fewer frames now; they went out when it changed
		return
	}
	g.send(now, at, m, attempts)
	if attempts == handOverAttempts && g.pending.count < PendingMax {
		g.handOver(now, at)
	}
}

// handOver extends a ring edge that was not acknowledged in time to the next successor, while the first
// one is still being tried: a dead cell on the ring costs 750 ms, not all its attempts. Doing it one retry
// earlier would save half a second more, but with 5 % loss every tenth edge would be doubled for nothing.
func (g *Gossip) handOver(now clock.Instant, at int32) {
	next := g.nextSuccessor(&g.pending.slots[at])
	if next == nil {
		return
	}
	g.stats.Moved++
	g.pending.slots[at].moved = true
	further := g.open(next.ID, g.keyHash, int(g.pending.slots[at].frame))
	from, to := &g.pending.slots[at], &g.pending.slots[further]
	to.name, to.nameLength, to.except = from.name, from.nameLength, from.except
	to.ring, to.moves = true, from.moves+1
	g.send(now, further, next, 0)
}

// pickFrame renders the frame with the wanted number.
func (g *Gossip) pickFrame(r *wire.Record) bool {
	if g.frame == g.wanted {
		g.render(r)
		return false
	}
	g.frame++
	return true
}

// nextSuccessor returns the member that a ring edge should try after its present peer. It returns nil if
// the slot is no ring edge or has been extended already, if SuccessorsMax were tried, if the ring came
// round to self, or if the next successor has the frame pending, which then becomes the ring edge.
func (g *Gossip) nextSuccessor(s *slot) *overlay.Member {
	if !s.ring || s.moved || s.moves+1 >= SuccessorsMax {
		return nil
	}
	next := g.options.Members.Successor(s.peer, g.skip)
	if next == nil || next.ID-g.options.Self <= s.peer-g.options.Self {
		return nil
	}
	if other := g.pending.byKey(next.ID, s.keyHash, int(s.frame)); other >= 0 {
		o := &g.pending.slots[other]
		o.ring, o.moves, s.moved = true, max(o.moves, s.moves+1), true
		return nil
	}
	return next
}
