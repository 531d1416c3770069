package runnerd_test

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"colloid.net/ipc/message"
	"colloid.net/runnerd"
	"colloid.net/workload"
)

// inOwnNetwork runs a test again in a process with network and mounts of its own. It reports whether this
// is that process.
func inOwnNetwork(t *testing.T) bool {
	t.Helper()
	const variable = "RUNNERD_TEST_OWN_NETWORK"
	if os.Getenv(variable) != "" {
		loopback, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(loopback)
		}
		if err != nil {
			t.Fatal(err)
		}
		return true
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root for a network namespace of its own")
	}
	command := exec.Command("/proc/self/exe", "-test.run", "^"+t.Name()+"$", "-test.v")
	command.Env = append(os.Environ(), variable+"=1")
	command.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	output, err := command.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, output)
	}
	if strings.Contains(string(output), "--- SKIP") {
		t.Skip(string(output))
	}
	return false
}

func podAddresses(t *testing.T, i *message.Instance) (ipv4, ipv6 netip.Addr) {
	t.Helper()
	ipv4, _ = netip.AddrFromSlice(i.Address)
	ipv6, _ = netip.AddrFromSlice(i.AddressIpv6)
	if !ipv4.Is4() || !ipv6.Is6() {
		t.Fatalf("addresses %v and %v", ipv4, ipv6)
	}
	return ipv4, ipv6
}

// answer asks a busybox httpd, or anything else that says something.
func answer(at netip.AddrPort) (string, error) {
	conn, err := net.DialTimeout("tcp", at.String(), time.Second)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	fmt.Fprint(conn, "GET / HTTP/1.0\r\n\r\n")
	text, err := io.ReadAll(io.LimitReader(conn, 1000))
	return string(text), err
}

// TestF158_ContainersHaveANetwork takes containers with the real daemon through readiness by TCP, published
// ports, the death of runnerd, and an end that leaves nothing.
func TestF158_ContainersHaveANetwork(t *testing.T) {
	if !inOwnNetwork(t) {
		return
	}
	c := newContainers(t, "allow_unlimited")
	c.replacePolicy(fmt.Sprintf("registry %s { http; private }\nallow_unlimited\npod_bridge pods0\n"+
		"pod_network 10.99.0.0/28 fd00:99::/64\n", c.registry.Host))
	d := c.daemon(0)
	d.Run(t)
	client := d.Connect()
	// It listens only after a while: until then it is not ready.
	spec := c.spec(v1.Config{Entrypoint: []string{"sh", "-c"}},
		"cat /etc/resolv.conf /etc/hosts; sleep 0.5; mkdir /www; echo hello > /www/index.html; httpd -f -p 80 -h /www")
	spec.Ports = []workload.Port{{Host: 8080, Container: 80}}
	id := client.Start("spread.web", 0, spec)
	i := client.Await(id, ready)
	ipv4, ipv6 := podAddresses(t, i)
	if !netip.MustParsePrefix("10.99.0.0/28").Contains(ipv4) || !netip.MustParsePrefix("fd00:99::/64").Contains(ipv6) {
		t.Errorf("%v and %v", ipv4, ipv6)
	}
	for _, want := range []string{"nameserver 10.99.0.1\nnameserver fd00:99::1\n", ipv4.String() + " web-0-00000000\n",
		ipv6.String() + " web-0-00000000\n"} {
		if !strings.Contains(c.log(id), want) {
			t.Errorf("lacks %q: %s", want, c.log(id))
		}
	}
	reachable := func() {
		t.Helper()
		for _, at := range []netip.AddrPort{netip.AddrPortFrom(ipv4, 80), netip.AddrPortFrom(ipv6, 80),
			netip.MustParseAddrPort("127.0.0.1:8080")} {
			if text, err := answer(at); !strings.Contains(text, "hello") {
				t.Errorf("%s: %q %v", at, text, err)
			}
		}
	}
	reachable()
	// A second one finds its neighbour; a third wants a port that is taken.
	second := c.spec(v1.Config{Entrypoint: []string{"sh", "-c"}},
		fmt.Sprintf("wget -q -O - http://%s/ http://[%s]/ && sleep 1000", ipv4, ipv6))
	other := client.Start("spread.client", 0, second)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.log(other))
		}
	})
	eventually(t, "an answer in the second container", func() bool {
		return strings.Contains(c.log(other), "hello\nhello\n")
	})
	third := c.spec(v1.Config{Entrypoint: []string{"sh", "-c"}}, "sleep 1000")
	third.Ports = []workload.Port{{Host: 8080, Container: 81}}
	refused := client.Start("spread.third", 0, third)
	client.Until("the reason", func() bool {
		return strings.Contains(client.Locked(refused).GetReason(), "port 8080/tcp is published by container "+id.String())
	})
	client.Stop(refused, 0)
	client.AwaitGone(refused)

	d.Kill()
	reachable()
	d.Run(t)
	client = d.Connect()
	again, _ := podAddresses(t, client.Await(id, ready))
	if again != ipv4 {
		t.Errorf("%v became %v", ipv4, again)
	}
	reachable()
	for _, id := range []runnerd.InstanceID{id, other} {
		client.Stop(id, 0)
		client.AwaitGone(id)
	}
	eventually(t, "the end of the network", func() bool { // a prepared sandbox goes a moment later
		links, _ := netlink.LinkList()
		return len(links) == 1 && len(c.mounts()) == 0
	})
}
