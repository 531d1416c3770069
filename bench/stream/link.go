package main

import (
	"context"
	"fmt"
	"log"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"colloid.net/meshd/netem"
	"colloid.net/meshd/stream"
	"colloid.net/meshd/wire"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// queuePackets bounds what is under way in one direction of the emulated link, packetMax the size of each.
const (
	queuePackets = 8192
	packetMax    = 2048
)

// link is two namespaces with a TUN device each, and this process between them.
type link struct {
	spaces [2]netns.NsHandle
	tuns   [2]*os.File
	loss   atomic.Uint64 // in a million
}

const (
	linkFirst  = "10.251.7.1:12421"
	linkSecond = "10.251.7.2:12421"
	linkTCP    = "10.251.7.2:7000"
)

func measureLink() {
	if os.Geteuid() != 0 {
		log.Print("the emulated link needs root: left out")
		return
	}
	l, err := newLink()
	if err != nil {
		log.Printf("no emulated link here: %v", err)
		return
	}
	defer l.close()
	for _, c := range []struct {
		loss  uint64
		name  string
		bytes int
	}{{0, "50ms", 96 << 20}, {10_000, "50ms_1pct", 48 << 20}} {
		l.loss.Store(c.loss)
		var stream, tcp []float64
		for range *runs {
			stream = append(stream, l.overStream(c.bytes))
			tcp = append(tcp, l.overCubic(c.bytes))
		}
		bench("link_stream_"+c.name+"_mb_s", median(stream))
		bench("tcp_"+c.name+"_mb_s", median(tcp))
	}
	l.loss.Store(0)
	var extra []float64
	for range *runs {
		extra = append(extra, l.keystrokes())
	}
	bench("link_exec_echo_over_rtt_ms", median(extra))
}

// pair starts a cell at each end.
func (l *link) pair() *pair {
	var ends [2]netem.End
	for i, bind := range []string{linkFirst, linkSecond} {
		enter := l.enter(i)
		ends[i] = netem.End{Bind: netip.MustParseAddrPort(bind), Enter: func(f func() error) (err error) {
			enter(func() { err = f() })
			return err
		}}
	}
	return newPair(ends)
}

// overStream sends bytes through a stream and returns MB/s.
func (l *link) overStream(bytes int) float64 {
	p := l.pair()
	defer p.close()
	return p.send(bytes).Rate()
}

// overCubic sends bytes over kernel TCP, for at most 15 s, and returns MB/s.
func (l *link) overCubic(bytes int) float64 {
	var listener net.Listener
	var err error
	l.enter(1)(func() {
		listener, err = (&net.ListenConfig{Control: netem.CUBIC}).Listen(context.Background(), "tcp", linkTCP)
	})
	must(err)
	return overTCP(listener, func() (c net.Conn, err error) {
		l.enter(0)(func() { c, err = (&net.Dialer{Control: netem.CUBIC}).Dial("tcp", linkTCP) })
		return c, err
	}, bytes, 15*time.Second)
}

// keystrokes returns by how many ms more than without a bulk stream a keystroke comes back beside one, medians of 50.
func (l *link) keystrokes() float64 {
	p := l.pair()
	defer p.close()
	person := &waiter{heard: make(chan struct{}, 1)}
	s := p.open(wire.StreamExec, person)
	press := func() time.Duration {
		begin := time.Now()
		p.Do(func() { _, _ = s.Write([]byte("x")) })
		select {
		case <-person.heard:
		case <-time.After(10 * time.Second):
			log.Fatal("a keystroke was lost")
		}
		took := time.Since(begin)
		time.Sleep(23 * time.Millisecond)
		return took
	}
	series := func() float64 {
		var all []float64
		for range 50 {
			all = append(all, float64(press())/float64(time.Millisecond))
		}
		return median(all)
	}
	alone := series()
	bulk := p.open(wire.StreamVolume, netem.NewSource(1<<40))
	time.Sleep(2 * time.Second)
	beside := series()
	p.Do(func() { bulk.Reset(stream.ReasonCanceled) })
	<-p.Done()
	return beside - alone
}

// waiter tells of each piece that comes.
type waiter struct {
	netem.Echo
	heard chan struct{}
}

func (e *waiter) Readable(s *stream.Stream) {
	for p := s.Peek(); p != nil; p = s.Peek() {
		s.Discard(len(p))
		select {
		case e.heard <- struct{}{}:
		default:
		}
	}
}

// enter runs a function in one of the namespaces.
func (l *link) enter(i int) func(func()) {
	return func(f func()) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		home, err := netns.Get()
		must(err)
		defer home.Close()
		must(netns.Set(l.spaces[i]))
		defer func() { must(netns.Set(home)) }()
		f()
	}
}

func newLink() (*link, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := netns.Get()
	if err != nil {
		return nil, err
	}
	defer home.Close()
	defer func() { must(netns.Set(home)) }()
	l := &link{}
	for i := range l.spaces {
		if l.spaces[i], err = netns.New(); err != nil { // without a name: it goes with this process
			return nil, err
		}
		if l.tuns[i], err = openTUN(fmt.Sprintf("10.251.7.%d/24", i+1)); err != nil {
			return nil, err
		}
	}
	go l.carry(0, 1)
	go l.carry(1, 0)
	return l, nil
}

func openTUN(address string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	var request struct {
		name  [unix.IFNAMSIZ]byte
		flags uint16
		_     [22]byte
	}
	copy(request.name[:], "link0")
	request.flags = unix.IFF_TUN | unix.IFF_NO_PI
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TUNSETIFF, uintptr(unsafe.Pointer(&request))); errno != 0 {
		unix.Close(fd)
		return nil, errno
	}
	device, err := netlink.LinkByName("link0")
	if err != nil {
		return nil, err
	}
	parsed, err := netlink.ParseAddr(address)
	if err != nil {
		return nil, err
	}
	if err := netlink.AddrAdd(device, parsed); err != nil {
		return nil, err
	}
	if err := netlink.LinkSetTxQLen(device, queuePackets); err != nil {
		return nil, err
	}
	if err := netlink.LinkSetUp(device); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "tun"), nil
}

// carry takes packets from one side to the other, half a round trip later, and loses some.
func (l *link) carry(from, to int) {
	type packet struct {
		due  time.Time
		data []byte
	}
	queue, free := make(chan packet, queuePackets), make(chan []byte, queuePackets)
	go func() {
		for p := range queue {
			time.Sleep(time.Until(p.due))
			_, _ = l.tuns[to].Write(p.data)
			free <- p.data[:packetMax]
		}
	}()
	defer close(queue)
	for range queuePackets {
		free <- make([]byte, packetMax)
	}
	spare := make([]byte, packetMax)
	for {
		n, err := l.tuns[from].Read(spare)
		if err != nil {
			return
		}
		if rand.Uint64N(1_000_000) < l.loss.Load() {
			continue
		}
		select {
		case next := <-free:
			queue <- packet{time.Now().Add(roundTrip / 2), spare[:n]}
			spare = next
		default: // the queue is full
		}
	}
}

func (l *link) close() {
	for i := range l.spaces {
		l.tuns[i].Close()
		l.spaces[i].Close()
	}
}
