package cell

import (
	"cmp"
	"encoding/binary"
	"slices"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// Periods of what the cell itself does (SPEC-REVIEW Part 1 section 5.4). Timing overrides some in tests.
const (
	antiEntropyInterval = 30 * time.Second
	snapshotInterval    = 10 * time.Second
	garbageInterval     = 60 * time.Second
	isolationHold       = 30 * time.Second
	readmissionHold     = 10 * time.Second
	readmissionHoldMax  = 5 * time.Minute
	bootSettle          = 10 * time.Second
	// peersInterval is how long changes of the contact list may wait before they are saved (F4).
	peersInterval = 2 * time.Second
	// wantedInterval is how often a session that is wanted is tried while another one is under way.
	wantedInterval = 100 * time.Millisecond
	// tombstoneGrace is how long a dead cell still counts in the garbage collection of tombstones (F46).
	tombstoneGrace = 24 * time.Hour
	// peersMax bounds the saved contacts (F4).
	peersMax = 64
)

func (t Timing) withDefaults() Timing {
	set := func(d *time.Duration, value time.Duration) {
		if *d == 0 {
			*d = value
		}
	}
	set(&t.AntiEntropyInterval, antiEntropyInterval)
	set(&t.SnapshotInterval, snapshotInterval)
	set(&t.GarbageInterval, garbageInterval)
	set(&t.IsolationHold, isolationHold)
	set(&t.ReadmissionHold, readmissionHold)
	set(&t.BootSettle, bootSettle)
	return t
}

type schedule struct {
	antiEntropy clock.Instant
	rounds      int
	wanted      clock.Instant
	snapshot    clock.Instant
	garbage     clock.Instant
	peers       clock.Instant
	restate     bool
	reclaim     clock.Instant // state everything again then, 0 = no need
}

type persistState struct {
	stateDirty     bool
	peersDirty     bool
	snapshotTicket uint64
	snapshotWanted bool // as soon as no operator's write is under way
}

// due reports whether a periodic deadline has come, and sets the next one.
func (c *Cell) due(deadline *clock.Instant, period time.Duration) bool {
	if *deadline == 0 {
		*deadline = c.now.Add(period)
		return false
	}
	if !deadline.Reached(c.now) {
		return false
	}
	*deadline = c.now.Add(period)
	return true
}

func (c *Cell) tickSchedule() {
	s := &c.schedule
	if s.reclaim != 0 && s.reclaim.Reached(c.now) {
		s.restate, s.reclaim = true, 0
	}
	if s.restate && c.phase != Booting && c.writes.raising == 0 {
		c.restate()
	}
	c.tickStranger()
	if c.phase != Booting && c.members.Len() > 0 {
		if c.due(&s.wanted, wantedInterval) {
			c.startWanted()
		}
		jitter := c.timing.AntiEntropyInterval / 5
		period := c.timing.AntiEntropyInterval - jitter + time.Duration(c.config.Random.Int64N(int64(2*jitter)))
		if c.due(&s.antiEntropy, period) {
			c.antiEntropyRound()
		}
	}
	if c.persist.stateDirty && c.due(&s.snapshot, c.timing.SnapshotInterval) {
		c.saveSnapshot()
	}
	if c.due(&s.garbage, c.timing.GarbageInterval) {
		c.collectGarbage()
		c.forgetTwin()
		if c.unfounded {
			c.unfounded = false
			c.saveCluster(c.cluster, &c.founding)
		}
		c.forgetNarrow()
		c.reviewDenials()
	}
	// The founder that meets its first cell remembers it at once: from now on it never founds a cluster
	// again, whatever happens in the next second (F4).
	if c.persist.peersDirty && (c.due(&s.peers, peersInterval) || !c.cluster.Joined && c.members.Len() > 0) {
		c.savePeers()
	}
}

func (c *Cell) scheduleDeadline() clock.Instant {
	s := &c.schedule
	next := clock.Never
	consider := func(active bool, deadline clock.Instant) {
		if active && deadline == 0 {
			deadline = c.now // not armed yet: Tick arms it
		}
		if active {
			next = clock.Earliest(next, deadline)
		}
	}
	consider(c.stranger.id != 0, c.stranger.due)
	consider(c.edgeDue != 0, c.edgeDue)
	alone := c.members.Len() == 0 || c.phase == Booting
	consider(!alone, s.antiEntropy)
	consider(!alone && len(c.sessionsWanted) > 0, s.wanted)
	consider(c.persist.stateDirty, s.snapshot)
	consider(true, s.garbage)
	consider(c.persist.peersDirty, s.peers)
	consider(c.persist.peersDirty && !c.cluster.Joined && c.members.Len() > 0, c.now)
	consider(s.restate && c.phase != Booting && c.writes.raising == 0, c.now)
	consider(s.reclaim != 0, s.reclaim)
	return next
}

// antiEntropyRound picks a partner uniformly among the living, every tenth time among the dead, which
// heals silent partitions (F54).
func (c *Cell) antiEntropyRound() {
	c.schedule.rounds++
	wantDead := c.schedule.rounds%10 == 0
	pick := func(dead bool) bool {
		var found [1]*member
		n := c.members.Random(c.config.Random, 1, found[:0], func(m *member) bool {
			return (m.Life == state.Dead) != dead
		})
		if len(n) == 0 {
			return false
		}
		c.sessions.Start(c.now, n[0].ID, false)
		return true
	}
	if !pick(wantDead) && wantDead {
		pick(false)
	}
}

// saveSnapshot hands a copy of the state to the storage. At most one is under way.
func (c *Cell) saveSnapshot() {
	if c.persist.snapshotTicket != 0 || c.config.Lost != "" {
		return // of a part of the state none is made: a file put back from a backup must still count
	}
	if len(c.writes.pending) > 0 {
		// A write that is in the log but not in the store yet must not be taken for part of the snapshot.
		// New writes wait until it is made, so this cannot go on for longer than one sync.
		c.persist.snapshotWanted = true
		return
	}
	c.persist.stateDirty, c.persist.snapshotWanted = false, false
	c.persist.snapshotTicket = c.nextTicket()
	if c.arrival != nil && c.arrival.merged {
		c.arrival.snapshot = c.persist.snapshotTicket
	}
	// The cluster's id goes in front: after a crash between joining a cluster and the first snapshot in it,
	// the directory holds the state of the one before, which must never enter this one (F7).
	data := binary.BigEndian.AppendUint64(nil, c.clusterID)
	c.config.Storage.SaveSnapshot(c.persist.snapshotTicket, c.store.AppendSnapshot(data))
}

// SaveState saves a snapshot out of turn, because the directory no longer holds the last one.
func (c *Cell) SaveState(now clock.Instant) {
	c.now = now
	c.persist.stateDirty = true // also where one is under way, which may be lost, too
	c.saveSnapshot()
	c.drain()
}

// savePeers remembers up to 64 contacts: those in service before the dead, and of more than fit those heard most
// recently (F4).
func (c *Cell) savePeers() {
	c.persist.peersDirty = false
	var kept []*member
	c.members.Each(func(m *member) bool {
		if m.Address.IsValid() {
			kept = append(kept, m)
		}
		return true
	})
	dead := func(m *member) int {
		if m.Life == state.Dead {
			return 1
		}
		return 0
	}
	if len(kept) > peersMax {
		slices.SortFunc(kept, func(a, b *member) int {
			return cmp.Or(dead(a)-dead(b), cmp.Compare(b.Heard, a.Heard), cmp.Compare(a.ID, b.ID))
		})
		kept = kept[:peersMax]
	}
	slices.SortFunc(kept, func(a, b *member) int { return cmp.Or(dead(a)-dead(b), cmp.Compare(a.ID, b.ID)) })
	contacts := make([]wire.Contact, 0, len(kept))
	for _, m := range kept {
		contacts = append(contacts, wire.Contact{
			ID: m.ID, Address: m.Address, Reach: wire.ReachUnknown, Flags: uint8(m.Flags),
		})
	}
	c.config.Storage.SavePeers(c.nextTicket(), contacts)
	if len(contacts) > 0 && !c.cluster.Joined {
		c.cluster.Joined = true
		c.saveCluster(c.cluster, nil)
	}
}

// saveCluster stores the membership; the ticket goes to t if given.
func (c *Cell) saveCluster(cluster Cluster, t *uint64) {
	ticket := c.nextTicket()
	if t != nil {
		*t = ticket
	}
	c.config.Storage.SaveCluster(ticket, cluster)
}

// collectGarbage frees tombstones that every counting member has stably seen (F45, F46).
func (c *Cell) collectGarbage() {
	ids := make([]wire.CellID, 0, c.members.Len())
	for _, id := range c.cellIDs() {
		view := c.views.cells[id]
		if id == c.config.Self || !view.hasContact || view.hasStatus && view.status.Life == state.Gone {
			continue
		}
		if view.hasStatus && view.status.Life == state.Dead && view.outSince != 0 &&
			c.now.Sub(view.outSince) > tombstoneGrace {
			continue
		}
		ids = append(ids, id)
	}
	c.sessions.SetMembers(ids)
	c.sessions.Collect()
}
