package netem

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"
)

// roundTrip is the one of the figures.
const roundTrip = 50 * time.Millisecond

// newLink makes a link or skips with what is missing, which the machine of make vm does not forgive.
func newLink(t *testing.T, options Options) *Link {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
	l, err := New(options)
	if err != nil {
		t.Skipf("no such link here: %v", err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func newPair(t *testing.T, l *Link, port uint16) *Pair {
	t.Helper()
	p, err := NewPair(l.Ends(port), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// bench prints a figure as make bench does.
func bench(name string, t Transfer) { fmt.Printf("BENCH %s %.2f\n", name, t.Rate()) }

// busyShare of the processors' time is from where on they may have been the limit, and not the path: cells
// have one thread each, and an emulator shows less than its host is busy.
const busyShare = 0.4

// counted reports whether the clock counts instructions: then nothing but the processor that they stand for
// can be the limit, and figures are the same in each run.
func counted() bool { return os.Getenv("COLLOID_VM_COUNTED") != "" }

// judge gives what says that a figure is too low: as a failure unless the processors were the limit.
func judge(t *testing.T, transfer Transfer) func(format string, arguments ...any) {
	if transfer.Busy > busyShare && !counted() {
		return t.Logf
	}
	return t.Errorf
}

// TestF151_StreamsBesideCUBIC sends over 50 ms without loss and with 1 %. Everything must arrive as it was
// sent. With loss a stream must not be slower than kernel TCP unless the processors were the limit. Where the
// clock counts instructions it must have what F151 wants at 1 %, and three quarters of it without loss, where
// the limit is the processor.
func TestF151_StreamsBesideCUBIC(t *testing.T) {
	for _, c := range []struct {
		name         string
		loss         float32
		want         float64 // MB/s
		ours, kernel time.Duration
	}{{"50ms", 0, 15, 6 * time.Second, 3 * time.Second}, {"50ms_1pct", 1, 3, 3 * time.Second, 3 * time.Second}} {
		t.Run(c.name, func(t *testing.T) {
			l := newLink(t, Options{RoundTrip: roundTrip, LossPercent: c.loss})
			p := newPair(t, l, 12421)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			ours, err := p.Send(ctx, c.ours)
			if err != nil {
				t.Fatal(err)
			}
			kernel, err := l.SendTCP(ctx, c.kernel)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("stream: %v, %.1f times CUBIC", ours, ours.Rate()/kernel.Rate())
			t.Logf("CUBIC:  %v", kernel)
			bench("netem_stream_"+c.name+"_mb_s", ours)
			bench("netem_tcp_"+c.name+"_mb_s", kernel)
			if counted() && ours.Rate() < c.want {
				t.Errorf("a stream has %.2f MB/s, want %v", ours.Rate(), c.want)
			}
			if c.loss > 0 && ours.Rate() < kernel.Rate() {
				judge(t, ours)("with %v %% loss a stream has %.2f MB/s and CUBIC %.2f, processors busy %.0f %%",
					c.loss, ours.Rate(), kernel.Rate(), ours.Busy*100)
			}
		})
	}
}

// TestF151_TwoStreamsShareALink has two pairs of cells at the ends of a link that carries what an emulated
// processor can. The second starts later, and what arrives while both send is compared. It is judged like the
// above.
func TestF151_TwoStreamsShareALink(t *testing.T) {
	const bytesPerSecond = 400_000
	l := newLink(t, Options{RoundTrip: roundTrip, BytesPerSecond: bytesPerSecond})
	pairs := []*Pair{newPair(t, l, 12421), newPair(t, l, 12521)}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	const later, together = time.Second, 7 * time.Second
	done := make(chan error, len(pairs))
	for i, p := range pairs {
		if i > 0 {
			time.Sleep(later)
		}
		go func() {
			_, err := p.Send(ctx, together+later)
			done <- err
		}()
	}
	time.Sleep(later)
	began, before := sample(), [2]int64{pairs[0].Arrived(), pairs[1].Arrived()}
	time.Sleep(together - later)
	var shares [2]Transfer
	for i, p := range pairs {
		shares[i] = began.until(sample(), p.Arrived()-before[i])
		t.Logf("stream %d: %v", i+1, shares[i])
	}
	for range pairs {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	least, most := min(shares[0].Rate(), shares[1].Rate()), max(shares[0].Rate(), shares[1].Rate())
	fmt.Printf("BENCH netem_stream_share %.2f\n", most/least)
	if most > 2*least {
		judge(t, shares[0])("of two streams one has %.0f %% of the other, processors busy %.0f %%",
			100*most/least, shares[0].Busy*100)
	}
}
