package runnerd_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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
	"colloid.net/runnerd/wasm"
	"colloid.net/workload"
)

// largeModuleHost is a host whose policy lists a module that takes a while to compile.
func largeModuleHost(t *testing.T) (*host, *workload.Spec) {
	t.Helper()
	path := runnerdtest.LargeModule(t)
	binary, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	h := newHost(t)
	h.worker = runnerdtest.Static(t)
	own := filepath.Join(filepath.Dir(h.directory), "large.wasm")
	if err := os.WriteFile(own, binary, 0o644); err != nil {
		t.Fatal(err)
	}
	h.replacePolicy(fmt.Sprintf("wasm { module %s }\n", own))
	t.Cleanup(h.noPreparations)
	return h, &workload.Spec{
		Runtime: workload.RuntimeWasm, Replicas: 1, Image: "file://" + own, ImageDigest: sha256.Sum256(binary),
		Capabilities: workload.CapabilitiesKnown &^ (workload.CapabilityFSRead | workload.CapabilityFSWrite), MemoryMiB: 64,
	}
}

// compilers are the workers that compile only, by their marks.
func (h *host) compilers() (list []procfs.Process) {
	directories, _ := filepath.Glob(filepath.Join(h.directory, "preparations", "*"))
	for _, marked := range procfs.FindMarked("shim", "COLLOID_INSTANCE") {
		if strings.Contains(marked.Value, h.directory+"/preparations/") && marked.Process.Alive() {
			list = append(list, marked.Process)
			if marked.Leader.Alive() {
				list = append(list, marked.Leader)
			}
		}
	}
	if len(list) == 0 && len(directories) > 0 {
		time.Sleep(time.Millisecond) // it is being made or taken away
	}
	return list
}

// niceOf is the priority of a process, "" if it has ended.
func niceOf(p procfs.Process) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID))
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if err != nil || len(fields) < 18 || !p.Alive() {
		return ""
	}
	return fields[16]
}

// noPreparations ends what a failed test left.
func (h *host) noPreparations() {
	for _, p := range h.compilers() {
		_ = p.Signal(unix.SIGKILL)
	}
}

func (h *host) caches(pattern string) []string {
	list, _ := filepath.Glob(filepath.Join(h.directory, "wasm-cache", pattern, "*", "*.mac"))
	return list
}

// untilLoaded starts an instance and measures until its module is compiled, which is before it is found to be ready.
func (h *host) untilLoaded(client *runnerdtest.Client, key string, slot uint32, spec *workload.Spec) time.Duration {
	h.t.Helper()
	start := time.Now()
	id := client.Start(key, slot, spec)
	mark := filepath.Join(h.directory, "wasm-cache", fmt.Sprintf("%016x-%d", id.KeyHash, slot), wasm.LoadedMark)
	for _, err := os.Lstat(mark); err != nil; _, err = os.Lstat(mark) {
		if time.Since(start) > runnerdtest.Patience {
			h.t.Fatal("it is not compiled")
		}
		time.Sleep(2 * time.Millisecond)
	}
	took := time.Since(start)
	client.Await(id, ready)
	return took
}

// TestStandby_APreparedModuleStartsAtOnce: what took a second is done before, by a worker that is confined as others are,
// and nothing of it is left but the cache. The next replica has a copy of the first one's.
func TestStandby_APreparedModuleStartsAtOnce(t *testing.T) {
	h, spec := largeModuleHost(t)
	client := runnerdtest.Attach(t, h.open())
	if !client.Hello.TakesPrepare {
		t.Fatal("it does not say that it prepares")
	}
	other := *spec
	other.Environment = []string{"A=b"} // another workload, so that nothing is shared
	took := h.untilLoaded(client, "wasm.cold", 0, &other)
	id := client.Prepare("wasm.test", 3, spec)
	if reason := client.AwaitPrepared(id, 1); reason != "" {
		t.Fatal(reason)
	}
	if len(h.caches("*-standby-*")) != 1 || len(h.compilers()) != 0 || client.Instance(id) != nil {
		t.Fatalf("caches %q, workers %v, instance %v", h.caches("*"), h.compilers(), client.Instance(id))
	}
	if left, _ := os.ReadDir(filepath.Join(h.directory, "preparations")); len(left) != 0 {
		t.Errorf("left %v", left)
	}
	warm := h.untilLoaded(client, "wasm.test", 3, spec)
	t.Logf("a start took %v, of what was prepared %v", took, warm)
	if 2*warm > took {
		t.Errorf("a start took %v, of what was prepared %v", took, warm)
	}
	if len(h.caches("*-standby-*")) != 0 {
		t.Error("what stood by is there twice")
	}
	second := took
	for slot := uint32(4); slot < 7 && 2*second > took; slot++ { // the machine may be busy with something else
		second = h.untilLoaded(client, "wasm.test", slot, spec)
		t.Logf("a further replica took %v", second)
	}
	if 2*second > took {
		t.Errorf("a start took %v, a further replica %v", took, second)
	}
	if id := client.Prepare("wasm.test", 9, spec); client.AwaitPrepared(id, 1) != "" || len(h.caches("*-standby-*")) != 0 {
		t.Error("compiled although replicas here have it")
	}
	audit, _ := os.ReadFile(filepath.Join(h.directory, "audit.log"))
	if !strings.Contains(string(audit), `prepare `+id.String()+` "wasm.test": allowed`) {
		t.Errorf("%s", audit)
	}
}

// TestStandby_WhoCompilesIsConfined looks at the worker while it works.
func TestStandby_WhoCompilesIsConfined(t *testing.T) {
	h, spec := largeModuleHost(t)
	h.groups, _ = cgroup.Detect(os.Getpid())
	client := runnerdtest.Attach(t, h.open())
	id := client.Prepare("wasm.test", 0, spec)
	var worker procfs.Process
	var status string
	filters := "Seccomp_filters:\t1" // its own, and that of the sandbox
	if os.Geteuid() == 0 {
		filters = "Seccomp_filters:\t2"
	}
	eventually(t, "a worker", func() bool {
		for _, p := range h.compilers() {
			text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID))
			if strings.Contains(string(text), filters) {
				worker, status = p, string(text)
			}
		}
		return status != ""
	})
	if got := niceOf(worker); got != "19" {
		t.Errorf("its priority is %q", got)
	}
	wanted := []string{"NoNewPrivs:\t1", "Seccomp:\t2", "CapEff:\t0000000000000000"}
	if os.Geteuid() == 0 {
		wanted = append(wanted, "CapBnd:\t0000000000000000", "Groups:\t \n")
		for _, namespace := range []string{"net", "mnt", "pid", "ipc", "uts", "user"} {
			inside, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", worker.PID, namespace))
			own, _ := os.Readlink("/proc/self/ns/" + namespace)
			if inside == own || inside == "" {
				t.Errorf("it shares the %s namespace", namespace)
			}
		}
	}
	var uid uint32
	if _, after, _ := strings.Cut(status, "Uid:\t"); os.Geteuid() == 0 {
		if _, err := fmt.Sscan(after, &uid); err != nil || uid < 0x70000000 || uid >= 0x74000000 { // depends on the module
			t.Errorf("its user is %d, %v", uid, err)
		}
	}
	for _, line := range wanted {
		if !strings.Contains(status, line) {
			t.Errorf("%s lacks %q", status, line)
		}
	}
	names := func() (list []string) {
		for _, name := range h.groups.Names() {
			if strings.HasPrefix(name, "preparation-") && slices.Contains(h.groups.Path(name).Members(), worker.PID) {
				list = append(list, name)
			}
		}
		return list
	}
	if h.groups != nil && len(names()) != 1 {
		t.Errorf("its control groups: %q", names())
	}
	if reason := client.AwaitPrepared(id, 1); reason != "" {
		t.Error(reason)
	}
	if h.groups != nil && len(names()) != 0 {
		t.Errorf("left %q", names())
	}
}

// TestStandby_AStartSharesTheCompilation: it waits for what is under way, the answer comes when it runs, and no second
// worker compiles.
func TestStandby_AStartSharesTheCompilation(t *testing.T) {
	h, spec := largeModuleHost(t)
	client := runnerdtest.Attach(t, h.open())
	id := client.Prepare("wasm.test", 0, spec)
	eventually(t, "a worker", func() bool { return len(h.compilers()) == 2 })
	worker := h.compilers()[1]
	eventually(t, "the lowest priority", func() bool { got := niceOf(worker); return got == "19" || got == "" })
	_ = worker.Signal(unix.SIGSTOP)
	client.Prepare("wasm.test", 0, spec) // joins
	started := client.Start("wasm.test", 0, spec)
	if os.Geteuid() == 0 { // else another worker is started in its place
		eventually(t, "another priority", func() bool { got := niceOf(worker); return got == "0" || got == "" })
	}
	_ = worker.Signal(unix.SIGCONT)
	waited := false
	client.Until("an instance that is ready", func() bool {
		i := client.Locked(started)
		waited = waited || strings.Contains(i.GetReason(), "waits for its module")
		return i.GetState() == ready
	})
	if !waited {
		t.Error("it did not wait for what compiled")
	}
	if reason := client.AwaitPrepared(id, 1); reason != "" {
		t.Error(reason)
	}
	client.Prepare("wasm.test", 0, spec)
	if reason := client.AwaitPrepared(id, 2); reason != "" {
		t.Error(reason)
	}
	if n := client.Prepared(id); n != 2 {
		t.Errorf("%d answers", n)
	}
}

// TestStandby_NothingIsLeftOfADeadRunnerd: kill -9 in the middle of a compilation.
func TestStandby_NothingIsLeftOfADeadRunnerd(t *testing.T) {
	h, spec := largeModuleHost(t)
	d := h.daemon(0)
	d.Run(t)
	client := d.Connect()
	client.Prepare("wasm.test", 0, spec)
	eventually(t, "a worker", func() bool { return len(h.compilers()) == 2 })
	workers := h.compilers()
	for _, p := range workers { // so that it would last
		_ = p.Signal(unix.SIGSTOP)
	}
	var group string
	if records, _ := filepath.Glob(filepath.Join(h.directory, "preparations", "*", "preparation")); len(records) == 1 {
		r, _ := record.Load(records[0])
		group = r.Get("group")
	}
	d.Kill()
	d.Run(t)
	client = d.Connect()
	for _, p := range workers {
		if p.Alive() {
			t.Errorf("process %d is left", p.PID)
		}
	}
	if left, _ := os.ReadDir(filepath.Join(h.directory, "preparations")); len(left) != 0 {
		t.Errorf("left %v", left)
	}
	if groups, err := cgroup.Detect(os.Getpid()); err == nil {
		if group == "" || slices.Contains(groups.Names(), group) {
			t.Errorf("the control group %q is left", group)
		}
	}
	id := client.Prepare("wasm.test", 0, spec) // the new session asks again
	if reason := client.AwaitPrepared(id, 1); reason != "" {
		t.Error(reason)
	}
	client.Prepare("wasm.other", 0, spec)
	eventually(t, "a worker", func() bool { return len(h.compilers()) == 2 })
	if err := d.LeaveLauncher(); err != nil { // ends in good order
		t.Error(err)
	}
	if left := h.compilers(); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

// TestStandby_WhatCannotBePreparedSaysWhy, in one line, and is no instance.
func TestStandby_WhatCannotBePreparedSaysWhy(t *testing.T) {
	for fixture, reason := range map[string]string{
		"unknown_import": `imports the unknown function "env"."system"`, "threads": "threads are not supported",
	} {
		t.Run(fixture, func(t *testing.T) {
			h, spec := moduleHost(t, fixture)
			client := runnerdtest.Attach(t, h.open())
			id := client.Prepare("wasm.test", 0, spec)
			got := client.AwaitPrepared(id, 1)
			if !strings.Contains(got, reason) || !strings.HasPrefix(got, "compile module file:///") || strings.Contains(got, "\n") {
				t.Errorf("%q", got)
			}
			if client.Instance(id) != nil || len(h.caches("*")) != 0 {
				t.Error("something is left")
			}
			spec.ImageDigest[0]++
			id = client.Prepare("wasm.test", 0, spec)
			if got := client.AwaitPrepared(id, 1); !strings.Contains(got, "the workload wants") {
				t.Errorf("%q", got)
			}
		})
	}
}

// TestStandby_ThePolicyIsAskedFirst: what it forbids is a denied instance and nothing else, and a denial that does not hold
// any more is withdrawn. Processes have nothing to fetch, and secrets are not needed.
func TestStandby_ThePolicyIsAskedFirst(t *testing.T) {
	h := newHost(t)
	client := runnerdtest.Attach(t, h.open())
	spec := runnerdtest.Spec(h.binary, "sleep")
	spec.Ports = []workload.Port{{Host: 19999, Container: 19999}}
	id := client.Prepare("spread.web", 0, spec)
	client.Await(id, denied)
	if n := client.Prepared(id); n != 0 {
		t.Errorf("%d answers", n)
	}
	text, _ := os.ReadFile(h.policy)
	h.replacePolicy(strings.Replace(string(text), "port 20000-60000", "port 19999-60000", 1))
	spec.EnvironmentDigest = [32]byte{}
	client.Prepare("spread.web", 0, spec)
	if reason := client.AwaitPrepared(id, 1); reason != "" {
		t.Error(reason)
	}
	client.AwaitGone(id)
	secret := runnerdtest.Spec(h.binary, "sleep")
	secret.EnvironmentDigest = [32]byte{1}
	if id := client.Prepare("spread.secret", 0, secret); client.AwaitPrepared(id, 1) != "" || client.Instance(id) != nil {
		t.Errorf("%v", client.Instance(id))
	}
	running := client.Start("spread.runs", 0, runnerdtest.Spec(h.binary, "sleep"))
	client.Await(running, ready)
	client.Prepare("spread.runs", 0, runnerdtest.Spec(h.binary, "sleep"))
	if reason := client.AwaitPrepared(running, 1); reason != "" {
		t.Error(reason)
	}
	if i := client.Instance(running); i.State != message.InstanceState_INSTANCE_READY {
		t.Errorf("%v", i)
	}
}

// TestStandby_ALaunchIsNotDelayed compares launches of a module beside a compilation that is under way with those beside
// nothing, taken by turns.
func TestStandby_ALaunchIsNotDelayed(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles a large module several times: not with -short")
	}
	h, large := largeModuleHost(t)
	small, err := os.ReadFile(filepath.Join("wasm", "testdata", "functions.wasm"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(filepath.Dir(h.directory), "small.wasm")
	if err := os.WriteFile(path, small, 0o644); err != nil {
		t.Fatal(err)
	}
	h.replacePolicy(fmt.Sprintf("wasm { module %s %s }\n", strings.TrimPrefix(large.Image, "file://"), path))
	h.groups, _ = cgroup.Detect(os.Getpid())
	h.timing.AheadLeast = time.Hour
	client := runnerdtest.Attach(t, h.open())
	spec := *large
	spec.Image, spec.ImageDigest = "file://"+path, sha256.Sum256(small)
	times := map[bool][]time.Duration{}
	for n := 0; len(times[true]) < 5 && n < 12; n++ {
		beside := n%2 == 1
		prepared := runnerd.InstanceID{}
		if beside {
			prepared = client.Prepare(fmt.Sprintf("wasm.large%d", n), 0, large)
			eventually(t, "a compilation", func() bool {
				runs, _ := filepath.Glob(filepath.Join(h.directory, "preparations", "*", "run"))
				return len(runs) == 1
			})
		}
		start := time.Now()
		id := client.Start("wasm.small", uint32(n), &spec)
		client.Until("its process", func() bool { return client.Locked(id).GetPid() != 0 })
		took := time.Since(start)
		if !beside || client.Prepared(prepared) == 0 { // else it was through before
			times[beside] = append(times[beside], took)
		}
		if beside {
			if reason := client.AwaitPrepared(prepared, 1); reason != "" {
				t.Fatal(reason)
			}
		}
		client.Stop(id, 0)
		client.AwaitGone(id)
	}
	for _, list := range times {
		slices.Sort(list)
	}
	if len(times[true]) == 0 {
		t.Skip("every compilation was through before the launch")
	}
	alone, beside := times[false][len(times[false])/2], times[true][len(times[true])/2]
	t.Logf("a launch takes %v, beside a compilation %v: %.2f times; %v, %v", alone, beside,
		float64(beside)/float64(alone), times[false], times[true])
	if beside > 3*alone+200*time.Millisecond {
		t.Errorf("a launch takes %v, beside a compilation %v", alone, beside)
	}
}

// TestStandby_AFullDiskKeepsNoModule: the answer says so, and a start goes on without a cache.
func TestStandby_AFullDiskKeepsNoModule(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it mounts a small disk")
	}
	h, spec := largeModuleHost(t)
	disk := filepath.Join(filepath.Dir(h.directory), "disk")
	if err := os.Mkdir(disk, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("small", disk, "tmpfs", 0, "size=8m,mode=755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	t.Cleanup(h.killAll)
	h.directory = filepath.Join(disk, "state")
	supervisor := h.open()
	client := runnerdtest.Attach(t, supervisor)
	if err := os.WriteFile(filepath.Join(disk, "filler"), make([]byte, 6<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	id := client.Prepare("wasm.test", 0, spec)
	if reason := client.AwaitPrepared(id, 1); !strings.Contains(reason, "cannot be kept: no space left") {
		t.Errorf("%q", reason)
	}
	if left := h.caches("*"); len(left) > 0 {
		t.Errorf("left %q", left)
	}
	id = client.Start("wasm.test", 0, spec)
	client.Await(id, ready)
	client.Stop(id, 0)
	client.AwaitGone(id)
	if err := os.Remove(filepath.Join(disk, "filler")); err != nil {
		t.Fatal(err)
	}
}
