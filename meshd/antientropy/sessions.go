package antientropy

import (
	"math/rand/v2"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/crdt"
	"colloid.net/meshd/wire"
)

// Limits of the package; see the package comment.
const (
	outgoingMax = 1
	incomingMax = 2
	slotsMax    = 64   // unacknowledged frames, and as many answers
	vectorsMax  = 4096 // peers whose vectors are remembered
	closedMax   = 16   // ended sessions whose AE_END is repeated on demand

	// VectorEvery is how often a session carries the stability vectors without garbage waiting (F44).
	VectorEvery = 10
)

// Timing. Silence must outlast many tries at 30 % loss.
const (
	silenceMax = 20 * time.Second
	// answeredSilenceMax lets the initiator repeat its BEGIN and its first request a few times.
	answeredSilenceMax = 5 * time.Second
	// replyInterval bounds the answers to repeated BEGINs: two cells that each take the other for the
	// initiator must not keep answering each other.
	replyInterval     = 100 * time.Millisecond
	durationMax       = 10 * time.Minute
	retryInitial      = 300 * time.Millisecond
	retryMin          = 30 * time.Millisecond
	retryMax          = time.Second
	attemptsMax       = 24
	beginAttemptsMax  = 8
	abandonSilence    = retryInitial
	yieldAfterSilence = 2 * time.Second // a peer that begins anew after this has lost the session

	steadyCost  = time.Second / 100     // per message (AE_RATE_LIMIT)
	steadyBurst = slotsMax * steadyCost // messages at once: what most sessions need in all
	fastCost    = time.Second / 2000    // F53
	fastBurst   = slotsMax * fastCost
)

// Options of New. All fields but Merge and Completed are required.
type Options struct {
	Self   wire.CellID
	Random *rand.Rand
	Store  *crdt.Store
	// Send sends one message; payload is valid during the call.
	Send func(to wire.CellID, t wire.Type, nonce uint32, payload []byte)
	// Merge takes a received record into the store. nil means Store.Merge. It must not change the store
	// otherwise than by one Store.Merge of this record, and must not call back into Sessions.
	Merge func(now clock.Instant, from wire.CellID, record *wire.Record) crdt.Outcome
	// Completed is called when this side has finished a session; bootstrap is true for one that was
	// started here with bootstrap set.
	Completed func(now clock.Instant, peer wire.CellID, bootstrap bool)
}

// Stats counts since New.
type Stats struct {
	Started, Completed, Failed uint64 // sessions
	Equal                      uint64 // of Completed: roots were equal
	Records                    uint64 // received and merged
	Frames                     uint64 // AE_STATE sent, repetitions not counted
	Repeated                   uint64 // messages sent again
	Dropped                    uint64 // messages that fitted no session or were malformed
	Busy                       uint64 // AE_BEGIN for which no session was free
}

// Sessions runs the anti-entropy sessions of one cell. It is not safe for concurrent use.
type Sessions struct {
	Options
	stats    Stats
	sessions [outgoingMax + incomingMax]*session // the first is for outgoing ones
	waiting  []waitingBegin                      // for an incoming one
	closed   [closedMax]ending
	closedAt int
	count    uint32 // sessions begun here, for VectorEvery

	vectors map[wire.CellID][]byte // last complete statement of each peer
	members []wire.CellID

	scratch [wire.SealedPayloadMax]byte
	hashes  []uint64
	record  wire.Record // handed to Merge by pointer, so it must not be a local variable
	answer  wire.Record
}

type ending struct {
	peer  wire.CellID
	nonce uint32
}

// New returns sessions without any running.
func New(options Options) *Sessions {
	if options.Random == nil || options.Store == nil || options.Send == nil || !options.Self.Valid() {
		panic("antientropy: incomplete options")
	}
	if options.Merge == nil {
		store := options.Store
		options.Merge = func(_ clock.Instant, _ wire.CellID, r *wire.Record) crdt.Outcome { return store.Merge(r) }
	}
	if options.Completed == nil {
		options.Completed = func(clock.Instant, wire.CellID, bool) {}
	}
	return &Sessions{Options: options, vectors: make(map[wire.CellID][]byte)}
}

// Start begins a session with peer. It reports false if an outgoing session or one with this peer is
// running already. Completed tells about success, nothing about failure: try again at the next interval.
func (a *Sessions) Start(now clock.Instant, peer wire.CellID, bootstrap bool) bool {
	if !peer.Valid() || peer == a.Self || a.find(peer) != nil || a.slot(0).active {
		return false
	}
	s := a.slot(0)
	a.open(s, now, peer, true, a.nonce(peer))
	s.bootstrap, s.fast = bootstrap, bootstrap
	s.view = a.Store.View()
	a.state(s, s.view.Root(), a.count%VectorEvery == 0)
	a.count++
	a.sendBegin(now, s)
	a.plan(s)
	return true
}

// nonce draws the number of a session begun here. Its lowest bit says which of the two cells began: the one
// with the greater id or the other. So an answer can be told from a beginning by itself, also by a cell
// that has forgotten the session or was restarted since; two cells that took each other's late answers for
// beginnings would answer one another for ever.
func (a *Sessions) nonce(peer wire.CellID) uint32 {
	nonce := a.Random.Uint32() &^ 1
	if a.Self > peer {
		nonce |= 1
	}
	return nonce
}

// begunHere reports whether the number is that of a session that this cell began.
func (a *Sessions) begunHere(peer wire.CellID, nonce uint32) bool {
	return nonce&1 == 1 == (a.Self > peer)
}

// Abandon gives up the session begun here, unless it is a bootstrap, and those begun by others that have been
// silent for a while: the caller has learnt that datagrams of their peers may have gone where this cell is no
// longer. One that stays would keep its peer from being asked for what was missed until its silence has
// lasted long enough.
func (a *Sessions) Abandon(now clock.Instant) {
	for i, s := range a.sessions {
		if s != nil && s.active && !s.bootstrap && (i < outgoingMax || now.Sub(s.heard) >= abandonSilence) {
			a.fail(s)
		}
	}
}

// AbandonFor gives up the bootstrap begun here with another peer than this one if that has said nothing to it
// for so long: a cell that boots asks the next one rather than wait for one that may be gone (F4, F69).
func (a *Sessions) AbandonFor(now clock.Instant, peer wire.CellID, patience time.Duration) {
	if s := a.slot(0); s.active && s.bootstrap && !s.begun && s.peer != peer && now.Sub(s.started) >= patience {
		a.fail(s)
	}
}

// Running reports whether a session with peer is under way.
func (a *Sessions) Running(peer wire.CellID) bool { return a.find(peer) != nil }

// Stats returns the counters.
func (a *Sessions) Stats() Stats { return a.stats }

// Receive handles one verified message of the types 0x06 to 0x09 and 0x15 to 0x17. An AE_STATE
// message is merged and acknowledged whether or not a session runs (gossip sends them too).
func (a *Sessions) Receive(now clock.Instant, from wire.CellID, header wire.Header, payload []byte) {
	s := a.find(from)
	if s != nil && header.Type != wire.TypeAEBegin && header.Type != wire.TypeDeltaAck {
		s.heard = now // acknowledgements may be for gossip, and whether a BEGIN counts is seen below
	}
	switch header.Type {
	case wire.TypeAEBegin:
		a.receiveBegin(now, s, from, header.Nonce, payload)
	case wire.TypeAEState:
		a.receiveState(now, s, from, header.Nonce, payload)
	case wire.TypeDeltaAck:
		a.receiveAck(now, s, header.Nonce)
	case wire.TypeAEEnd:
		a.receiveEnd(now, s, from, header.Nonce, payload)
	case wire.TypeAEMerkleReq:
		a.receiveRequest(s, header.Nonce, payload)
	case wire.TypeAEMerkleResp:
		a.receiveResponse(now, s, header.Nonce, payload)
	case wire.TypeAEVector:
		a.receiveVector(s, header.Nonce, payload)
	default:
		a.stats.Dropped++
		return
	}
	a.advance(now, from)
	a.serveWaiting(now)
}

// Forget ends sessions with the peer and drops its vector: it has left or its address is gone.
func (a *Sessions) Forget(peer wire.CellID) {
	if s := a.find(peer); s != nil {
		a.fail(s)
	}
	delete(a.vectors, peer)
}

// SetMembers tells whose vectors count for garbage collection: all members but the ones GONE, or DEAD
// for longer than TOMBSTONE_GRACE (F46). Vectors of others are dropped.
func (a *Sessions) SetMembers(members []wire.CellID) {
	a.members = append(a.members[:0], members...)
	kept := make(map[wire.CellID][]byte, len(members))
	for _, member := range members {
		if vector, known := a.vectors[member]; known {
			kept[member] = vector
		}
	}
	a.vectors = kept
}

// Collect frees what all members are known to have superseded (F45 iv) and returns how many registers
// went. A member that never stated its vector holds tombstones back.
func (a *Sessions) Collect() int {
	vectors := make([][]byte, 0, len(a.members))
	for _, member := range a.members {
		if member != a.Self {
			vectors = append(vectors, a.vectors[member])
		}
	}
	return a.Store.Collect(vectors)
}

// Tick sends what is due.
func (a *Sessions) Tick(now clock.Instant) {
	for _, s := range a.sessions {
		if s != nil && s.active && s.deadline.Reached(now) {
			a.work(now, s)
		}
	}
	a.serveWaiting(now)
}

// Deadline returns when Tick has something to do.
func (a *Sessions) Deadline() clock.Instant {
	deadline := clock.Never
	for _, s := range a.sessions {
		if s != nil && s.active {
			deadline = clock.Earliest(deadline, s.deadline)
		}
	}
	return deadline
}

// find returns the session with a peer; there is at most one.
func (a *Sessions) find(peer wire.CellID) *session {
	for _, s := range a.sessions {
		if s != nil && s.active && s.peer == peer {
			return s
		}
	}
	return nil
}

// slot returns session number i, making it at its first use.
func (a *Sessions) slot(i int) *session {
	if a.sessions[i] == nil {
		a.sessions[i] = new(session)
	}
	return a.sessions[i]
}

// idle returns a free session for an incoming BEGIN, or nil.
func (a *Sessions) idle() *session {
	for i := range incomingMax {
		if s := a.slot(outgoingMax + i); !s.active {
			return s
		}
	}
	return nil
}
