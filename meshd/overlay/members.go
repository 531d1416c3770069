package overlay

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// MembersMax bounds the member list; it equals the largest peer table of the data plane (MAX_PEERS).
const MembersMax = 4096

// Member is another cell as this cell knows it. The pointer stays the same until Remove.
type Member struct {
	ID         wire.CellID
	Address    netip.AddrPort // where datagrams go; invalid until an address is known
	Candidates []state.Candidate
	Flags      uint32        // state.Flag*
	Reach      wire.Reach    // class of the cell (specification 6.1)
	Homes      []wire.CellID // cells through which it is reached, see state.CellContact

	Versions wire.Versions // of the protocol, as the cell's contact says

	Contacted clock.Instant // when nat last took down that this cell sends to Contactee, see there
	Contactee netip.Addr

	Life              state.Life // as the store says; 0 until a status was heard
	StatusIncarnation uint32
	Sealing           uint32 // the latest incarnation it was heard to seal under, 0 before

	RTT       time.Duration // round trip, EWMA with weight 0.25; 0 until the first PONG
	Heard     clock.Instant // last verified datagram of any kind
	Validated clock.Instant // last PONG to an outstanding nonce: proof of contact both ways
	Answered  clock.Instant // last answer to a question of this cell about whoever, on whatever way
	Asked     clock.Instant // last question that it should answer
	Awaited   clock.Instant // first of those asked in a row that it has not answered, 0 = none

	Source      netip.AddrPort // source address of the last datagram whose address was noted
	SourceHeard clock.Instant  // when that was; what a PING reports must be fresh (F23)

	Failures int // probes in a row that nobody answered
}

// NeedsHelp reports whether datagrams of a stranger may not reach the member: it names cells through which
// it is reached (F36).
func (m *Member) NeedsHelp() bool { return m.Reach >= wire.ReachPunched || len(m.Homes) > 0 }

// HasHome reports whether a cell is one of the member's homes.
func (m *Member) HasHome(id wire.CellID) bool { return slices.Contains(m.Homes, id) }

// InService reports whether the store does not rule the member out: neither DEAD nor GONE.
func (m *Member) InService() bool { return m.Life != state.Dead && m.Life != state.Gone }

// ObserveRTT adds one round trip to the moving average (specification 4.6, weight 0.25). Samples that
// are not positive are ignored.
func (m *Member) ObserveRTT(sample time.Duration) {
	switch {
	case sample <= 0:
	case m.RTT == 0:
		m.RTT = sample
	default:
		m.RTT += (sample - m.RTT) / 4
	}
}

// Members is the complete list of the other cells, sorted by id, which is also the ring (F41). The
// owner keeps it equal to the cells that have a contact in the store and are not GONE. Self is never
// in it.
type Members struct {
	self   wire.CellID
	most   int
	sorted []*Member
	ids    []wire.CellID           // of sorted: searching needs nothing else of a member
	byID   map[wire.CellID]*Member // for Get only; never iterated
	last   *Member                 // that Get found: one datagram asks for its sender many times
	// version rises with every Upsert that added and every Remove, revision also when a member changed.
	version, revision uint64
}

// NewMembers returns an empty list for the cell self.
func NewMembers(self wire.CellID) *Members {
	if !self.Valid() {
		panic(fmt.Sprintf("overlay: cell id %v is reserved", self))
	}
	return &Members{self: self, most: MembersMax, byID: make(map[wire.CellID]*Member)}
}

// NewMembersForMeasurement is NewMembers with another bound than MembersMax. A cell does not use it: its
// replay windows, its peer table and its traffic are made for MembersMax.
func NewMembersForMeasurement(self wire.CellID, most int) *Members {
	l := NewMembers(self)
	l.most = most
	return l
}

// Self returns the cell whose view this is.
func (l *Members) Self() wire.CellID { return l.self }

// Len returns the number of other cells.
func (l *Members) Len() int { return len(l.sorted) }

// Version changes whenever a member was added or removed.
func (l *Members) Version() uint64 { return l.version }

// Revision changes whenever a member was added or removed, and with every call of Revised. Who looks at all
// members for one of some kind need not look again as long as it is the same.
func (l *Members) Revision() uint64 { return l.revision }

// Revised notes that the address, the class, the homes or the life of a member became another; whoever
// sets them calls it.
func (l *Members) Revised() { l.revision++ }

// At returns the i-th member in id order; i must be in [0, Len).
func (l *Members) At(i int) *Member { return l.sorted[i] }

// Get returns the member or nil.
func (l *Members) Get(id wire.CellID) *Member {
	if l.last != nil && l.last.ID == id {
		return l.last
	}
	m := l.byID[id]
	if m != nil {
		l.last = m
	}
	return m
}

// Upsert returns the member with this id and adds it if it is not there. It returns nil for self, for
// a reserved id, and for a new id when MembersMax members are held: a cluster that large is refused
// rather than sampled, because a cell that is not listed would never be probed.
func (l *Members) Upsert(id wire.CellID) *Member {
	if m := l.byID[id]; m != nil {
		return m
	}
	if id == l.self || !id.Valid() || len(l.sorted) >= l.most {
		return nil
	}
	m := &Member{ID: id}
	at, _ := l.search(id)
	l.sorted = slices.Insert(l.sorted, at, m)
	l.ids = slices.Insert(l.ids, at, id)
	l.byID[id] = m
	l.version++
	l.revision++
	return m
}

// Remove forgets a member.
func (l *Members) Remove(id wire.CellID) {
	at, found := l.search(id)
	if !found {
		return
	}
	l.sorted = slices.Delete(l.sorted, at, at+1)
	l.ids = slices.Delete(l.ids, at, at+1)
	delete(l.byID, id)
	l.last = nil
	l.version++
	l.revision++
}

// Each calls yield for every member in id order until it returns false. yield must not add or remove.
func (l *Members) Each(yield func(*Member) bool) {
	for _, m := range l.sorted {
		if !yield(m) {
			return
		}
	}
}

// Successor returns the first member clockwise after the id that skip does not reject, nil if there is
// none. after itself comes last, if it is a member. skip may be nil.
func (l *Members) Successor(after wire.CellID, skip func(*Member) bool) *Member {
	start, found := l.search(after)
	if found {
		start++
	}
	for i := range l.sorted {
		m := l.sorted[(start+i)%len(l.sorted)]
		if skip == nil || !skip(m) {
			return m
		}
	}
	return nil
}

// Predecessors appends up to n members counter-clockwise before the id, nearest first, without those
// that skip rejects and without the member of that id itself.
func (l *Members) Predecessors(before wire.CellID, n int, dst []*Member, skip func(*Member) bool) []*Member {
	start, _ := l.search(before)
	for i := 0; i < len(l.sorted) && n > 0; i++ {
		m := l.sorted[(start-1-i+2*len(l.sorted))%len(l.sorted)]
		if m.ID != before && (skip == nil || !skip(m)) {
			dst = append(dst, m)
			n--
		}
	}
	return dst
}

// Precedes reports whether fewer than n cells that skip does not reject lie between self and the
// member of the given id: whether self is one of its n ring predecessors.
func (l *Members) Precedes(id wire.CellID, n int, skip func(*Member) bool) bool {
	between := 0
	start, _ := l.search(id)
	for i := range l.sorted {
		m := l.sorted[(start-1-i+2*len(l.sorted))%len(l.sorted)]
		// Walking down from id, self is passed when the distance to m is more than the one to self.
		if id-m.ID > id-l.self {
			break
		}
		if m.ID != id && (skip == nil || !skip(m)) {
			if between++; between >= n {
				return false
			}
		}
	}
	return true
}

// Random appends up to n different members, chosen uniformly among those that skip does not reject and
// that are not already in dst. It costs O(n) while most members qualify, O(Len) at worst.
func (l *Members) Random(random *rand.Rand, n int, dst []*Member, skip func(*Member) bool) []*Member {
	if len(l.sorted) == 0 {
		return dst
	}
	for tries := 4*n + 8; tries > 0 && n > 0; tries-- {
		m := l.sorted[random.IntN(len(l.sorted))]
		if !slices.Contains(dst, m) && (skip == nil || !skip(m)) {
			dst = append(dst, m)
			n--
		}
	}
	for ; n > 0; n-- {
		m := l.reservoir(random, dst, skip)
		if m == nil {
			break
		}
		dst = append(dst, m)
	}
	return dst
}

// reservoir picks one qualifying member uniformly by looking at all of them.
func (l *Members) reservoir(random *rand.Rand, taken []*Member, skip func(*Member) bool) (pick *Member) {
	seen := 0
	for _, m := range l.sorted {
		if slices.Contains(taken, m) || skip != nil && skip(m) {
			continue
		}
		if seen++; random.IntN(seen) == 0 {
			pick = m
		}
	}
	return pick
}

// search returns the position of id, or the one where it belongs.
func (l *Members) search(id wire.CellID) (at int, found bool) {
	return slices.BinarySearch(l.ids, id)
}
