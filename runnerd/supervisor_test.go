package runnerd_test

import (
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/ipc/message"
	"colloid.net/runnerd"
	"colloid.net/runnerd/cgroup"
	"colloid.net/runnerd/procfs"
	"colloid.net/runnerd/record"
	"colloid.net/runnerd/runnerdtest"
	"colloid.net/runnerd/shim"
	"colloid.net/workload"
)

const (
	starting = message.InstanceState_INSTANCE_STARTING
	ready    = message.InstanceState_INSTANCE_READY
	unready  = message.InstanceState_INSTANCE_UNREADY
	backoff  = message.InstanceState_INSTANCE_BACKOFF
	exited   = message.InstanceState_INSTANCE_EXITED
	denied   = message.InstanceState_INSTANCE_DENIED
)

func TestMain(m *testing.M) {
	runnerdtest.Main()
	os.Setenv("SECRET_OF_RUNNERD", "must not reach a workload")
	code := m.Run()
	runnerdtest.Cleanup()
	os.Exit(code)
}

// host is one test host: a state directory, a policy, a listed binary.
type host struct {
	images    []string // command of the children for images
	t         *testing.T
	directory string
	policy    string
	binary    string
	digest    string
	groups    *cgroup.Manager
	timing    runnerd.Timing
	worker    string
}

func newHost(t *testing.T) *host {
	t.Helper()
	t.Parallel() // most of a test is waiting
	base := t.TempDir()
	h := &host{t: t, directory: filepath.Join(base, "state"), policy: filepath.Join(base, "policy")}
	h.binary, h.digest = runnerdtest.Binary(t, base)
	h.writePolicy("")
	h.timing = runnerd.Timing{BackoffFirst: 50 * time.Millisecond, PolicyCheck: 100 * time.Millisecond, AheadLeast: 2 * time.Second}
	t.Cleanup(h.killAll)
	return h
}

// account is who runs the tests' workloads: root when the test is root, so that any path works.
func account() string { return fmt.Sprint(os.Geteuid()) }

func (h *host) writePolicy(more string) {
	h.t.Helper()
	text := fmt.Sprintf("process %s { sha256 %s; user %s; args any; env any; port 20000-60000 }\n%s\n",
		h.binary, h.digest, account(), more)
	h.replacePolicy(text)
}

func (h *host) replacePolicy(text string) {
	h.t.Helper()
	if err := os.WriteFile(h.policy+".new", []byte(text), 0o644); err != nil {
		h.t.Fatal(err)
	}
	if err := os.Rename(h.policy+".new", h.policy); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) open() *runnerd.Supervisor {
	h.t.Helper()
	s, err := runnerd.Open(runnerd.Options{
		Directory: h.directory, PolicyFile: h.policy, Groups: h.groups, Timing: h.timing, Worker: h.worker, ImagesCommand: h.images,
		Log: log.New(testWriter{h.t}, "", 0),
	})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(s.Close)
	return s
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	if testing.Verbose() {
		fmt.Fprintf(os.Stderr, "%s: %s", w.t.Name(), p)
	}
	return len(p), nil
}

// killAll ends every process that was started from the host's files, however the test ended.
func (h *host) killAll() {
	for range 500 {
		found := false
		directories, _ := filepath.Glob(filepath.Join(h.directory, "instances", "*"))
		for _, directory := range directories {
			if !shim.Locked(directory) {
				continue
			}
			found = true
			if r, err := record.Load(filepath.Join(directory, shim.FileRun)); err == nil && h.worker != "" {
				p := procfs.Process{PID: int(r.Int("pid")), StartTicks: r.Uint("ticks")}
				_ = p.Signal(unix.SIGKILL)
			}
		}
		for _, p := range h.processes() {
			found = true
			_ = p.Signal(unix.SIGKILL)
		}
		if !found {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// processes are the living processes that run the host's binary.
func (h *host) processes() []procfs.Process {
	var list []procfs.Process
	links, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && strings.TrimSuffix(target, " (deleted)") == h.binary {
			var pid int
			fmt.Sscanf(link, "/proc/%d/exe", &pid)
			if p, err := procfs.Find(pid); err == nil && p.Alive() {
				list = append(list, p)
			}
		}
	}
	return list
}

func (h *host) instanceFile(id runnerd.InstanceID, name string) string {
	return filepath.Join(h.directory, "instances", id.String(), name)
}

func freePort(t *testing.T) uint16 {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return uint16(listener.Addr().(*net.TCPAddr).Port)
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(runnerdtest.Patience); !condition(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not happen", what)
		}
	}
}

func TestStartRunsAndStopRemoves(t *testing.T) {
	h := newHost(t)
	client := runnerdtest.Attach(t, h.open())
	if !client.Hello.RunsProcess || client.Hello.CpuMillicores == 0 || client.Hello.MemoryMib == 0 {
		t.Fatalf("%v", client.Hello)
	}
	id := client.Start("spread.web", 0, runnerdtest.Spec(h.binary, "sleep"))
	i := client.Await(id, ready)
	p := procfs.Process{PID: int(i.Pid), StartTicks: i.StartTicks}
	if !p.Alive() || len(h.processes()) != 1 {
		t.Fatalf("%v, %d processes", i, len(h.processes()))
	}
	client.Start("spread.web", 0, runnerdtest.Spec(h.binary, "sleep")) // repeated: harmless
	client.Start("spread.web", 1, runnerdtest.Spec(h.binary, "sleep")) // another slot
	eventually(t, "second process", func() bool { return len(h.processes()) == 2 })
	if now := client.Instance(id); now.Pid != i.Pid {
		t.Fatalf("process changed from %d to %d", i.Pid, now.Pid)
	}
	eventually(t, "log", func() bool {
		text, _ := os.ReadFile(h.instanceFile(id, "log"))
		return string(text) == "sleeping\n"
	})
	client.Stop(id, 5*time.Second)
	client.AwaitGone(id)
	if _, err := os.Stat(h.instanceFile(id, "")); !os.IsNotExist(err) || p.Alive() {
		t.Fatalf("directory: %v, alive: %v", err, p.Alive())
	}
	sequence := client.Send(&message.Command{Body: &message.Command_List{List: &message.List{}}})
	client.AwaitAcknowledged(sequence)
	client.Stop(id, 0) // of what does not exist: GONE again
	client.AwaitAcknowledged(sequence + 1)
}

func TestStubbornWorkloadIsKilledAfterTheGrace(t *testing.T) {
	h := newHost(t)
	client := runnerdtest.Attach(t, h.open())
	id := client.Start("spread.stubborn", 0, runnerdtest.Spec(h.binary, "stubborn"))
	client.Await(id, ready)
	began := time.Now()
	client.Stop(id, 300*time.Millisecond)
	client.AwaitGone(id)
	if took := time.Since(began); took < 300*time.Millisecond || took > 5*time.Second {
		t.Fatalf("took %v", took)
	}
	id = client.Start("spread.stubborn", 1, runnerdtest.Spec(h.binary, "stubborn"))
	client.Await(id, ready)
	client.Stop(id, time.Hour)
	client.Await(id, message.InstanceState_INSTANCE_STOPPING)
	client.Stop(id, 0) // hurries the first
	client.AwaitGone(id)
}

// TestStopKillsTheWholeTree has grandchildren, one in another session, with and without cgroups.
func TestStopKillsTheWholeTree(t *testing.T) {
	for _, grouped := range []bool{false, true} {
		t.Run(fmt.Sprintf("cgroup=%v", grouped), func(t *testing.T) {
			h := newHost(t)
			if grouped {
				var err error
				if h.groups, err = cgroup.Detect(os.Getpid()); err != nil {
					t.Skipf("no control groups to write to: %v", err)
				}
			}
			client := runnerdtest.Attach(t, h.open())
			id := client.Start("spread.tree", 0, runnerdtest.Spec(h.binary, "tree"))
			i := client.Await(id, ready)
			root := procfs.Process{PID: int(i.Pid), StartTicks: i.StartTicks}
			adopter := parentOf(t, root.PID)
			tree := procfs.Tree{Session: root.PID, Root: root, Adopter: adopter, Keep: adopter.PID}
			eventually(t, "tree", func() bool { return len(tree.Members()) >= 6 })
			members := tree.Members()
			if grouped && len(h.groups.Names()) == 0 {
				t.Fatal("no control group was made")
			}
			client.Stop(id, 100*time.Millisecond)
			client.AwaitGone(id)
			for _, p := range members {
				if p.Alive() {
					t.Errorf("%v lives on", p)
				}
			}
			eventually(t, "the end of the shim", func() bool { return !adopter.Alive() }) // it has only to exit
			if grouped {
				for _, name := range h.groups.Names() {
					if strings.HasPrefix(name, fmt.Sprintf("%016x-", id.KeyHash)) {
						t.Errorf("control group %s is left", name)
					}
				}
			}
		})
	}
}

func parentOf(t *testing.T, pid int) procfs.Process {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	var state string
	var parent int
	fmt.Sscanf(string(text[strings.LastIndexByte(string(text), ')')+1:]), "%s %d", &state, &parent)
	p, err := procfs.Find(parent)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestF158_ReadinessFollowsTheHealthCheck(t *testing.T) {
	h := newHost(t)
	client := runnerdtest.Attach(t, h.open())
	port := freePort(t)
	spec := runnerdtest.Spec(h.binary, "listen")
	spec.Ports = []workload.Port{{Host: port, Container: port}}
	spec.Health = workload.Health{Kind: workload.HealthHTTP, Port: port, Path: "/", IntervalMillisecond: 100}
	id := client.Start("spread.http", 0, spec)
	i := client.Await(id, ready)
	if len(i.Ports) != 1 || i.Ports[0] != uint32(port) {
		t.Fatalf("ports %v", i.Ports)
	}
	sick := h.instanceFile(id, "scratch/sick")
	if err := os.WriteFile(sick, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if i = client.Await(id, unready); !strings.Contains(i.Reason, "answers 503") {
		t.Fatalf("reason %q", i.Reason)
	}
	os.Remove(sick)
	client.Await(id, ready)

	port = freePort(t)
	deaf := runnerdtest.Spec(h.binary, "sleep") // never listens
	deaf.Ports = []workload.Port{{Host: port, Container: port}}
	id = client.Start("spread.deaf", 0, deaf)
	client.Await(id, starting)
	time.Sleep(700 * time.Millisecond)
	if i := client.Instance(id); i.State != starting || i.Reason != "" {
		t.Fatalf("%v", i)
	}
	want := fmt.Sprintf("tcp %d: connection refused", port)
	client.Until("the reason", func() bool {
		i := client.Locked(id)
		return i.GetState() == starting && i.GetReason() == want
	})
}

func TestF158_ExecHealthCheckRunsListedPrograms(t *testing.T) {
	h := newHost(t)
	client := runnerdtest.Attach(t, h.open())
	spec := runnerdtest.Spec(h.binary, "sleep")
	spec.Health = workload.Health{Kind: workload.HealthExec, TimeoutMillisecond: 15000,
		Command: []string{h.binary, "workload", "exit", "x"}}
	client.Await(client.Start("spread.well", 0, spec), ready)
	spec.Health.Command = []string{h.binary, "workload", "exit", "x", "y"} // code 1
	id := client.Start("spread.ill", 0, spec)
	time.Sleep(500 * time.Millisecond)
	if i := client.Instance(id); i.GetState() != starting {
		t.Fatalf("%v", i)
	}
	spec.Health.Command = []string{"/bin/true"}
	if i := client.Await(client.Start("spread.other", 0, spec), denied); !strings.Contains(i.Reason, "does not list") {
		t.Fatalf("%v", i)
	}
}

func size(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// TestF145_WorkloadGetsACleanProcess looks from inside.
func TestF145_WorkloadGetsACleanProcess(t *testing.T) {
	h := newHost(t)
	inherited, err := os.Open("/dev/null") // a descriptor that somebody left open
	if err != nil {
		t.Fatal(err)
	}
	defer inherited.Close()
	client := runnerdtest.Attach(t, h.open())
	spec := runnerdtest.Spec(h.binary, "show", "a b", "")
	spec.Environment = []string{"COLOUR=blue"}
	spec.Ports = []workload.Port{{Host: 20001, Container: 20001, Protocol: workload.UDP}, {Host: 20002, Container: 20002, Protocol: workload.UDP}}
	id := client.Start("spread.show", 3, spec)
	client.Await(id, ready)
	var text string
	eventually(t, "show", func() bool {
		content, err := os.ReadFile(h.instanceFile(id, "scratch/shown"))
		text = string(content)
		return err == nil
	})
	var environment, descriptors []string
	for _, line := range strings.Split(text, "\n") {
		if value, ok := strings.CutPrefix(line, "env "); ok {
			environment = append(environment, value)
		}
		if value, ok := strings.CutPrefix(line, "fd "); ok {
			descriptors = append(descriptors, value)
		}
	}
	want := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"COLLOID_CELL=0000000000001234", "COLLOID_WORKLOAD=spread.show", "COLLOID_SLOT=3",
		"COLLOID_ADDRESS=127.0.0.1", "PORT=20001", "PORT_0=20001", "PORT_1=20002", "COLOUR=blue"}
	if strings.Join(environment, "|") != strings.Join(want, "|") {
		t.Errorf("environment %q", environment)
	}
	for _, descriptor := range descriptors {
		number, target, _ := strings.Cut(descriptor, " ")
		if number <= "2" && len(number) == 1 {
			continue
		}
		for _, ours := range []string{"pipe:", "socket:", "/dev/null", "memfd:", "runnerd", h.binary, "/lock"} {
			if strings.Contains(target, ours) {
				t.Errorf("descriptor %q came along", descriptor)
			}
		}
	}
	for _, line := range []string{"NoNewPrivs:\t1", "arguments " + h.binary + " workload show a b ",
		"directory " + h.instanceFile(id, "scratch")} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("%q is missing in:\n%s", line, text)
		}
	}
}

func TestAuditLogHasALinePerDecision(t *testing.T) {
	h := newHost(t)
	s := h.open()
	client := runnerdtest.Attach(t, s)
	id := client.Start("spread.web", 0, runnerdtest.Spec(h.binary, "sleep"))
	client.Await(id, ready)
	client.Start("spread.bad", 0, runnerdtest.Spec("/bin/false"))
	client.Stop(id, 0)
	client.AwaitGone(id)
	s.Close()
	text, _ := os.ReadFile(filepath.Join(h.directory, "audit.log"))
	for _, want := range []string{
		`connect: allowed`, `"spread.web": allowed: ` + h.binary,
		`"spread.bad": denied: the host's policy does not list process /bin/false`, `stop ` + id.String(),
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%q is missing in:\n%s", want, text)
		}
	}
}

func TestNewSessionReplacesTheOld(t *testing.T) {
	h := newHost(t)
	s := h.open()
	first := runnerdtest.Attach(t, s)
	id := first.Start("spread.web", 0, runnerdtest.Spec(h.binary, "sleep"))
	pid := first.Await(id, ready).Pid
	second := runnerdtest.Attach(t, s)
	first.AwaitEnd()
	if i := second.Await(id, ready); i.Pid != pid || i.Key != "spread.web" || len(i.Spec) == 0 {
		t.Fatalf("%v", i)
	}
}

// TestD2_PolicyChangesTakeEffect: what is listed later is asked for again, what is no longer listed
// stops, a broken file changes nothing.
func TestD2_PolicyChangesTakeEffect(t *testing.T) {
	h := newHost(t)
	h.replacePolicy("instances 4")
	client := runnerdtest.Attach(t, h.open())
	if client.Hello.RunsProcess {
		t.Fatal("an empty policy runs processes")
	}
	id := client.Start("spread.web", 0, runnerdtest.Spec(h.binary, "sleep"))
	client.Await(id, denied)
	h.writePolicy("cpu 700m")
	client.AwaitGone(id)
	client.Until("hello", func() bool { return client.Hello.RunsProcess && client.Hello.CpuMillicores == 700 })
	client.Start("spread.web", 0, runnerdtest.Spec(h.binary, "sleep"))
	pid := client.Await(id, ready).Pid
	h.replacePolicy("process {")
	client.Until("degradation", func() bool {
		return strings.Contains(strings.Join(client.Hello.Degradations, " "), "not in force")
	})
	os.Remove(h.policy)
	client.Until("degradation", func() bool {
		return strings.Contains(strings.Join(client.Hello.Degradations, " "), "there is no policy file")
	})
	if i := client.Instance(id); i.State != ready || i.Pid != pid {
		t.Fatalf("%v", i)
	}
	h.replacePolicy("instances 4")
	if i := client.Await(id, denied); !strings.Contains(i.Reason, "does not list") {
		t.Fatalf("%v", i)
	}
	if len(h.processes()) != 0 {
		t.Fatal("it still runs")
	}
}
