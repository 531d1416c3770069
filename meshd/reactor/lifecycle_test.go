package reactor

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"colloid.net/meshd/wire"
)

// Errors that other hosts can cause do not end the loop.
func TestRefusedDestinationsAreCountedOnly(t *testing.T) {
	onBothDrivers(t, func(t *testing.T, driver string) {
		r := open(t, small(driver, loopback4))
		h := echo(r)
		closedPort := netip.MustParseAddrPort("127.0.0.1:9")
		h.wake = func() {
			for range 20 {
				r.Send(closedPort, []byte("nobody listens"))
			}
			r.Send(netip.MustParseAddrPort("[2001:db8::1]:9"), []byte("wrong family"))
			r.Send(netip.AddrPort{}, []byte("no address"))
			r.Send(netip.MustParseAddrPort("127.0.0.1:0"), []byte("no port"))
			r.Send(closedPort, make([]byte, wire.DatagramMax+1))
			r.Send(netip.MustParseAddrPort("255.255.255.255:9"), []byte("broadcast is not allowed"))
		}
		run(t, r, h)
		r.Wake()
		roundTrip(t, dial(t, r.LocalAddress()), "still here")
		eventually(t, "failures are counted", func() bool {
			c := r.Counters()
			return c.SendInvalid == 4 && c.SendErrors == 1
		})
	})
}

func TestCloseFreesThePortAtOnce(t *testing.T) {
	onBothDrivers(t, func(t *testing.T, driver string) {
		bind := loopback4
		for range 20 {
			r := open(t, small(driver, bind))
			stop := run(t, r, echo(r))
			roundTrip(t, dial(t, r.LocalAddress()), "ping")
			bind = r.LocalAddress()
			stop()
			if u, ok := r.(*uring); ok && (u.receiving || u.waking || u.timing) {
				t.Error("F127: requests are in the kernel's hands after Run")
			}
			r.Wake() // harmless
			r.Close()
		}
	})
}

func TestCloseBeforeRun(t *testing.T) {
	onBothDrivers(t, func(t *testing.T, driver string) {
		r := open(t, small(driver, loopback4))
		r.Close()
		if err := r.Run(&script{}); !errors.Is(err, ErrClosed) {
			t.Errorf("Run: %v", err)
		}
	})
}

func TestCloseFromHandler(t *testing.T) {
	onBothDrivers(t, func(t *testing.T, driver string) {
		r := open(t, small(driver, loopback4))
		closed := make(chan struct{})
		run(t, r, &script{wake: func() { r.Close(); close(closed) }})
		r.Wake()
		<-closed
	})
}

// 128 cells in one process, as the tests of the cluster run them.
func TestManyReactors(t *testing.T) {
	onBothDrivers(t, func(t *testing.T, driver string) {
		if testing.Short() {
			t.Skip("128 threads")
		}
		for range 128 {
			r := open(t, small(driver, loopback4))
			run(t, r, echo(r))
			roundTrip(t, dial(t, r.LocalAddress()), "ping")
		}
	})
}

func TestOpenErrors(t *testing.T) {
	r := open(t, small(DriverEpoll, loopback4))
	for _, test := range []struct {
		options Options
		want    string
	}{
		{Options{Driver: "kqueue"}, "kqueue"},
		{Options{Bind: r.LocalAddress()}, "another program has this port"},
		{Options{Bind: netip.MustParseAddrPort("198.51.100.1:0")}, "no interface of this host"},
		{Options{QueueEntries: 5}, "5 queue entries"},
		{Options{ReceiveBuffers: 1 << 20}, "receive buffers"},
	} {
		_, err := Open(test.options)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: %v, want %q in it", test.options, err, test.want)
		}
	}
}
