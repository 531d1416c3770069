package reactor

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"runtime"
	"testing"

	"colloid.net/meshd/clock"
	"golang.org/x/sys/unix"
)

// What the kernel joins comes apart again as it was sent, whatever the sizes: a run whose last datagram is
// shorter, single ones between. Both receivers with and without joining.
func TestF129_JoinedDatagramsComeApart(t *testing.T) {
	onBothDrivers(t, func(t *testing.T, driver string) {
		for _, single := range []bool{false, true} {
			options := small(driver, loopback4)
			options.SendQueue, options.single = 100, single
			r := open(t, options)
			if options.SendQueue = 100; !single && !coalesces(r) {
				t.Log("this kernel does not join datagrams")
			}
			sizes := []int{1200, 1200, 1200, 700, 40, 1200, 3, 900, 900, 900, 900, 900, 512, 512, 512, 511, 1}
			var got, beyond count
			run(t, r, &script{datagram: func(_ netip.AddrPort, _ netip.Addr, d []byte) {
				i := int(got.Load())
				if want := sizes[i%len(sizes)]; len(d) != want || !bytes.Equal(d, bytes.Repeat([]byte{byte(i)}, want)) {
					t.Errorf("datagram %d: %d bytes, want %d", i, len(d), want)
				}
				if cap(d) > len(d) && cap(d) < ReceiveBufferSize-256 {
					beyond.Add(1)
				}
				clear(d) // belongs to the handler
				got.Add(1)
			}})
			sender := open(t, small(driver, loopback4))
			const rounds = 20
			run(t, sender, &script{wake: func() {
				for i := range rounds * len(sizes) {
					sender.Send(r.LocalAddress(), bytes.Repeat([]byte{byte(i)}, sizes[i%len(sizes)]))
				}
			}})
			sender.Wake()
			eventually(t, "everything has arrived", func() bool { return got.Load() == rounds*int64(len(sizes)) })
			if beyond.Load() != 0 {
				t.Error("a handler could write into the next datagram")
			}
			if c := r.Counters(); c.Received != uint64(rounds*len(sizes)) || c.Oversize != 0 || c.Malformed != 0 {
				t.Errorf("%+v", c)
			}
		}
	})
}

func coalesces(r Reactor) bool {
	switch r := r.(type) {
	case *uring:
		return r.coalesced
	case *epoller:
		return r.coalesced
	}
	return false
}

// taker notes what it is given.
type taker struct {
	silent
	sizes []int
}

func (s *taker) Datagram(_ netip.AddrPort, _ netip.Addr, d []byte) { s.sizes = append(s.sizes, len(d)) }

// A segment size is believed only as far as it makes sense, and no datagram longer than 1200 bytes gets
// through.
func TestF126_SegmentSizes(t *testing.T) {
	r := open(t, small(DriverEpoll, loopback4)).(*epoller)
	var sink taker
	r.handler = &sink
	name := make([]byte, nameSize)
	name = name[:putName(name, unix.AF_INET, netip.MustParseAddrPort("192.0.2.1:7"))]
	control := make([]byte, controlHeader+8)
	for _, c := range []struct {
		segment, length int
		want            []int
		oversize        uint64
	}{
		{0, 900, []int{900}, 0}, {-5, 900, []int{900}, 0}, {900, 900, []int{900}, 0}, {2000, 900, []int{900}, 0},
		{400, 1000, []int{400, 400, 200}, 0}, {1, 3, []int{1, 1, 1}, 0}, {1200, 2400, []int{1200, 1200}, 0},
		{1300, 2700, []int{100}, 2}, {0, 1201, nil, 1}, {1300, 1250, nil, 1}, {7, 0, []int{0}, 0},
	} {
		putControlHeader(control, 4, unix.IPPROTO_UDP, unix.UDP_GRO)
		binary.NativeEndian.PutUint32(control[controlHeader:], uint32(int32(c.segment)))
		sink.sizes = nil
		before := r.Counters().Oversize
		r.deliver(0, name, control, make([]byte, c.length), false)
		if got := r.Counters().Oversize - before; got != c.oversize || !equal(sink.sizes, c.want) {
			t.Errorf("%d bytes of %d: %v and %d too long", c.length, c.segment, sink.sizes, got)
		}
	}
}

func equal(a, b []int) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// A flood of joined datagrams keeps no timer from its turn and no answer from leaving: a batch is bounded.
func TestF128_JoinedDatagramsKeepBatchesBounded(t *testing.T) {
	onBothDrivers(t, func(t *testing.T, driver string) {
		options := small(driver, loopback4)
		options.SendQueue = 100
		r := open(t, options)
		if !coalesces(r) {
			t.Skip("this kernel does not join datagrams")
		}
		sender := open(t, options)
		payload := make([]byte, 1200)
		const total = 3000
		run(t, sender, &script{wake: func() {
			for range total {
				sender.Send(r.LocalAddress(), payload)
			}
		}})
		sender.Wake()
		eventually(t, "all is sent", func() bool { return sender.Counters().Sent == total })
		for range 100 {
			runtime.Gosched()
		}
		var got count
		batch, worst := 0, 0
		run(t, r, &script{
			datagram: func(netip.AddrPort, netip.Addr, []byte) {
				batch++
				worst = max(worst, batch)
				got.Add(1)
			},
			deadline: func() clock.Instant {
				batch = 0
				return clock.Never
			},
		})
		eventually(t, "everything has arrived", func() bool { return got.Load() == total })
		if bound := map[string]int{DriverURing: batchMax + 64, DriverEpoll: receiveFirst * 64}[driver]; worst > bound {
			t.Errorf("%d datagrams in one batch", worst)
		}
		t.Logf("at most %d in one batch", worst)
	})
}
