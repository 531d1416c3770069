package runnerd_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/ipc/message"
	"colloid.net/runnerd"
	"colloid.net/runnerd/procfs"
	"colloid.net/runnerd/runnerdtest"
)

// daemon makes the command as a process for a host. uid 0 means the test's own user.
func (h *host) daemon(uid int) *runnerdtest.Daemon {
	return &runnerdtest.Daemon{Directory: h.directory, Policy: h.policy, UID: uid}
}

func processOf(i *message.Instance) procfs.Process {
	return procfs.Process{PID: int(i.Pid), StartTicks: i.StartTicks}
}

// TestF134_WorkloadsSurviveRunnerd kills runnerd itself and lets a new one adopt.
func TestF134_WorkloadsSurviveRunnerd(t *testing.T) {
	h := newHost(t)
	d := h.daemon(0)
	d.Run(t)
	client := d.Connect()
	id := client.Start("spread.web", 0, runnerdtest.Spec(h.binary, "tick"))
	p := processOf(client.Await(id, ready))
	for round := range 3 {
		d.Kill()
		if !p.Alive() {
			t.Fatalf("round %d: the workload died with runnerd", round)
		}
		d.Run(t)
		client = d.Connect()
		if i := client.Await(id, ready); processOf(i) != p || i.Restarts != 0 {
			t.Fatalf("round %d: %v became %v", round, p, i)
		}
		client.Start("spread.web", 0, runnerdtest.Spec(h.binary, "tick"))
	}
	if n := len(h.processes()); n != 1 {
		t.Fatalf("%d processes", n)
	}
	before := size(h.instanceFile(id, "log"))
	eventually(t, "more output", func() bool { return size(h.instanceFile(id, "log")) > before })
	// It ends while no runnerd lives: the shim has its exit code.
	d.Kill()
	_ = p.Signal(unix.SIGTERM)
	eventually(t, "end", func() bool { return !p.Alive() })
	time.Sleep(100 * time.Millisecond)
	d.Run(t)
	client = d.Connect()
	client.Until("restart", func() bool { return client.Locked(id).GetRestarts() == 1 })
	if i := client.Instance(id); i.ExitCode != 128+int32(unix.SIGTERM) {
		t.Fatalf("%v", i)
	}
	p = processOf(client.Await(id, ready))
	client.Stop(id, 0)
	client.AwaitGone(id)
	if err := d.LeaveLauncher(); err != nil {
		t.Fatalf("runnerd ended with %v when the launcher left", err)
	}
}

// TestF134_WorkloadsSurviveTheirShim kills the shim: the workload goes on and its output with it.
func TestF134_WorkloadsSurviveTheirShim(t *testing.T) {
	h := newHost(t)
	client := runnerdtest.Attach(t, h.open())
	id := client.Start("spread.web", 0, runnerdtest.Spec(h.binary, "tick"))
	p := processOf(client.Await(id, ready))
	for round := range 2 {
		shim := h.shimOf(id)
		_ = shim.Signal(unix.SIGKILL)
		eventually(t, "new shim", func() bool { now := h.shimOf(id); return now != shim && now.Alive() })
		before := size(h.instanceFile(id, "log"))
		eventually(t, "output", func() bool { return size(h.instanceFile(id, "log")) > before })
		if i := client.Instance(id); !p.Alive() || processOf(i) != p || i.State != ready {
			t.Fatalf("round %d: %v", round, i)
		}
	}
	_ = p.Signal(unix.SIGKILL)
	client.Until("restart", func() bool { return client.Locked(id).GetRestarts() == 1 })
	if i := client.Instance(id); i.ExitCode != -1 {
		t.Fatalf("exit code %d of a workload whose shim was replaced", i.ExitCode)
	}
	client.Await(id, ready)
	// Shim and workload at once.
	i := client.Instance(id)
	_ = h.shimOf(id).Signal(unix.SIGKILL)
	_ = processOf(i).Signal(unix.SIGKILL)
	client.Until("restart", func() bool { return client.Locked(id).GetRestarts() == 2 && client.Locked(id).State == ready })
	client.Stop(id, 0)
	client.AwaitGone(id)
	eventually(t, "end of all shims", func() bool { return len(h.processes()) == 0 })
}

func (h *host) shimOf(id runnerd.InstanceID) procfs.Process {
	text, _ := os.ReadFile(h.instanceFile(id, "shim"))
	var p procfs.Process
	for _, line := range strings.Split(string(text), "\n") {
		fmt.Sscanf(line, "pid \"%d\"", &p.PID)
		fmt.Sscanf(line, "ticks \"%d\"", &p.StartTicks)
	}
	return p
}

// TestF134_RandomKillsNeverStartTwice kills runnerd, shims and workloads at random moments, also in
// the middle of starts, and looks for doubles all the time.
func TestF134_RandomKillsNeverStartTwice(t *testing.T) {
	h := newHost(t)
	d := h.daemon(0)
	d.Run(t)
	client := d.Connect()
	const instances = 4
	random := rand.New(rand.NewPCG(1, 134))
	var ids [instances]runnerd.InstanceID
	deadline := time.Now().Add(6 * time.Second)
	for time.Now().Before(deadline) {
		for n := range ids {
			ids[n] = client.Start("spread.web", uint32(n), runnerdtest.Spec(h.binary, "tick"))
		}
		time.Sleep(time.Duration(random.IntN(150)) * time.Millisecond)
		switch random.IntN(3) {
		case 0:
			d.Kill()
			time.Sleep(time.Duration(random.IntN(50)) * time.Millisecond)
			d.Run(t)
			client = d.Connect()
		case 1:
			_ = h.shimOf(ids[random.IntN(instances)]).Signal(unix.SIGKILL)
		case 2:
			if list := h.processes(); len(list) > 0 {
				_ = list[random.IntN(len(list))].Signal(unix.SIGKILL)
			}
		}
		if n := len(h.processes()); n > instances {
			t.Fatalf("%d processes of %d instances", n, instances)
		}
	}
	for _, id := range ids {
		client.Stop(id, 0)
		client.AwaitGone(id)
	}
	eventually(t, "end", func() bool { return len(h.processes()) == 0 })
}

// TestF134_StopGoesOnAfterRunnerdDied kills runnerd in the middle of a stop.
func TestF134_StopGoesOnAfterRunnerdDied(t *testing.T) {
	h := newHost(t)
	d := h.daemon(0)
	d.Run(t)
	client := d.Connect()
	spec := runnerdtest.Spec(h.binary, "stubborn")
	spec.StopGraceSeconds = 1
	id := client.Start("spread.web", 0, spec)
	p := processOf(client.Await(id, ready))
	client.Stop(id, time.Hour)
	client.Await(id, message.InstanceState_INSTANCE_STOPPING)
	d.Kill()
	d.Run(t)
	client = d.Connect()
	eventually(t, "end", func() bool { return !p.Alive() && client.Count() == 0 })
}

// TestF134_AnotherBootIsForgotten puts the state of another boot in place.
func TestF134_AnotherBootIsForgotten(t *testing.T) {
	h := newHost(t)
	s := h.open()
	client := runnerdtest.Attach(t, s)
	id := client.Start("spread.web", 0, runnerdtest.Spec(h.binary, "sleep"))
	p := processOf(client.Await(id, ready))
	s.Close()
	state := h.instanceFile(id, "state")
	text, err := os.ReadFile(state)
	if err != nil {
		t.Fatal(err)
	}
	other := strings.ReplaceAll(string(text), procfs.BootID(), "another-boot")
	if err := os.WriteFile(state, []byte(other), 0o600); err != nil {
		t.Fatal(err)
	}
	// The process of the same id belongs to somebody else in this boot: make the record say so too.
	run := h.instanceFile(id, "run")
	text, _ = os.ReadFile(run)
	os.WriteFile(run, []byte(strings.ReplaceAll(string(text), procfs.BootID(), "another-boot")), 0o600)
	client = runnerdtest.Attach(t, h.open())
	if client.Count() != 0 || !p.Alive() {
		t.Fatalf("%d instances, alive %v", client.Count(), p.Alive())
	}
	if _, err := os.Stat(h.instanceFile(id, "")); !os.IsNotExist(err) {
		t.Fatal("the directory is left")
	}
}

// TestWithoutRoot runs everything as uid 65534, as on a laptop (decision D2).
func TestWithoutRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to become somebody else")
	}
	const uid = 65534
	h := newHost(t)
	home := filepath.Join(filepath.Dir(h.policy), "home")
	if err := os.Mkdir(home, 0o755); err != nil {
		t.Fatal(err)
	}
	for path := home; path != "/tmp" && path != "/"; path = filepath.Dir(path) {
		os.Chmod(path, 0o755)
	}
	h.directory, h.policy = filepath.Join(home, "state"), filepath.Join(home, "policy")
	h.replacePolicy(fmt.Sprintf("process %s { sha256 %s; args any }\nprocess /bin/sleep { sha256 any; user root; args any }",
		h.binary, h.digest))
	os.Chown(home, uid, uid)
	os.Chown(h.policy, uid, uid)
	d := h.daemon(uid)
	d.Run(t)
	client := d.Connect()
	if !strings.Contains(strings.Join(client.Hello.Degradations, " "), "runs without root") {
		t.Errorf("%v", client.Hello.Degradations)
	}
	id := client.Start("spread.web", 0, runnerdtest.Spec(h.binary, "tree"))
	p := processOf(client.Await(id, ready))
	info, err := os.Stat(fmt.Sprintf("/proc/%d", p.PID))
	if err != nil || info.Sys().(*syscall.Stat_t).Uid != uid {
		t.Fatalf("%v, %v", info, err)
	}
	root := client.Start("spread.root", 0, runnerdtest.Spec("/bin/sleep", "1"))
	if i := client.Await(root, denied); !strings.Contains(i.Reason, "cannot switch") {
		t.Errorf("%v", i)
	}
	d.Kill()
	d.Run(t)
	client = d.Connect()
	if i := client.Await(id, ready); processOf(i) != p {
		t.Fatalf("%v", i)
	}
	client.Stop(id, 0)
	client.AwaitGone(id)
	if p.Alive() {
		t.Fatal("it lives on")
	}
}

// TestMemoryIsSmall holds the share of runnerd in the 80 MB of a cell.
func TestMemoryIsSmall(t *testing.T) {
	h := newHost(t)
	d := h.daemon(0)
	d.Run(t)
	client := d.Connect()
	id := client.Start("spread.web", 0, runnerdtest.Spec(h.binary, "sleep"))
	client.Await(id, ready)
	daemon, shim := runnerdtest.ResidentKiB(d.PID()), runnerdtest.ResidentKiB(h.shimOf(id).PID)
	t.Logf("runnerd %d KiB, one shim %d KiB", daemon, shim)
	if daemon > 24<<10 || shim > 10<<10 {
		t.Errorf("runnerd has %d KiB, a shim %d KiB", daemon, shim)
	}
	client.Stop(id, 0)
	client.AwaitGone(id)
}
