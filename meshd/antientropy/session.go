package antientropy

import (
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/crdt"
	"colloid.net/meshd/wire"
)

// session is one exchange with one peer.
type session struct {
	active    bool
	initiator bool
	bootstrap bool // started here as such
	fast      bool
	begun     bool // the peer's BEGIN is here
	peerEnded bool // responder: the initiator's END is here
	peer      wire.CellID
	nonce     uint32 // of BEGIN and END

	started  clock.Instant
	heard    clock.Instant
	replied  clock.Instant // responder: last BEGIN sent
	deadline clock.Instant

	view   *crdt.View
	window window
	begin  []byte // own BEGIN, to be repeated by a responder

	// Vectors: ours as stated in BEGIN, and how much of it was sent; the peer's as far as it is here.
	stated     []byte
	statedSent int // dots; what BEGIN holds counts
	vector     []byte
	vectorSize int // dots in total, -1 = not known yet

	// State: leaves to send, leaves sent, and where in the first of them the next frame begins.
	wanted, done crdt.LeafSet
	cursor       cursor

	// Initiator: ranges to compare (a stack) and leaves to ask for.
	drills []wire.MerkleRange
	asks   crdt.LeafSet
}

// cursor stands behind the last register that was sent of a leaf.
type cursor struct {
	leaf        int // -1: at no leaf
	hash        uint64
	name        [wire.NameMax]byte
	nameLength  int
	fragment    int    // frames already made of the register that comes next
	fingerprint uint64 // of that register when they were made
}

// open starts a session in a free place. The caller freezes the view if one is needed.
func (a *Sessions) open(s *session, now clock.Instant, peer wire.CellID, initiator bool, nonce uint32) {
	s.active, s.initiator, s.bootstrap, s.fast = true, initiator, false, false
	s.begun, s.peerEnded = false, false
	s.peer, s.nonce = peer, nonce
	s.started, s.heard, s.deadline, s.replied = now, now, clock.Never, 0
	s.window.reset(now, a.Random.Uint32())
	s.vector, s.vectorSize = s.vector[:0], -1
	s.wanted.Reset()
	s.done.Reset()
	s.asks.Reset()
	s.cursor = cursor{leaf: -1}
	s.drills = s.drills[:0]
	a.stats.Started++
	a.forgetWaiting(peer)
}

// silence is how long a session may hear nothing. A responder that was never heard of again after its
// first answer has most likely answered a BEGIN that its sender had given up.
func (s *session) silence() time.Duration {
	if !s.initiator && s.heard == s.started {
		return answeredSilenceMax
	}
	return silenceMax
}

func (a *Sessions) close(s *session) {
	s.active = false
	if s.view != nil {
		s.view.Release()
		s.view = nil
	}
}

func (a *Sessions) fail(s *session) {
	a.close(s)
	a.stats.Failed++
}

// complete ends a session whose differences are all here: now C may rise to what the peer stated (F45 ii).
func (a *Sessions) complete(now clock.Instant, s *session) {
	if s.vectorWhole() {
		a.Store.RaiseStable(s.vector)
	}
	peer, bootstrap := s.peer, s.bootstrap
	a.closed[a.closedAt] = ending{peer, s.nonce}
	a.closedAt = (a.closedAt + 1) % closedMax
	a.close(s)
	a.stats.Completed++
	a.Completed(now, peer, bootstrap)
}

// cost of one message and the most that may be saved up.
func (s *session) cost() (each, burst time.Duration) {
	if s.fast {
		return fastCost, fastBurst
	}
	return steadyCost, steadyBurst
}

// advance lets the session with a peer go on after something arrived.
func (a *Sessions) advance(now clock.Instant, peer wire.CellID) {
	if s := a.find(peer); s != nil {
		a.work(now, s)
	}
}

// work sends what is due and allowed, ends the session if it is over, and sets its deadline.
func (a *Sessions) work(now clock.Instant, s *session) {
	if now.Sub(s.heard) >= s.silence() || now.Sub(s.started) >= durationMax {
		a.fail(s)
		return
	}
	each, burst := s.cost()
	s.window.refill(now, burst)
	if !a.repeat(now, s, each) {
		a.fail(s)
		return
	}
	for s.begun && s.window.credit >= each && a.sendNext(now, s) {
	}
	if a.finish(now, s) {
		return
	}
	a.plan(s)
}

// finish takes the last steps once everything is sent and acknowledged. It reports whether the
// session is over.
func (a *Sessions) finish(now clock.Instant, s *session) bool {
	if !s.begun || s.window.used+s.window.objects > 0 || a.pending(s) {
		return false
	}
	if s.initiator {
		a.send(now, s, s.window.take(kindEnd), s.nonce)
		return false
	}
	if !s.peerEnded {
		return false
	}
	a.Send(s.peer, wire.TypeAEEnd, s.nonce, nil)
	a.complete(now, s)
	return true
}

// pending reports whether there is anything that has not been sent once.
func (a *Sessions) pending(s *session) bool {
	if s.vectorsLeft() || len(s.drills) > 0 {
		return true
	}
	if _, any := s.asks.Next(0); any {
		return true
	}
	_, any := s.wanted.Next(0)
	return any
}

// sendNext sends one new message: vectors first, then comparisons, then questions, then state. It
// reports false if there is none or the window is full.
func (a *Sessions) sendNext(now clock.Instant, s *session) bool {
	if s.window.used == slotsMax {
		return false
	}
	switch {
	case s.vectorsLeft():
		a.sendVector(now, s)
		return true
	case len(s.drills) > 0:
		a.sendDrill(now, s)
		return true
	}
	if leaf, any := s.asks.Next(0); any {
		a.sendAsk(now, s, leaf)
		return true
	}
	return a.sendState(now, s)
}

// send sends a message of the window for the first time.
func (a *Sessions) send(now clock.Instant, s *session, o *outstanding, nonce uint32) {
	o.nonce = nonce
	a.attempt(now, s, o)
}

func (a *Sessions) attempt(now clock.Instant, s *session, o *outstanding) {
	o.attempts++
	o.sent = now
	o.due = now.Add(s.window.patience(o.attempts))
	price, _ := s.cost()
	if o.kind == kindDrill {
		price *= time.Duration(1 + len(o.payload)/wire.MerkleRangeSize) // whoever asks pays for the responses
	}
	s.window.credit -= price
	a.Send(s.peer, kindTypes[o.kind], o.nonce, o.payload)
}

// repeat sends overdue messages again. It reports false if one was tried too often.
func (a *Sessions) repeat(now clock.Instant, s *session, each time.Duration) bool {
	for i := range s.window.frames {
		for _, o := range [2]*outstanding{&s.window.frames[i], &s.window.answers[i]} {
			if o.kind == kindFree || !o.due.Reached(now) {
				continue
			}
			if o.kind == kindEnd && now.Sub(s.heard) < s.window.patience(1) {
				o.due = s.heard.Add(s.window.patience(1)) // the peer is still sending: it will answer when done
				continue
			}
			if o.attempts >= attemptsMax || o.kind == kindBegin && o.attempts >= beginAttemptsMax {
				return false
			}
			if s.window.credit < each {
				continue
			}
			a.stats.Repeated++
			a.attempt(now, s, o)
		}
	}
	return true
}

// plan sets the deadline of the session.
func (a *Sessions) plan(s *session) {
	deadline := clock.Earliest(s.heard.Add(s.silence()), s.started.Add(durationMax))
	each, _ := s.cost()
	credited := s.window.creditAt
	if short := each - s.window.credit; short > 0 {
		credited = credited.Add(short)
	}
	if due := s.window.next(); due != clock.Never {
		deadline = clock.Earliest(deadline, max(due, credited))
	}
	if s.begun && s.window.used < slotsMax && a.pending(s) {
		if s.fast {
			credited = credited.Add(8 * each) // several at once, so that the timer need not run at 2 kHz
		}
		deadline = clock.Earliest(deadline, credited)
	}
	s.deadline = deadline
}
