package evil

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/ipc/message"
	"colloid.net/runnerd"
	"colloid.net/runnerd/procfs"
	"colloid.net/runnerd/runnerdtest"
	"colloid.net/workload"
)

const (
	ready  = message.InstanceState_INSTANCE_READY
	denied = message.InstanceState_INSTANCE_DENIED
)

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "canary" { // run as the evil binary
		_ = os.WriteFile(os.Args[2], []byte("ran"), 0o666)
		os.Exit(0)
	}
	runnerdtest.Main()
	code := m.Run()
	runnerdtest.Cleanup()
	os.Exit(code)
}

// victim is a host under attack with its canaries.
type victim struct {
	*runnerdtest.Daemon
	t       *testing.T
	base    string
	binary  string // listed, may run
	digest  string
	canary  string // a file nobody may touch
	marker  string // what an evil binary would write
	bystand procfs.Process
	pid     int
}

func newVictim(t *testing.T) *victim {
	t.Helper()
	t.Parallel()
	base := t.TempDir()
	v := &victim{
		t: t, base: base, canary: filepath.Join(base, "canary"), marker: filepath.Join(base, "marker"),
		Daemon: &runnerdtest.Daemon{Directory: filepath.Join(base, "state"), Policy: filepath.Join(base, "policy")},
	}
	os.Chmod(base, 0o755)
	t.Cleanup(v.killAll)
	v.binary, v.digest = runnerdtest.Binary(t, base)
	v.write("canary", "untouched", 0o600)
	bystander, err := os.StartProcess("/bin/sleep", []string{"sleep", "1000"}, &os.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { bystander.Kill(); bystander.Wait() })
	if v.bystand, err = procfs.Find(bystander.Pid); err != nil {
		t.Fatal(err)
	}
	return v
}

// killAll ends what a failed test left running.
func (v *victim) killAll() {
	links, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, link := range links {
		var pid int
		target, err := os.Readlink(link)
		if err == nil && strings.HasPrefix(target, v.base+"/") {
			fmt.Sscanf(link, "/proc/%d/exe", &pid)
			if p, err := procfs.Find(pid); err == nil {
				_ = p.Signal(unix.SIGKILL)
			}
		}
	}
}

// user is who the policy lets processes run as.
func user() string {
	if os.Geteuid() == 0 {
		return "65534"
	}
	return fmt.Sprint(os.Geteuid())
}

func (v *victim) write(name, text string, mode os.FileMode) string {
	v.t.Helper()
	path := filepath.Join(v.base, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		v.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		v.t.Fatal(err)
	}
	os.Chmod(path, mode)
	return path
}

func (v *victim) run(policy string) *runnerdtest.Client {
	v.t.Helper()
	v.write("policy", policy, 0o644)
	v.Run(v.t)
	v.pid = v.PID()
	v.t.Cleanup(v.check)
	return v.Connect()
}

func (v *victim) listed(options string) string {
	return fmt.Sprintf("process %s { sha256 %s; user %s; %s }\n", v.binary, v.digest, user(), options)
}

// check is what must hold at the end of every attack.
func (v *victim) check() {
	v.t.Helper()
	if p, err := procfs.Find(v.pid); err != nil || !p.Alive() {
		log, _ := os.ReadFile(v.Log)
		v.t.Errorf("runnerd died:\n%s", log)
	}
	if text, err := os.ReadFile(v.canary); string(text) != "untouched" {
		v.t.Errorf("the canary holds %q, %v", text, err)
	}
	if _, err := os.Stat(v.marker); err == nil {
		v.t.Error("an unlisted binary ran")
	}
	if !v.bystand.Alive() {
		v.t.Error("a process of somebody else was killed")
	}
	if kib := runnerdtest.ResidentKiB(v.pid); kib > 40<<10 {
		v.t.Errorf("runnerd has grown to %d KiB", kib)
	}
	if entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", v.pid)); err == nil && len(entries) > 100 {
		v.t.Errorf("runnerd has %d open descriptors", len(entries))
	}
}

// stillServes proves that runnerd works for an honest meshd after the attack.
func (v *victim) stillServes() {
	v.t.Helper()
	client := v.Connect()
	id := client.Start("spread.honest", 7, runnerdtest.Spec(v.binary, "sleep"))
	client.Await(id, ready)
	client.Stop(id, 0)
	client.AwaitGone(id)
}

// TestF145_HostileSpecifications asks for everything that no policy here allows.
func TestF145_HostileSpecifications(t *testing.T) {
	v := newVictim(t)
	link := filepath.Join(v.base, "link")
	if err := os.Symlink(v.binary, link); err != nil {
		t.Fatal(err)
	}
	v.write("script", "#!/bin/sh\necho ran > "+v.marker+"\n", 0o755)
	v.write("open/file", "\x7fELF", 0o755)
	os.Chmod(filepath.Join(v.base, "open"), 0o777)
	v.write("loose", "\x7fELF", 0o777)
	setuid := v.write("setuid", "\x7fELF", 0o755)
	os.Chmod(setuid, 0o755|os.ModeSetuid)
	os.Symlink(filepath.Join(v.base, "open/file"), filepath.Join(v.base, "toopen"))
	policy := "instances 8\ncpu 1000m\nmemory 100mb\ncontainers none\n" + v.listed("args any; env any; port 80 8000-8999") +
		"process /bin/true { sha256 " + strings.Repeat("00", 32) + " }\n"
	for _, path := range []string{"script", "open/file", "loose", "setuid", "toopen", "absent"} {
		policy += fmt.Sprintf("process %s { sha256 any; user %s; args any }\n", filepath.Join(v.base, path), user())
	}
	policy += "process /bin/false { sha256 any }\n"
	client := v.run(policy)
	for n, c := range []struct {
		name, reason string
		change       func(*workload.Spec)
	}{
		{"unlisted path", "does not list", func(s *workload.Spec) { s.Image = "/bin/sh" }},
		{"symbolic link to a listed binary", "does not list", func(s *workload.Spec) { s.Image = link }},
		{"wrong digest on the host", "does not list", func(s *workload.Spec) { s.Image, s.Arguments = "/bin/true", nil }},
		{"another digest asked for", "asks for", func(s *workload.Spec) { s.ImageDigest[0] = 1 }},
		{"script", "is no binary", func(s *workload.Spec) { s.Image = v.base + "/script" }},
		{"writable parent", "writable by group or others", func(s *workload.Spec) { s.Image = v.base + "/open/file" }},
		{"listed link into a writable parent", "writable by group or others", func(s *workload.Spec) { s.Image = v.base + "/toopen" }},
		{"writable file", "writable by group or others", func(s *workload.Spec) { s.Image = v.base + "/loose" }},
		{"set-user-id file", "set-user-id", func(s *workload.Spec) { s.Image = v.base + "/setuid" }},
		{"absent file", "no such file", func(s *workload.Spec) { s.Image = v.base + "/absent" }},
		{"arguments not allowed", "no arguments", func(s *workload.Spec) { s.Image = "/bin/false" }},
		{"environment not allowed", "no environment", func(s *workload.Spec) {
			s.Image, s.Arguments, s.Environment = "/bin/false", nil, []string{"A=b"}
		}},
		{"LD_PRELOAD", "never passed on", func(s *workload.Spec) { s.Environment = []string{"LD_PRELOAD=/tmp/x.so"} }},
		{"LD_AUDIT", "never passed on", func(s *workload.Spec) { s.Environment = []string{"LD_AUDIT=/tmp/x.so"} }},
		{"GLIBC_TUNABLES", "never passed on", func(s *workload.Spec) { s.Environment = []string{"GLIBC_TUNABLES=x"} }},
		{"own variables", "set by runnerd", func(s *workload.Spec) { s.Environment = []string{"COLLOID_CELL=0"} }},
		{"own port", "set by runnerd", func(s *workload.Spec) { s.Environment = []string{"PORT=1"} }},
		{"user root", "run as user", func(s *workload.Spec) { s.User = "root" }},
		{"user 0", "run as user", func(s *workload.Spec) { s.User = "0" }},
		{"user 00", "run as user", func(s *workload.Spec) { s.User = "00" }},
		{"user and group 0", "run as user", func(s *workload.Spec) { s.User = user() + ":0" }},
		{"user -1", "run as user", func(s *workload.Spec) { s.User = "4294967295" }},
		{"listed port 80", "below port_min", func(s *workload.Spec) { s.Ports = []workload.Port{{Host: 80, Container: 80}} }},
		{"unlisted port", "publish port", func(s *workload.Spec) { s.Ports = []workload.Port{{Host: 9000, Container: 9000}} }},
		{"unlisted health program", "does not list", func(s *workload.Spec) {
			s.Health = workload.Health{Kind: workload.HealthExec, Command: []string{"/bin/sh", "-c", "id"}}
		}},
		{"health program of another user", "run as user", func(s *workload.Spec) {
			s.User = ""
			s.Health = workload.Health{Kind: workload.HealthExec, Command: []string{"/bin/false"}}
		}},
		{"too much processor", "millicores", func(s *workload.Spec) { s.CPUMillicores = 1001 }},
		{"too much memory", "MiB", func(s *workload.Spec) { s.MemoryMiB = 101 }},
		{"environment record", "lacks the secrets", func(s *workload.Spec) { s.EnvironmentDigest[3] = 1 }},
		{"image", "allows no containers", func(s *workload.Spec) { s.Runtime, s.Image = workload.RuntimeOCI, "docker.io/nginx" }},
	} {
		if c.name == "health program of another user" && user() == "65534" {
			continue // /bin/false has no user line, so its user is 65534 as well
		}
		spec := runnerdtest.Spec(v.binary, "sleep")
		c.change(spec)
		id := client.Start("spread.evil", uint32(n), spec)
		if i := client.Await(id, denied); !strings.Contains(i.Reason, c.reason) || i.Pid != 0 {
			t.Errorf("%s: %q, expected %q", c.name, i.Reason, c.reason)
		}
	}
	v.stillServes()
	if runs := countRuns(v); runs != 0 {
		t.Errorf("%d processes run", runs)
	}
}

// countRuns counts living processes of the victim's binary.
func countRuns(v *victim) (count int) {
	links, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && target == v.binary {
			count++
		}
	}
	return count
}

// TestF132_HostileCommands sends what is no specification or no command at all.
func TestF132_HostileCommands(t *testing.T) {
	v := newVictim(t)
	client := v.run(v.listed("args any"))
	good := func() *message.Start {
		return runnerdtest.StartOf(t, "spread.evil", 0, runnerdtest.Spec(v.binary, "sleep"))
	}
	slot := uint32(100)
	for _, c := range []struct {
		name   string
		change func(*message.Start)
	}{
		{"no key", func(m *message.Start) { m.Key = "" }},
		{"key with a slash", func(m *message.Start) { m.Key = "spread.../../../etc" }},
		{"key with a zero byte", func(m *message.Start) { m.Key = "spread.a\x00b" }},
		{"key with a line break", func(m *message.Start) { m.Key = "spread.a\nuid=0 forged: allowed" }},
		{"huge key", func(m *message.Start) { m.Key = "spread." + strings.Repeat("a", 50000) }},
		{"key of another kind", func(m *message.Start) { m.Key = "wasm.evil" }},
		{"stateful key", func(m *message.Start) { m.Key = "stateful.evil" }},
		{"no specification", func(m *message.Start) { m.Spec = nil }},
		{"cut specification", func(m *message.Start) { m.Spec = m.Spec[:len(m.Spec)-1] }},
		{"long specification", func(m *message.Start) { m.Spec = append(m.Spec, make([]byte, 60000)...) }},
		{"path with dots", func(m *message.Start) {
			m.Spec = []byte(strings.Replace(string(m.Spec), v.base, v.base[:len(v.base)-5]+"/../.", 1))
		}},
		{"digest of something else", func(m *message.Start) { m.Id.Digest++ }},
		{"address of seven bytes", func(m *message.Start) { m.Address = make([]byte, 7) }},
	} {
		for _, prepare := range []bool{false, true} {
			m := good()
			slot++
			m.Id.Slot, m.PrepareOnly = slot, prepare
			c.change(m)
			client.Send(&message.Command{Body: &message.Command_Start{Start: m}})
			client.Await(runnerdtest.IDOf(m.Id), denied)
		}
	}
	for name, record := range map[string][]byte{
		"garbage":             []byte("\xff\xff\xff\xff garbage"),
		"endless length":      {0x12, 0xff, 0xff, 0xff, 0xff, 0x0f},
		"sequence 7":          {8, 7, 0x22, 0},
		"sequence 0":          {0x22, 0},
		"start without id":    {8, 1, 0x12, 0},
		"stop without id":     {8, 1, 0x1a, 0},
		"invalid text":        {8, 1, 0x12, 4, 0x12, 2, 0xff, 0xfe},
		"slot above 65535":    {8, 1, 0x1a, 6, 0x0a, 4, 0x10, 0x80, 0x80, 0x04},
		"groups of old times": {0x0b, 0x0b, 0x0b, 0x0b},
	} {
		client := v.Connect()
		if !client.Link.Send(record) {
			t.Fatal("not sent")
		}
		done := make(chan struct{})
		go func() { defer close(done); client.AwaitEnd() }()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Errorf("%s: the connection stays", name)
		}
	}
	v.stillServes()
	audit, _ := os.ReadFile(filepath.Join(v.Directory, "audit.log"))
	if strings.Contains(string(audit), "\nuid=0 forged") || len(audit) > 1<<20 {
		t.Errorf("the audit log was forged or flooded: %d bytes", len(audit))
	}
}

// TestF145_ReplacedBinary swaps a listed file for an evil one all the time while it is started over
// and over. What runs is what was hashed, or nothing.
func TestF145_ReplacedBinary(t *testing.T) {
	v := newVictim(t)
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	good := v.write("good", string(self), 0o755)
	evil := v.write("evil", string(self)+"\x00evil", 0o755) // runs just as well, under another digest
	target := filepath.Join(v.base, "target")
	if err := os.Link(good, target); err != nil {
		t.Fatal(err)
	}
	client := v.run(v.listed("args any") +
		fmt.Sprintf("process %s { sha256 %s; user %s; args any }\n", target, v.digest, user()))
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := 0; !stop.Load(); n++ {
			source := evil
			if n%2 == 0 {
				source = good
			}
			next := target + ".next"
			os.Remove(next)
			if os.Link(source, next) == nil {
				os.Rename(next, target)
			}
			time.Sleep(time.Duration(n%7) * time.Millisecond)
		}
	}()
	ran, refused := 0, 0
	for n := range uint32(16) {
		spec := runnerdtest.Spec(target, "sleep")
		id := client.Start("spread.evil", n, spec)
		client.Until("a decision", func() bool {
			state := client.Locked(id).GetState()
			return state == ready || state == denied
		})
		i := client.Instance(id)
		if i.State == ready {
			ran++
			running, err := os.Stat(fmt.Sprintf("/proc/%d/exe", i.Pid))
			original, _ := os.Stat(good)
			if err != nil || !os.SameFile(running, original) {
				t.Fatalf("start %d runs another file: %v", n, err)
			}
		} else {
			refused++
		}
		client.Stop(id, 0)
		client.AwaitGone(id)
	}
	stop.Store(true)
	<-done
	t.Logf("%d ran the listed file, %d were refused", ran, refused)
	v.stillServes()
}

// TestF132_TenThousandInstances asks for far more than the policy allows.
func TestF132_TenThousandInstances(t *testing.T) {
	v := newVictim(t)
	client := v.run("instances 3\n" + v.listed("args any"))
	var sequence uint64
	m := runnerdtest.StartOf(t, "spread.evil", 0, runnerdtest.Spec(v.binary, "sleep"))
	before := runnerdtest.ResidentKiB(v.pid)
	for n := range uint32(10000) {
		m.Id.Slot = n
		m.Id.KeyHash = uint64(n) << 32
		sequence = client.Send(&message.Command{Body: &message.Command_Start{Start: m}})
	}
	client.AwaitAcknowledged(sequence)
	// What it forgets is told after the commands are acknowledged.
	client.AwaitCount(3 + 256)
	entries, _ := os.ReadDir(filepath.Join(v.Directory, "instances"))
	if len(entries) > 3 || countRuns(v) > 3 {
		t.Errorf("%d directories, %d processes", len(entries), countRuns(v))
	}
	t.Logf("resident memory went from %d to %d KiB", before, runnerdtest.ResidentKiB(v.pid))
	client = v.Connect()
	for n := range uint32(3) {
		id := runnerd.InstanceID{KeyHash: uint64(n) << 32, Slot: uint16(n), Digest: m.Id.Digest}
		client.Stop(id, 0)
		client.AwaitGone(id)
	}
	v.stillServes()
}

// TestF145_TheProcessHasNoPowers looks at a workload that root's runnerd started.
func TestF145_TheProcessHasNoPowers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("without root there is nothing to give up")
	}
	v := newVictim(t)
	client := v.run(v.listed("args any"))
	id := client.Start("spread.show", 0, runnerdtest.Spec(v.binary, "show"))
	client.Await(id, ready)
	shown := filepath.Join(v.Directory, "instances", id.String(), "scratch/shown")
	var text []byte
	for deadline := time.Now().Add(10 * time.Second); text == nil && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		text, _ = os.ReadFile(shown)
	}
	for _, line := range []string{"Uid:\t65534\t65534\t65534\t65534", "Gid:\t65534\t65534\t65534\t65534", "Groups:\t ",
		"CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "CapAmb:\t0000000000000000", "NoNewPrivs:\t1"} {
		if !strings.Contains(string(text), line+"\n") {
			t.Errorf("%q is missing in:\n%s", line, text)
		}
	}
	client.Stop(id, 0)
	client.AwaitGone(id)
}
