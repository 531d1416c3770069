package image

import (
	"context"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/runnerd/image/imagetest"
	"colloid.net/runnerd/policy"
)

// within waits for what other goroutines bring about.
func within(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s did not happen", what)
		}
	}
}

// TestStandby_APullAheadGivesWay: a start that wants another image does not wait for it, it takes none of the places, and
// goes on with what it had brought.
func TestStandby_APullAheadGivesWay(t *testing.T) {
	needRoot(t)
	r, slow, image, _ := slowRegistry(t)
	needed := digestOf(t, r.Push(t, "needed:1", small(t, runtime.GOARCH, "needed")))
	c := newClient(t, func(o *Options) { o.Hosts, o.Share = hosts(r), sharing(policy.SharePublic) })
	done := make(chan error, 1)
	go func() { done <- c.EnsureAhead(testContext(t), r.Host+"/slow:1", image) }()
	within(t, "the beginning of the pull ahead", func() bool { return len(c.remains(t)) > 2 })
	if n := len(c.slots); n != 0 {
		t.Errorf("it takes %d places", n)
	}
	start := time.Now()
	if _, err := c.Ensure(testContext(t), r.Host+"/needed:1", needed, nil); err != nil {
		t.Fatal(err)
	}
	t.Logf("what was needed took %v", time.Since(start))
	within(t, "going on", func() bool { return resumed(r, "/slow/blobs/") })
	slow.Store(false)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if list := kept(t, c); len(list) != 6 { // what came in two turns is as good for other cells
		t.Errorf("for other cells there are %q", list)
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if len(c.blobs)+len(c.awaiting)+len(c.pulls) > 0 || c.calm != nil {
		t.Errorf("left: %d blobs, %d awaited of %d pulls", len(c.blobs), len(c.awaiting), len(c.pulls))
	}
}

// TestStandby_APullAheadWaitsForOthers: it asks nothing of a registry before they are through.
func TestStandby_APullAheadWaitsForOthers(t *testing.T) {
	needRoot(t)
	r, slow, image, _ := slowRegistry(t)
	later := digestOf(t, r.Push(t, "later:1", small(t, runtime.GOARCH, "later")))
	c := newClient(t, func(o *Options) { o.Hosts = hosts(r) })
	done := make(chan error, 2)
	go func() {
		_, err := c.Ensure(testContext(t), r.Host+"/slow:1", image, nil)
		done <- err
	}()
	within(t, "the beginning of the pull", func() bool { return len(c.slots) == 1 })
	go func() { done <- c.EnsureAhead(testContext(t), r.Host+"/later:1", later) }()
	time.Sleep(500 * time.Millisecond)
	for _, line := range r.Requests() {
		if strings.HasPrefix(line, "GET /v2/later/") {
			t.Errorf("it asked %s", line)
		}
	}
	slow.Store(false)
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// TestStandby_AStartSharesThePullAhead: one pull, which is then one that others wait for.
func TestStandby_AStartSharesThePullAhead(t *testing.T) {
	needRoot(t)
	r, slow, image, _ := slowRegistry(t)
	c := newClient(t, func(o *Options) { o.Hosts = hosts(r) })
	ctx, cancel := context.WithCancel(testContext(t))
	ahead, started := make(chan error, 1), make(chan error, 1)
	go func() { ahead <- c.EnsureAhead(ctx, r.Host+"/slow:1", image) }()
	fetcher := func() int { return niceOf(t, "fetch") }
	within(t, "a fetcher of the lowest priority", func() bool { return len(c.remains(t)) > 2 && fetcher() == niceLeast })
	expectAutogroup(t, "fetch", niceLeast)
	go func() {
		_, err := c.Ensure(testContext(t), r.Host+"/slow:1", image, nil)
		started <- err
	}()
	within(t, "a fetcher of the usual priority", func() bool { return fetcher() == 0 })
	expectAutogroup(t, "fetch", 0)
	cancel() // who asked first gives up
	if err := <-ahead; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	slow.Store(false)
	if err := <-started; err != nil {
		t.Error(err)
	}
	manifests := 0
	for _, line := range r.Requests() {
		if strings.HasPrefix(line, "GET /v2/slow/manifests/") {
			manifests++
		}
	}
	if manifests != 1 {
		t.Errorf("the manifest was fetched %d times: %q", manifests, r.Requests())
	}
}

// expectAutogroup waits until the session of this test's child is worth so much, where the kernel has such groups.
func expectAutogroup(t *testing.T, argument string, nice int) {
	t.Helper()
	if on, err := os.ReadFile("/proc/sys/kernel/sched_autogroup_enabled"); err != nil || strings.TrimSpace(string(on)) != "1" {
		return
	}
	within(t, "a session of nice "+strconv.Itoa(nice), func() bool {
		children, _ := filepath.Glob("/proc/[0-9]*/autogroup")
		for _, path := range children {
			line, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
			status, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "status"))
			mine := strings.Contains(string(status), "\nPPid:\t"+strconv.Itoa(os.Getpid())+"\n")
			if mine && strings.HasPrefix(string(line), "runnerd\x00"+argument+"\x00") {
				text, _ := os.ReadFile(path)
				return strings.HasSuffix(strings.TrimSpace(string(text)), " nice "+strconv.Itoa(nice))
			}
		}
		return false
	})
}

// niceOf is the priority of all threads of this test's child, -1 if they differ or there is none.
func niceOf(t *testing.T, argument string) int {
	t.Helper()
	found := -1
	tasks, _ := filepath.Glob("/proc/[0-9]*/task/[0-9]*/stat")
	for _, path := range tasks {
		line, err := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		stat, errStat := os.ReadFile(path)
		if err != nil || errStat != nil || !strings.HasPrefix(string(line), "runnerd\x00"+argument+"\x00") {
			continue
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+2:]))
		if fields[1] != strconv.Itoa(os.Getpid()) {
			continue
		}
		nice, _ := strconv.Atoi(fields[16])
		if found >= 0 && found != nice {
			return -1
		}
		found = nice
	}
	return found
}

// TestStandby_AModuleAhead is fetched as an image is, and is there for the start.
func TestStandby_AModuleAhead(t *testing.T) {
	r, slow, _, module := slowRegistry(t)
	slow.Store(false)
	c := newClient(t, func(o *Options) { o.Hosts = hosts(r) })
	file, err := c.ModuleAhead(testContext(t), "https://"+r.Host+"/slow.wasm", module)
	if err != nil {
		t.Fatal(err)
	}
	file.Close()
	r.Wrap(func(http.Handler) http.Handler { return http.NotFoundHandler() })
	if file, err = c.Module(testContext(t), "https://"+r.Host+"/slow.wasm", module, nil); err != nil {
		t.Fatal(err)
	}
	file.Close()
	module[0]++
	if _, err := c.ModuleAhead(testContext(t), "https://"+r.Host+"/none.wasm", module); err == nil {
		t.Error("a module that is not there")
	}
}

// TestStandby_ALaunchDoesNotWaitForUnpacking: an import that is ahead is given up for one that is needed, and comes to its
// end afterwards.
func TestStandby_ALaunchDoesNotWaitForUnpacking(t *testing.T) {
	needRoot(t)
	r := imagetest.NewRegistry(t)
	large := digestOf(t, r.Push(t, "large:1", small(t, runtime.GOARCH, strings.Repeat(incompressible(1<<20), 100))))
	needed := digestOf(t, r.Push(t, "needed:1", small(t, runtime.GOARCH, "needed")))
	c := newClient(t, func(o *Options) { o.Hosts = hosts(r) })
	done := make(chan error, 1)
	go func() { done <- c.EnsureAhead(testContext(t), r.Host+"/large:1", large) }()
	unpacking := func() bool {
		stages, _ := filepath.Glob(filepath.Join(c.options.Directory, "layers", "stage-*", "diff", "file"))
		for _, path := range stages {
			if info, err := os.Stat(path); err == nil && info.Size() > 8<<20 {
				return true
			}
		}
		return false
	}
	within(t, "unpacking", unpacking)
	start := time.Now()
	if _, err := c.Ensure(testContext(t), r.Host+"/needed:1", needed, nil); err != nil {
		t.Fatal(err)
	}
	took := time.Since(start)
	select {
	case <-done:
		t.Log("the other import was through before")
	default:
		t.Logf("what was needed took %v", took)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if _, config, err := c.find(testContext(t), large); err != nil || config.Architecture != runtime.GOARCH {
		t.Errorf("%+v, %v", config, err)
	}
}

// TestStandby_ThreadsAreNotShared: what lowers a thread's priority leaves none of them behind.
func TestStandby_ThreadsAreNotShared(t *testing.T) {
	needRoot(t)
	for range 20 {
		command := exec.Command("true")
		if err := start(command, true); err != nil {
			t.Fatal(err)
		}
		_ = command.Wait()
	}
	within(t, "the end of the threads", func() bool {
		tasks, _ := os.ReadDir("/proc/self/task")
		for _, task := range tasks {
			id, _ := strconv.Atoi(task.Name())
			if have, err := unix.Getpriority(unix.PRIO_PROCESS, id); err == nil && 20-have == niceLeast {
				return false
			}
		}
		return true
	})
}
