package daemon

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// routerRules are the chains that miniupnpd fills, on a router that lets nothing else in.
const routerRules = `table inet filter {
	chain forward {
		type filter hook forward priority 0; policy drop;
		iifname "lan0" accept
		ct state established,related accept
		jump miniupnpd
	}
	chain miniupnpd { }
	chain prerouting {
		type nat hook prerouting priority -100; policy accept;
		jump prerouting_miniupnpd
	}
	chain postrouting {
		type nat hook postrouting priority 100; policy accept;
		oifname "wan0" masquerade
		jump postrouting_miniupnpd
	}
	chain prerouting_miniupnpd { }
	chain postrouting_miniupnpd { }
}
`

const routerConfiguration = `ext_ifname=wan0
listening_ip=lan0
port=5000
enable_natpmp=yes
enable_upnp=yes
secure_mode=yes
min_lifetime=120
max_lifetime=86400
uuid=00000000-1111-2222-3333-444444444444
allow 1024-65535 192.168.77.0/24 1024-65535
deny 0-65535 0.0.0.0/0 0-65535
`

// household are three networks on one wire each: a stranger on the internet, a router, and a host behind it.
type household struct{ internet, router, host netns.NsHandle }

// in runs f on a thread of a network.
func in(t *testing.T, network netns.NsHandle, f func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never again: the thread ends here
		err := netns.Set(network)
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func (h *household) wire(t *testing.T, left netns.NsHandle, leftName, leftAddress string, right netns.NsHandle, rightName, rightAddress string) {
	t.Helper()
	in(t, left, func() {
		pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: leftName}, PeerName: rightName, PeerNamespace: netlink.NsFd(int(right))}
		if err := netlink.LinkAdd(pair); err != nil {
			t.Error(err)
		}
	})
	for _, end := range []struct {
		network       netns.NsHandle
		name, address string
	}{{left, leftName, leftAddress}, {right, rightName, rightAddress}} {
		in(t, end.network, func() {
			link, err := netlink.LinkByName(end.name)
			if err != nil {
				t.Error(err)
				return
			}
			address, err := netlink.ParseAddr(end.address)
			if err == nil {
				err = netlink.AddrAdd(link, address)
			}
			if err == nil {
				err = netlink.LinkSetUp(link)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
}

func newHousehold(t *testing.T) *household {
	t.Helper()
	h := &household{}
	for _, handle := range []*netns.NsHandle{&h.internet, &h.router, &h.host} {
		failed := make(chan error)
		go func() {
			runtime.LockOSThread()
			var err error
			if *handle, err = netns.New(); err == nil {
				var lo netlink.Link
				if lo, err = netlink.LinkByName("lo"); err == nil {
					err = netlink.LinkSetUp(lo)
				}
			}
			failed <- err
		}()
		if err := <-failed; err != nil {
			t.Skip("no network namespace: " + err.Error())
		}
		t.Cleanup(func() { handle.Close() })
	}
	// miniupnpd opens nothing where the router's own address is private or for documentation.
	h.wire(t, h.internet, "net0", "20.0.0.2/24", h.router, "wan0", "20.0.0.1/24")
	h.wire(t, h.router, "lan0", "192.168.77.1/24", h.host, "eth0", "192.168.77.10/24")
	in(t, h.host, func() {
		if err := netlink.RouteAdd(&netlink.Route{Gw: net.IPv4(192, 168, 77, 1)}); err != nil {
			t.Error(err)
		}
	})
	return h
}

// serve starts miniupnpd on the router.
func (h *household) serve(t *testing.T) {
	t.Helper()
	for _, program := range []string{"miniupnpd", "nft"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("needs a real router: install miniupnpd-nftables and nftables")
		}
	}
	directory := t.TempDir()
	path := filepath.Join(directory, "miniupnpd.conf")
	if err := os.WriteFile(path, []byte(routerConfiguration), 0o600); err != nil {
		t.Fatal(err)
	}
	router := exec.Command("miniupnpd", "-d", "-f", path, "-P", filepath.Join(directory, "pid"))
	var said strings.Builder
	router.Stdout, router.Stderr = &said, &said
	in(t, h.router, func() {
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644); err != nil {
			t.Error(err)
		}
		rules := exec.Command("nft", "-f", "-")
		rules.Stdin = strings.NewReader(routerRules)
		if out, err := rules.CombinedOutput(); err != nil {
			t.Errorf("nft: %v %s", err, out)
		}
		if err := router.Start(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		if router.Process != nil {
			_ = router.Process.Kill()
			_ = router.Wait()
		}
		if t.Failed() {
			t.Logf("miniupnpd says:\n%s", said.String())
		}
	})
	time.Sleep(300 * time.Millisecond)
}

// reaches reports whether a stranger's datagram to the mapped address arrives at the host's port.
func (h *household) reaches(t *testing.T, to netip.AddrPort, port int) bool {
	t.Helper()
	var socket net.PacketConn
	in(t, h.host, func() {
		var err error
		if socket, err = net.ListenUDP("udp4", &net.UDPAddr{Port: port}); err != nil {
			t.Error(err)
		}
	})
	if socket == nil {
		return false
	}
	defer socket.Close()
	in(t, h.internet, func() {
		if c, err := net.Dial("udp4", to.String()); err == nil {
			_, _ = c.Write([]byte("hello"))
			c.Close()
		}
	})
	_ = socket.SetReadDeadline(time.Now().Add(time.Second))
	n, _, err := socket.ReadFrom(make([]byte, 16))
	return err == nil && n == 5
}

// childVariable makes the test program the host's meshd as far as UPnP goes: HTTP dials on threads of its own, which
// are in another network than the test's.
const childVariable = "COLLOID_TEST_UPNP"

// openUPnPInChild opens a port by UPnP in a process of the host's network. Removing it ends the process.
func (h *household) openUPnPInChild(t *testing.T) (*mapping, error) {
	child := exec.Command("/proc/self/exe", "-test.run", "^TestARealRouterOpensAPort$")
	child.Env = append(os.Environ(), childVariable+"=1")
	child.Stderr = os.Stderr
	input, err := child.StdinPipe()
	if err != nil {
		return nil, err
	}
	output, err := child.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := child.Start(); err != nil { // on this thread, whose network the child has
		return nil, err
	}
	line, err := bufio.NewReader(output).ReadString('\n')
	address, errParse := netip.ParseAddrPort(strings.TrimSpace(line))
	if err = errors.Join(err, errParse); err != nil {
		input.Close()
		return nil, errors.Join(err, child.Wait())
	}
	return &mapping{address: address, lifetime: mapLifetime, protocol: "UPnP", remove: func() {
		input.Close()
		if err := child.Wait(); err != nil {
			t.Error(err)
		}
	}}, nil
}

func childUPnP(t *testing.T) {
	local := netip.MustParseAddrPort("192.168.77.10:12421")
	found, err := openUPnP(t.Context(), netip.MustParseAddr("192.168.77.1"), local, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(found.address)
	_, _ = io.Copy(io.Discard, os.Stdin)
	found.remove()
}

// A router as people have it, miniupnpd, opens a port by each of the three protocols, a stranger comes through it,
// and it is closed again in the end. PCP is asked first.
func TestARealRouterOpensAPort(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("makes network namespaces: needs root")
	}
	if os.Getenv(childVariable) != "" {
		childUPnP(t)
		return
	}
	h := newHousehold(t)
	h.serve(t)
	gateway := netip.MustParseAddr("192.168.77.1")
	asker := newAsker(netip.MustParseAddrPort("0.0.0.0:12421"))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for _, test := range []struct {
		protocol string
		open     func() (*mapping, error)
	}{
		{"PCP", func() (*mapping, error) { return asker.openPCP(ctx, gateway, nil) }},
		{"NAT-PMP", func() (*mapping, error) { return openPMP(gateway, 12421) }},
		{"UPnP", func() (*mapping, error) { return h.openUPnPInChild(t) }},
		{"PCP", func() (*mapping, error) { return asker.openPort(ctx, nil) }}, // whatever is best
	} {
		var found *mapping
		var err error
		begin := time.Now()
		in(t, h.host, func() { found, err = test.open() })
		if err != nil {
			t.Errorf("%s: %v", test.protocol, err)
			continue
		}
		t.Logf("%s: %v for %v, after %v", found.protocol, found.address, found.lifetime, time.Since(begin).Round(time.Millisecond))
		if found.protocol != test.protocol || found.address.Addr() != netip.MustParseAddr("20.0.0.1") ||
			found.lifetime < time.Minute || found.lifetime > mapLifetime {
			t.Errorf("%s: %+v", test.protocol, found)
		}
		if !h.reaches(t, found.address, 12421) {
			t.Errorf("%s: a stranger does not come through %v", test.protocol, found.address)
		}
		in(t, h.host, func() {
			if test.protocol == "PCP" {
				again, err := asker.openPCP(ctx, gateway, found)
				if err != nil || again.address != found.address {
					t.Errorf("renewed: %+v, %v", again, err)
				}
			}
			found.remove()
		})
		if h.reaches(t, found.address, 12421) {
			t.Errorf("%s: the port is open after it was removed", test.protocol)
		}
	}
}
