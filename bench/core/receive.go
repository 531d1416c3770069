package main

import (
	"log"
	"net"
	"net/netip"
	"runtime"
	"sync/atomic"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/reactor"
	"golang.org/x/sys/unix"
)

// received is how many datagrams one run reads, each of datagramSize bytes.
const (
	received     = 200_000
	datagramSize = 200
)

// measureReceive compares the processor time of the reading thread per datagram. A sender on another
// thread floods the socket; what the kernel drops does not count.
func measureReceive() {
	bench("io_uring_recv_cpu_ns", medianOf(func() float64 { return reactorReceive(reactor.DriverURing) }))
	bench("recvmmsg_recv_cpu_ns", medianOf(func() float64 { return reactorReceive(reactor.DriverEpoll) }))
	bench("udpconn_recv_cpu_ns", medianOf(udpConnReceive))
}

// threadTime is the processor time of the calling thread.
func threadTime() time.Duration {
	var usage unix.Rusage
	must(unix.Getrusage(unix.RUSAGE_THREAD, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// flood sends until stopped.
func flood(to netip.AddrPort, stop *atomic.Bool) {
	conn, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(to))
	must(err)
	defer conn.Close()
	payload := make([]byte, datagramSize)
	for !stop.Load() {
		conn.Write(payload)
	}
}

// sink counts datagrams on the reactor's thread and closes it after enough of them.
type sink struct {
	reactor reactor.Reactor
	count   int
	began   time.Duration
	took    time.Duration
}

func (s *sink) Datagram(netip.AddrPort, netip.Addr, []byte) {
	s.count++
	switch s.count {
	case received / 10: // the first ones warm up
		s.began = threadTime()
	case received + received/10:
		s.took = threadTime() - s.began
		s.reactor.Close()
	}
}

func (s *sink) Wake()                   {}
func (s *sink) Tick()                   {}
func (s *sink) Deadline() clock.Instant { return clock.Never }

func reactorReceive(driver string) float64 {
	r, err := reactor.Open(reactor.Options{Bind: netip.MustParseAddrPort("127.0.0.1:0"), Driver: driver})
	if err != nil {
		log.Printf("bench: %v", err)
		return 0
	}
	s := &sink{reactor: r}
	var stop atomic.Bool
	go flood(r.LocalAddress(), &stop)
	must(r.Run(s))
	stop.Store(true)
	return float64(s.took.Nanoseconds()) / received
}

func udpConnReceive() float64 {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must(err)
	defer conn.Close()
	conn.SetReadBuffer(8 << 20)
	var stop atomic.Bool
	defer stop.Store(true)
	go flood(conn.LocalAddr().(*net.UDPAddr).AddrPort(), &stop)
	buffer := make([]byte, 2048)
	var began time.Duration
	for i := range received + received/10 {
		if i == received/10 {
			began = threadTime()
		}
		if _, _, err := conn.ReadFromUDPAddrPort(buffer); err != nil {
			log.Fatal(err)
		}
	}
	return float64((threadTime() - began).Nanoseconds()) / received
}
