package cell

import (
	"encoding/binary"
	"runtime"
	"slices"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// Boot: from a process with some files to a member others can rely on (F4, F5, F53, F69).
//
//	genesis ───────────────────────────────────────────► authoritative
//	snapshot or join ──► sessions with peers ──(one done)──► authoritative
//	snapshot, nobody answers for 5 min ────────────────► authoritative
//
// A session with a cell that boots itself is not enough: after a power cut both may have lost what a third one wrote and
// still has. Then every known peer has to answer, or the hold on starts to end (F69).
//
// While booting the cell keeps what runs, starts only what its snapshot lists, and refuses operators'
// writes (F56).
const (
	// bootAloneAfter is how long a cell with a snapshot waits for anybody before it acts alone (F5).
	bootAloneAfter = 5 * time.Minute
	// bootSilenceShown is how long a boot without any answer goes on before status speaks of it.
	bootSilenceShown = 20 * time.Second
	// bootRetryMin and bootRetryMax bound the pause between attempts to reach a peer (F4: 1..60 s).
	// The first rounds over all peers are faster, because a restart under load is the common case.
	bootRetryMin = 250 * time.Millisecond
	bootRetryMax = 60 * time.Second
	// bootAnswerMin is how long a peer has to answer at least before the next one is asked in its place; it grows with
	// the pauses, for paths that are slower.
	bootAnswerMin = 2 * time.Second
	// bootCalls candidates are called at each attempt, beside the one that is asked for the state: whoever answers is asked next.
	bootCalls = 3
)

type bootState struct {
	authoritative bool
	hadSnapshot   bool
	compared      bool // with another cell, or this run founded the cluster
	together      bool // only cells that boot too have answered
	joined        bool // this boot follows a join: there is nothing of an earlier life to protect
	restated      bool // it has said what it alone is responsible for
	since         clock.Instant
	attempt       clock.Instant // next attempt to open a session
	tries         int           // sessions
	calls         int           // of members, see bootCalls
	settled       clock.Instant // starts are held until then (F69)
	holding       bool          // the hold has not ended yet
	answered      map[wire.CellID]struct{}
	peers         []wire.Contact
}

// restore brings back what the directory held. A snapshot that does not load is reported, not trusted.
func (c *Cell) restore() {
	if data := c.config.Snapshot; len(data) >= 8 && binary.BigEndian.Uint64(data) != c.clusterID {
		c.log(LevelWarning, "the state snapshot is of another cluster and is left out")
	} else if len(data) >= 8 {
		if err := c.store.LoadSnapshot(data[8:]); err != nil {
			c.alarms.raise(alarmSnapshot, "warning", "the state snapshot is unusable: "+err.Error(),
				"state comes from the other cells; nothing is stopped before it is complete")
		} else {
			c.boot.hadSnapshot = true
			if c.snapshotWithholds() {
				c.ownWritesLost()
			}
		}
	}
	for _, raw := range c.config.Writes {
		for len(raw) > 0 {
			rest, err := wire.NextStateRecord(raw, &c.record)
			if err != nil {
				c.log(LevelWarning, "own-write log: a record does not parse and is left out")
				break
			}
			raw = rest
			if outcome := c.store.Merge(&c.record); !outcome.Rejected { // else of the cluster before (F7)
				c.boot.hadSnapshot = true
			}
		}
	}
	c.config.Snapshot, c.config.Writes = nil, nil
	c.viewAll()
}

// startBoot decides how much has to happen before the state is authoritative.
func (c *Cell) startBoot() {
	c.boot.since, c.boot.attempt, c.boot.tries = c.now, c.now, 0
	c.boot.answered = make(map[wire.CellID]struct{})
	c.boot.peers = slices.Clone(c.config.Peers)
	c.boot.settled = c.now
	for _, contact := range c.config.Peers {
		if contact.ID != c.config.Self && c.members.Get(contact.ID) == nil {
			c.guests.put(c.now, contact.ID, contact.Address, true)
		}
	}
	if c.config.Lost != "" {
		c.boot.hadSnapshot = false // what is left of the state is not one to act on
		c.ownWritesLost()
		c.showLost()
	} else if c.wholeCluster() {
		c.becomeAuthoritative("this cell is the whole cluster")
		return
	}
	c.boot.settled, c.boot.holding = c.now.Add(c.timing.BootSettle), true
	c.config.Random.Shuffle(len(c.boot.peers), func(i, j int) {
		c.boot.peers[i], c.boot.peers[j] = c.boot.peers[j], c.boot.peers[i]
	})
}

func (c *Cell) tickBoot() {
	if c.boot.holding && c.boot.settled.Reached(c.now) {
		c.boot.holding = false
		c.views.runDirty = true
	}
	if c.boot.authoritative {
		return
	}
	if c.boot.together && c.boot.settled.Reached(c.now) {
		c.becomeAuthoritative("state is in step with those that boot too; nobody else has answered")
		return
	}
	if c.boot.hadSnapshot && !c.boot.joined && c.now.Sub(c.boot.since) >= bootAloneAfter {
		c.becomeAuthoritative("nobody answered for 5 minutes; acting on the snapshot")
		return
	}
	if !c.boot.attempt.Reached(c.now) {
		return
	}
	c.contactPeer()
}

func (c *Cell) bootDeadline() clock.Instant {
	next := clock.Never
	if c.boot.holding {
		next = clock.Earliest(next, c.boot.settled)
	}
	if c.boot.authoritative {
		return next
	}
	next = clock.Earliest(next, c.boot.attempt)
	if c.boot.hadSnapshot && !c.boot.joined {
		next = clock.Earliest(next, c.boot.since.Add(bootAloneAfter))
	}
	return next
}

// contactPeer opens a bootstrap session with the next known cell.
func (c *Cell) contactPeer() {
	candidates := c.bootCandidates()
	pause := bootRetryMin
	if round := c.boot.tries / max(1, len(candidates)); round > 2 {
		pause = min(bootRetryMax, time.Second<<min(round-3, 6))
	}
	pause += time.Duration(c.config.Random.Int64N(int64(pause)/4 + 1))
	c.boot.attempt = c.now.Add(pause)
	if len(candidates) == 0 {
		return
	}
	peer := c.bootPeer(candidates)
	c.sessions.AbandonFor(c.now, peer, max(pause, bootAnswerMin))
	if c.sessions.Start(c.now, peer, true) {
		c.boot.tries++ // else the one asked before still has time
	}
	if c.boot.joined {
		return // who joins keeps strangers unknown to its router (F31), and one cell at least has just answered
	}
	for i := range min(bootCalls, len(candidates)) {
		id := candidates[(c.boot.calls+i)%len(candidates)]
		address, named, _ := c.guests.address(id)
		if m := c.members.Get(id); m != nil {
			address, named = m.Address, true
		}
		if named && address.IsValid() && c.canCheck(id) { // an address of this cell's own directory, so none to guard
			c.askAddress(id, address)
		}
	}
	c.boot.calls += bootCalls
}

// bootPeer returns who is asked next: all candidates in turn, and every other time one that was heard since this boot
// began, if there is any. Of a large cluster a cell behind a filter may reach one only.
func (c *Cell) bootPeer(candidates []wire.CellID) wire.CellID {
	turn := c.boot.tries / 2
	if c.boot.tries%2 == 1 {
		for i := range candidates {
			id := candidates[(turn+i)%len(candidates)]
			if c.heardWhileBooting(id) {
				return id
			}
		}
		turn += len(candidates) / 2 // so nobody is asked twice in a row
	}
	return candidates[turn%len(candidates)]
}

func (c *Cell) heardWhileBooting(id wire.CellID) bool {
	if m := c.members.Get(id); m != nil {
		return m.Heard > c.boot.since
	}
	return slices.ContainsFunc(c.guests.list, func(g guest) bool { return g.id == id && g.heard > c.boot.since })
}

func (c *Cell) bootCandidates() []wire.CellID {
	ids := make([]wire.CellID, 0, len(c.boot.peers))
	for _, contact := range c.boot.peers {
		if contact.ID != c.config.Self {
			ids = append(ids, contact.ID)
		}
	}
	c.members.Each(func(m *member) bool {
		if !slices.Contains(ids, m.ID) {
			ids = append(ids, m.ID)
		}
		return len(ids) < guestsMax
	})
	for i := range c.guests.list { // whoever speaks to this cell knows the cluster key
		if id := c.guests.list[i].id; !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// sessionCompleted is told by anti-entropy that all differences with a peer were exchanged.
func (c *Cell) sessionCompleted(_ clock.Instant, peer wire.CellID, _ bool) {
	c.counters.sessions++
	// What the others know to be superseded may have left no other trace of this cell's later dots (F1, F45).
	if own := c.store.Stable(c.config.Self); own > uint64(c.incarnation)<<wire.CounterBits|c.counter {
		c.changes.ownAhead = max(c.changes.ownAhead, own)
	}
	if c.changes.ownAhead != 0 {
		c.ownDotAhead() // before anything is written
	}
	if !c.boot.compared {
		c.boot.compared = true
		if c.boot.joined && c.livedHere() {
			c.ownWritesLost()
		}
		c.ownStable()
	}
	c.startWanted()
	if c.boot.answered != nil && len(c.boot.answered) < guestsMax {
		c.boot.answered[peer] = struct{}{}
	}
	c.bootSettled()
	if c.boot.authoritative {
		return
	}
	if !c.boot.hadSnapshot && !c.boot.joined && !(c.knowsAlive(peer) && c.settledIn(peer)) {
		// Two cells without memory cannot vouch for each other, however long they wait (F5). What is left of a damaged state
		// says that the other one lives, not that it has lost nothing itself (F157).
		return
	}
	if !c.boot.joined && !c.settledIn(peer) && !c.boot.settled.Reached(c.now) {
		c.boot.together = true // until the others have answered, see tickBoot
		return
	}
	c.becomeAuthoritative("state is in step with cell " + peer.String())
}

// settledIn reports whether a cell has spoken for itself since it started, which it does not while it boots.
func (c *Cell) settledIn(peer wire.CellID) bool {
	view := c.views.cells[peer]
	return view != nil && view.hasStatus && view.status.Incarnation >= c.opener.Newest(peer)<<statusIncarnationShift
}

// expelled: an operator declared this cell gone while it was out of reach. It is here, so it comes back,
// but like a cell that boots: it hears all that was said in its absence before it says anything (F46).
func (c *Cell) expelled() {
	c.log(LevelWarning, "the others have given this cell up: coming back")
	c.phase = Booting
	c.boot = bootState{hadSnapshot: true}
	c.startBoot()
}

func (c *Cell) knowsAlive(peer wire.CellID) bool {
	view := c.views.cells[peer]
	return view != nil && view.hasStatus && view.status.Life == state.Alive
}

// bootSettled ends the hold on starts once every persisted peer has answered (F69).
func (c *Cell) bootSettled() {
	for _, contact := range c.boot.peers {
		if _, ok := c.boot.answered[contact.ID]; !ok && contact.ID != c.config.Self {
			return
		}
	}
	c.boot.settled = min(c.boot.settled, c.now)
}

func (c *Cell) becomeAuthoritative(why string) {
	c.boot.authoritative = true
	c.phase = Active
	c.log(LevelInfo, "active: "+why)
	c.restate()
	c.planChanged()
	c.dropFormer()
	c.endLoss()
	c.arrive()
}

// restate publishes everything this cell alone is responsible for: contact, capacity, endpoints, its
// refusals, its life. Called when the state becomes authoritative and after a new incarnation.
func (c *Cell) restate() {
	if c.writes.raising != 0 {
		c.schedule.restate = true
		return
	}
	c.schedule.restate = false
	self := c.config.Self
	c.publish(state.ContactKey(self), append(state.AppendCellContact(nil, c.ownContact()), c.config.ContactExtension...))
	if c.runner.known {
		c.publish(state.CapacityKey(self), state.AppendCellCapacity(nil, c.runner.capacity()))
	}
	c.publishEndpoints()
	c.announceSelf()
	if c.boot.joined && !c.boot.restated {
		c.withdrawDrain()
	}
	c.boot.restated = true
}

func (c *Cell) ownContact() state.CellContact {
	c.nat.Settle(c.now)
	arch := c.config.Arch
	if arch == "" {
		arch = runtime.GOARCH
	}
	return state.CellContact{
		SecretHash: c.config.SecretHash,
		ClusterID:  c.clusterID,
		Flags:      c.runnerFlags() | c.narrowFlag(),
		VersionMin: c.config.Versions.Min,
		VersionMax: c.config.Versions.Max,
		Features:   c.config.Features,
		KeysMax:    c.config.KeysMax,
		Arch:       arch,
		Hostname:   c.config.Hostname,
		Software:   c.config.Software,
		Candidates: c.nat.Candidates(make([]state.Candidate, 0, state.CandidatesMax)),
		Reach:      c.nat.Class(),
		Homes:      c.nat.Homes(),
		Labels:     c.config.Labels,
	}
}
