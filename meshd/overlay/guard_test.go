package overlay

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/wire"
)

const start = clock.Instant(time.Hour)

func newGuard() *Guard { return NewGuard(rand.New(rand.NewPCG(1, 1))) }

func addr(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, byte(i >> 16), byte(i >> 8), byte(i)}), 4000)
}

// TestF14_AmplificationIsBounded plays random traffic with thousands of spoofed addresses, more than the
// table holds: to none that never echoed a nonce may more than three times its bytes go.
func TestF14_AmplificationIsBounded(t *testing.T) {
	g, random, now := newGuard(), rand.New(rand.NewPCG(2, 2)), start
	in, out := map[netip.AddrPort]int{}, map[netip.AddrPort]int{}
	for range 300000 {
		a := addr(random.IntN(10000))
		if random.IntN(3) == 0 {
			n := 24 + random.IntN(100)
			g.Received(now, a, n)
			in[a] += n
		} else if n := 24 + random.IntN(1176); g.AllowSend(now, a, n) {
			out[a] += n
		}
		now = now.Add(time.Duration(random.IntN(2000)) * time.Microsecond)
	}
	sum := 0
	for a, n := range out {
		sum += n
		if n > AmplificationMax*in[a] {
			t.Errorf("%d bytes to %v for %d received", n, a, in[a])
		}
	}
	if sum == 0 {
		t.Error("nothing at all was allowed")
	}
}

// TestF14_Validation: after an echo everything may go there, for ten minutes.
func TestF14_Validation(t *testing.T) {
	g, now := newGuard(), start
	if g.AllowSend(now, addr(1), 1) {
		t.Error("bytes allowed to an address nothing came from")
	}
	g.Validate(now, addr(1))
	for range 1000 {
		if !g.AllowSend(now, addr(1), 1200) || !g.Validated(now, addr(1)) {
			t.Fatal("validated address refused")
		}
	}
	if g.Validated(now, netip.AddrPortFrom(addr(1).Addr(), 4001)) {
		t.Error("another port is validated too")
	}
	now = now.Add(ValidationLifetime)
	if g.Validated(now, addr(1)) || g.AllowSend(now, addr(1), 1200) {
		t.Error("validation outlived ten minutes")
	}
}

// TestF14_CreditExpires: what came long ago is no credit, and what was sent no debt.
func TestF14_CreditExpires(t *testing.T) {
	g := newGuard()
	g.Received(start, addr(1), 1000)
	later := start.Add(unvalidatedLifetime)
	if g.AllowSend(later, addr(1), 1) {
		t.Error("credit outlived its minute")
	}
	g.Received(later, addr(1), 10)
	if g.AllowSend(later, addr(1), 31) || !g.AllowSend(later, addr(1), 30) {
		t.Error("want exactly threefold of the 10 fresh bytes")
	}
}

// TestF14_ValidatedOutliveSpoofed: a flood from made-up addresses does not push out a validated one.
func TestF14_ValidatedOutliveSpoofed(t *testing.T) {
	g := newGuard()
	g.Validate(start, addr(1))
	for i := range 100000 {
		g.Received(start.Add(time.Duration(i)*time.Microsecond), addr(i+2), 24)
	}
	if !g.Validated(start.Add(time.Second), addr(1)) {
		t.Error("validated address was evicted by unvalidated ones")
	}
	if len(g.addresses) != AddressesMax {
		t.Errorf("table has %d entries, want %d", len(g.addresses), AddressesMax)
	}
}

// TestF14_RequestRate: five per second and requester, others are not touched.
func TestF14_RequestRate(t *testing.T) {
	g, now := newGuard(), start
	count := func(id wire.CellID, tries int) (n int) {
		for range tries {
			if g.AllowRequest(now, id) {
				n++
			}
		}
		return n
	}
	if n := count(7, 100); n != RequestsPerSecond {
		t.Errorf("%d at once, want %d", n, RequestsPerSecond)
	}
	if n := count(8, 3); n != 3 {
		t.Errorf("another requester got %d of 3", n)
	}
	total := 0
	for range 100 {
		now = now.Add(100 * time.Millisecond)
		total += count(7, 10)
	}
	if total != 10*RequestsPerSecond {
		t.Errorf("%d in ten seconds, want %d", total, 10*RequestsPerSecond)
	}
}

func TestGuardAllocatesNothing(t *testing.T) {
	g, i := newGuard(), 0
	if n := testing.AllocsPerRun(1000, func() {
		i++
		g.Received(start, addr(i), 100)
		g.AllowSend(start, addr(i), 100)
		g.Validate(start, addr(i))
		g.AllowRequest(start, wire.CellID(i))
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}
