package overlay

import (
	"math/bits"
	"net/netip"
	"slices"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/wire"
)

// Limits of the table (Part 1, 4.1 and Appendix A).
const (
	BucketsMax    = 64
	BucketSizeMax = 20 // k of a full device; smaller devices hold fewer
	// FailureThreshold is the number of failures in a row after which a contact may be replaced.
	FailureThreshold = 3
	// SubnetMax is how many contacts of one /24 (IPv4) or /56 (IPv6) a bucket holds, so that one
	// network cannot fill the neighbourhood of a victim (F15).
	SubnetMax = 2
	// RefreshInterval is how long a bucket may go without a lookup in its range.
	RefreshInterval = time.Hour
)

// TableOptions configures a Table.
type TableOptions struct {
	Self wire.CellID
	K    int // contacts per bucket, 1..BucketSizeMax; 0 = BucketSizeMax
	// AnySubnet lifts SubnetMax: clusters inside one loopback or one namespace (tests, demo).
	AnySubnet bool
}

// Entry is a contact that answered a PING of ours at this address.
type Entry struct {
	Contact   wire.Contact
	Validated clock.Instant // last answer
	RTT       time.Duration
	Failures  int
}

// Verdict says what became of a validated contact.
type Verdict uint8

// Verdicts of Table.Insert.
const (
	Inserted  Verdict = iota // new in its bucket
	Refreshed                // was there
	Replaced                 // took the place of a failing contact
	Spare                    // the bucket is full of live contacts: waits in the replacement cache
	Refused                  // self, reserved id, unusable address, or too many of its subnet
)

// Table holds validated contacts by XOR distance (specification 4.1 to 4.3 as changed by F15, F38): a
// contact enters only after it answered, live old contacts stay, a failing one is replaced by the
// least recently seen rule, newcomers wait in a cache of k per bucket. RTT never evicts.
type Table struct {
	options TableOptions
	buckets [BucketsMax]bucket
	count   int
}

type bucket struct {
	entries []Entry // in the order of insertion
	spares  []Entry // newest last
	looked  clock.Instant
}

// NewTable returns an empty table.
func NewTable(options TableOptions) *Table {
	if options.K <= 0 || options.K > BucketSizeMax {
		options.K = BucketSizeMax
	}
	return &Table{options: options}
}

// Len returns the number of contacts, spares not counted.
func (t *Table) Len() int { return t.count }

// Insert puts in a contact that has just echoed a nonce (a validated PONG) or refreshes it. When the
// verdict is Spare, oldest is the contact of the bucket seen least recently: pinging it makes room if
// it fails (F38).
func (t *Table) Insert(now clock.Instant, c wire.Contact, rtt time.Duration) (
	v Verdict, oldest wire.Contact) {
	if !t.usable(c) {
		return Refused, wire.Contact{}
	}
	b := &t.buckets[t.index(c.ID)]
	fresh := Entry{Contact: c, Validated: now, RTT: rtt}
	if i := find(b.entries, c.ID); i >= 0 {
		if b.entries[i].Contact.Address != c.Address && !t.subnetHasRoom(b.entries, c, i) {
			return Refused, wire.Contact{} // it moved into a crowded network: stay with the old address
		}
		b.entries[i] = fresh
		return Refreshed, wire.Contact{}
	}
	if !t.subnetHasRoom(b.entries, c, -1) {
		return Refused, wire.Contact{}
	}
	if len(b.entries) < t.options.K {
		b.entries = append(b.entries, fresh)
		t.count++
		return Inserted, wire.Contact{}
	}
	if i := leastRecentFailing(b.entries); i >= 0 {
		b.entries[i] = fresh
		return Replaced, wire.Contact{}
	}
	b.addSpare(fresh, t.options.K)
	return Spare, b.entries[leastRecent(b.entries)].Contact
}

// Answered resets the failures of a contact that proved to be there by other means than a PONG to
// this table's PING. Unknown ids are ignored.
func (t *Table) Answered(now clock.Instant, id wire.CellID) {
	if e := t.entry(id); e != nil {
		e.Validated, e.Failures = now, 0
	}
}

// Failed counts an unanswered request. At FailureThreshold the contact makes way for the newest spare
// of its bucket, if there is one that fits; otherwise it stays, stale, until something better comes.
func (t *Table) Failed(id wire.CellID) {
	e := t.entry(id)
	if e == nil {
		return
	}
	if e.Failures++; e.Failures < FailureThreshold {
		return
	}
	b := &t.buckets[t.index(id)]
	at := find(b.entries, id)
	for i := len(b.spares) - 1; i >= 0; i-- {
		if t.subnetHasRoom(b.entries, b.spares[i].Contact, at) {
			b.entries[at] = b.spares[i]
			b.spares = slices.Delete(b.spares, i, i+1)
			return
		}
	}
}

// Remove forgets a contact, for instance one that is GONE.
func (t *Table) Remove(id wire.CellID) {
	if id == t.options.Self {
		return
	}
	b := &t.buckets[t.index(id)]
	if i := find(b.spares, id); i >= 0 {
		b.spares = slices.Delete(b.spares, i, i+1)
	}
	if i := find(b.entries, id); i >= 0 {
		b.entries = slices.Delete(b.entries, i, i+1)
		t.count--
	}
}

// Get returns the entry of a contact.
func (t *Table) Get(id wire.CellID) (Entry, bool) {
	if e := t.entry(id); e != nil {
		return *e, true
	}
	return Entry{}, false
}

// Closest appends up to n contacts nearest to target by XOR, nearest first, stale ones left out.
func (t *Table) Closest(target wire.CellID, n int, dst []wire.Contact) []wire.Contact {
	base := len(dst)
	for i := range t.buckets {
		for _, e := range t.buckets[i].entries {
			if e.Failures < FailureThreshold {
				dst = insertByDistance(dst, base, n, target, e.Contact)
			}
		}
	}
	return dst
}

// Estimate guesses the size of the cluster including self before the member list is known (F39):
// everything nearer than the nearest full bucket is known completely, so m contacts there mean about
// m * 2^(i+1) cells. Without a full bucket the table holds everybody.
func (t *Table) Estimate() uint64 {
	nearer := 0
	for i := BucketsMax - 1; i >= 0; i-- {
		if len(t.buckets[i].entries) >= t.options.K {
			return uint64(nearer+1) << min(i+1, 63)
		}
		nearer += len(t.buckets[i].entries)
	}
	return uint64(nearer + 1)
}

// Looked records that a lookup for target ran.
func (t *Table) Looked(now clock.Instant, target wire.CellID) {
	if target != t.options.Self {
		t.buckets[t.index(target)].looked = now
	}
}

// Refresh returns an id to look up in a bucket that holds contacts and had no lookup for
// RefreshInterval; ok is false if there is none. random fills the bits behind the bucket's prefix.
func (t *Table) Refresh(now clock.Instant, random uint64) (target wire.CellID, ok bool) {
	for i := range t.buckets {
		b := &t.buckets[i]
		if len(b.entries) == 0 || now.Sub(b.looked) < RefreshInterval {
			continue
		}
		flip := uint64(1) << (63 - i)
		target = t.options.Self ^ wire.CellID(flip) ^ wire.CellID(random&(flip-1))
		return target, target.Valid()
	}
	return 0, false
}

func (t *Table) entry(id wire.CellID) *Entry {
	if id == t.options.Self {
		return nil
	}
	b := &t.buckets[t.index(id)]
	if i := find(b.entries, id); i >= 0 {
		return &b.entries[i]
	}
	return nil
}

func (t *Table) index(id wire.CellID) int { return bits.LeadingZeros64(uint64(id ^ t.options.Self)) }

func (t *Table) usable(c wire.Contact) bool {
	return c.ID.Valid() && c.ID != t.options.Self && UsableAddress(c.Address)
}

// UsableAddress reports whether a unicast datagram can be sent to the address at all.
func UsableAddress(a netip.AddrPort) bool {
	return a.IsValid() && a.Port() != 0 && !a.Addr().IsUnspecified() && !a.Addr().IsMulticast()
}

// subnetHasRoom reports whether a contact may join entries, the one at position except set aside.
func (t *Table) subnetHasRoom(entries []Entry, c wire.Contact, except int) bool {
	if t.options.AnySubnet {
		return true
	}
	subnet, same := Subnet(c.Address.Addr()), 0
	for i := range entries {
		if i != except && Subnet(entries[i].Contact.Address.Addr()) == subnet {
			same++
		}
	}
	return same < SubnetMax
}

// Subnet returns the network that counts as one observer or one origin: /24 for IPv4, /56 for IPv6.
func Subnet(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	length := 56
	if a.Is4() {
		length = 24
	}
	prefix, err := a.Prefix(length)
	if err != nil {
		return netip.Prefix{}
	}
	return prefix
}

func (b *bucket) addSpare(e Entry, k int) {
	if i := find(b.spares, e.Contact.ID); i >= 0 {
		b.spares = slices.Delete(b.spares, i, i+1)
	} else if len(b.spares) >= k {
		b.spares = slices.Delete(b.spares, 0, 1) // the oldest spare goes
	}
	b.spares = append(b.spares, e)
}

func find(entries []Entry, id wire.CellID) int {
	for i := range entries {
		if entries[i].Contact.ID == id {
			return i
		}
	}
	return -1
}

func leastRecent(entries []Entry) int {
	at := 0
	for i := range entries {
		if entries[i].Validated < entries[at].Validated {
			at = i
		}
	}
	return at
}

func leastRecentFailing(entries []Entry) int {
	at := -1
	for i := range entries {
		if entries[i].Failures >= FailureThreshold && (at < 0 || entries[i].Validated < entries[at].Validated) {
			at = i
		}
	}
	return at
}

// insertByDistance keeps dst[base:] sorted by distance to target and at most n long.
func insertByDistance(dst []wire.Contact, base, n int, target wire.CellID, c wire.Contact) []wire.Contact {
	at := len(dst)
	for at > base && dst[at-1].ID^target > c.ID^target {
		at--
	}
	if at-base >= n {
		return dst
	}
	if len(dst)-base >= n {
		dst = dst[:base+n-1]
	}
	return slices.Insert(dst, at, c)
}
