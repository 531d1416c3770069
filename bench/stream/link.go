package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

var loss = flag.Float64("loss", 0.01, "loss of the emulated link")

// queuePackets bounds what is under way in one direction of the emulated link.
const queuePackets = 8192

// link is two namespaces with a TUN device each, and this process between them.
type link struct {
	spaces [2]netns.NsHandle
	tuns   [2]*os.File
}

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
	var stream, tcp []float64
	for range *runs {
		p := newPair("10.251.7.1:12421", "10.251.7.2:12421", l.enter(0), l.enter(1))
		const bytes = 24 << 20
		begin := time.Now()
		p.send(bytes)
		stream = append(stream, bytes/time.Since(begin).Seconds()/1e6)
		p.close()
		var listener net.Listener
		l.enter(1)(func() {
			listener, err = (&net.ListenConfig{Control: cubic}).Listen(context.Background(), "tcp", "10.251.7.2:7000")
		})
		must(err)
		tcp = append(tcp, overTCP(listener, func() (c net.Conn, err error) {
			l.enter(0)(func() { c, err = (&net.Dialer{Control: cubic}).Dial("tcp", "10.251.7.2:7000") })
			return c, err
		}, bytes, 10*time.Second))
	}
	bench("link_stream_mb_s", median(stream))
	bench("tcp_50ms_1pct_mb_s", median(tcp))
}

// cubic chooses the congestion control of a socket: the default of a host may be another.
func cubic(_, _ string, c syscall.RawConn) error {
	var failure error
	err := c.Control(func(fd uintptr) {
		failure = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "cubic")
	})
	return errors.Join(err, failure)
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
	queue := make(chan packet, queuePackets)
	go func() {
		for p := range queue {
			time.Sleep(time.Until(p.due))
			_, _ = l.tuns[to].Write(p.data)
		}
	}()
	defer close(queue)
	buffer := make([]byte, 65536)
	for {
		n, err := l.tuns[from].Read(buffer)
		if err != nil {
			return
		}
		if rand.Float64() < *loss {
			continue
		}
		select {
		case queue <- packet{time.Now().Add(roundTrip / 2), append([]byte(nil), buffer[:n]...)}:
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
