package reactor

import (
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Datagrams per second and processor time per datagram of an echo: received and answered. The time
// is that of the echoing thread alone; the load comes from an epoll reactor elsewhere.
func BenchmarkEcho(b *testing.B) {
	for _, driver := range []string{DriverURing, DriverEpoll} {
		b.Run(driver, func(b *testing.B) { benchmarkEcho(b, driver) })
	}
	b.Run("net.UDPConn", benchmarkNet)
}

func benchmarkEcho(b *testing.B, driver string) {
	r := open(b, Options{Driver: driver, Bind: loopback4})
	usage := &threadTime{}
	h := echo(r)
	plain := h.datagram
	h.datagram = func(from netip.AddrPort, local netip.Addr, d []byte) {
		usage.sample()
		plain(from, local, d)
	}
	run(b, r, h)
	load(b, r.LocalAddress(), usage)
}

func benchmarkNet(b *testing.B) {
	c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(loopback4))
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	c.SetReadBuffer(8 << 20)
	usage := &threadTime{}
	go func() {
		runtime.LockOSThread()
		buffer := make([]byte, 2048)
		for {
			n, from, err := c.ReadFromUDPAddrPort(buffer)
			if err != nil {
				return
			}
			usage.sample()
			c.WriteToUDPAddrPort(buffer[:n], from)
		}
	}()
	load(b, c.LocalAddr().(*net.UDPAddr).AddrPort(), usage)
}

// load keeps 256 datagrams of 200 bytes in flight until b.N came back.
func load(b *testing.B, to netip.AddrPort, usage *threadTime) {
	sender := open(b, Options{Driver: DriverEpoll, Bind: loopback4})
	v := &volley{r: sender, batch: 256, done: make(chan struct{}, 1), left: b.N, peer: to}
	run(b, sender, v)
	b.ReportAllocs()
	b.ResetTimer()
	usage.start.Store(-1)
	start := time.Now()
	sender.Wake()
	<-v.done
	b.StopTimer()
	b.ReportMetric(float64(b.N)/time.Since(start).Seconds(), "datagrams/s")
	if n := usage.samples.Load(); n > 0 {
		b.ReportMetric(float64(usage.last.Load()-usage.start.Load())/float64(n), "cpu-ns/datagram")
	}
}

// threadTime samples the processor time of the thread that calls sample, every 64 calls.
type threadTime struct{ start, last, samples, calls count }

func (u *threadTime) sample() {
	if u.calls.Add(1)%64 != 0 {
		return
	}
	var usage unix.Rusage
	unix.Getrusage(unix.RUSAGE_THREAD, &usage)
	now := usage.Utime.Nano() + usage.Stime.Nano()
	if u.start.Load() == -1 {
		u.start.Store(now)
		u.samples.Store(0)
		return
	}
	u.last.Store(now)
	u.samples.Add(64)
}
