// Package guest holds the tests that make vm runs as root of a machine of its own: Linux 6.1 with the whole
// hierarchy of control groups version 2. Elsewhere they skip.
package guest

import (
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"colloid.net/ipc/message"
	"colloid.net/runnerd"
	"colloid.net/runnerd/cgroup"
	"colloid.net/runnerd/runnerdtest"
	"colloid.net/workload"
)

func TestMain(m *testing.M) {
	runnerdtest.Main()
	os.Exit(m.Run())
}

const shell = "/bin/busybox"

// host is a runnerd of this process with real control groups, for workloads written as shell scripts.
type host struct {
	*runnerdtest.Client
	t      *testing.T
	groups *cgroup.Manager
}

func newHost(t *testing.T) *host {
	t.Helper()
	if os.Getenv("COLLOID_VM") == "" {
		t.Skip("not in the machine of make vm")
	}
	root, own, err := cgroup.Mount()
	if err != nil {
		t.Fatal(err)
	}
	groups, err := cgroup.Open(root, own, os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if !groups.Enforced() {
		t.Fatalf("controllers are missing here: %v", groups.Missing())
	}
	base := t.TempDir()
	policy := filepath.Join(base, "policy")
	text := "process " + shell + " { sha256 any; user root; args any; env any }\n"
	if err := os.WriteFile(policy, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	supervisor, err := runnerd.Open(runnerd.Options{
		Directory: filepath.Join(base, "state"), PolicyFile: policy, Groups: groups,
		Timing: runnerd.Timing{BackoffFirst: time.Minute},
		Log:    log.New(os.Stderr, t.Name()+": ", 0),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(supervisor.Close)
	return &host{Client: runnerdtest.Attach(t, supervisor), t: t, groups: groups}
}

// run starts a script and stops it at the end of the test.
func (h *host) run(name, script string, change func(*workload.Spec)) runnerd.InstanceID {
	h.t.Helper()
	spec := &workload.Spec{
		Runtime: workload.RuntimeProcess, Replicas: 1, Image: shell, Arguments: []string{"sh", "-c", script},
	}
	if change != nil {
		change(spec)
	}
	id := h.Start("spread."+name, 0, spec)
	h.t.Cleanup(func() {
		h.Stop(id, 0)
		h.AwaitGone(id)
	})
	return id
}

// group is the directory of the instance's control group.
func (h *host) group(id runnerd.InstanceID) cgroup.Group {
	h.t.Helper()
	return groupOf(h.t, h.groups, id)
}

// figure reads one number of a control file.
func (h *host) figure(id runnerd.InstanceID, file, field string) int64 {
	h.t.Helper()
	return figureOf(h.t, h.group(id), file, field)
}

// groupOf is the control group of an instance, once there is one.
func groupOf(t *testing.T, groups *cgroup.Manager, id runnerd.InstanceID) cgroup.Group {
	t.Helper()
	prefix := fmt.Sprintf("%016x-%d-", id.KeyHash, id.Slot)
	for deadline := time.Now().Add(runnerdtest.Patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		for _, name := range groups.Names() {
			if strings.HasPrefix(name, prefix) {
				return groups.Path(name)
			}
		}
	}
	t.Fatalf("%v has no control group", id)
	return nil
}

// figureOf reads one number of a control file: the whole file, or the line that begins with a field.
func figureOf(t *testing.T, group cgroup.Group, file, field string) int64 {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(group[0], file))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(string(text), "\n") {
		value, found := strings.CutPrefix(line, field)
		if n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64); found && err == nil {
			return n
		}
	}
	t.Fatalf("%s of %v has no %q: %q", file, group, field, text)
	return 0
}

// tolerance of a limit of processor time: 10 %.
const tolerance = 0.1

// holdsShare watches how many thousandths of a processor a group uses. A busy host gives the whole guest less, and stops it
// for longer than a period, after which a group has had too much and gets less; neither is a fault of the limit. So
// it holds if it does over one of ten windows, or over all of them together.
func holdsShare(t *testing.T, group cgroup.Group, millicores float64) {
	t.Helper()
	figures := func() (used, periods float64) {
		return float64(figureOf(t, group, "cpu.stat", "usage_usec")), float64(figureOf(t, group, "cpu.stat", "nr_periods"))
	}
	holds := func(used, periods float64) bool {
		now := used / (periods * 100_000) * 1000
		t.Logf("%.0f periods, %.0f of %.0f thousandths of a processor", periods, now, millicores)
		return now >= millicores*(1-tolerance) && now <= millicores*(1+tolerance)
	}
	usedFirst, periodsFirst := figures()
	usedLast, periodsLast := usedFirst, periodsFirst
	for range 10 {
		time.Sleep(2500 * time.Millisecond)
		used, periods := figures()
		if holds(used-usedLast, periods-periodsLast) || holds(used-usedFirst, periods-periodsFirst) {
			return
		}
		usedLast, periodsLast = used, periods
	}
	t.Errorf("the limit of %.0f thousandths of a processor does not hold within %.0f %%", millicores, tolerance*100)
}

const (
	ready   = message.InstanceState_INSTANCE_READY
	backoff = message.InstanceState_INSTANCE_BACKOFF
	exited  = message.InstanceState_INSTANCE_EXITED
)

// TestF141_MemoryLimitKillsTheRightInstance: the one that eats dies with code 137, the other lives on.
func TestF141_MemoryLimitKillsTheRightInstance(t *testing.T) {
	h := newHost(t)
	limit := func(spec *workload.Spec) { spec.MemoryMiB = 32 }
	calm := h.run("calm", "sleep 1000", limit)
	h.Await(calm, ready)
	// A shell variable that doubles until the limit is met.
	greedy := h.run("greedy", "sleep 1; x=0123456789abcdef; while true; do x=$x$x; done", limit)
	ended := h.Await(greedy, backoff)
	if ended.ExitCode != 137 {
		t.Errorf("exit code %d, want 137: %s", ended.ExitCode, ended.Reason)
	}
	if state := h.Instance(calm).GetState(); state != ready {
		t.Errorf("the other instance is %v", state)
	}
	if kills := h.figure(calm, "memory.events", "oom_kill"); kills != 0 {
		t.Errorf("%d kills in the other's group", kills)
	}
}

// TestF141_ProcessorLimitHoldsWithinTenPercent measures a busy loop over many periods.
func TestF141_ProcessorLimitHoldsWithinTenPercent(t *testing.T) {
	h := newHost(t)
	const millicores = 200
	busy := h.run("busy", "while true; do :; done", func(spec *workload.Spec) { spec.CPUMillicores = millicores })
	h.Await(busy, ready)
	time.Sleep(time.Second)
	holdsShare(t, h.group(busy), millicores)
}

// TestF141_ProcessLimitStopsAForkBomb: the bomb stays within its limit and other instances can start.
func TestF141_ProcessLimitStopsAForkBomb(t *testing.T) {
	h := newHost(t)
	const limit = 32
	bomb := h.run("bomb", "bomb() { bomb | bomb & }; bomb; sleep 1000", func(spec *workload.Spec) { spec.PidsMax = limit })
	deadline := time.Now().Add(20 * time.Second)
	for h.figure(bomb, "pids.events", "max") == 0 {
		if time.Now().After(deadline) {
			t.Fatal("the limit was never met")
		}
		time.Sleep(50 * time.Millisecond)
	}
	if most := h.figure(bomb, "pids.current", ""); most > limit {
		t.Errorf("%d processes, allowed %d", most, limit)
	}
	other := h.run("other", "sleep 1000", nil)
	h.Await(other, ready)
}

// TestF141_FrozenGroupStandsStill: a frozen group uses no processor time, a thawed one goes on.
func TestF141_FrozenGroupStandsStill(t *testing.T) {
	h := newHost(t)
	busy := h.run("frozen", "while true; do :; done", nil)
	h.Await(busy, ready)
	group := h.group(busy)
	if err := group.Freeze(); err != nil {
		t.Fatal(err)
	}
	used := h.figure(busy, "cpu.stat", "usage_usec")
	time.Sleep(time.Second)
	if more := h.figure(busy, "cpu.stat", "usage_usec") - used; more > 0 {
		t.Errorf("used %d microseconds while frozen", more)
	}
	if err := group.Thaw(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	if more := h.figure(busy, "cpu.stat", "usage_usec") - used; more == 0 {
		t.Error("did not go on")
	}
}

// TestF141_NothingIsLeftOfAGroup: a tree of processes ends with its instance.
func TestF141_NothingIsLeftOfAGroup(t *testing.T) {
	h := newHost(t)
	id := h.Start("spread.tree", 0, &workload.Spec{
		Runtime: workload.RuntimeProcess, Replicas: 1, Image: shell,
		Arguments: []string{"sh", "-c", "for i in 1 2 3; do (setsid sleep 3210 &) ; sleep 3210 & done; sleep 3210"},
	})
	h.Await(id, ready)
	group := h.group(id)
	for n := 0; len(group.Members()) < 7 && n < 100; n++ {
		time.Sleep(50 * time.Millisecond)
	}
	if members := group.Members(); len(members) < 7 {
		t.Fatalf("only %d processes started", len(members))
	}
	h.Stop(id, 0)
	h.AwaitGone(id)
	if _, err := os.Stat(group[0]); !os.IsNotExist(err) {
		t.Errorf("the group is still there: %v, processes %v", err, group.Members())
	}
}
