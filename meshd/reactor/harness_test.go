package reactor

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"colloid.net/meshd/clock"
	"golang.org/x/sys/unix"
)

// patience is how long tests wait for what must come; an emulated processor on a busy host takes long.
const patience = 30 * time.Second

// script is a Handler made of functions; nil ones do nothing.
type script struct {
	datagram func(from netip.AddrPort, local netip.Addr, datagram []byte)
	wake     func()
	tick     func()
	deadline func() clock.Instant
	failed   func(to netip.AddrPort, reason unix.Errno)
}

func (s *script) Datagram(from netip.AddrPort, local netip.Addr, datagram []byte) {
	if s.datagram != nil {
		s.datagram(from, local, datagram)
	}
}

func (s *script) Wake() {
	if s.wake != nil {
		s.wake()
	}
}

func (s *script) Tick() {
	if s.tick != nil {
		s.tick()
	}
}

func (s *script) Deadline() clock.Instant {
	if s.deadline != nil {
		return s.deadline()
	}
	return clock.Never
}

func (s *script) SendFailed(to netip.AddrPort, reason unix.Errno) {
	if s.failed != nil {
		s.failed(to, reason)
	}
}

var loopback4 = netip.MustParseAddrPort("127.0.0.1:0")

// small keeps tests from filling the machine with rings of production size.
func small(driver string, bind netip.AddrPort) Options {
	return Options{Bind: bind, Driver: driver, QueueEntries: 128, ReceiveBuffers: 256, SendQueue: 64}
}

// onBothDrivers runs a test against io_uring and epoll.
func onBothDrivers(t *testing.T, test func(t *testing.T, driver string)) {
	for _, driver := range []string{DriverURing, DriverEpoll} {
		t.Run(driver, func(t *testing.T) { test(t, driver) })
	}
}

func open(t testing.TB, options Options) Reactor {
	t.Helper()
	r, err := Open(options)
	if err != nil {
		if options.Driver == DriverURing {
			t.Skipf("this kernel refuses io_uring: %v", err)
		}
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// run drives the reactor on a goroutine until the test ends.
func run(t testing.TB, r Reactor, h Handler) (stop func()) {
	t.Helper()
	result := make(chan error, 1)
	go func() { result <- r.Run(h) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			r.Close()
			select {
			case err := <-result:
				if err != nil {
					t.Errorf("Run: %v", err)
				}
			case <-time.After(patience):
				t.Error("Run did not return soon after Close")
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

func echo(r Reactor) *script {
	return &script{datagram: func(from netip.AddrPort, _ netip.Addr, d []byte) { r.Send(from, d) }}
}

func dial(t testing.TB, to netip.AddrPort) *net.UDPConn {
	t.Helper()
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func roundTrip(t testing.TB, c *net.UDPConn, message string) {
	t.Helper()
	if _, err := c.Write([]byte(message)); err != nil {
		t.Fatal(err)
	}
	c.SetReadDeadline(time.Now().Add(patience))
	buffer := make([]byte, 2048)
	n, err := c.Read(buffer)
	if err != nil {
		t.Fatalf("no answer to %q: %v", message, err)
	}
	if string(buffer[:n]) != message {
		t.Fatalf("answer %q to %q", buffer[:n], message)
	}
}

func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for limit := time.Now().Add(patience); !condition(); {
		if time.Now().After(limit) {
			t.Fatalf("within %v not: %s", patience, what)
		}
		time.Sleep(time.Millisecond)
	}
}

// count is a counter that a handler raises and a test reads.
type count struct{ atomic.Int64 }
