package podnet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"colloid.net/workload"
)

// environmentInside marks the test process that has namespaces of its own: the network of the machine that
// the tests run on is never touched.
const environmentInside = "PODNET_TEST_INSIDE"

func TestMain(m *testing.M) {
	if os.Getenv(environmentChild) != "" {
		child()
		return
	}
	if os.Geteuid() != 0 || os.Getenv(environmentInside) != "" {
		os.Exit(m.Run())
	}
	command := exec.Command("/proc/self/exe", os.Args[1:]...)
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	command.Env = append(os.Environ(), environmentInside+"=1")
	command.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	err := command.Run()
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		os.Exit(ended.ExitCode())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// stage is a host between an outside and containers.
type stage struct {
	t       testing.TB
	n       *Network
	options Options
	outside string // path of a network namespace
}

var (
	hostOutside4, hostOutside6 = netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("fd99::1")
	outside4, outside6         = netip.MustParseAddr("203.0.113.2"), netip.MustParseAddr("fd99::2")
)

const uplinkSize = 1400

func newStage(t testing.TB) *stage {
	t.Helper()
	if os.Getenv(environmentInside) == "" {
		t.Skip("needs root for a network namespace of its own")
	}
	s := &stage{t: t, options: Options{Directory: t.TempDir(), Log: log.New(io.Discard, "", 0)}}
	s.uplink()
	s.open()
	t.Cleanup(func() {
		for _, name := range s.n.pool.names() {
			if err := s.n.Release(name); err != nil {
				t.Error(err)
			}
		}
		s.n.Close()
	})
	return s
}

func (s *stage) open() {
	s.t.Helper()
	n, err := Open(s.options)
	if err != nil {
		s.t.Fatal(err)
	}
	s.n = n
}

// uplink makes the outside and the way there.
func (s *stage) uplink() {
	s.t.Helper()
	s.outside = filepath.Join(s.t.TempDir(), "outside")
	s.must(os.WriteFile(s.outside, nil, 0o600))
	s.must(inNamespace("", func() error { return unix.Mount("/proc/thread-self/ns/net", s.outside, "", unix.MS_BIND, "") }))
	fd, err := unix.Open(s.outside, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	s.must(err)
	defer unix.Close(fd)
	attributes := netlink.NewLinkAttrs()
	attributes.Name, attributes.MTU = "up0", uplinkSize
	s.must(netlink.LinkAdd(&netlink.Veth{LinkAttrs: attributes, PeerName: "out0", PeerNamespace: netlink.NsFd(fd),
		PeerMTU: uplinkSize}))
	s.t.Cleanup(func() {
		s.must(removeLink("up0"))
		s.must(unix.Unmount(s.outside, unix.MNT_DETACH))
	})
	configure := func(name string, own, other []netip.Addr) {
		for _, name := range []string{"lo", name} {
			link, err := netlink.LinkByName(name)
			s.must(err)
			s.must(netlink.LinkSetUp(link))
			if name == "lo" {
				continue
			}
			for i, a := range own {
				bits := 24
				if a.Is6() {
					bits = 64
				}
				s.must(netlink.AddrReplace(link, &netlink.Addr{Flags: unix.IFA_F_NODAD,
					IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(bits, a.BitLen())}}))
				// Each side would send anything to the other: nothing that is refused is refused for want of a route.
				s.must(netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: other[i].AsSlice(),
					Dst: &net.IPNet{IP: make(net.IP, a.BitLen()/8), Mask: net.CIDRMask(0, a.BitLen())}}))
			}
		}
	}
	host, outside := []netip.Addr{hostOutside4, hostOutside6}, []netip.Addr{outside4, outside6}
	s.must(inNamespace(s.outside, func() error { configure("out0", outside, host); return nil }))
	configure("up0", host, outside)
}

func (s *stage) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *stage) prepare(name string, ports ...workload.Port) Lease {
	s.t.Helper()
	l, err := s.n.Prepare(context.Background(), name, Request{Cell: 7, Ports: ports})
	s.must(err)
	return l
}

// serve answers every connection, or datagram, in a namespace ("" = the host) with the address it came from.
func (s *stage) serve(space, protocol string, at netip.AddrPort) {
	s.t.Helper()
	s.must(s.within(space, func() error {
		if protocol == "udp" {
			conn, err := net.ListenPacket("udp", at.String())
			if err != nil {
				return err
			}
			s.t.Cleanup(func() { conn.Close() })
			go func() {
				buffer := make([]byte, 2048)
				for {
					_, from, err := conn.ReadFrom(buffer)
					if err != nil {
						return
					}
					_, _ = conn.WriteTo([]byte(from.String()), from)
				}
			}()
			return nil
		}
		listener, err := net.Listen("tcp", at.String())
		if err != nil {
			return err
		}
		s.t.Cleanup(func() { listener.Close() })
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				_, _ = conn.Write([]byte(conn.RemoteAddr().String()))
				conn.Close()
			}
		}()
		return nil
	}))
}

func (s *stage) within(space string, call func() error) error {
	if space == "" {
		return call()
	}
	return inNamespace(space, call)
}

// ask connects from a namespace and gives the address that the other side saw. An address to bind may be given.
func (s *stage) ask(space, protocol string, to netip.AddrPort, from ...netip.Addr) (seen netip.Addr, err error) {
	return s.askFor(250*time.Millisecond, space, protocol, to, from...)
}

func (s *stage) askFor(patience time.Duration, space, protocol string, to netip.AddrPort, from ...netip.Addr) (
	seen netip.Addr, err error) {
	err = s.within(space, func() error {
		dialer := net.Dialer{Timeout: patience}
		if len(from) > 0 {
			dialer.LocalAddr = &net.TCPAddr{IP: from[0].AsSlice()}
			if protocol == "udp" {
				dialer.LocalAddr = &net.UDPAddr{IP: from[0].AsSlice()}
			}
		}
		conn, err := dialer.Dial(protocol, to.String())
		if err != nil {
			return err
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(patience))
		_, _ = conn.Write([]byte("?"))
		buffer := make([]byte, 200)
		n, err := conn.Read(buffer)
		if err != nil {
			return err
		}
		other, err := netip.ParseAddrPort(string(buffer[:n]))
		seen = other.Addr().Unmap()
		return err
	})
	return seen, err
}

func (s *stage) want(space, protocol string, to netip.AddrPort, seen netip.Addr) {
	s.t.Helper()
	got, err := s.askFor(time.Second, space, protocol, to)
	if err != nil { // a first packet may be lost on a busy machine
		got, err = s.askFor(3*time.Second, space, protocol, to)
	}
	if err != nil || seen.IsValid() && got != seen {
		s.t.Errorf("%s to %s: seen as %v (%v), want %v", protocol, to, got, err, seen)
	}
}

func (s *stage) refused(space, protocol string, to netip.AddrPort, from ...netip.Addr) {
	s.t.Helper()
	if seen, err := s.ask(space, protocol, to, from...); err == nil {
		s.t.Errorf("%s to %s from %v got through, seen as %v", protocol, to, from, seen)
	}
}

// empty checks that nothing of containers is left in this network namespace.
func (s *stage) empty() {
	s.t.Helper()
	links, err := netlink.LinkList()
	s.must(err)
	for _, link := range links {
		if name := link.Attrs().Name; name != "lo" && name != "up0" {
			s.t.Errorf("interface %s is left", name)
		}
	}
	conn, err := nftables.New()
	s.must(err)
	tables, err := conn.ListTables()
	s.must(err)
	for _, table := range tables {
		if strings.HasPrefix(table.Name, "colloid") {
			s.t.Errorf("table %s is left", table.Name)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	s.must(err)
	if strings.Contains(string(mounts), s.options.Directory+"/") {
		s.t.Error("a pinned network namespace is left")
	}
	if entries, _ := os.ReadDir(filepath.Join(s.options.Directory, directoryNamespaces)); len(entries) > 0 {
		s.t.Errorf("%d files of network namespaces are left", len(entries))
	}
}

func both(l Lease) []netip.Addr { return []netip.Addr{l.IPv4, l.IPv6} }

func at(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }

func hostOf(a netip.Addr) netip.Addr {
	if a.Is6() {
		return hostOutside6
	}
	return hostOutside4
}

func outsideOf(a netip.Addr) netip.Addr {
	if a.Is6() {
		return outside6
	}
	return outside4
}

// The kernel takes packets to the addresses of a container from the moment on that it is there: else the first answer of a
// neighbour is lost, and the first connection over IPv6 takes a second longer.
func TestAddressesOfAContainerAreInUseAtOnce(t *testing.T) {
	s := newStage(t)
	for i := range 40 {
		name := fmt.Sprintf("c%d", i)
		l := s.prepare(name)
		for _, address := range both(l) {
			_ = inNamespace(l.Namespace, func() error {
				if address.IsValid() && !isLocal(address) {
					t.Errorf("%s: packets to %v do not arrive yet", name, address)
				}
				return nil
			})
		}
		s.must(s.n.Release(name))
	}
}

func TestContainersReachEachOtherAndTheOutside(t *testing.T) {
	s := newStage(t)
	a, b := s.prepare("a"), s.prepare("b")
	for i, own := range both(a) {
		other := both(b)[i]
		for _, protocol := range []string{"tcp", "udp"} {
			s.serve(b.Namespace, protocol, at(other, 80))
			s.serve(s.outside, protocol, at(outsideOf(own), 81))
			s.want(a.Namespace, protocol, at(other, 80), own)
			s.want("", protocol, at(other, 80), netip.Addr{})
			s.want(a.Namespace, protocol, at(outsideOf(own), 81), hostOf(own)) // masqueraded
			s.refused(s.outside, protocol, at(other, 80))                      // not published
		}
	}
	s.must(inNamespace(a.Namespace, func() error {
		link, err := netlink.LinkByName(interfaceInside)
		if err == nil && link.Attrs().MTU != uplinkSize {
			err = fmt.Errorf("packets of %d bytes, want those of the uplink, %d", link.Attrs().MTU, uplinkSize)
		}
		return err
	}))
}

func TestPublishedPorts(t *testing.T) {
	s := newStage(t)
	a := s.prepare("a", workload.Port{Host: 8080, Container: 80}, workload.Port{Host: 8053, Container: 54, Protocol: workload.UDP})
	b := s.prepare("b")
	for _, own := range both(a) {
		s.serve(a.Namespace, "tcp", at(own, 80))
		s.serve(a.Namespace, "udp", at(own, 54))
		for protocol, port := range map[string]uint16{"tcp": 8080, "udp": 8053} {
			host := at(hostOf(own), port)
			s.want(s.outside, protocol, host, outsideOf(own)) // the address of the client is kept
			s.want("", protocol, host, netip.Addr{})
			s.want(b.Namespace, protocol, host, netip.Addr{})
			s.want(a.Namespace, protocol, host, netip.Addr{}) // to itself
			s.refused(s.outside, protocol, at(own, port))
		}
	}
	s.want("", "tcp", netip.MustParseAddrPort("127.0.0.1:8080"), netip.Addr{})
	s.refused("", "tcp", netip.MustParseAddrPort("[::1]:8080"))
	s.must(s.n.Release("a"))
	s.refused(s.outside, "tcp", at(hostOutside4, 8080))
}

// TestContainersReachNothingOfTheHost but the port of the resolver.
func TestContainersReachNothingOfTheHost(t *testing.T) {
	s := newStage(t)
	a := s.prepare("a")
	for i, own := range both(a) {
		bridge := addressOf(s.n.prefixes()[i], 1)
		s.serve("", "tcp", at(hostOf(own), 22))
		s.serve("", "tcp", at(bridge, 22))
		s.want(s.outside, "tcp", at(hostOf(own), 22), netip.Addr{})
		s.refused(a.Namespace, "tcp", at(hostOf(own), 22))
		s.refused(a.Namespace, "tcp", at(bridge, 22))
		s.refused(s.outside, "tcp", at(bridge, 22))
		s.refused(s.outside, "tcp", at(bridge, resolverPort))
		// The sockets are there and take connections; nobody answers in this test.
		s.must(inNamespace(a.Namespace, func() error {
			conn, err := net.DialTimeout("tcp", at(bridge, resolverPort).String(), time.Second)
			if err == nil {
				conn.Close()
			}
			return err
		}))
	}
	// The bridge routes 127.0.0.0/8 for the host's own connections only.
	s.serve("", "tcp", netip.MustParseAddrPort("127.0.0.1:22"))
	s.must(inNamespace(a.Namespace, func() error {
		loopback, err := netlink.LinkByName("lo")
		s.must(err)
		s.must(netlink.LinkSetDown(loopback))
		_, everything, _ := net.ParseCIDR("127.0.0.0/8")
		inside, _ := netlink.LinkByName(interfaceInside)
		s.must(set([]sysctl{{"ipv4/conf/eth0/route_localnet", "1"}}))
		s.must(netlink.RouteReplace(&netlink.Route{Dst: everything, LinkIndex: inside.Attrs().Index,
			Gw: addressOf(s.n.pool.ipv4, 1).AsSlice()}))
		return nil
	}))
	s.refused(a.Namespace, "tcp", netip.MustParseAddrPort("127.0.0.1:22"), a.IPv4)
}

func TestSpoofedSourcesAreDropped(t *testing.T) {
	s := newStage(t)
	a, b := s.prepare("a"), s.prepare("b")
	for i, own := range both(a) {
		other := both(b)[i]
		s.serve(b.Namespace, "udp", at(other, 80))
		s.serve(s.outside, "udp", at(outsideOf(own), 81))
		s.want(a.Namespace, "udp", at(other, 80), own)
		// A neighbour of the same range that does not exist, and one from elsewhere.
		for _, lie := range []netip.Addr{addressOf(s.n.prefixes()[i], 77), outsideOf(own).Next().Next()} {
			s.must(inNamespace(a.Namespace, func() error {
				inside, _ := netlink.LinkByName(interfaceInside)
				return netlink.AddrReplace(inside, &netlink.Addr{Flags: unix.IFA_F_NODAD,
					IPNet: &net.IPNet{IP: lie.AsSlice(), Mask: net.CIDRMask(lie.BitLen(), lie.BitLen())}})
			}))
			s.refused(a.Namespace, "udp", at(other, 80), lie)
			s.refused(a.Namespace, "udp", at(outsideOf(own), 81), lie)
		}
		if _, err := s.ask(a.Namespace, "udp", at(other, 80), own); err != nil {
			t.Error(err)
		}
	}
	s.must(inNamespace(a.Namespace, func() error {
		inside, _ := netlink.LinkByName(interfaceInside)
		return netlink.LinkSetHardwareAddr(inside, net.HardwareAddr{2, 1, 1, 1, 1, 1})
	}))
	s.refused(a.Namespace, "udp", at(b.IPv4, 80))
}

// TestRouterAdvertisementsAreDropped, like those of somebody else's address.
func TestRouterAdvertisementsAreDropped(t *testing.T) {
	s := newStage(t)
	a, b := s.prepare("a"), s.prepare("b")
	heard := make(chan []byte, 16)
	s.must(inNamespace(b.Namespace, func() error {
		conn, err := net.ListenPacket("ip6:ipv6-icmp", b.IPv6.String())
		if err != nil {
			return err
		}
		t.Cleanup(func() { conn.Close() })
		go func() {
			for {
				buffer := make([]byte, 1500)
				n, _, err := conn.ReadFrom(buffer)
				if err != nil {
					return
				}
				heard <- buffer[:n]
			}
		}()
		return nil
	}))
	advertisement := func(kind byte, target netip.Addr) []byte {
		text := make([]byte, 24)
		text[0] = kind
		copy(text[8:], target.AsSlice())
		return text
	}
	send := func(text []byte) {
		s.must(inNamespace(a.Namespace, func() error {
			conn, err := net.Dial("ip6:ipv6-icmp", b.IPv6.String())
			if err != nil {
				return err
			}
			defer conn.Close()
			_, err = conn.Write(text)
			return err
		}))
	}
	send(advertisement(routerAdvertisement, b.IPv6))
	send(advertisement(redirect, b.IPv6))
	send(advertisement(neighbourAdvertisement, addressOf(s.n.pool.ipv6, 1)))
	send(advertisement(200, b.IPv6)) // of no meaning: it shows that the way is open
	deadline := time.After(2 * time.Second)
	for {
		select {
		case text := <-heard:
			switch text[0] {
			case routerAdvertisement, redirect:
				t.Fatalf("type %d got through", text[0])
			case neighbourAdvertisement:
				if target, _ := netip.AddrFromSlice(text[8:24]); target == addressOf(s.n.pool.ipv6, 1) {
					t.Fatal("an advertisement of the bridge's address got through")
				}
			case 200:
				return
			}
		case <-deadline:
			t.Fatal("nothing was heard")
		}
	}
}
