package podnet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"pgregory.net/rapid"

	"colloid.net/runnerd/policy"
	"colloid.net/workload"
)

func TestStartsAndStopsLeaveNothing(t *testing.T) {
	s := newStage(t)
	seen := map[netip.Addr]bool{}
	for round := range 100 {
		name := "c" + strconv.Itoa(round)
		l := s.prepare(name, workload.Port{Host: 8080, Container: 80})
		seen[l.IPv4] = true
		if round%4 == 0 {
			s.prepare("other" + strconv.Itoa(round))
			s.must(s.n.Release("other" + strconv.Itoa(round)))
		}
		s.must(s.n.Release(name))
		s.must(s.n.Release(name)) // it is harmless to say it twice
		if round%25 == 0 {
			s.empty()
		}
	}
	s.empty()
	if ranges, _ := s.n.Resolver(); ranges != nil {
		t.Error("sockets of the resolver are left")
	}
	text, _ := os.ReadFile(filepath.Join(s.options.Directory, fileName))
	if strings.Contains(string(text), "lease") || strings.Contains(string(text), "colloid0") {
		t.Errorf("the file is not empty: %s", text)
	}
}

// environmentChild makes the test binary a runnerd that is killed: it prepares and releases until then.
const environmentChild = "PODNET_TEST_CHILD"

func child() {
	n, err := Open(Options{Directory: os.Getenv(environmentChild), Log: log.New(io.Discard, "", 0)})
	if err == nil {
		err = n.Retain(n.pool.names())
	}
	for round := 0; err == nil; round++ {
		name := "c" + strconv.Itoa(rand.IntN(4))
		if rand.IntN(2) == 0 {
			_, err = n.Prepare(context.Background(), name, Request{Cell: 7,
				Ports: []workload.Port{{Host: 8000 + uint16(name[1]), Container: 80}}})
		} else {
			err = n.Release(name)
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func TestKilledAtAnyMoment(t *testing.T) {
	s := newStage(t)
	for round := range 25 {
		command := exec.Command("/proc/self/exe")
		command.Env = append(os.Environ(), environmentChild+"="+s.options.Directory)
		output := &strings.Builder{}
		command.Stderr = output
		command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		s.must(command.Start())
		time.Sleep(time.Duration(10+rand.IntN(80)) * time.Millisecond)
		_ = command.Process.Kill()
		_ = command.Wait()
		if output.Len() > 0 {
			t.Fatalf("round %d: %s", round, output)
		}
		s.open()
		keep := map[string]bool{}
		for _, name := range s.n.pool.names() {
			if rand.IntN(2) == 0 {
				keep[name] = true
			}
		}
		var names []string
		for name := range keep {
			names = append(names, name)
		}
		s.must(s.n.Retain(names))
		if len(s.n.pool.leases) != len(keep) {
			t.Fatalf("round %d: %v kept, want %v", round, s.n.pool.names(), names)
		}
		s.consistent(round)
		for name := range keep { // a lease that is found again is made whole
			l := s.prepare(name, s.n.pool.leases[name].ports...)
			s.serve(l.Namespace, "tcp", at(l.IPv4, 80))
			s.want("", "tcp", at(l.IPv4, 80), netip.Addr{})
		}
		for name := range keep {
			s.must(s.n.Release(name))
		}
		s.empty()
		if t.Failed() {
			t.Fatalf("in round %d", round)
		}
		s.n.Close()
	}
}

// consistent compares the kernel with the leases.
func (s *stage) consistent(round int) {
	s.t.Helper()
	if stray := s.n.strayPorts(); len(stray) > 0 {
		s.t.Errorf("round %d: ports %v belong to nobody", round, stray)
	}
	entries, _ := os.ReadDir(filepath.Join(s.options.Directory, directoryNamespaces))
	for _, entry := range entries {
		if _, leased := s.n.pool.leases[entry.Name()]; !leased {
			s.t.Errorf("round %d: namespace %s belongs to nobody", round, entry.Name())
		}
	}
	if len(s.n.pool.leases) == 0 {
		s.empty()
		return
	}
	conn, err := nftables.New()
	s.must(err)
	table := &nftables.Table{Name: "colloid", Family: nftables.TableFamilyBridge}
	ports, err := conn.GetSetByName(table, "ports")
	s.must(err)
	elements, err := conn.GetSetElements(ports)
	s.must(err)
	if len(elements) != len(s.n.pool.leases) {
		s.t.Errorf("round %d: rules for %d containers, want %d", round, len(elements), len(s.n.pool.leases))
	}
}

// TestPublishedLater: a network that was made ahead becomes a container's with its ports, and stays so.
func TestPublishedLater(t *testing.T) {
	s := newStage(t)
	l := s.prepare("ahead")
	s.serve(l.Namespace, "tcp", at(l.IPv4, 80))
	s.serve(l.Namespace, "tcp", at(l.IPv6, 80))
	s.refused(s.outside, "tcp", at(hostOutside4, 8080))
	port := workload.Port{Host: 8080, Container: 80}
	s.must(s.n.Publish("ahead", "web-0", []workload.Port{port}))
	open := func() {
		t.Helper()
		s.want(s.outside, "tcp", at(hostOutside4, 8080), netip.Addr{})
		s.want(s.outside, "tcp", at(hostOutside6, 8080), netip.Addr{})
		s.want("", "tcp", netip.MustParseAddrPort("127.0.0.1:8080"), netip.Addr{})
	}
	open()
	if err := s.n.Publish("ahead", "web-1", []workload.Port{port}); err == nil {
		t.Error("it was given away twice")
	}
	if err := s.n.Publish("absent", "web-1", nil); err == nil {
		t.Error("a network that is not there was given away")
	}
	s.n.Close()
	s.open()
	s.must(s.n.Retain([]string{"ahead"}))
	open()
	_, err := s.n.Prepare(context.Background(), "second", Request{Cell: 7, Ports: []workload.Port{port}})
	if err == nil || !strings.Contains(err.Error(), "is published by container web-0 of") {
		t.Errorf("%v", err)
	}
	s.must(s.n.Release("ahead"))
	s.empty()
}

// TestRulesComeBack: whoever empties the firewall of the host does not open containers, or cut them off, for good.
func TestRulesComeBack(t *testing.T) {
	s := newStage(t)
	l := s.prepare("a", workload.Port{Host: 8080, Container: 80})
	s.serve(l.Namespace, "tcp", at(l.IPv4, 80))
	s.serve("", "tcp", netip.MustParseAddrPort("0.0.0.0:90"))
	inForce := func() {
		t.Helper()
		s.want(s.outside, "tcp", at(hostOutside4, 8080), netip.Addr{})
		s.refused(l.Namespace, "tcp", at(hostOutside4, 90))
	}
	inForce()
	if repaired, err := s.n.Check(); repaired || err != nil {
		t.Fatalf("%v, %v although nobody did anything", repaired, err)
	}
	conn, err := nftables.New()
	s.must(err)
	for name, harm := range map[string]func(){
		"all": conn.FlushRuleset,
		"one chain": func() {
			table := &nftables.Table{Name: "colloid", Family: nftables.TableFamilyINet}
			conn.FlushChain(&nftables.Chain{Name: "input", Table: table})
		},
		"one table": func() {
			conn.DelTable(&nftables.Table{Name: "colloid", Family: nftables.TableFamilyBridge})
		},
	} {
		harm()
		s.must(conn.Flush())
		if repaired, err := s.n.Check(); !repaired || err != nil {
			t.Fatalf("%s: %v, %v", name, repaired, err)
		}
		inForce()
	}
	s.must(s.n.Release("a"))
	if repaired, err := s.n.Check(); repaired || err != nil {
		t.Fatalf("%v, %v although there is no network", repaired, err)
	}
	s.empty()
}

// TestOtherTablesAndInterfacesAreLeftAlone: rules of the host's own stay in force and in place.
func TestOtherTablesAndInterfacesAreLeftAlone(t *testing.T) {
	s := newStage(t)
	conn, err := nftables.New()
	s.must(err)
	table := conn.AddTable(&nftables.Table{Name: "firewall", Family: nftables.TableFamilyINet})
	policy := nftables.ChainPolicyAccept
	chain := conn.AddChain(&nftables.Chain{Name: "forward", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter, Policy: &policy})
	conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{&expr.Counter{}}})
	s.must(conn.Flush())
	t.Cleanup(func() { conn.DelTable(table); s.must(conn.Flush()) })
	attributes := netlink.NewLinkAttrs()
	attributes.Name = "other0"
	s.must(netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attributes}))
	s.prepare("a")
	s.must(s.n.Release("a"))
	if rules, err := conn.GetRules(table, chain); err != nil || len(rules) != 1 {
		t.Errorf("%d rules (%v), want the one of the host", len(rules), err)
	}
	s.must(removeLink("other0"))
	s.empty()
}

func TestABridgeOfSomebodyElseIsRefused(t *testing.T) {
	s := newStage(t)
	attributes := netlink.NewLinkAttrs()
	attributes.Name = DefaultBridge
	s.must(netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attributes}))
	_, err := s.n.Prepare(context.Background(), "a", Request{Cell: 7})
	var refusal *Refusal
	if !errors.As(err, &refusal) || !strings.Contains(err.Error(), "pod_bridge NAME") {
		t.Errorf("%v", err)
	}
	if _, err := netlink.LinkByName(DefaultBridge); err != nil {
		t.Error("it was removed")
	}
	l, err := s.n.Prepare(context.Background(), "a", Request{Cell: 7, Settings: policy.Network{Bridge: "pods1"}})
	s.must(err)
	s.serve(l.Namespace, "tcp", at(l.IPv4, 80))
	s.want("", "tcp", at(l.IPv4, 80), netip.Addr{})
	s.must(s.n.Release("a"))
	s.must(removeLink(DefaultBridge))
	s.empty()
}

// TestF100_TwoCellsMayHaveTheSameAddresses: what is inside of a host is not seen outside.
func TestF100_TwoCellsMayHaveTheSameAddresses(t *testing.T) {
	s := newStage(t)
	first := s.prepare("a", workload.Port{Host: 8080, Container: 80})
	s.serve(first.Namespace, "tcp", at(first.IPv4, 80))
	var second *Network
	var lease Lease
	options := Options{Directory: t.TempDir(), Log: s.options.Log}
	s.must(inNamespace(s.outside, func() (err error) {
		if second, err = Open(options); err != nil {
			return err
		}
		lease, err = second.Prepare(context.Background(), "b", Request{Cell: 7})
		return err
	}))
	if lease.IPv4 != first.IPv4 || lease.IPv6 != first.IPv6 {
		t.Errorf("%v and %v", lease, first)
	}
	s.want(lease.Namespace, "tcp", at(hostOutside4, 8080), outside4)
	s.must(inNamespace(s.outside, func() error { return second.Release("b") }))
	second.Close()
}

func TestAFullPoolSaysSo(t *testing.T) {
	s := newStage(t)
	request := Request{Cell: 7, Settings: policy.Network{IPv4: netip.MustParsePrefix("198.51.100.0/29")}}
	for i := range 5 {
		_, err := s.n.Prepare(context.Background(), strconv.Itoa(i), request)
		s.must(err)
	}
	_, err := s.n.Prepare(context.Background(), "more", request)
	if err == nil || !strings.Contains(err.Error(), "all 5 addresses of 198.51.100.0/29") {
		t.Errorf("%v", err)
	}
	s.must(s.n.Release("3"))
	_, err = s.n.Prepare(context.Background(), "more", request)
	s.must(err)
	overlapping := policy.Network{IPv4: netip.MustParsePrefix("203.0.0.0/16")}
	for _, name := range s.n.pool.names() {
		s.must(s.n.Release(name))
	}
	_, err = s.n.Prepare(context.Background(), "a", Request{Settings: overlapping})
	if err == nil || !strings.Contains(err.Error(), "overlaps the route 203.0.113.0/24") {
		t.Errorf("%v", err)
	}
	s.empty()
}

func TestF77_APortIsPublishedOnce(t *testing.T) {
	s := newStage(t)
	port := workload.Port{Host: 8080, Container: 80}
	s.prepare("a", port)
	prepare := func(p workload.Port) error {
		_, err := s.n.Prepare(context.Background(), "b", Request{Ports: []workload.Port{p}})
		return err
	}
	if err := prepare(port); err == nil || err.Error() != "port 8080/tcp is published by container a of this host" {
		t.Errorf("%v", err)
	}
	s.must(prepare(workload.Port{Host: 8080, Container: 80, Protocol: workload.UDP}))
	s.must(s.n.Release("b"))
	s.serve("", "tcp", netip.MustParseAddrPort("0.0.0.0:8081"))
	if err := prepare(workload.Port{Host: 8081, Container: 80}); err == nil ||
		err.Error() != "port 8081/tcp is in use on this host by another program" {
		t.Errorf("%v", err)
	}
}

// TestDerivedRanges are inside of their range, and the same each time.
func TestDerivedRanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cell := rapid.Uint64().Draw(t, "cell")
		try := rapid.IntRange(0, deriveTries).Draw(t, "try")
		ipv4, ipv6 := derived(cell, try)
		again4, again6 := derived(cell, try)
		if ipv4 != again4 || ipv6 != again6 || !rangeIPv4.Contains(ipv4.Addr()) || ipv6.Addr().AsSlice()[0] != 0xfd {
			t.Fatalf("%v %v", ipv4, ipv6)
		}
		if err := errors.Join(policy.CheckPrefix(ipv4), policy.CheckPrefix(ipv6)); err != nil {
			t.Fatal(err)
		}
	})
}

// TestPoolAgainstASet: no number twice, the file says what the memory says, numbers return late.
func TestPoolAgainstASet(t *testing.T) {
	directory := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		_ = os.Remove(filepath.Join(directory, fileName))
		p, err := openPool(directory)
		if err != nil {
			rt.Fatal(err)
		}
		p.bridge, p.ipv4, p.ipv6 = "colloid0", netip.MustParsePrefix("10.64.0.0/28"), netip.MustParsePrefix("fd00::/64")
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			name := "n" + strconv.Itoa(rapid.IntRange(0, 19).Draw(rt, "name"))
			if rapid.Bool().Draw(rt, "drop") {
				if err := p.drop(name); err != nil {
					rt.Fatal(err)
				}
			} else if _, err := p.take(name, "", nil); (err != nil) && len(p.leases) != p.capacity() {
				rt.Fatalf("%d of %d: %v", len(p.leases), p.capacity(), err)
			}
			used := map[int]bool{}
			for name, l := range p.leases {
				a := addressOf(p.ipv4, l.number)
				if used[l.number] || !p.ipv4.Contains(a) || !p.ipv4.Contains(a.Next()) || l.number < 2 {
					rt.Fatalf("%s has number %d", name, l.number)
				}
				used[l.number] = true
			}
		}
		if len(p.leases) == 0 {
			return
		}
		read, err := openPool(directory)
		if err != nil || fmt.Sprint(read.leases) != fmt.Sprint(p.leases) || read.next != p.next {
			rt.Fatalf("%v: %v became %v", err, p.leases, read)
		}
	})
}

func TestDamagedFilesAreRefused(t *testing.T) {
	good := "bridge \"colloid0\"\nipv4 \"10.64.0.0/24\"\nipv6 \"fd00::/64\"\nnext \"3\"\n"
	for name, text := range map[string]string{
		"twice":       good + "lease \"2 a\"\nlease \"2 b\"\n",
		"same name":   good + "lease \"2 a\"\nlease \"3 a\"\n",
		"number":      good + "lease \"1 a\"\n",
		"beyond":      good + "lease \"255 a\"\n",
		"port":        good + "lease \"2 a 80\"\n",
		"no name":     good + "lease \"2 =x\"\n",
		"no bridge":   "lease \"2 a\"\n",
		"bridge name": strings.Replace(good, "colloid0", "a/b", 1),
		"range":       strings.Replace(good, "10.64.0.0/24", "10.64.0.1/24", 1),
		"families":    strings.Replace(good, "10.64.0.0/24", "fd01::/64", 1),
		"form":        "x",
	} {
		directory := t.TempDir()
		if err := os.WriteFile(filepath.Join(directory, fileName), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(Options{Directory: directory}); err == nil || !strings.Contains(err.Error(), "remove the file") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestHostsKeepTheirAdvertisedAddresses: forwarding must not switch router advertisements off.
func TestHostsKeepTheirAdvertisedAddresses(t *testing.T) {
	s := newStage(t)
	s.must(os.WriteFile("/proc/sys/net/ipv6/conf/up0/accept_ra", []byte("1"), 0))
	s.must(os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("0"), 0))
	s.prepare("a")
	if text, _ := os.ReadFile("/proc/sys/net/ipv6/conf/up0/accept_ra"); string(text) != "2\n" {
		t.Errorf("accept_ra is %q", text)
	}
	if text, _ := os.ReadFile("/proc/sys/net/ipv6/conf/" + DefaultBridge + "/accept_ra"); string(text) != "0\n" {
		t.Errorf("accept_ra of the bridge is %q", text)
	}
}
