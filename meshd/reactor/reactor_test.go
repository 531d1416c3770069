package reactor

import (
	"bytes"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/wire"
	"golang.org/x/sys/unix"
)

func TestEcho(t *testing.T) {
	onBothDrivers(t, func(t *testing.T, driver string) {
		r := open(t, small(driver, loopback4))
		run(t, r, echo(r))
		c := dial(t, r.LocalAddress())
		for range 100 {
			roundTrip(t, c, "ping")
		}
		roundTrip(t, c, strings.Repeat("x", wire.DatagramMax))
		if !strings.HasPrefix(r.Driver(), driver) {
			t.Errorf("Driver() = %q", r.Driver())
		}
		got := r.Counters()
		if got.Received != 101 || got.Sent != 101 || got.SendErrors != 0 {
			t.Errorf("counters %+v", got)
		}
	})
}

func TestEchoIPv6(t *testing.T) {
	onBothDrivers(t, func(t *testing.T, driver string) {
		r := open(t, small(driver, netip.MustParseAddrPort("[::1]:0")))
		local := make(chan netip.Addr, 1)
		run(t, r, &script{datagram: func(from netip.AddrPort, at netip.Addr, d []byte) {
			local <- at
			r.Send(from, d)
		}})
		roundTrip(t, dial(t, r.LocalAddress()), "ping")
		if at := <-local; at != netip.IPv6Loopback() {
			t.Errorf("received on %v", at)
		}
	})
}

// F34: a wildcard socket serves both families, reports the address that was reached, in unmapped
// form, and answers from it: a connected client would not hear anything else.
func TestF34_AnswersLeaveFromTheAddressThatWasReached(t *testing.T) {
	onBothDrivers(t, func(t *testing.T, driver string) {
		for _, bind := range []string{"[::]:0", "0.0.0.0:0"} {
			r := open(t, small(driver, netip.MustParseAddrPort(bind)))
			locals := make(chan netip.Addr, 1)
			run(t, r, &script{datagram: func(from netip.AddrPort, local netip.Addr, d []byte) {
				if from.Addr().Is4In6() || local.Is4In6() {
					t.Errorf("mapped address: from %v on %v", from, local)
				}
				locals <- local
				r.Send(from, d)
			}})
			targets := []string{"127.0.0.1", "127.0.0.9", "127.1.2.3"}
			if bind == "[::]:0" {
				targets = append(targets, "::1")
			}
			for _, target := range targets {
				to := netip.AddrPortFrom(netip.MustParseAddr(target), r.LocalAddress().Port())
				roundTrip(t, dial(t, to), "to "+target)
				if local := <-locals; local != to.Addr() {
					t.Errorf("%s: sent to %v, reported %v", bind, to.Addr(), local)
				}
			}
		}
	})
}

func TestF34_RouteIsForgottenWhenTheAddressIsGone(t *testing.T) {
	onBothDrivers(t, func(t *testing.T, driver string) {
		r := open(t, small(driver, netip.MustParseAddrPort("[::]:0")))
		c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(loopback4))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		peer := netip.MustParseAddrPort(c.LocalAddr().String())
		routes := coreOf(r).routes
		routes.remember(peer, netip.MustParseAddr("198.51.100.7")) // not an address of this host
		failed := make(chan unix.Errno, 4)
		run(t, r, &script{
			wake: func() { r.Send(peer, []byte("hello")) },
			failed: func(to netip.AddrPort, reason unix.Errno) {
				if to == peer {
					failed <- reason
				}
			},
		})
		r.Wake()
		select {
		case <-failed:
		case <-time.After(patience):
			t.Fatalf("no failure reported: %+v", r.Counters())
		}
		r.Wake()
		c.SetReadDeadline(time.Now().Add(patience))
		if _, err := c.Read(make([]byte, 16)); err != nil {
			t.Fatalf("the second attempt did not arrive: %v", err)
		}
	})
}

func coreOf(r Reactor) *core {
	if u, ok := r.(*uring); ok {
		return u.core
	}
	return r.(*epoller).core
}

func TestSendFrom(t *testing.T) {
	onBothDrivers(t, func(t *testing.T, driver string) {
		c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(loopback4))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		peer := netip.MustParseAddrPort(c.LocalAddr().String())
		r := open(t, small(driver, netip.MustParseAddrPort("[::]:0")))
		source := netip.MustParseAddr("127.7.7.7")
		run(t, r, &script{wake: func() { r.SendFrom(source, peer, []byte("x")) }})
		r.Wake()
		c.SetReadDeadline(time.Now().Add(patience))
		_, from, err := c.ReadFromUDPAddrPort(make([]byte, 16))
		if err != nil || from.Addr().Unmap() != source {
			t.Fatalf("from %v, %v", from, err)
		}
	})
}

// F29, F126: a burst that overflows any default buffer arrives whole, although there are only 8
// receive buffers, so that the multishot receive ends again and again.
func TestF126_BurstOf5000LosesNothing(t *testing.T) {
	onBothDrivers(t, func(t *testing.T, driver string) {
		const burst = 5000
		options := small(driver, loopback4)
		options.ReceiveBuffers = 8
		r := open(t, options)
		if r.Counters().SocketBuffer < 8<<20 {
			t.Skipf("receive buffer of %d bytes: raising it needs CAP_NET_ADMIN", r.Counters().SocketBuffer)
		}
		sender := open(t, small(driver, loopback4))
		release := make(chan struct{})
		var got count
		run(t, r, &script{datagram: func(_ netip.AddrPort, _ netip.Addr, d []byte) {
			if got.Add(1) == 1 {
				<-release // the whole burst piles up in the kernel
			}
		}})
		payload := bytes.Repeat([]byte{7}, 200)
		to := r.LocalAddress()
		run(t, sender, &script{wake: func() {
			for range burst {
				sender.Send(to, payload)
			}
			close(release)
		}})
		sender.Wake()
		eventually(t, "the burst has arrived", func() bool { return got.Load() >= burst })
		c := r.Counters()
		if c.Received != burst || c.KernelDrops != 0 {
			t.Errorf("received %d, lost %d of %d", c.Received, c.KernelDrops, burst)
		}
		if driver == DriverURing && c.BufferStalls == 0 {
			t.Error("the burst did not exhaust the receive buffers: nothing was tested")
		}
		if s := sender.Counters(); s.SendQueueFull == 0 || s.SendErrors != 0 {
			t.Errorf("sender: %+v", s)
		}
	})
}

// F126: the kernel gets more receive buffers when it has used up those it has. The ring runs in the
// mode in which the kernel goes on delivering while the handler works.
func TestF126_ReceiveBuffersGrow(t *testing.T) {
	options := small(DriverURing, loopback4)
	refusals := len(ringModes) - 1
	options.setup = func(entries uint32, p *ringParameters) (int, error) {
		if refusals > 0 {
			refusals--
			return -1, unix.EINVAL
		}
		return ringSetup(entries, p)
	}
	r := open(t, options)
	first := r.(*uring).buffers.given
	if want := map[bool]int{false: buffersFirst, true: coalescedBuffersFirst}[r.(*uring).coalesced]; first != want {
		t.Errorf("%d buffers at first, want %d", first, want)
	}
	const burst = 200
	release, started := make(chan struct{}), make(chan struct{})
	var got count
	stop := run(t, r, &script{datagram: func(netip.AddrPort, netip.Addr, []byte) {
		if got.Add(1) == 1 {
			close(started)
			<-release
		}
	}})
	c := dial(t, r.LocalAddress())
	c.Write([]byte("first"))
	<-started
	for range burst - 1 {
		c.Write([]byte("more"))
	}
	time.Sleep(20 * time.Millisecond)
	close(release)
	eventually(t, "the burst has arrived", func() bool { return got.Load() == burst })
	stop()
	if u := r.(*uring); u.buffers.given <= first || u.counters.bufferStalls.Load() == 0 {
		t.Errorf("%d buffers after %d stalls", u.buffers.given, u.counters.bufferStalls.Load())
	}
}

// An unwatched descriptor is really let go: the other end of a pipe notices when it is closed.
func TestUnwatchReleasesTheDescriptor(t *testing.T) {
	onBothDrivers(t, func(t *testing.T, driver string) {
		var pipe [2]int
		if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		defer unix.Close(pipe[1])
		r := open(t, small(driver, loopback4))
		if err := r.WatchEventfd(pipe[0], func() {}); err != nil {
			t.Fatal(err)
		}
		var unwatched count
		run(t, r, &script{wake: func() { r.Unwatch(pipe[0]); unwatched.Add(1) }})
		eventually(t, "asleep", func() bool { return r.Counters().Sleeps > 0 })
		r.Wake()
		eventually(t, "unwatched", func() bool { return unwatched.Load() > 0 })
		unix.Close(pipe[0])
		eventually(t, "the pipe is broken", func() bool {
			poll := []unix.PollFd{{Fd: int32(pipe[1]), Events: unix.POLLOUT}}
			unix.Poll(poll, 0)
			return poll[0].Revents&unix.POLLERR != 0
		})
	})
}

// F29: what the kernel dropped shows up.
func TestF29_KernelDropsAreCounted(t *testing.T) {
	onBothDrivers(t, func(t *testing.T, driver string) {
		options := small(driver, loopback4)
		options.ReceiveBuffer = 4096
		r := open(t, options)
		release := make(chan struct{})
		run(t, r, &script{datagram: func(netip.AddrPort, netip.Addr, []byte) { <-release }})
		c := dial(t, r.LocalAddress())
		for range 500 {
			c.Write(make([]byte, 1000))
		}
		close(release)
		eventually(t, "drops are counted", func() bool {
			c.Write([]byte("the count comes with a later datagram"))
			return r.Counters().KernelDrops > 0
		})
	})
}

// F126: 1201 bytes are told from 1200, and a datagram larger than any buffer is not taken for a
// shorter one.
func TestF126_OversizeIsDroppedAndCounted(t *testing.T) {
	onBothDrivers(t, func(t *testing.T, driver string) {
		r := open(t, small(driver, loopback4))
		run(t, r, echo(r))
		c := dial(t, r.LocalAddress())
		for _, size := range []int{wire.DatagramMax + 1, 1900, 2048, 9000, 60000} {
			c.Write(make([]byte, size))
		}
		roundTrip(t, c, strings.Repeat("y", wire.DatagramMax))
		roundTrip(t, c, "")
		if got := r.Counters(); got.Oversize != 5 || got.Received != 2 {
			t.Errorf("oversize %d, received %d", got.Oversize, got.Received)
		}
	})
}

func TestWakeFromManyThreads(t *testing.T) {
	onBothDrivers(t, func(t *testing.T, driver string) {
		r := open(t, small(driver, loopback4))
		var mutex sync.Mutex
		var posted, taken int
		run(t, r, &script{wake: func() {
			mutex.Lock()
			taken = posted
			mutex.Unlock()
		}})
		var group sync.WaitGroup
		for range 8 {
			group.Go(func() {
				for range 500 {
					mutex.Lock()
					posted++
					mutex.Unlock()
					r.Wake()
				}
			})
		}
		group.Wait()
		eventually(t, "the last post was seen", func() bool {
			mutex.Lock()
			defer mutex.Unlock()
			return taken == 4000
		})
	})
}

func TestWatchEventfd(t *testing.T) {
	onBothDrivers(t, func(t *testing.T, driver string) {
		for _, flags := range []int{0, unix.EFD_NONBLOCK} {
			fd, err := unix.Eventfd(0, flags|unix.EFD_CLOEXEC)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fd)
			r := open(t, small(driver, loopback4))
			var notified, unwatched count
			if err := r.WatchEventfd(fd, func() { notified.Add(1) }); err != nil {
				t.Fatal(err)
			}
			run(t, r, &script{wake: func() { r.Unwatch(fd); unwatched.Add(1) }})
			for i := range int64(50) {
				unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0})
				eventually(t, "notified", func() bool { return notified.Load() == i+1 })
			}
			r.Wake()
			eventually(t, "unwatched", func() bool { return unwatched.Load() == 1 })
			unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0})
			roundTripEventually(t, r)
			if notified.Load() != 50 {
				t.Errorf("notified %d times", notified.Load())
			}
		}
	})
}

// roundTripEventually makes sure that the reactor has gone through its loop a few times.
func roundTripEventually(t *testing.T, r Reactor) {
	for range 3 {
		before := r.Counters().Wakes
		r.Wake()
		eventually(t, "woken", func() bool { return r.Counters().Wakes > before })
	}
}

func TestWatchesAreBounded(t *testing.T) {
	onBothDrivers(t, func(t *testing.T, driver string) {
		r := open(t, small(driver, loopback4))
		var fds []int
		for i := range WatchesMax + 1 {
			fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fd)
			fds = append(fds, fd)
			if err := r.WatchEventfd(fd, func() {}); (err != nil) != (i == WatchesMax) {
				t.Fatalf("watch %d: %v", i, err)
			}
		}
		r.Unwatch(fds[3])
		if err := r.WatchEventfd(fds[WatchesMax], func() {}); err != nil {
			t.Error(err)
		}
	})
}

// The timer fires at the deadline, moves to an earlier one, and a later one is not missed.
func TestF130_DeadlineIsMet(t *testing.T) {
	onBothDrivers(t, func(t *testing.T, driver string) {
		r := open(t, small(driver, loopback4))
		var mutex sync.Mutex
		deadline := r.Now().Add(time.Hour)
		fired := make(chan time.Duration, 16)
		run(t, r, &script{
			wake: func() {},
			deadline: func() clock.Instant {
				mutex.Lock()
				defer mutex.Unlock()
				return deadline
			},
			tick: func() {
				mutex.Lock()
				defer mutex.Unlock()
				fired <- r.Now().Sub(deadline)
				deadline = r.Now().Add(time.Hour)
			},
		})
		for _, wait := range []time.Duration{50 * time.Millisecond, time.Millisecond, 20 * time.Millisecond, 0} {
			before := r.Counters().Sleeps
			r.Wake()
			eventually(t, "asleep with a timer for the next hour", func() bool { return r.Counters().Sleeps > before })
			mutex.Lock()
			deadline = r.Now().Add(wait)
			mutex.Unlock()
			r.Wake()
			select {
			case late := <-fired:
				if late < 0 || late > 200*time.Millisecond {
					t.Errorf("deadline in %v met %v late", wait, late)
				}
			case <-time.After(patience):
				t.Fatalf("deadline in %v never met", wait)
			}
		}
		if ticks := r.Counters().Ticks; ticks != 4 {
			t.Errorf("%d ticks for 4 deadlines", ticks)
		}
	})
}

// A deadline that is always reached must not keep datagrams out.
func TestOverdueDeadlineDoesNotStarveReceiving(t *testing.T) {
	onBothDrivers(t, func(t *testing.T, driver string) {
		r := open(t, small(driver, loopback4))
		h := echo(r)
		h.deadline = func() clock.Instant { return 1 }
		run(t, r, h)
		roundTrip(t, dial(t, r.LocalAddress()), "ping")
	})
}

// F127: garbage collections under load do not stop the loop, and the memory the kernel writes to
// survives them.
func TestF127_LoopLatencyUnderGarbageCollection(t *testing.T) {
	if os.Getenv("COLLOID_VM") != "" {
		t.Skip("an emulated processor is too slow for its bound")
	}
	onBothDrivers(t, func(t *testing.T, driver string) {
		r := open(t, small(driver, loopback4))
		run(t, r, echo(r))
		done := make(chan struct{})
		var group sync.WaitGroup
		group.Go(func() {
			for {
				select {
				case <-done:
					return
				case <-time.After(10 * time.Millisecond):
					runtime.GC()
				}
			}
		})
		c := dial(t, r.LocalAddress())
		var trips []time.Duration
		for end := time.Now().Add(700 * time.Millisecond); time.Now().Before(end); {
			start := time.Now()
			roundTrip(t, c, "ping")
			trips = append(trips, time.Since(start))
		}
		close(done)
		group.Wait()
		slices.Sort(trips)
		p99 := trips[len(trips)*99/100]
		t.Logf("%d round trips, p50 %v, p99 %v", len(trips), trips[len(trips)/2], p99)
		if p99 > 20*time.Millisecond {
			t.Errorf("p99 of a round trip is %v", p99)
		}
	})
}
