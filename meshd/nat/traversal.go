package nat

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/overlay"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// Options configures a Traversal.
type Options struct {
	Self    wire.CellID
	Random  *rand.Rand
	Members *overlay.Members
	Guard   *overlay.Guard
	Own     []state.Candidate // addresses of this cell's own interfaces, best first
	// Loopback accepts loopback addresses (tests, demo).
	Loopback bool
	// Known are addresses that this cell may have talked to shortly before it started.
	Known []netip.Addr

	// Nonce returns an unpredictable number.
	Nonce func() uint32
	// Send sends a message to a cell on the way that Route says.
	Send func(to wire.CellID, t wire.Type, nonce uint32, payload []byte)
	// SendTo sends a message straight to an address. payload is valid only during the call.
	SendTo func(to wire.CellID, address netip.AddrPort, t wire.Type, nonce uint32, payload []byte)
	// SendAlternate is SendTo from another port than the cell's. Optional: without it this cell calls
	// nobody back.
	SendAlternate func(to wire.CellID, address netip.AddrPort, t wire.Type, nonce uint32, payload []byte)
	// Check asks an address for the echo of a nonce; if it comes, the caller calls Confirmed.
	Check func(id wire.CellID, address netip.AddrPort)
	// OpenSocket opens one more socket under a number from 1 to SocketsMax that is free, CloseSocket closes it, and
	// SendVia is SendTo through it. Optional: without them this cell begins no search.
	OpenSocket  func(socket int) bool
	CloseSocket func(socket int)
	SendVia     func(socket int, to wire.CellID, address netip.AddrPort, t wire.Type, nonce uint32, payload []byte)
	// NoSearch keeps this cell from searching for ports, and from taking part in the search of another one.
	NoSearch bool
	// Recheck is Check, in the place of one of the same cell that is under way.
	Recheck func(id wire.CellID, address netip.AddrPort)
	// Log takes what happens to the path to a cell (0 = to this cell's class), for people. Optional; a few lines for each
	// attempt.
	Log func(id wire.CellID, text string)
	// Suspected reports cells that this cell fails to reach at present. Optional.
	Suspected func(wire.CellID) bool
}

// Traversal is what one cell knows about routers between itself and the others.
type Traversal struct {
	options Options

	views          [scopes]view
	class          [scopes]wire.Reach
	contacted      map[netip.Addr]clock.Instant
	dial           dial
	reserved       wire.CellID
	reserveUntil   clock.Instant // 0 = nobody was reserved yet
	reserveLook    clock.Instant // next look for somebody to reserve, 0 = none was taken yet
	reserveSeen    uint64        // revision of the members at the last look
	published      netip.AddrPort
	publishedOther netip.AddrPort
	mapped         []netip.AddrPort // by a router on request, see SetMapped
	wasRestricted  bool
	changed        bool
	announced      clock.Instant
	announceDue    clock.Instant // another one that had to wait, 0 = none
	question       question
	punchLimit     Limiter       // attempts of others, by who says so
	introduceLimit Limiter       // of those who take part in an attempt, told to who asked
	seekDue        clock.Instant // next look for another observer
	observers      int           // who can tell where they see this cell: 2 = enough
	begun          clock.Instant // when this cell began to find out its class, 0 = not yet
	recovered      wire.CellID

	paths    map[wire.CellID]*Path
	active   []*Path // all of them, in order of their making; maps have none
	attempts int     // under way
	homes    []wire.CellID
	homesDue clock.Instant
	nearby   wire.CellID // a PUBLIC cell that was heard straight, lately
	nearbyAt clock.Instant
	trial    wire.CellID // a cell that may become a home once it answers
	spares   map[wire.CellID]clock.Instant

	search    *search // under way, nil = none
	searchDue clock.Instant
	kept      []keptSocket
	asks      budget // searches begun here
	probes    budget // datagrams to ports that were drawn

	next    clock.Instant
	payload [wire.PunchReqSize]byte
	stats   Stats
}

// Stats counts since the start.
type Stats struct {
	Attempts  uint64 // exchanges after which this cell punched
	Succeeded uint64 // paths that became direct after one, whoever began
	Lost      uint64 // direct paths given up
	Refused   uint64 // requests not served as coordinator
	Searches  uint64 // for ports, begun with sockets of this cell
	Probes    uint64 // datagrams sent to ports that were drawn, for others
	Found     uint64 // paths that came of a search, on either side
	Looked    uint64 // members looked at in search of one to keep unknown to the router
}

// New returns a Traversal that knows nothing yet.
func New(options Options) *Traversal {
	t := &Traversal{
		options:   options,
		contacted: make(map[netip.Addr]clock.Instant),
		paths:     make(map[wire.CellID]*Path),
		homes:     make([]wire.CellID, 0, state.HomesMax),
		spares:    make(map[wire.CellID]clock.Instant),

		asks:   budget{interval: time.Hour / searchesPerHour, burst: searchesBurst},
		probes: budget{interval: time.Hour / probesPerHour, burst: probesBurst},

		punchLimit:     Limiter{perSecond: punchesPerSecond, burst: punchesBurst},
		introduceLimit: Limiter{perSecond: punchesPerSecond, burst: punchesBurst},
	}
	for _, address := range options.Known {
		t.contacted[address] = 1
	}
	return t
}

// Stats returns the counters.
func (t *Traversal) Stats() Stats { return t.stats }

// Changed reports, once, whether what this cell publishes about itself is different from before.
func (t *Traversal) Changed() bool {
	changed := t.changed
	t.changed = false
	return changed
}

// SetMapped sets the addresses that a router opened for this cell on request (NAT-PMP, UPnP).
func (t *Traversal) SetMapped(addresses []netip.AddrPort) {
	t.mapped, t.changed = addresses, true
	t.dial.next = 0 // see whether it works
	for s := range t.views {
		t.views[s].missed, t.views[s].refuted = 0, 0
	}
}

// SetOwn takes the addresses that this cell's host has now. What was observed at the ones before says nothing any more
// about how others reach it, and whoever was reached straight may not be.
func (t *Traversal) SetOwn(now clock.Instant, own []state.Candidate) {
	t.options.Own = own
	for s := range t.views {
		t.views[s], t.class[s] = view{}, wire.ReachUnknown
	}
	t.dial, t.question, t.published, t.begun, t.observers = dial{}, question{}, netip.AddrPort{}, now, 0
	t.homes, t.wasRestricted = t.homes[:0], false
	t.changed, t.next = true, now
	t.forgiveAll(now)
	for _, p := range t.active {
		p.proven, p.asked, p.blocked = 0, 0, 0
	}
	t.announced = 0 // this one does not wait
	t.announce(now)
	t.options.Members.Each(func(m *overlay.Member) bool { // who may know what did not arrive meanwhile
		if m.InService() && m.Address.IsValid() && m.Heard != 0 && !m.NeedsHelp() {
			t.recover(m.ID)
		}
		return t.recovered == 0
	})
}

// Homes returns the home cells of this cell, best first. The caller must not change it.
func (t *Traversal) Homes() []wire.CellID {
	if !t.Restricted() {
		return nil
	}
	return t.homes
}

// tickInterval is how often times are looked at while something is going on.
const (
	tickInterval = 500 * time.Millisecond
	tickIdle     = 2500 * time.Millisecond
)

// Tick does what is due.
func (t *Traversal) Tick(now clock.Instant) {
	if t.options.Members.Len() == 0 || !t.next.Reached(now) {
		return
	}
	t.tickPatience(now)
	t.reserve(now)
	if t.announceDue != 0 && t.announceDue.Reached(now) {
		t.announce(now)
	}
	t.tickDial(now)
	t.seekObserver(now, &t.views[t.scope()])
	t.tickHomes(now)
	t.tickPaths(now)
	t.tickSearch(now)
	t.next = now.Add(tickIdle)
	if d := &t.dial; d.nonce != 0 {
		t.next = clock.Earliest(t.next, d.due)
	} else {
		t.next = clock.Earliest(t.next, max(d.next, now.Add(tickInterval)))
	}
	if t.announceDue != 0 {
		t.next = clock.Earliest(t.next, t.announceDue)
	}
	if len(t.active) > 0 || t.Restricted() {
		t.next = clock.Earliest(t.next, now.Add(tickInterval))
	}
	if t.search != nil {
		t.next = clock.Earliest(t.next, t.search.next)
	}
	for _, p := range t.active {
		if a := p.attempt; a != nil {
			t.next = clock.Earliest(t.next, a.next)
		} else if p.wanted && t.attempts < attemptsMax {
			t.next = now
		}
	}
}

// Deadline returns when Tick is due.
func (t *Traversal) Deadline() clock.Instant {
	if t.options.Members.Len() == 0 {
		return clock.Never
	}
	return t.next
}

// Forget drops what is known of a cell that is no longer a member.
func (t *Traversal) Forget(id wire.CellID) {
	if p := t.paths[id]; p != nil {
		t.drop(p)
	}
	delete(t.spares, id)
}

// tell logs what happens to a path.
func (t *Traversal) tell(id wire.CellID, format string, arguments ...any) {
	if t.options.Log != nil {
		t.options.Log(id, fmt.Sprintf(format, arguments...))
	}
}

func (t *Traversal) suspected(id wire.CellID) bool {
	return t.options.Suspected != nil && t.options.Suspected(id)
}

func (t *Traversal) wireOptions() wire.Options { return wire.Options{Loopback: t.options.Loopback} }
