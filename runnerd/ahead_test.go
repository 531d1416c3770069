package runnerd_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"colloid.net/ipc/message"
	"colloid.net/ipc/operator"
	"colloid.net/runnerd"
	"colloid.net/runnerd/runnerdtest"
)

// TestStandby_APreparedImageNeedsNoRegistry, and starts at once.
func TestStandby_APreparedImageNeedsNoRegistry(t *testing.T) {
	c := newContainers(t, "allow_unlimited")
	d := c.daemon(0)
	d.Run(t)
	client := d.Connect()
	spec := c.spec(v1.Config{Entrypoint: []string{"sh", "-c"}}, "sleep 1000")
	cold := client.Start("spread.cold", 0, c.spec(v1.Config{Entrypoint: []string{"sh", "-c"}, Env: []string{"A=b"}}, "sleep 1000"))
	start := time.Now()
	client.Await(cold, ready)
	took := time.Since(start)
	id := client.Prepare("spread.web", 0, spec)
	if reason := client.AwaitPrepared(id, 1); reason != "" {
		t.Fatal(reason)
	}
	if client.Instance(id) != nil || strings.Contains(strings.Join(c.mounts(), " "), id.String()) {
		t.Error("something was started")
	}
	c.registry.Wrap(func(http.Handler) http.Handler { return http.NotFoundHandler() })
	asked := len(c.registry.Requests())
	start = time.Now()
	client.Start("spread.web", 0, spec)
	client.Await(id, ready)
	t.Logf("a start took %v, of what was prepared %v", took, time.Since(start))
	if n := len(c.registry.Requests()) - asked; n > 0 {
		t.Errorf("the registry was asked %d times", n)
	}
	client.Prepare("spread.web", 0, spec) // runs already
	if reason := client.AwaitPrepared(id, 2); reason != "" {
		t.Error(reason)
	}
	c.registry.Wrap(nil)
	absent := c.spec(v1.Config{}, "true")
	absent.Image = c.registry.Host + "/test/absent:1"
	absent.ImageDigest[0]++
	id = client.Prepare("spread.absent", 0, absent)
	reason := client.AwaitPrepared(id, 1)
	if !strings.HasPrefix(reason, fmt.Sprintf("pull %s@sha256:%.6x", absent.Image, absent.ImageDigest)) ||
		!strings.Contains(reason, "has no") || strings.Contains(reason, "\n") {
		t.Errorf("%q", reason)
	}
	c.replacePolicy("containers none")
	id = client.Prepare("spread.none", 0, spec)
	if i := client.Await(id, denied); !strings.Contains(i.Reason, "containers none") || client.Prepared(id) != 0 {
		t.Errorf("%v, %d answers", i, client.Prepared(id))
	}
}

// TestStandby_ImagesThatThePolicyDeniesAreNotPulled.
func TestStandby_ImagesThatThePolicyDeniesAreNotPulled(t *testing.T) {
	c := newContainers(t, "image_deny docker.io/*")
	client := c.connect()
	spec := c.spec(v1.Config{}, "true")
	spec.Image = "docker.io/library/busybox"
	id := client.Prepare("spread.denied", 0, spec)
	if i := client.Await(id, denied); !strings.Contains(i.Reason, "image_deny") || client.Prepared(id) != 0 {
		t.Errorf("%v", i)
	}
}

// TestStandby_AFullDiskIsTheAnswer: nothing is brought, nothing that is here is taken away, and the next one is answered.
func TestStandby_AFullDiskIsTheAnswer(t *testing.T) {
	c := newContainers(t, "allow_unlimited")
	disk := filepath.Dir(c.directory) + "/disk"
	if err := os.Mkdir(disk, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("small", disk, "tmpfs", 0, "size=256m,mode=755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	c.directory = filepath.Join(disk, "state")
	client := c.connect()
	t.Cleanup(c.endContainers)
	here := c.spec(v1.Config{Env: []string{"A=here"}}, "true")
	id := client.Prepare("spread.here", 0, here)
	if reason := client.AwaitPrepared(id, 1); reason != "" {
		t.Fatal(reason)
	}
	var stat unix.Statfs_t
	if err := unix.Statfs(disk, &stat); err != nil {
		t.Fatal(err)
	}
	filler := filepath.Join(disk, "filler")
	if err := os.WriteFile(filler, make([]byte, int64(stat.Bavail)*stat.Bsize-4<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	other := c.spec(v1.Config{Env: []string{"A=other"}}, "true")
	for n := range 2 {
		id = client.Prepare("spread.other", 0, other)
		if reason := client.AwaitPrepared(id, n+1); !strings.Contains(reason, "MiB left") || !strings.HasPrefix(reason, "pull ") {
			t.Errorf("%q", reason)
		}
	}
	id = client.Prepare("spread.here", 0, here)
	if reason := client.AwaitPrepared(id, 2); reason != "" {
		t.Error(reason)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	id = client.Prepare("spread.other", 0, other)
	if reason := client.AwaitPrepared(id, 3); reason != "" {
		t.Error(reason)
	}
}

// TestStandby_TheQueueIsBounded, and what a session asked for is not done for the next one.
func TestStandby_TheQueueIsBounded(t *testing.T) {
	c := newContainers(t, "allow_unlimited")
	spec := c.spec(v1.Config{}, "true")
	held, release := make(chan struct{}, 10000), make(chan struct{})
	c.registry.Wrap(func(inner http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			held <- struct{}{}
			select {
			case <-release:
			case <-q.Context().Done():
			}
			inner.ServeHTTP(w, q)
		})
	})
	d := c.daemon(0)
	d.Run(t)
	client := d.Connect()
	const many = 70
	ids := make([]runnerd.InstanceID, many)
	ids[0] = client.Prepare("spread.w0", 0, spec)
	<-held // the first one is under way
	for n := 1; n < many; n++ {
		ids[n] = client.Prepare(fmt.Sprintf("spread.w%d", n), 0, spec)
	}
	for n := 65; n < many; n++ {
		if reason := client.AwaitPrepared(ids[n], 1); !strings.Contains(reason, "64 others wait") {
			t.Errorf("%d: %q", n, reason)
		}
	}
	client.Close()
	client = d.Connect()
	if id := client.Prepare("spread.w0", 0, spec); client.Prepared(id) != 0 {
		t.Error("an answer of another session")
	}
	id := client.Prepare("spread.w69", 0, spec)
	close(release)
	for _, id := range []runnerd.InstanceID{ids[0], id} {
		if reason := client.AwaitPrepared(id, 1); reason != "" {
			t.Error(reason)
		}
	}
	for n := 1; n < many-1; n++ {
		if client.Prepared(ids[n]) != 0 {
			t.Errorf("%d was answered to another session", n)
		}
	}
}

// TestStandby_ThePolicyIsAskedWhenItsTurnComes: what was allowed when it was asked for and is not any more is not pulled.
func TestStandby_ThePolicyIsAskedWhenItsTurnComes(t *testing.T) {
	c := newContainers(t, "allow_unlimited")
	first := c.spec(v1.Config{}, "true")
	later := *first
	later.Image = c.registry.Host + "/test/later:1"
	later.ImageDigest[0]++
	held, release := make(chan struct{}, 100), make(chan struct{})
	c.registry.Wrap(func(inner http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			held <- struct{}{}
			<-release
			inner.ServeHTTP(w, q)
		})
	})
	d := c.daemon(0)
	d.Run(t)
	client := d.Connect()
	ids := []runnerd.InstanceID{client.Prepare("spread.first", 0, first)}
	<-held // it is under way
	ids = append(ids, client.Prepare("spread.later", 0, &later))
	text, _ := os.ReadFile(c.policy)
	c.replacePolicy(string(text) + "\nimage_deny " + c.registry.Host + "/test/later\n")
	client.AwaitAcknowledged(client.Send(&message.Command{Body: &message.Command_List{List: &message.List{}}}))
	close(release)
	if reason := client.AwaitPrepared(ids[0], 1); reason != "" {
		t.Error(reason)
	}
	if reason := client.AwaitPrepared(ids[1], 1); !strings.Contains(reason, "image_deny") {
		t.Errorf("%q", reason)
	}
	for _, line := range c.registry.Requests() {
		if strings.Contains(line, "/test/later/") {
			t.Errorf("it asked %s", line)
		}
	}
}

// TestStandby_PruneLeavesWhatStandsBy: it would be brought again. What an operator names goes.
func TestStandby_PruneLeavesWhatStandsBy(t *testing.T) {
	c := newContainers(t, "allow_unlimited")
	c.images = []string{runnerdtest.Static(t)}
	supervisor := c.open()
	h := &operatorHost{host: c.host, socket: filepath.Join(filepath.Dir(c.policy), operator.SocketName)}
	if err := supervisor.ServeOperators(h.socket); err != nil {
		t.Fatal(err)
	}
	client := runnerdtest.Attach(t, supervisor)
	spec := c.spec(v1.Config{}, "true")
	id := client.Prepare("spread.web", 0, spec)
	if reason := client.AwaitPrepared(id, 1); reason != "" {
		t.Fatal(reason)
	}
	if replies, err := h.do(operator.OperationPrune, "", nil); err != nil || len(images(replies)) != 0 {
		t.Errorf("%+v, %v", images(replies), err)
	}
	if _, err := h.do(operator.OperationRemove, spec.Image, nil); err != nil {
		t.Error(err)
	}
	if reason := client.AwaitPrepared(id, 2); !strings.Contains(reason, "removed here by an operator") {
		t.Errorf("meshd hears %q", reason)
	}
	if replies, err := h.do(operator.OperationList, "", nil); err != nil || len(images(replies)) != 0 {
		t.Errorf("%+v, %v", images(replies), err)
	}
}

// TestStandby_WhatIsWithdrawnHoldsUpNothing: its pull ends, and the next one begins.
func TestStandby_WhatIsWithdrawnHoldsUpNothing(t *testing.T) {
	c := newContainers(t, "allow_unlimited")
	spec := c.spec(v1.Config{}, "true")
	wrong := *spec
	wrong.Image = c.registry.Host + "/test/wrong:1"
	wrong.ImageDigest[0]++
	held := make(chan struct{}, 100)
	c.registry.Wrap(func(inner http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			if strings.Contains(q.URL.Path, "/test/wrong/") {
				held <- struct{}{}
				<-q.Context().Done() // as slow as can be
				return
			}
			inner.ServeHTTP(w, q)
		})
	})
	d := c.daemon(0)
	d.Run(t)
	client := d.Connect()
	id := client.Prepare("spread.web", 0, &wrong)
	<-held
	right := client.Prepare("spread.web", 0, spec)
	client.Withdraw(id)
	if reason := client.AwaitPrepared(right, 1); reason != "" {
		t.Error(reason)
	}
	if client.Prepared(id) != 0 {
		t.Error("what was withdrawn is answered")
	}
}

// TestStandby_WhatIsWithdrawnIsPruned, also while it waits to be fetched; an instance does not notice.
func TestStandby_WhatIsWithdrawnIsPruned(t *testing.T) {
	c := newContainers(t, "allow_unlimited")
	c.images = []string{runnerdtest.Static(t)}
	supervisor := c.open()
	h := &operatorHost{host: c.host, socket: filepath.Join(filepath.Dir(c.policy), operator.SocketName)}
	if err := supervisor.ServeOperators(h.socket); err != nil {
		t.Fatal(err)
	}
	client := runnerdtest.Attach(t, supervisor)
	spec := c.spec(v1.Config{Entrypoint: []string{"sh", "-c"}}, "sleep 1000")
	id := client.Prepare("spread.web", 0, spec)
	if reason := client.AwaitPrepared(id, 1); reason != "" {
		t.Fatal(reason)
	}
	runs := client.Start("spread.runs", 0, spec)
	client.Await(runs, ready)
	client.Withdraw(id)
	client.Withdraw(runs)
	client.Prepare("spread.other", 0, spec) // answered in turn: both have been read
	client.AwaitPrepared(client.Prepare("spread.other", 0, spec), 1)
	if client.Instance(runs).GetState() != ready {
		t.Error("an instance was stopped")
	}
	client.Withdraw(client.Prepare("spread.other", 0, spec))
	client.Stop(runs, 0)
	client.AwaitGone(runs)
	if replies, err := h.do(operator.OperationPrune, "", nil); err != nil || len(images(replies)) != 1 {
		t.Errorf("pruned: %+v, %v", images(replies), err)
	}
}

// TestStandby_WhatIsWithdrawnIsNotFetched: what is under way ends, and the next one has its turn. So it is when an instance
// whose preparation is under way is started and stopped.
func TestStandby_WhatIsWithdrawnIsNotFetched(t *testing.T) {
	c := newContainers(t, "allow_unlimited")
	spec := c.spec(v1.Config{}, "true")
	held, gone := make(chan struct{}, 100), make(chan struct{}, 100)
	c.registry.Wrap(func(http.Handler) http.Handler {
		return http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
			held <- struct{}{}
			<-q.Context().Done()
			gone <- struct{}{}
		})
	})
	client := c.connect()
	for _, starts := range []bool{false, true} {
		id := client.Prepare("spread.web", 0, spec)
		<-held
		if starts {
			client.Start("spread.web", 0, spec)
			client.Await(id, message.InstanceState_INSTANCE_STARTING)
			client.Stop(id, 0)
			client.AwaitGone(id)
		} else {
			client.Withdraw(id)
		}
		select {
		case <-gone:
		case <-time.After(10 * time.Second):
			t.Fatalf("it is still being fetched (started: %v)", starts)
		}
	}
	c.registry.Wrap(nil)
	if reason := client.AwaitPrepared(client.Prepare("spread.next", 0, spec), 1); reason != "" {
		t.Error(reason)
	}
}
