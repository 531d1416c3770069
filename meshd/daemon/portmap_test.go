package daemon

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// The default router is asked for a port only if it is on a private network.
func TestDefaultGatewayIsPrivateOrNobody(t *testing.T) {
	const head = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n"
	for text, want := range map[string]string{
		"eth0\t00000000\t0100A8C0\t0003\t0\t0\t0\t00000000\n":                                                    "192.168.0.1",
		"eth0\t0000A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\neth0\t00000000\t010A000A\t0003\t0\t0\t0\t00000000\n": "10.0.10.1",
		"eth0\t00000000\t017100CB\t0003\t0\t0\t0\t00000000\n":                                                    "", // 203.0.113.1
		"eth0\t00000000\tzzzz\t0003\t0\t0\t0\t00000000\n":                                                        "",
		"eth0\t00000000\t01\n": "",
		"":                     "",
	} {
		gateway, err := defaultGateway(strings.NewReader(head + text))
		if want == "" && err == nil || want != "" && gateway.String() != want {
			t.Errorf("%q: %v, %v, want %s", text, gateway, err, want)
		}
	}
}

// inFreshNetwork runs f on a thread with a network of its own in which only lo is there.
func inFreshNetwork(t *testing.T, f func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("makes a network namespace: needs root")
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine, and the namespace with the thread
		handle, err := netns.New()
		if err == nil {
			defer handle.Close()
			var link netlink.Link
			if link, err = netlink.LinkByName("lo"); err == nil {
				err = netlink.LinkSetUp(link)
			}
		}
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Skip("no network namespace: " + err.Error())
	}
}

// servePMP plays a router that speaks NAT-PMP (RFC 6886), with the port it opens.
func servePMP(socket net.PacketConn, outside netip.Addr, opened uint16, result uint16) {
	buffer := make([]byte, 64)
	for {
		n, from, err := socket.ReadFrom(buffer)
		if err != nil {
			return
		}
		answer := []byte{0, 128 + buffer[1]}
		answer = binary.BigEndian.AppendUint16(answer, result)
		answer = binary.BigEndian.AppendUint32(answer, 1)
		switch {
		case n == 2:
			answer = append(answer, outside.AsSlice()...)
		case n == 12:
			answer = append(answer, buffer[4:6]...)
			answer = binary.BigEndian.AppendUint16(answer, opened)
			answer = append(answer, buffer[8:12]...)
		}
		_, _ = socket.WriteTo(answer, from)
	}
}

// A router that speaks NAT-PMP opens a port; one that refuses is an error, and so is one that is silent.
func TestNATPMPOpensAPort(t *testing.T) {
	inFreshNetwork(t, func() {
		gateway := netip.MustParseAddr("127.0.0.1")
		if _, err := openPMP(gateway, 12421); err == nil {
			t.Error("a port was opened by nobody")
		}
		socket, err := net.ListenPacket("udp4", "127.0.0.1:5351")
		if err != nil {
			t.Error(err)
			return
		}
		go servePMP(socket, netip.MustParseAddr("203.0.113.9"), 40001, 0)
		found, err := openPMP(gateway, 12421)
		if err != nil || found.address != netip.MustParseAddrPort("203.0.113.9:40001") || found.lifetime != mapLifetime {
			t.Errorf("%+v, %v", found, err)
		}
		socket.Close()
		refusing, err := net.ListenPacket("udp4", "127.0.0.1:5351")
		if err != nil {
			t.Error(err)
			return
		}
		defer refusing.Close()
		go servePMP(refusing, netip.MustParseAddr("203.0.113.9"), 40001, 2)
		if found, err := openPMP(gateway, 12421); err == nil {
			t.Errorf("a refusal counts as %+v", found)
		}
	})
}

// Bridges to this host's own containers are no way to it (F33): what a cell publishes are addresses of other interfaces.
func TestF33_BridgesOfContainersAreNoCandidates(t *testing.T) {
	inFreshNetwork(t, func() {
		for name, address := range map[string]string{"colloid0": "10.64.0.1/24", "docker0": "172.17.0.1/16", "br0": "192.168.5.1/24"} {
			bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}
			parsed, err := netlink.ParseAddr(address)
			if err == nil {
				err = netlink.LinkAdd(bridge)
			}
			if err == nil {
				err = netlink.AddrAdd(bridge, parsed)
			}
			if err != nil {
				t.Error(err)
			}
		}
		found, err := hostAddresses()
		if err != nil || len(found) != 1 || found[0] != netip.MustParseAddr("192.168.5.1") {
			t.Errorf("%v, %v", found, err)
		}
	})
}
