package join

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"

	"colloid.net/meshd/clock"
)

func address(text string) netip.Addr { return netip.MustParseAddr(text) }

// tight are limits of a source small enough to be met before the overall ones.
var tight = Limits{SourceBurst: 20, SourcePerSecond: 5}

// TestD1_SeedLimits holds what the limits mean: 256 burst and 200/s overall, and fewer per /24 or /56, of
// which loopback is free.
func TestD1_SeedLimits(t *testing.T) {
	count := func(l *limiter, now clock.Instant, tries int, from func(i int) netip.Addr) (admitted int) {
		for i := range tries {
			if l.take(now, from(i)) == admit {
				admitted++
			}
		}
		return admitted
	}
	same := func(text string) func(int) netip.Addr { return func(int) netip.Addr { return address(text) } }
	const second = clock.Instant(time.Second)
	l := newLimiter(tight)
	start := 1000 * second
	for _, test := range []struct {
		name string
		now  clock.Instant
		from func(int) netip.Addr
		want int
	}{
		{"burst of one source", start, same("192.0.2.1"), 20},
		{"its neighbour in the /24", start, same("192.0.2.200"), 0},
		{"the same, mapped", start, same("::ffff:192.0.2.7"), 0},
		{"the next /24", start, same("192.0.3.1"), 20},
		{"IPv6 /56", start, func(i int) netip.Addr { return address(fmt.Sprintf("2001:db8:0:%x::1", i%256)) }, 20},
		{"the next /56", start, same("2001:db8:0:100::1"), 20},
		{"a zone is no way round", start, same("2001:db8:0:1::1%eth0"), 0},
		{"one second later", start + second, same("192.0.2.1"), 5},
		{"loopback, the rest of the overall burst", start + second, same("127.0.0.1"), 256 - 5},
		{"loopback IPv6, none left", start + second, same("::1"), 0},
		{"a tenth of a second later", start + second + second/10, same("::1"), 20},
		{"long after", start + 100*second, same("192.0.2.1"), 20},
	} {
		if got := count(l, test.now, 1000, test.from); got != test.want {
			t.Errorf("%s: %d admitted, want %d", test.name, got, test.want)
		}
	}
}

// TestD1_RefusalsAreLimited: under a flood the seed answers at most twice its overall rate.
func TestD1_RefusalsAreLimited(t *testing.T) {
	l := newLimiter(Limits{})
	counts := map[verdict]int{}
	for i := range 10000 { // one second
		now := clock.Instant(i) * clock.Instant(100*time.Microsecond)
		counts[l.take(now, netip.AddrFrom4([4]byte{10, byte(i / 20 >> 8), byte(i / 20), 1}))]++
	}
	if counts[admit] > 256+200 || counts[refuse] > 256+200 || counts[admit] < 256+190 {
		t.Fatalf("%d admitted, %d refused, %d dropped", counts[admit], counts[refuse], counts[drop])
	}
}

// TestD1_SourceTableIsBounded: an endless stream of new sources never fills the table, because it
// cannot grow faster than the overall rate, and never lets one source exceed its own.
func TestD1_SourceTableIsBounded(t *testing.T) {
	l := newLimiter(Limits{})
	admitted, largest := 0, 0
	for i := range 200_000 { // 20 s at 10,000/s
		now := clock.Instant(i) * clock.Instant(100*time.Microsecond)
		from := netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 1})
		if l.take(now, from) == admit {
			admitted++
		}
		largest = max(largest, len(l.sources))
	}
	if largest > DefaultLimits().SourcesMax {
		t.Fatalf("%d sources", largest)
	}
	if want := 256 + 20*200; admitted < want-10 || admitted > want {
		t.Fatalf("%d admitted, want %d: the table stood in the way", admitted, want)
	}
	small := newLimiter(Limits{SourcesMax: 2})
	for i, want := range []verdict{admit, admit, refuse} {
		if got := small.take(1, netip.AddrFrom4([4]byte{10, 0, byte(i), 1})); got != want {
			t.Fatalf("source %d of a table for two: %d", i, got)
		}
	}
	if got := small.take(clock.Instant(time.Minute), netip.AddrFrom4([4]byte{10, 0, 9, 1})); got != admit {
		t.Fatalf("after the first ones were forgotten: %d", got)
	}
}

// TestBucketAgainstDefinition compares the one-number bucket with counted tokens.
func TestBucketAgainstDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRate(rapid.IntRange(1, 10).Draw(t, "burst"), rapid.SampledFrom([]int{1, 2, 5, 200}).Draw(t, "rate"))
		var fast bucket
		left, last := time.Duration(r.burst)*r.interval, clock.Instant(0) // tokens, as time
		now := clock.Instant(0)
		for range rapid.IntRange(1, 60).Draw(t, "takes") {
			now += clock.Instant(rapid.Int64Range(0, int64(3*r.interval)).Draw(t, "pause"))
			left = min(time.Duration(r.burst)*r.interval, left+now.Sub(last))
			last = now
			slow := left >= r.interval
			if slow {
				left -= r.interval
			}
			got := fast.ready(now, r)
			if got {
				fast.take(now, r)
			}
			if got != slow {
				t.Fatalf("at %d: bucket says %t, definition %t with %v left", now, got, slow, left)
			}
		}
	})
}

func TestAnswerRefusesTooMany(t *testing.T) {
	seed := NewSeed(chacha(9), tight)
	joiner := NewJoiner(chacha(1), hello, nil)
	for i := range 21 {
		reply, ok := seed.Answer(1, source, joiner.Request(), Door{Locked: true, Key: cluster}, nil)
		got, err := joiner.Finish(reply)
		want := RefusedLocked
		if i == 20 {
			want = RefusedTooMany
		}
		if !ok || err != nil || got.Refused != want {
			t.Fatalf("join %d: %+v, %v", i, got, err)
		}
	}
}
