package guest

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/workload"
)

// TestF141_LimitsOfContainers has the limits hold for containers with everything that belongs to them: own init, image
// on an overlay, user namespace, network.
func TestF141_LimitsOfContainers(t *testing.T) {
	p := newPods(t)
	t.Run("memory", p.memory)
	t.Run("processor", p.processor)
	t.Run("processes", p.processes)
	t.Run("freezer", p.freezer)
	t.Run("disk traffic", p.traffic)
	t.Run("disk space", p.space)
	p.leavesNothing()
}

// memory: the one that eats dies and says why, the other lives on; the daemon counts it.
func (p *pods) memory(t *testing.T) {
	const limit = 32
	change := func(spec *workload.Spec) { spec.MemoryMiB, spec.Restart = limit, workload.RestartNever }
	calm := p.run(t, "calm", "while true; do sleep 1; done", change)
	before := p.Await(calm, ready)
	greedy := p.run(t, "greedy", "dd if=/dev/zero of=/dev/null bs=100M count=1; echo survived", change)
	ended := p.Await(greedy, exited)
	if ended.OomKills == 0 || ended.ExitCode != 137 ||
		!strings.Contains(ended.Reason, fmt.Sprintf("memory limit of %d MiB", limit)) {
		t.Errorf("%v: %s", ended, p.output(greedy))
	}
	now := p.Instance(calm)
	if now.GetState() != ready || now.Pid != before.Pid || now.OomKills != 0 || now.Restarts != 0 {
		t.Errorf("the other one is %v", now)
	}
	if kills := figureOf(t, groupOf(t, p.groups, calm), "memory.events", "oom_kill"); kills != 0 {
		t.Errorf("%d kills in the other's group", kills)
	}
}

// processor: two busy programs of one container share what the container may have.
func (p *pods) processor(t *testing.T) {
	const millicores = 200
	busy := p.run(t, "busy", "(while true; do :; done) & while true; do :; done", func(spec *workload.Spec) {
		spec.CPUMillicores = millicores
	})
	p.Await(busy, ready)
	time.Sleep(time.Second)
	holdsShare(t, groupOf(t, p.groups, busy), millicores)
}

// processes: a fork bomb stays within its limit and others start meanwhile.
func (p *pods) processes(t *testing.T) {
	const limit = 32
	bomb := p.run(t, "bomb", "bomb() { bomb | bomb & }; bomb; while true; do sleep 1; done", func(spec *workload.Spec) {
		spec.PidsMax = limit
	})
	group := groupOf(t, p.groups, bomb)
	eventually(t, "the limit", func() bool { return figureOf(t, group, "pids.events", "max") > 0 })
	if most := figureOf(t, group, "pids.current", ""); most > limit {
		t.Errorf("%d processes, allowed %d", most, limit)
	}
	other := p.run(t, "other", "while true; do sleep 1; done", nil)
	p.Await(other, ready)
}

// freezer: a frozen server answers nobody and uses nothing, a thawed one goes on.
func (p *pods) freezer(t *testing.T) {
	web := p.run(t, "frozen", "httpd -f -p 80 -h /www", func(spec *workload.Spec) {
		spec.Ports = []workload.Port{{Host: 8081, Container: 80}}
	})
	p.Await(web, ready)
	at := netip.MustParseAddrPort("127.0.0.1:8081")
	group := groupOf(t, p.groups, web)
	if err := group.Freeze(); err != nil {
		t.Fatal(err)
	}
	used := figureOf(t, group, "cpu.stat", "usage_usec")
	if text, err := get(at, 2*time.Second); err == nil {
		t.Errorf("frozen it answers %q", text)
	}
	if more := figureOf(t, group, "cpu.stat", "usage_usec") - used; more > 0 {
		t.Errorf("used %d microseconds while frozen", more)
	}
	if err := group.Thaw(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "an answer", func() bool {
		text, _ := get(at, 5*time.Second)
		return strings.Contains(text, boxText)
	})
}

// get asks a web server.
func get(at netip.AddrPort, patience time.Duration) (string, error) {
	conn, err := net.DialTimeout("tcp", at.String(), patience)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	fmt.Fprint(conn, "GET / HTTP/1.0\r\n\r\n")
	text, err := io.ReadAll(io.LimitReader(conn, 1000))
	return string(text), err
}

// traffic: the controller io counts what a container writes, and gives each the same share.
func (p *pods) traffic(t *testing.T) {
	const mebibytes = 4
	writer := p.run(t, "writer", fmt.Sprintf("dd if=/dev/zero of=/big bs=1M count=%d && echo written; "+
		"while true; do sleep 1; done", mebibytes), nil)
	p.Await(writer, ready)
	p.awaitOutput(t, writer, "written")
	group := groupOf(t, p.groups, writer)
	weight, err := os.ReadFile(filepath.Join(group[0], "io.weight"))
	if err != nil || string(weight) != "default 100\n" {
		t.Errorf("io.weight is %q, %v", weight, err)
	}
	// What is written reaches the disk when the kernel sees fit, at the latest when all is written back.
	eventually(t, "the container's writing in io.stat", func() bool {
		unix.Sync()
		text, _ := os.ReadFile(filepath.Join(group[0], "io.stat"))
		var written int64
		for word := range strings.FieldsSeq(string(text)) {
			var n int64
			if _, err := fmt.Sscanf(word, "wbytes=%d", &n); err == nil {
				written += n
			}
		}
		return written >= mebibytes<<20
	})
}

// space: what a container writes ends at its limit of disk, which is not one of memory, and it lives on.
func (p *pods) space(t *testing.T) {
	const disk, memory = 48, 24
	filler := p.run(t, "filler", "dd if=/dev/zero of=/big bs=1M count=40 && echo fits; "+
		"dd if=/dev/zero of=/more bs=1M count=16 || echo full; while true; do sleep 1; done", func(spec *workload.Spec) {
		spec.DiskMiB, spec.MemoryMiB = disk, memory
	})
	p.awaitOutput(t, filler, "fits")
	p.awaitOutput(t, filler, "full")
	i := p.Await(filler, ready)
	if i.OomKills != 0 || i.Restarts != 0 {
		t.Errorf("%v: %s", i, p.output(filler))
	}
}

// leavesNothing looks at what the host still has when all containers are gone.
func (p *pods) leavesNothing() {
	p.t.Helper()
	if names := p.groups.Names(); len(names) > 0 {
		p.t.Errorf("control groups are left: %v", names)
	}
	text, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); strings.HasPrefix(fields[4], p.directory+"/") {
			p.t.Errorf("left mounted: %s", fields[4])
		}
	}
}

// TestF134_LimitsSurviveTheDaemon kills runnerd and starts it again where a unit with DelegateSubgroup=daemon does:
// the kernel takes no process into a group that hands controllers down.
func TestF134_LimitsSurviveTheDaemon(t *testing.T) {
	p := newPods(t)
	id := p.run(t, "stays", "while true; do sleep 1; done", func(spec *workload.Spec) {
		spec.MemoryMiB, spec.CPUMillicores = 32, 300
	})
	before := p.Await(id, ready)
	p.daemon.Kill()
	p.daemon.ControlGroup = groupsRoot + p.leaf()
	p.start()
	defer func() { // while there is the new connection
		p.Stop(id, 0)
		p.AwaitGone(id)
	}()
	after := p.Await(id, ready)
	if after.Pid != before.Pid || after.Restarts != 0 || !p.Hello.LimitsEnforced {
		t.Errorf("%v became %v", before, after)
	}
	group := groupOf(t, p.groups, id)
	for file, want := range map[string]string{"memory.max": "33554432\n", "cpu.max": "30000 100000\n"} {
		if got, err := os.ReadFile(filepath.Join(group[0], file)); string(got) != want {
			t.Errorf("%s is %q, %v", file, got, err)
		}
	}
	other := p.run(t, "new", "while true; do sleep 1; done", func(spec *workload.Spec) { spec.MemoryMiB = 32 })
	p.Await(other, ready)
}

// TestF158_ContainersReachEachOther has two containers on the bridge, by IPv4 and IPv6, and the way in from the host.
func TestF158_ContainersReachEachOther(t *testing.T) {
	p := newPods(t)
	web := p.run(t, "web", "httpd -f -p 80 -h /www", func(spec *workload.Spec) {
		spec.Ports = []workload.Port{{Host: 8082, Container: 80}}
	})
	i := p.Await(web, ready)
	ipv4, ok4 := netip.AddrFromSlice(i.Address)
	ipv6, ok6 := netip.AddrFromSlice(i.AddressIpv6)
	if !ok4 || !ok6 || !netip.MustParsePrefix("10.99.0.0/24").Contains(ipv4) ||
		!netip.MustParsePrefix("fd00:99::/64").Contains(ipv6) {
		t.Fatalf("addresses %v and %v", ipv4, ipv6)
	}
	for _, at := range []netip.AddrPort{netip.AddrPortFrom(ipv4, 80), netip.AddrPortFrom(ipv6, 80),
		netip.MustParseAddrPort("127.0.0.1:8082")} {
		if text, err := get(at, 10*time.Second); !strings.Contains(text, boxText) {
			t.Errorf("%v says %q, %v", at, text, err)
		}
	}
	client := p.run(t, "client", fmt.Sprintf("wget -q -O - http://%s/ && wget -q -O - http://[%s]/ && echo both; "+
		"while true; do sleep 1; done", ipv4, ipv6), nil)
	p.Await(client, ready)
	p.awaitOutput(t, client, boxText+boxText+"both\n")
}
