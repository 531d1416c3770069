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
	p, err := NewPair(l, port, t.TempDir())
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

// TestF151_StreamsBesideCUBIC sends over 50 ms without loss and with 1 %. Everything must arrive as it was sent,
// and with loss not slower than by kernel TCP. How fast it is depends on the processor, which make vm emulates: the
// figures are printed and not judged.
func TestF151_StreamsBesideCUBIC(t *testing.T) {
	const howLong = 8 * time.Second
	for _, c := range []struct {
		name string
		loss float32
	}{{"50ms", 0}, {"50ms_1pct", 1}} {
		t.Run(c.name, func(t *testing.T) {
			l := newLink(t, Options{RoundTrip: roundTrip, LossPercent: c.loss})
			p := newPair(t, l, 12421)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			ours, err := p.Send(ctx, howLong)
			if err != nil {
				t.Fatal(err)
			}
			kernel, err := l.SendTCP(ctx, howLong)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("stream: %v", ours)
			t.Logf("CUBIC:  %v", kernel)
			bench("netem_stream_"+c.name+"_mb_s", ours)
			bench("netem_tcp_"+c.name+"_mb_s", kernel)
			if c.loss > 0 && ours.Rate() < kernel.Rate() {
				t.Errorf("with %v %% loss a stream has %.2f MB/s and CUBIC %.2f", c.loss, ours.Rate(), kernel.Rate())
			}
		})
	}
}
