package swim

import (
	"math/rand/v2"
	"net/netip"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/overlay"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// Options configures a Detector. Callbacks marked optional may be nil.
type Options struct {
	Self    wire.CellID
	Random  *rand.Rand
	Members *overlay.Members
	// Nonce returns an unpredictable number for PING and PING_REQ (F14). Optional: Random is used.
	Nonce func() uint32
	// Guard limits how often one cell may have this one probe a third. Optional: no limit.
	Guard *overlay.Guard
	// Loopback accepts loopback addresses in PING_REQ (tests, demo).
	Loopback bool

	// Send sends a message to a cell; payload is valid only during the call. A message to the sender
	// of the datagram being received is its answer and goes back to the address it came from.
	Send func(to wire.CellID, t wire.Type, nonce uint32, payload []byte)
	// Claim writes a status: SUSPECT or DEAD of target, or an own refutation. status.Claimants is this
	// cell alone and valid only during the call; the store unites it with what is there
	// (state.JoinStatusValues). Claim may call StatusChanged before it returns.
	Claim func(now clock.Instant, target wire.CellID, status state.CellStatus)
	// TellStatus sends the status register of about to a cell, unasked: it is how the accused hears of
	// it (F63) and how a cell held DEAD learns that it must refute (F64). Rate-limited per cell.
	TellStatus func(now clock.Instant, to, about wire.CellID)
	// Observed reports this cell's own address as a peer sees it, from PONGs to outstanding nonces
	// only (F23). Optional.
	Observed func(now clock.Instant, by wire.CellID, address netip.AddrPort)
	// Validated reports a PONG to an outstanding nonce: proof that the cell receives at this address.
	// Optional; meant for overlay.Guard and overlay.Table.
	Validated func(now clock.Instant, member *overlay.Member)

	// Direct reports whether datagrams of this cell reach a member without a relay: only then does it probe
	// the member for others (F37). Optional: all are.
	Direct func(now clock.Instant, member *overlay.Member) bool
	// MayAccuse reports whether it proves anything that this cell does not reach a member (F36). Optional:
	// it does.
	MayAccuse func(now clock.Instant, member *overlay.Member) bool
	// Muted reports whether this cell is probably the one that is cut off, so that it claims nothing about
	// others (F64, F66). Optional: it never is.
	Muted func(now clock.Instant) bool
	// Detour hears of members that a helper reached and this cell did not. Optional.
	Detour func(now clock.Instant, member *overlay.Member)
}

// Detector is the failure detector of one cell.
type Detector struct {
	options Options
	members *overlay.Members

	self   state.CellStatus
	peers  map[wire.CellID]*peer // never iterated except to forget
	active []*peer               // those with something to wait for
	rounds int                   // active peers under full rounds

	schedule    schedule
	outstanding outstanding
	relays      []relay
	health      health
	claims      []claim
	flushing    bool
	lastEntry   clock.Instant // last call into the detector, for the wake rule

	payload   [wire.PingReqAckSize + wire.ContactSize]byte
	helpers   []*overlay.Member
	target    wire.CellID // argument of skipHelper
	skipRing  func(*overlay.Member) bool
	skipHelp  func(*overlay.Member) bool
	skipLive  func(*overlay.Member) bool
	skipDoubt func(*overlay.Member) bool
	claimant  [1]wire.CellID
}

// claim is a status to be written at the end of the current call, when the detector's own state is
// settled and may be called into again.
type claim struct {
	target wire.CellID
	status state.CellStatus
}

// New returns a detector that starts probing at its first Tick after a member was added.
func New(options Options) *Detector {
	if options.Nonce == nil {
		options.Nonce = options.Random.Uint32
	}
	d := &Detector{
		options: options,
		members: options.Members,
		self:    state.CellStatus{Life: state.Alive},
		peers:   make(map[wire.CellID]*peer),
		relays:  make([]relay, 0, relaysMax),
		helpers: make([]*overlay.Member, 0, indirectProbeCount),
	}
	d.outstanding.ring = make([]question, outstandingMax)
	d.skipRing = func(m *overlay.Member) bool {
		return !m.InService() || !overlay.UsableAddress(m.Address) || d.underProbe(m.ID)
	}
	d.skipHelp = d.skipHelper
	d.skipLive = func(m *overlay.Member) bool {
		return m.Life != state.Dead || !overlay.UsableAddress(m.Address) || d.succeeded(m)
	}
	d.skipDoubt = func(m *overlay.Member) bool {
		return !m.InService() || m.Life == state.Suspect || d.Suspected(m.ID)
	}
	return d
}

// Tick does what is due. Calling it early is harmless.
func (d *Detector) Tick(now clock.Instant) {
	d.enter(now)
	for i := 0; i < len(d.active); {
		p := d.active[i]
		if !p.next.Reached(now) {
			i++
			continue
		}
		d.step(now, p)
		if i < len(d.active) && d.active[i] == p && p.next.Reached(now) {
			i++ // due again at this very instant: the next Tick has it
		}
	}
	d.expireRelays(now)
	d.tickSchedule(now)
	d.flush(now)
}

// Deadline returns when Tick is due. Without members there is nothing to wait for.
func (d *Detector) Deadline() clock.Instant {
	next := clock.Never
	if d.members.Len() > 0 {
		next = d.schedule.next
	}
	for _, p := range d.active {
		next = clock.Earliest(next, p.next)
	}
	for i := range d.relays {
		next = clock.Earliest(next, d.relays[i].due)
	}
	return next
}

// ProbeNow starts a full round for a member at once, for instance on a hint that it left. It does
// nothing if the member is under probe already or out of service.
func (d *Detector) ProbeNow(now clock.Instant, id wire.CellID) {
	d.enter(now)
	if m := d.members.Get(id); m != nil && m.InService() {
		if p := d.peer(id); p.phase == phaseIdle || p.phase == phaseOnlooker {
			d.beginRounds(now, p, m)
		}
	}
	d.flush(now)
}

// Suspected reports whether this cell itself failed to reach the member, directly and through helpers,
// in a suspicion that is still open. Gossip passes such a cell over (F28).
func (d *Detector) Suspected(id wire.CellID) bool {
	p := d.attended(id)
	return p != nil && p.failed > 0
}

// attended returns the record of a member that has something to wait for, nil if it has nothing. Nearly all
// have nothing nearly always, and whoever sends or receives asks, so a short list is better than the large
// map.
func (d *Detector) attended(id wire.CellID) *peer {
	if len(d.active) > activeFew {
		return d.peers[id]
	}
	for _, p := range d.active {
		if p.id == id {
			return p
		}
	}
	return nil
}

// activeFew is how many are looked at one by one.
const activeFew = 8

// Doubted returns when the oldest open suspicion of this cell's own began to be looked into, 0 if there is
// none.
func (d *Detector) Doubted() (since clock.Instant) {
	for _, p := range d.active {
		if p.failed > 0 && (since == 0 || p.first < since) {
			since = p.first
		}
	}
	return since
}

// Silent reports whether a member was asked something since a moment and owes an answer for longer than that
// takes.
func Silent(now, since clock.Instant, m *overlay.Member) bool {
	return m.Awaited != 0 && m.Asked >= since && now.Sub(m.Awaited) >= max(answerMin, probeTimeoutRoundTrips*m.RTT)
}

// Health returns the Lifeguard multiplier, 1 (well) to 8.
func (d *Detector) Health() int { return d.health.multiplier() }

// Forget drops what is known of a cell that is no longer a member.
func (d *Detector) Forget(id wire.CellID) {
	if p := d.peers[id]; p != nil {
		d.clear(p)
		delete(d.peers, id)
	}
}

// underProbe reports whether the member is being probed outside the schedule already.
func (d *Detector) underProbe(id wire.CellID) bool {
	p := d.attended(id)
	return p != nil && p.phase != phaseIdle && p.phase != phaseOnlooker
}

// claimLater queues a status for the end of the current call.
func (d *Detector) claimLater(target wire.CellID, life state.Life, incarnation uint32) {
	d.claims = append(d.claims, claim{target, state.CellStatus{Life: life, Incarnation: incarnation}})
}

// flush writes the queued claims. Claim may lead back into StatusChanged and queue more.
func (d *Detector) flush(now clock.Instant) {
	if d.flushing {
		return
	}
	d.flushing = true
	for i := 0; i < len(d.claims); i++ {
		c := d.claims[i]
		d.claimant[0] = d.options.Self
		c.status.Claimants = d.claimant[:]
		d.options.Claim(now, c.target, c.status)
	}
	d.claims, d.flushing = d.claims[:0], false
}
