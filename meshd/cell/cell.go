package cell

import (
	"net/netip"

	"colloid.net/meshd/antientropy"
	"colloid.net/meshd/clock"
	"colloid.net/meshd/crdt"
	"colloid.net/meshd/gossip"
	"colloid.net/meshd/join"
	"colloid.net/meshd/nat"
	"colloid.net/meshd/overlay"
	"colloid.net/meshd/placement"
	"colloid.net/meshd/reconcile"
	"colloid.net/meshd/seal"
	"colloid.net/meshd/state"
	"colloid.net/meshd/swim"
	"colloid.net/meshd/wire"
)

// Phase is where a cell stands in its own life (specification 2.2, F5).
type Phase uint8

// Phases. A cell is Booting until its state is authoritative; only then does it call itself alive.
const (
	Booting Phase = iota
	Active
	Leaving
)

var phaseNames = [...]string{"booting", "active", "leaving"}

// String returns the name used in status output.
func (p Phase) String() string { return phaseNames[p] }

// sendersMax bounds the replay windows kept (F13): one per member that ever spoke to us.
const sendersMax = 8192

// Cell is one member of a cluster. All methods must be called from one goroutine.
type Cell struct {
	config Config
	timing Timing

	// What the cell is, whatever cluster it is in.
	ownName           []byte        // its id as it stands in keys, with the dot behind it
	ownLost           clock.Instant // end of the time in which it does not vouch for its own writes, 0 = it does
	incarnation       uint32        // of the dots it issues; durable before use (F1)
	counter           uint64        // of the last dot issued under incarnation
	statusIncarnation uint32        // of its own status (F47)
	started           clock.Instant
	now               clock.Instant // of the input being handled
	phase             Phase

	// The cluster and the protocol parts; replaced as a whole by enter.
	cluster   Cluster
	clusterID uint64
	sealer    *seal.Sealer
	opener    *seal.Opener
	store     *crdt.Store
	members   *overlay.Members
	guard     *overlay.Guard
	detector  *swim.Detector
	gossip    *gossip.Gossip
	sessions  *antientropy.Sessions
	planner   *placement.Planner
	plan      *placement.Plan
	seed      *join.Seed
	nat       *nat.Traversal
	sockets   Sockets // nil: the network has no further ones

	reconciler  *reconcile.Reconciler
	views       views
	changes     changes
	boot        bootState
	isolation   isolationState
	runner      runnerState
	supervision supervision
	writes      writeState
	joining     *joinAttempt
	arrival     *arrival  // what came along from another cluster and may not be in a snapshot yet
	guest       lastGuest // whom this cell has let in lately
	founding    uint64    // ticket of a cluster of its own that is not durable yet: nobody may be let in
	unfounded   bool      // that could not be stored
	lossOver    bool      // the directory does not know yet that what Config.Lost said is over
	sentLately  sentRing
	twinSeen    clock.Instant // last proof of another machine with this id
	// What SetJoining was told last.
	joiningText string
	narrowAt    clock.Instant // last datagram that did not fit a path, 0 = none
	narrowLink  bool          // a link of this host is too narrow
	leaving     *leaveAttempt
	guests      guestTable
	checks      addressChecks
	load        loadState
	streams     streamState
	schedule    schedule
	// Cells that deserve a session before their turn.
	sessionsWanted []wire.CellID
	stranger       stranger
	successor      wire.CellID                   // on the ring
	edgeDue        clock.Instant                 // of the session with it, 0 = had
	passedOver     wire.CellID                   // a successor that is or was suspected, 0 = none
	returns        map[wire.CellID]clock.Instant // last session because a cell came back
	missed         map[wire.CellID]struct{}      // members that gossip could not tell something, see missedNews
	behind         map[wire.CellID]clock.Instant // last hint to a cell that counts again
	spoken         map[wire.CellID]spoken
	persist        persistState
	counters       counters
	alarms         alarmBook
	storageError   string // of the last storage call, "" if it succeeded
	rollout        rolloutState

	relayLimit  nat.Limiter
	streamLimit nat.Limiter      // the same for what belongs to streams
	relayCopy   []byte           // a datagram to be passed on, opened to check it
	mapped      []netip.AddrPort // see SetMapped
	addresses   ownAddresses
	candidates  [state.CandidatesMax]state.Candidate
	contactDue  clock.Instant // of publishing the own contact, 0 = it is as published
	contactSaid clock.Instant
	againFrom   wire.CellID // see recoverAgain
	againDue    clock.Instant
	againCount  int
	caughtUp    clock.Instant // next time, see catchUp
	caughtUntil clock.Instant // 0 = not begun

	// The sender of the datagram being handled: messages to it are answers and go where it came from. No
	// address: it came through a relay.
	replyTo      wire.CellID
	replyAddress netip.AddrPort
	replyVia     netip.AddrPort // the relay it came through, if the sender is no member
	arrivedVia   int            // the further socket on which it came in, 0 = the cell's own

	scratch  []byte // one outgoing datagram
	payload  []byte // one outgoing payload
	record   wire.Record
	valueBuf []byte
}

// New builds a cell from what its storage directory held. It sends nothing before Start.
func New(config Config) *Cell {
	if !config.Self.Valid() || config.Random == nil || config.Entropy == nil ||
		config.Network == nil || config.Storage == nil {
		panic("cell: incomplete configuration")
	}
	if config.KeysMax == 0 {
		config.KeysMax = keysMaxDefault
	}
	if config.Versions == (wire.Versions{}) {
		config.Versions = wire.Spoken
	}
	if !config.Versions.Valid() {
		panic("cell: least protocol version above the greatest")
	}
	c := &Cell{
		config:      config,
		timing:      config.Timing.withDefaults(),
		incarnation: config.Incarnation,
		seed:        join.NewSeed(entropyReader(config.Entropy), join.Limits{}),
		ownName:     []byte(config.Self.String() + "."),
		scratch:     make([]byte, 0, wire.DatagramMax),
		payload:     make([]byte, 0, wire.PayloadMax),
		valueBuf:    make([]byte, 0, wire.ValueMax),
	}
	c.statusIncarnation = config.Incarnation << statusIncarnationShift
	c.runner.init()
	c.writes.init()
	return c
}

// entropyReader gives libraries that want an io.Reader the cell's source of randomness.
type entropyReader func([]byte)

func (e entropyReader) Read(p []byte) (int, error) {
	e(p)
	return len(p), nil
}

// keysMaxDefault is MAX_KEYS of a full cell (SPEC-REVIEW Part 1 section 4.1).
const keysMaxDefault = 65536

// Start begins the life of the cell: genesis when it has no cluster, otherwise boot from the
// snapshot, the own-write log and the saved peers (F4, F5).
func (c *Cell) Start(now clock.Instant) {
	c.now, c.started, c.runner.away = now, now, now
	cluster := c.config.Cluster
	if cluster.Key == (seal.Key{}) {
		c.config.Entropy(cluster.Key[:])
		cluster.Joined = false
		c.boot.compared = true
		c.saveCluster(cluster, &c.founding)
		c.log(LevelInfo, "no cluster yet: founding cluster "+hex64(seal.ClusterID(cluster.Key)))
		c.enter(cluster)
	} else {
		c.enter(cluster)
		c.guestsOfBefore()
	}
	c.restoreArrival()
	c.restore()
	c.runner.ranBefore = c.ranBefore()
	c.startBoot()
	c.drain()
}

// enter makes the cell part of a cluster with empty state and fresh protocol parts.
func (c *Cell) enter(cluster Cluster) {
	k0, k1 := seal.HashKey(cluster.Key)
	self := c.config.Self
	c.cluster, c.clusterID = cluster, seal.ClusterID(cluster.Key)
	if c.sealer == nil {
		c.sealer = seal.NewSealer(cluster.Key, self, c.incarnation)
	} else {
		c.sealer.Rekey(cluster.Key) // its counter goes on: this cell may have used the key before (F13)
	}
	c.opener = seal.NewOpener(cluster.Key, sendersMax)
	c.opener.Speak(c.config.Versions)
	c.store = crdt.New(crdt.Options{
		Self: self, HashKey0: k0, HashKey1: k1, KeysMax: c.config.KeysMax,
		OwnSequence: c.issued(), // a cluster that is entered again knows the writes of this run
	})
	c.members = overlay.NewMembers(self)
	c.guard = overlay.NewGuard(c.config.Random)
	c.detector = swim.New(swim.Options{
		Self: self, Random: c.config.Random, Members: c.members,
		Loopback: c.config.Loopback,
		Send:     c.send, Claim: c.claim, TellStatus: c.tellStatus,
		Validated: func(now clock.Instant, m *member) { c.guard.Validate(now, m.Address) },
		Observed:  c.observedBy,
		Direct:    func(now clock.Instant, m *member) bool { return c.nat.Direct(now, m) },
		MayAccuse: func(now clock.Instant, m *member) bool { return c.nat.MayAccuse(now, m) },
		Muted:     func(now clock.Instant) bool { return c.isolation.muted(c) },
		Detour:    func(now clock.Instant, m *member) { c.detour(m) },
	})
	c.enterNetwork()
	c.gossip = gossip.New(gossip.Options{
		Self: self, Random: c.config.Random, Members: c.members, Store: c.store,
		Send: c.send, Suspected: c.detector.Suspected, Missed: c.missedNews,
	})
	c.sessions = antientropy.New(antientropy.Options{
		Self: self, Random: c.config.Random, Store: c.store,
		Send: c.send, Merge: c.mergeSession, Completed: c.sessionCompleted,
	})
	c.planner = placement.NewPlanner(k0, k1)
	c.plan = c.planner.Compute(nil, nil)
	c.reconciler = reconcile.New(self)
	c.enterStreams()
	c.views.init()
	c.rollout.init()
	c.changes = changes{}
	c.guests.init()
	c.checks.init()
	c.phase = Booting
	c.load = loadState{}
	c.schedule = schedule{}
	c.successor, c.edgeDue, c.passedOver = 0, 0, 0
	c.stranger = stranger{}
	c.spoken = nil
	c.ownLost = 0
	c.sessionsWanted, c.returns = nil, make(map[wire.CellID]clock.Instant)
	c.missed = make(map[wire.CellID]struct{})
	c.detector.SetSelf(state.CellStatus{Life: state.Alive, Incarnation: c.statusIncarnation})
}

// Receive handles one datagram. It may decrypt in place; the slice is not kept.
func (c *Cell) Receive(now clock.Instant, from netip.AddrPort, datagram []byte) {
	c.now = now
	c.counters.received++
	if wire.IsRelay(datagram) {
		c.receiveRelayed(from, datagram)
		return
	}
	header, payload, trailer, err := c.config.Versions.ParseHeader(datagram)
	if err != nil {
		c.countUnknown(header, err)
		return
	}
	if (header.Type == wire.TypeJoin || header.Type == wire.TypeJoinReply) && c.arrivedVia == 0 {
		c.receiveJoin(from, header, payload)
		return
	}
	c.keepSealed(header.Type, datagram)
	mine := header.Sender != c.config.Self || c.mayHaveSent(trailer) // opening moves the seal
	header, payload, hop, err := c.opener.OpenHop(datagram)
	if err != nil {
		c.counters.unsealed++
		if err == seal.ErrReplayed {
			c.refusedReplay(from, header, len(datagram), trailer)
		}
		return
	}
	if header.Sender == c.config.Self {
		if !header.Type.Relayable() && !c.isOwnAddress(from) && !mine {
			c.sawOwnIdentity()
		}
		return
	}
	if !c.admissible(from) {
		c.counters.malformed++
		return
	}
	if header.Type == wire.TypePing && c.nat.DialBack(now, header.Nonce, from) {
		return
	}
	if !c.vouched(header.Sender, from) {
		c.guard.Received(now, from, len(datagram))
	}
	if c.arrivedVia != 0 && !c.nat.Arrived(now, c.arrivedVia, hop, from) {
		c.counters.unsealed++
		return
	}
	if header.Type.Relayable() || header.Type == wire.TypeRelayOffer {
		c.receiveStream(from, header, payload, hop)
		c.drain()
		return
	}
	c.heardVersion(header.Sender, header.Version)
	c.heard(header.Sender, from, header.Type)
	c.heardLife(header.Sender)
	c.guests.speaks(header.Sender, header.Version)
	c.replyTo, c.replyAddress = header.Sender, from
	c.dispatch(from, header, payload)
	c.replyTo = 0
	c.drain()
}

func (c *Cell) dispatch(from netip.AddrPort, header wire.Header, payload []byte) {
	sender := header.Sender
	switch header.Type {
	case wire.TypePong:
		if from.IsValid() && c.addressConfirmed(sender, from, header.Nonce) {
			return
		}
		if m := c.members.Get(sender); m != nil && from.IsValid() {
			c.nat.Pong(c.now, m, from, header.Nonce, payload)
		}
		c.detector.Receive(c.now, sender, from, header, payload)
		c.mendEdge()
	case wire.TypePing:
		c.hinted(sender, from, payload)
		c.detector.Receive(c.now, sender, from, header, payload)
	case wire.TypePingReq, wire.TypePingReqAck:
		c.detector.Receive(c.now, sender, from, header, payload)
	case wire.TypeDelta:
		c.receiveDelta(sender, header, payload)
	case wire.TypeDeltaAck:
		if !c.gossip.Ack(c.now, sender, header.Nonce) {
			c.sessions.Receive(c.now, sender, header, payload)
		}
	case wire.TypeAEState, wire.TypeAEBegin, wire.TypeAEEnd, wire.TypeAEMerkleReq, wire.TypeAEMerkleResp, wire.TypeAEVector:
		c.sessions.Receive(c.now, sender, header, payload)
	case wire.TypeFindNode:
		c.answerFindNode(sender, header, payload)
	case wire.TypePunchReq, wire.TypePunchSyn:
		c.receivePunch(sender, from, header, payload)
	case wire.TypePunchKeep:
	case wire.TypeLeave:
		c.detector.ProbeNow(c.now, sender) // a hint only (F8)
	default:
		c.counters.unhandled++
	}
}

// Tick does what is due. Calling it early is harmless.
func (c *Cell) Tick(now clock.Instant) {
	c.now = now
	c.streams.mux.Tick(now)
	c.detector.Tick(now)
	c.gossip.Tick(now)
	c.sessions.Tick(now)
	c.drain()
	c.tickIsolation()
	c.tickBoot()
	c.tickJoin()
	c.tickEdge()
	c.tickSupervision()
	c.tickSchedule()
	c.tickNetwork()
	c.drain()
	c.actuate()
	c.tickLeave()
	c.drain()
}

// Deadline returns when Tick wants to be called next.
func (c *Cell) Deadline() clock.Instant {
	next := clock.Earliest(c.detector.Deadline(), c.gossip.Deadline())
	directs := c.runner.listed && c.runner.works()
	next = clock.Earliest(next, c.sessions.Deadline())
	switch {
	case c.views.planDirty:
		next = clock.Earliest(next, c.views.planDue)
	case directs && c.views.runDirty:
		return c.now
	case directs: // without a helper there is nobody to do anything
		next = clock.Earliest(next, clock.Earliest(c.reconciler.Deadline(), c.rollout.due))
	}
	next = clock.Earliest(next, c.streams.mux.Deadline())
	next = clock.Earliest(next, c.runner.holds)
	next = clock.Earliest(next, c.bootDeadline())
	next = clock.Earliest(next, c.joinDeadline())
	next = clock.Earliest(next, c.leaveDeadline())
	next = clock.Earliest(next, c.isolation.deadline())
	next = clock.Earliest(next, c.networkDeadline())
	next = clock.Earliest(next, c.supervisionDeadline())
	return clock.Earliest(next, c.scheduleDeadline())
}

// Self returns the id of the cell.
func (c *Cell) Self() wire.CellID { return c.config.Self }

// Phase returns where the cell stands in its life.
func (c *Cell) Phase() Phase { return c.phase }

// Store gives tests and checkers a look at the replicated state. Nobody else may change it.
func (c *Cell) Store() *crdt.Store { return c.store }

// AliveCount returns how many cells, this one included, the store calls alive.
func (c *Cell) AliveCount() int {
	v := &c.views
	if !v.counted {
		v.alive, v.counted = 0, true
		for _, view := range v.cells {
			if view.hasContact && view.hasStatus && view.status.Life == state.Alive {
				v.alive++
			}
		}
	}
	return v.alive
}

// Joined reports whether the cell is in a cluster that it will not leave by itself.
func (c *Cell) Joined() bool { return c.cluster.Joined }

// ClusterID returns the identity of the cluster the cell is in (F7).
func (c *Cell) ClusterID() uint64 { return c.clusterID }
