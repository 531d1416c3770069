package overlay

import (
	"slices"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/wire"
)

// Limits of a lookup (F40).
const (
	// QueriesMax bounds one lookup, whatever the answers say.
	QueriesMax = 32
	// QueryTimeout is how long one contact may take to answer; after it, it is out of the lookup.
	QueryTimeout = time.Second
	// Parallelism is the number of queries in flight (alpha).
	Parallelism = 3
	// candidatesMax bounds the shortlist: k results plus the contacts that may replace failed ones.
	candidatesMax = 3 * BucketSizeMax
)

// LookupOptions configures a Lookup.
type LookupOptions struct {
	Self wire.CellID
	K    int // results wanted, 1..BucketSizeMax; 0 = BucketSizeMax
	// Query sends FIND_NODE(target) with the nonce to a contact, which need not be a member. It must
	// not call back into the lookup.
	Query func(to wire.Contact, target wire.CellID, nonce uint32)
	// Nonce returns an unpredictable number.
	Nonce func() uint32
	// Failed hears of a contact that did not answer; may be nil.
	Failed func(id wire.CellID)
}

// Lookup is one iterative search for the contacts nearest to an id (specification 4.5, F40). It ends
// when the k nearest contacts that are not known to fail have all answered, when nothing is left to
// ask, or after QueriesMax queries; it cannot hang, because each query ends after QueryTimeout. One
// Lookup may be started again after it is done.
type Lookup struct {
	options    LookupOptions
	target     wire.CellID
	candidates []candidate // sorted by distance to target, unique
	queries    int
	inFlight   int
	running    bool
}

type candidate struct {
	contact wire.Contact
	stage   stage
	nonce   uint32
	until   clock.Instant
}

type stage uint8

const (
	stageNew stage = iota
	stageAsked
	stageAnswered
	stageFailed
)

// NewLookup returns an idle lookup.
func NewLookup(options LookupOptions) *Lookup {
	if options.K <= 0 || options.K > BucketSizeMax {
		options.K = BucketSizeMax
	}
	return &Lookup{options: options, candidates: make([]candidate, 0, candidatesMax)}
}

// Start begins a search from known contacts and drops what an earlier one left.
func (l *Lookup) Start(now clock.Instant, target wire.CellID, known []wire.Contact) {
	l.target, l.queries, l.inFlight, l.running = target, 0, 0, true
	l.candidates = l.candidates[:0]
	for _, c := range known {
		l.add(c)
	}
	l.advance(now)
}

// Running reports whether the search goes on.
func (l *Lookup) Running() bool { return l.running }

// Queries returns how many FIND_NODE the search has sent.
func (l *Lookup) Queries() int { return l.queries }

// Receive takes the contacts of a NODES message and reports whether it answers a query in flight;
// anything else is ignored (F22).
func (l *Lookup) Receive(now clock.Instant, from wire.CellID, nonce uint32, contacts []wire.Contact) bool {
	if !l.running {
		return false
	}
	for i := range l.candidates {
		c := &l.candidates[i]
		if c.stage != stageAsked || c.contact.ID != from || c.nonce != nonce {
			continue
		}
		c.stage = stageAnswered
		l.inFlight--
		for _, found := range contacts[:min(len(contacts), 42)] {
			l.add(found)
		}
		l.advance(now)
		return true
	}
	return false
}

// Tick ends queries that are overdue and sends the next ones.
func (l *Lookup) Tick(now clock.Instant) {
	if !l.running {
		return
	}
	for i := range l.candidates {
		c := &l.candidates[i]
		if c.stage == stageAsked && c.until.Reached(now) {
			c.stage = stageFailed
			l.inFlight--
			if l.options.Failed != nil {
				l.options.Failed(c.contact.ID)
			}
		}
	}
	l.advance(now)
}

// Deadline returns when the next query is overdue.
func (l *Lookup) Deadline() clock.Instant {
	next := clock.Never
	if !l.running {
		return next
	}
	for i := range l.candidates {
		if l.candidates[i].stage == stageAsked {
			next = clock.Earliest(next, l.candidates[i].until)
		}
	}
	return next
}

// Closest appends the nearest contacts that answered, nearest first, at most k.
func (l *Lookup) Closest(dst []wire.Contact) []wire.Contact {
	n := 0
	for i := range l.candidates {
		if l.candidates[i].stage == stageAnswered && n < l.options.K {
			dst = append(dst, l.candidates[i].contact)
			n++
		}
	}
	return dst
}

// advance asks the nearest unasked contacts among the k nearest that have not failed.
func (l *Lookup) advance(now clock.Instant) {
	rank := 0
	for i := range l.candidates {
		if rank >= l.options.K || l.inFlight >= Parallelism || l.queries >= QueriesMax {
			break
		}
		c := &l.candidates[i]
		if c.stage == stageFailed {
			continue
		}
		rank++
		if c.stage != stageNew {
			continue
		}
		c.stage, c.nonce, c.until = stageAsked, l.options.Nonce(), now.Add(QueryTimeout)
		l.queries++
		l.inFlight++
		l.options.Query(c.contact, l.target, c.nonce)
	}
	if l.inFlight == 0 {
		l.running = false
	}
}

// add puts a contact in its place by distance. When the shortlist is full, the farthest unasked
// contact goes; asked ones stay, so that failed contacts are not asked again.
func (l *Lookup) add(c wire.Contact) {
	if !c.ID.Valid() || c.ID == l.options.Self || !UsableAddress(c.Address) {
		return
	}
	at := len(l.candidates)
	for i := range l.candidates {
		if l.candidates[i].contact.ID == c.ID {
			return
		}
		if at == len(l.candidates) && l.candidates[i].contact.ID^l.target > c.ID^l.target {
			at = i
		}
	}
	if len(l.candidates) == candidatesMax {
		last := candidatesMax - 1
		for last >= at && l.candidates[last].stage != stageNew {
			last--
		}
		if last < at {
			return
		}
		l.candidates = slices.Delete(l.candidates, last, last+1)
	}
	l.candidates = slices.Insert(l.candidates, at, candidate{contact: c})
}
