package overlay

import (
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/wire"
)

// Limits of the guard (F14).
const (
	// AddressesMax bounds the addresses remembered; a power of two.
	AddressesMax = 4096
	// RequestersMax bounds the cells whose request rate is counted; a power of two.
	RequestersMax = 1024
	// AmplificationMax is how many bytes may leave for one byte received from an unvalidated address.
	AmplificationMax = 3
	// ValidationLifetime is how long a nonce echo vouches for an address.
	ValidationLifetime = 10 * time.Minute
	// RequestsPerSecond is the rate of PING_REQ and PUNCH_REQ served to one cell; as many may burst.
	RequestsPerSecond = 5
	// unvalidatedLifetime is how long the byte counts of an idle address are kept. Forgetting resets
	// both sides of the account, so it never grants more than threefold.
	unvalidatedLifetime = time.Minute
	ways                = 4
)

// Guard accounts for bytes exchanged with addresses that did not prove they receive what is sent to
// them, and limits requests that make this cell send to third parties. Tables have fixed size and four
// ways; in a full set the least recently used unvalidated entry goes first. An evicted account starts
// again at zero received, hence at zero allowed.
type Guard struct {
	seed       uint64
	addresses  []account
	requesters []requester
}

type account struct {
	address   netip.AddrPort
	touched   clock.Instant // 0 = free
	validated clock.Instant // 0 = never
	received  uint64
	sent      uint64
}

type requester struct {
	id wire.CellID
	// ready is the theoretical arrival time of the generic cell rate algorithm.
	ready clock.Instant
}

// NewGuard returns an empty guard. random keys the hash that spreads addresses over the table, so that
// nobody can aim at a set.
func NewGuard(random *rand.Rand) *Guard {
	return &Guard{
		seed:       random.Uint64() | 1,
		addresses:  make([]account, AddressesMax),
		requesters: make([]requester, RequestersMax),
	}
}

// Received credits an address with a datagram of the given size.
func (g *Guard) Received(now clock.Instant, from netip.AddrPort, bytes int) {
	a := g.open(now, from)
	a.received += uint64(bytes)
}

// AllowSend reports whether a datagram of the given size may go to an address as a consequence of
// what came from it, and books it if so. Datagrams this cell sends of its own accord to addresses
// that an operator or the store named do not ask.
func (g *Guard) AllowSend(now clock.Instant, to netip.AddrPort, bytes int) bool {
	a := g.find(now, to)
	if a == nil {
		return false
	}
	if a.isValidated(now) {
		a.touched = now
		return true
	}
	if a.sent+uint64(bytes) > AmplificationMax*a.received {
		return false
	}
	a.sent += uint64(bytes)
	a.touched = now
	return true
}

// Validate records that an address echoed an unpredictable nonce.
func (g *Guard) Validate(now clock.Instant, address netip.AddrPort) {
	g.open(now, address).validated = now
}

// Validated reports whether an address echoed a nonce within ValidationLifetime.
func (g *Guard) Validated(now clock.Instant, address netip.AddrPort) bool {
	a := g.find(now, address)
	return a != nil && a.isValidated(now)
}

// AllowRequest reports whether a cell may make this cell send to a third one now, and counts it if so.
// A requester beyond the table's bound takes the place of the one idle for longest.
func (g *Guard) AllowRequest(now clock.Instant, from wire.CellID) bool {
	const interval = time.Second / RequestsPerSecond
	const burst = time.Second - interval
	set := g.requesters[g.slot(uint64(from), RequestersMax):][:ways]
	r := &set[0]
	for i := range set {
		if set[i].id == from {
			r = &set[i]
			break
		}
		if set[i].ready < r.ready {
			r = &set[i]
		}
	}
	if r.id != from {
		*r = requester{id: from}
	}
	if r.ready > now.Add(burst) {
		return false
	}
	r.ready = max(r.ready, now).Add(interval)
	return true
}

func (a *account) isValidated(now clock.Instant) bool {
	return a.validated != 0 && now.Sub(a.validated) < ValidationLifetime
}

func (a *account) expired(now clock.Instant) bool {
	return !a.isValidated(now) && now.Sub(a.touched) >= unvalidatedLifetime
}

// find returns the account of an address or nil.
func (g *Guard) find(now clock.Instant, address netip.AddrPort) *account {
	set := g.set(address)
	for i := range set {
		if set[i].address == address {
			if set[i].expired(now) {
				return nil
			}
			return &set[i]
		}
	}
	return nil
}

// open returns the account of an address, making room for it if need be.
func (g *Guard) open(now clock.Instant, address netip.AddrPort) *account {
	set := g.set(address)
	victim := &set[0]
	for i := range set {
		if set[i].address == address {
			victim = &set[i]
			break
		}
		if set[i].before(victim, now) {
			victim = &set[i]
		}
	}
	if victim.address != address || victim.expired(now) {
		*victim = account{address: address}
	}
	victim.touched = now
	return victim
}

// before orders accounts by how little is lost with them.
func (a *account) before(b *account, now clock.Instant) bool {
	if va, vb := a.isValidated(now), b.isValidated(now); va != vb {
		return vb
	}
	return a.touched < b.touched
}

func (g *Guard) set(address netip.AddrPort) []account {
	raw := address.Addr().As16()
	h := uint64(address.Port())
	for i := 0; i < 16; i += 8 {
		word := uint64(0)
		for j := range 8 {
			word = word<<8 | uint64(raw[i+j])
		}
		h = mix(h^word, g.seed)
	}
	return g.addresses[g.slot(h, AddressesMax):][:ways]
}

// slot returns the first index of the set a value belongs to in a table of the given size.
func (g *Guard) slot(v uint64, size int) int {
	return int(mix(v, g.seed)&uint64(size/ways-1)) * ways
}

func mix(a, b uint64) uint64 {
	high, low := bits.Mul64(a^0x9e3779b97f4a7c15, b^0xd1b54a32d192ed03)
	return high ^ low
}
