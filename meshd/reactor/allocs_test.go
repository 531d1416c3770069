package reactor

import (
	"net/netip"
	"runtime"
	"testing"
	"time"

	"colloid.net/meshd/clock"
)

// volley is two reactors that throw datagrams at each other until a number has been received.
type volley struct {
	r     Reactor
	left  int
	batch int
	done  chan struct{}
	buf   [200]byte
	peer  netip.AddrPort
}

func (v *volley) Datagram(from netip.AddrPort, _ netip.Addr, d []byte) {
	v.r.Send(from, d)
	if v.left--; v.left == 0 {
		v.done <- struct{}{}
	}
}
func (v *volley) Wake() {
	for range v.batch {
		v.r.Send(v.peer, v.buf[:])
	}
}
func (v *volley) Tick()                   {}
func (v *volley) Deadline() clock.Instant { return v.r.Now().Add(time.Second) }

// RES-1, F128: nothing is allocated per datagram, in both directions, timers included.
func TestF128_NoAllocationPerDatagram(t *testing.T) {
	onBothDrivers(t, func(t *testing.T, driver string) {
		for _, bind := range []string{"127.0.0.1:0", "[::]:0"} {
			const datagrams = 20000
			a := open(t, small(driver, netip.MustParseAddrPort(bind)))
			b := open(t, small(driver, netip.MustParseAddrPort(bind)))
			run(t, b, echo(b))
			v := &volley{r: a, batch: 16, done: make(chan struct{}, 1), left: 1000,
				peer: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), b.LocalAddress().Port())}
			run(t, a, v)
			a.Wake()
			<-v.done // warm
			var before, after runtime.MemStats
			restart := make(chan struct{})
			go func() { // measured from outside: the reactors never stop
				runtime.ReadMemStats(&before)
				received := a.Counters().Received
				for a.Counters().Received < received+datagrams {
					time.Sleep(time.Millisecond)
				}
				runtime.ReadMemStats(&after)
				close(restart)
			}()
			select {
			case <-restart:
			case <-time.After(time.Minute): // an emulated processor takes long
				t.Fatalf("the volley died: %+v", a.Counters())
			}
			if mallocs := after.Mallocs - before.Mallocs; mallocs > datagrams/100 {
				t.Errorf("%s: %d allocations for %d datagrams each way", bind, mallocs, datagrams)
			}
		}
	})
}

func TestF128_EncodingAllocatesNothing(t *testing.T) {
	name := make([]byte, nameSize)
	control := make([]byte, sendControlSize)
	routes, err := newRouteTable()
	if err != nil {
		t.Fatal(err)
	}
	defer routes.free()
	to := netip.MustParseAddrPort("192.0.2.1:7")
	local := netip.MustParseAddr("192.0.2.9")
	if n := testing.AllocsPerRun(100, func() {
		putName(name, 10, to)
		parseName(name)
		parseControl(control[:putControl(control, 10, local)])
		routes.remember(to, local)
		routes.lookup(to)
		boot.now()
		boot.refresh()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
