package runnerd_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/ipc/invoke"
	"colloid.net/runnerd"
	"colloid.net/runnerd/procfs"
	"colloid.net/runnerd/runnerdtest"
	"colloid.net/runnerd/wasm"
	"colloid.net/workload"
)

// moduleHost is a host whose policy lists one module.
func moduleHost(t *testing.T, fixture string) (*host, *workload.Spec) {
	t.Helper()
	h := newHost(t)
	h.worker = runnerdtest.Static(t)
	binary, err := os.ReadFile(filepath.Join("wasm", "testdata", fixture+".wasm"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(filepath.Dir(h.directory), fixture+".wasm")
	if err := os.WriteFile(path, binary, 0o644); err != nil {
		t.Fatal(err)
	}
	h.replacePolicy(fmt.Sprintf("wasm { module %s }\n", path))
	return h, &workload.Spec{
		Runtime: workload.RuntimeWasm, Replicas: 1, Image: "file://" + path, ImageDigest: sha256.Sum256(binary),
		Capabilities: workload.CapabilitiesKnown, MemoryMiB: 16,
	}
}

// remote is the connection to a worker as meshd has it.
type remote struct {
	t    *testing.T
	conn *invoke.Conn
	next uint64
}

func attachWorker(t *testing.T, client *runnerdtest.Client, id runnerd.InstanceID) *remote {
	t.Helper()
	file, err := client.AttachInvoke(id)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := invoke.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	r := &remote{t: t, conn: conn}
	if hello, ok := r.receive().(*invoke.Hello); !ok || hello.Style == 0 {
		t.Fatalf("first frame: %v", hello)
	}
	return r
}

func (r *remote) receive() any {
	r.t.Helper()
	body, err := r.conn.Receive(make([]byte, invoke.FrameMax+1))
	if err != nil {
		r.t.Fatal(err)
	}
	return body
}

func (r *remote) call(milliseconds uint32, function string, arguments ...string) *invoke.Result {
	r.t.Helper()
	v := &invoke.Invocation{Milliseconds: milliseconds, Function: function}
	for _, argument := range arguments {
		v.Arguments = append(v.Arguments, []byte(argument))
	}
	return r.invoke(v)
}

func (r *remote) invoke(v *invoke.Invocation) *invoke.Result {
	r.t.Helper()
	r.next++
	v.ID = r.next
	if err := r.conn.Send(v); err != nil {
		r.t.Fatal(err)
	}
	result, ok := r.receive().(*invoke.Result)
	if !ok || result.ID != r.next {
		r.t.Fatalf("%+v", result)
	}
	return result
}

func TestF142_ModulesRunInWorkersOfTheirOwn(t *testing.T) {
	h, spec := moduleHost(t, "functions")
	client := runnerdtest.Attach(t, h.open())
	if !client.Hello.RunsWasm || client.Hello.RunsProcess {
		t.Fatalf("%v", client.Hello)
	}
	id := client.Start("wasm.test", 0, spec)
	i := client.Await(id, ready)
	worker := attachWorker(t, client, id)
	if got := worker.call(0, "add", "2", "3"); string(got.Output) != "5" {
		t.Fatalf("%+v", got)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", i.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"NoNewPrivs:\t1", "Seccomp:\t2", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000"} {
		if line[:6] == "CapBnd" && os.Geteuid() != 0 {
			continue
		}
		if !strings.Contains(string(status), line) {
			t.Errorf("the worker's status lacks %q", line)
		}
	}
	if os.Geteuid() == 0 {
		uid := strings.Fields(string(status[strings.Index(string(status), "Uid:"):]))[1]
		if uid < "1879048192" || len(uid) != 10 {
			t.Errorf("the worker runs as %s", uid)
		}
		for _, namespace := range []string{"net", "mnt", "pid", "ipc", "uts", "user"} {
			inside, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", i.Pid, namespace))
			own, _ := os.Readlink("/proc/self/ns/" + namespace)
			if inside == own || inside == "" {
				t.Errorf("the worker shares the %s namespace", namespace)
			}
		}
	}
	client.Stop(id, time.Second)
	client.AwaitGone(id)
}

// TestF158_ModulesAreReadyOnceTheyAreCompiled: the worker leaves a mark, and that of the worker before is taken away
// before the next one starts.
func TestF158_ModulesAreReadyOnceTheyAreCompiled(t *testing.T) {
	h, spec := moduleHost(t, "functions")
	client := runnerdtest.Attach(t, h.open())
	id := client.Start("wasm.test", 0, spec)
	client.Await(id, ready)
	mark := filepath.Join(h.directory, "wasm-cache", fmt.Sprintf("%016x-0", id.KeyHash), wasm.LoadedMark)
	before, err := os.Lstat(mark)
	if err != nil {
		t.Fatal(err)
	}
	client.Stop(id, time.Second)
	client.AwaitGone(id)
	stale := time.Now().Add(-time.Hour)
	if err := os.Chtimes(mark, stale, stale); err != nil {
		t.Fatal(err)
	}
	client.Start("wasm.test", 0, spec)
	client.Await(id, ready)
	if after, err := os.Lstat(mark); err != nil || after.ModTime().Before(before.ModTime()) {
		t.Fatalf("the mark is that of the worker before: %v, %v", after, err)
	}
}

// TestF144_TheWorkerOutlivesItsRunaways: a loop ends at its deadline, and the same process goes on.
func TestF144_TheWorkerOutlivesItsRunaways(t *testing.T) {
	h, spec := moduleHost(t, "functions")
	client := runnerdtest.Attach(t, h.open())
	id := client.Start("wasm.test", 0, spec)
	before := client.Await(id, ready).Pid
	worker := attachWorker(t, client, id)
	began := time.Now()
	if got := worker.call(0, "spin"); got.Errno != invoke.ErrorTimeout || time.Since(began) > 5*time.Second {
		t.Fatalf("after %v: %+v", time.Since(began), got)
	}
	if got := worker.call(0, "calls"); string(got.Output) != "1" {
		t.Fatalf("%+v", got)
	}
	if got := worker.call(0, "grow_all"); string(got.Output) != "256" { // 16 MiB
		t.Fatalf("%+v", got)
	}
	if now := client.Instance(id); now.Pid != before || now.Restarts != 0 {
		t.Fatalf("%v", now)
	}
}

// TestF134_WorkersOutliveRunnerd: a later runnerd makes a new connection to the same worker, which keeps
// what its instance holds in memory.
func TestF134_WorkersOutliveRunnerd(t *testing.T) {
	h, spec := moduleHost(t, "functions")
	first := h.open()
	client := runnerdtest.Attach(t, first)
	id := client.Start("wasm.test", 0, spec)
	pid := client.Await(id, ready).Pid
	if got := attachWorker(t, client, id).call(0, "calls"); string(got.Output) != "1" {
		t.Fatalf("%+v", got)
	}
	client.Close()
	first.Close()
	client = runnerdtest.Attach(t, h.open())
	if now := client.Await(id, ready).Pid; now != pid {
		t.Fatalf("process %d became %d", pid, now)
	}
	old := attachWorker(t, client, id)
	if got := old.call(0, "calls"); string(got.Output) != "2" {
		t.Fatalf("%+v", got)
	}
	if got := attachWorker(t, client, id).call(0, "calls"); string(got.Output) != "3" {
		t.Fatalf("%+v", got)
	}
	if _, err := old.conn.Receive(make([]byte, invoke.FrameMax+1)); err == nil {
		t.Error("the replaced connection lives on")
	}
}

// TestF143_RestartsOfTheWorkerDoNotShow: 10,000 invocations give what they give in another worker that is killed twice
// meanwhile.
func TestF143_RestartsOfTheWorkerDoNotShow(t *testing.T) {
	if testing.Short() {
		t.Skip("20,000 invocations of a real worker: not with -short")
	}
	const count, lives = 10_000, 3
	h, spec := moduleHost(t, "functions")
	spec.Deterministic = true
	spec.Capabilities &^= workload.CapabilityRandom | workload.CapabilityStreams | workload.CapabilityFSWrite |
		workload.CapabilityKVRead
	client := runnerdtest.Attach(t, h.open())
	digest := func(slot uint32, kill bool) string {
		id := client.Start("wasm.test", slot, spec)
		i := client.Await(id, ready)
		worker, hash := attachWorker(t, client, id), sha256.New()
		for n := range count {
			if kill && n > 0 && n%(count/lives) == 0 {
				p := procfs.Process{PID: int(i.Pid), StartTicks: i.StartTicks}
				_ = p.Signal(unix.SIGKILL)
				client.Until("a new worker", func() bool {
					now := client.Locked(id)
					return now.GetState() == ready && now.Pid != i.Pid
				})
				i = client.Instance(id)
				worker = attachWorker(t, client, id)
			}
			v := &invoke.Invocation{Clock: uint64(n + 1), Function: []string{"random_word", "time", "nan_bits", "calls"}[n%4]}
			if n%100 == 99 {
				v.Function, v.Arguments = "fib", [][]byte{[]byte("15")}
			}
			result := worker.invoke(v)
			fmt.Fprintf(hash, "%d %d %d %d %q\n", n, result.Errno, result.Status, result.Clock, result.Output)
		}
		return fmt.Sprintf("%x", hash.Sum(nil))
	}
	if quiet, killed := digest(0, false), digest(1, true); quiet != killed {
		t.Fatalf("%s without and %s with restarts", quiet, killed)
	}
}

func TestKilledWorkerIsStartedAgain(t *testing.T) {
	h, spec := moduleHost(t, "functions")
	client := runnerdtest.Attach(t, h.open())
	id := client.Start("wasm.test", 0, spec)
	i := client.Await(id, ready)
	p := procfs.Process{PID: int(i.Pid), StartTicks: i.StartTicks}
	_ = p.Signal(unix.SIGKILL)
	client.Until("a new worker", func() bool {
		now := client.Locked(id)
		return now.GetState() == ready && now.Pid != i.Pid && now.Restarts == 1
	})
	if got := attachWorker(t, client, id).call(0, "calls"); string(got.Output) != "1" {
		t.Fatalf("%+v", got)
	}
}

func TestServicesEndWithTheirCode(t *testing.T) {
	h, spec := moduleHost(t, "service")
	spec.Restart = workload.RestartNever
	client := runnerdtest.Attach(t, h.open())
	id := client.Start("wasm.test", 0, spec)
	if i := client.Await(id, exited); i.ExitCode != 7 {
		t.Fatalf("%v", i)
	}
}

// TestEvilModulesSayWhyTheyDoNotRun: what the worker refuses is the reason of the instance.
func TestEvilModulesSayWhyTheyDoNotRun(t *testing.T) {
	for fixture, reason := range map[string]string{
		"unknown_import": `imports the unknown function "env"."system"`, "huge_table": "tables begin with",
		"threads": "threads are not supported",
	} {
		t.Run(fixture, func(t *testing.T) {
			h, spec := moduleHost(t, fixture)
			client := runnerdtest.Attach(t, h.open())
			id := client.Start("wasm.test", 0, spec)
			if i := client.Await(id, backoff); !strings.Contains(i.Reason, reason) {
				t.Fatalf("%v", i)
			}
			if _, err := client.AttachInvoke(id); err == nil {
				t.Fatal("attached to a worker that does not run")
			}
		})
	}
}

// TestF84_ModulesRunByTheirDigest: another content under the same path does not run.
func TestF84_ModulesRunByTheirDigest(t *testing.T) {
	h, spec := moduleHost(t, "functions")
	client := runnerdtest.Attach(t, h.open())
	spec.ImageDigest[0]++
	id := client.Start("wasm.test", 0, spec)
	if i := client.Await(id, denied); !strings.Contains(i.Reason, "the workload wants") {
		t.Fatalf("%v", i)
	}
	spec.ImageDigest = [32]byte{}
	id = client.Start("wasm.test", 1, spec)
	if i := client.Await(id, denied); !strings.Contains(i.Reason, "by its digest only") {
		t.Fatalf("%v", i)
	}
}

// TestF142_PlantedCacheFilesAreIgnored replaces the compiled module by another one that is complete and
// valid, codes excepted, and by garbage: the worker compiles again.
func TestF142_PlantedCacheFilesAreIgnored(t *testing.T) {
	h, spec := moduleHost(t, "functions")
	client := runnerdtest.Attach(t, h.open())
	for slot := range uint32(3) {
		id := client.Start("wasm.test", slot, spec)
		client.Await(id, ready)
		cached, _ := filepath.Glob(filepath.Join(h.directory, "wasm-cache", fmt.Sprintf("*-%d", slot), "*", "*"))
		if len(cached) != 2 {
			t.Fatalf("the cache has %q", cached)
		}
		client.Stop(id, time.Second)
		client.AwaitGone(id)
		for _, path := range cached {
			switch slot {
			case 1: // the file itself
				if !strings.HasSuffix(path, ".mac") {
					content, _ := os.ReadFile(path)
					content[len(content)/2] ^= 1
					_ = os.WriteFile(path, content, 0o600)
				}
			case 2: // garbage beside it
				_ = os.WriteFile(path+".planted", []byte("garbage"), 0o644)
			}
		}
		id = client.Start("wasm.test", slot, spec)
		client.Await(id, ready)
		if got := attachWorker(t, client, id).call(0, "add", "2", "3"); string(got.Output) != "5" {
			t.Fatalf("slot %d: %+v", slot, got)
		}
		again, _ := filepath.Glob(filepath.Join(h.directory, "wasm-cache", fmt.Sprintf("*-%d", slot), "*", "*"))
		if len(again) != 2 {
			t.Errorf("slot %d: the cache has %q", slot, again)
		}
	}
}
