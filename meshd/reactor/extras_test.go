package reactor

import (
	"errors"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// several is a Handler that owns further sockets.
type several struct {
	script
	via func(number int, from netip.AddrPort, local netip.Addr, datagram []byte)
}

func (s *several) DatagramVia(number int, from netip.AddrPort, local netip.Addr, datagram []byte) {
	s.via(number, from, local, datagram)
}

// Each socket has a port of its own, and what comes in says on which one it did; the reactor's own goes on as
// before. A socket that a handler closes while datagrams of it wait says nothing any more (F35).
func TestF35_FurtherSockets(t *testing.T) {
	onBothDrivers(t, func(t *testing.T, driver string) {
		for _, bind := range []string{"127.0.0.1:0", "[::]:0"} {
			a := open(t, small(driver, netip.MustParseAddrPort(bind)))
			b := open(t, small(driver, loopback4))
			sources := make(map[netip.AddrPort]bool)
			stopOther := run(t, b, &script{datagram: func(from netip.AddrPort, _ netip.Addr, d []byte) {
				sources[from] = true
				b.Send(from, d)
				b.Send(from, d)
			}})
			var right, own, late count
			closed := make(map[int]bool)
			h := &several{via: func(number int, from netip.AddrPort, local netip.Addr, d []byte) {
				if from != b.LocalAddress() || len(d) != 2 || int(d[0])<<8|int(d[1]) != number || !local.Is4() {
					t.Errorf("%x from %v to %v on socket %d", d, from, local, number)
				}
				if closed[number] {
					late.Add(1)
				}
				if number%2 == 1 { // its second answer is void
					closed[number] = true
					a.CloseSocket(number)
				}
				right.Add(1)
			}}
			h.datagram = func(netip.AddrPort, netip.Addr, []byte) { own.Add(1) }
			h.wake = func() {
				for number := 1; number <= SocketsMax; number++ {
					if err := a.OpenSocket(number); err != nil {
						t.Error(err)
					}
					a.SendVia(number, b.LocalAddress(), []byte{byte(number >> 8), byte(number)})
				}
				if a.OpenSocket(1) == nil || a.OpenSocket(0) == nil || a.OpenSocket(SocketsMax+1) == nil {
					t.Error("opened a socket twice, or one that there is not")
				}
				a.Send(b.LocalAddress(), []byte("own"))
			}
			stop := run(t, a, h)
			a.Wake()
			eventually(t, "every socket to have its answers", func() bool {
				return right.Load() >= SocketsMax*3/2 && own.Load() == 2
			})
			stop()
			stopOther() // sources is its goroutine's
			if late.Load() != 0 || right.Load() != SocketsMax*3/2 {
				t.Errorf("%d answers, %d on closed sockets", right.Load(), late.Load())
			}
			if len(sources) != SocketsMax+1 {
				t.Errorf("%d sources", len(sources))
			}
			if c := a.Counters(); c.KernelDrops != 0 || c.SendErrors+c.SendInvalid != 0 {
				t.Errorf("%+v", c)
			}
		}
	})
}

// Where the process has few descriptors left, the reactor leaves them to the others.
func TestF35_FurtherSocketsLeaveDescriptors(t *testing.T) {
	r := open(t, small(DriverEpoll, loopback4))
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if err := r.OpenSocket(1); err != nil {
		t.Fatal(err)
	}
	highest := uint64(r.(*epoller).extras.descriptors[1])
	few := before
	few.Cur = highest + descriptorsKept + 10
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Skip(err)
	}
	defer func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &before) }()
	opened := 1
	var err error
	for opened < SocketsMax && err == nil {
		if err = r.OpenSocket(opened + 1); err == nil {
			opened++
		}
	}
	if !errors.Is(err, ErrDescriptors) || opened > 10+int(highest) {
		t.Errorf("%d sockets, %v", opened, err)
	}
}

// Nothing is allocated per datagram on further sockets either (RES-1, F128).
func TestF128_NoAllocationOnFurtherSockets(t *testing.T) {
	onBothDrivers(t, func(t *testing.T, driver string) {
		a, b := open(t, small(driver, netip.MustParseAddrPort("[::]:0"))), open(t, small(driver, loopback4))
		run(t, b, echo(b))
		to := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), b.LocalAddress().Port())
		var got count
		h := &several{via: func(number int, from netip.AddrPort, _ netip.Addr, d []byte) {
			got.Add(1)
			a.SendVia(number, from, d)
		}}
		h.wake = func() {
			for number := 1; number <= 4; number++ {
				if err := a.OpenSocket(number); err != nil {
					t.Error(err)
				}
				a.SendVia(number, to, []byte("again and again"))
			}
		}
		run(t, a, h)
		a.Wake()
		eventually(t, "it to be warm", func() bool { return got.Load() > 500 })
		var before, after runtime.MemStats
		const datagrams = 4000
		runtime.ReadMemStats(&before)
		begin := got.Load()
		for limit := time.Now().Add(patience); got.Load() < begin+datagrams && time.Now().Before(limit); {
			time.Sleep(time.Millisecond)
		}
		runtime.ReadMemStats(&after)
		if count := got.Load() - begin; count < datagrams || after.Mallocs-before.Mallocs > datagrams/50 {
			t.Errorf("%d allocations for %d datagrams each way", after.Mallocs-before.Mallocs, count)
		}
	})
}
