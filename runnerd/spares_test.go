package runnerd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"colloid.net/ipc/message"
	"colloid.net/runnerd"
	"colloid.net/runnerd/record"
	"colloid.net/runnerd/runnerdtest"
	"colloid.net/workload"
)

// seats are the names of prepared sandboxes that ids are written down for.
func (c *containers) seats() (list []string) {
	r, _ := record.Load(filepath.Join(c.directory, "ids"))
	for _, text := range r["range"] {
		if _, name, _ := strings.Cut(text, " "); strings.HasPrefix(name, "spare-") {
			list = append(list, name)
		}
	}
	return list
}

func (c *containers) seatOf(id runnerd.InstanceID) string {
	r, _ := record.Load(c.instanceFile(id, "container"))
	return r.Get("seat")
}

// TestASpareIsTakenOnce takes a prepared sandbox through its life with the real daemon: made while a container
// runs, taken over by the next one, never by one that started before, gone with the last one.
func TestASpareIsTakenOnce(t *testing.T) {
	c := newContainers(t, "allow_unlimited")
	d := c.daemon(0)
	d.Run(t)
	client := d.Connect()
	spec := c.spec(v1.Config{Entrypoint: []string{"sh", "-c"}}, "id -u; cat /proc/self/uid_map; test -e /once && exit 3; touch /once; sleep 1000")
	first := client.Start("spread.first", 0, spec)
	client.Await(first, ready)
	if seat := c.seatOf(first); seat != "" {
		t.Errorf("the first container has seat %s although there was nobody to prepare it for", seat)
	}
	eventually(t, "a prepared sandbox", func() bool { return len(c.seats()) == 1 })
	seat := c.seats()[0]
	started := func(key string) (runnerd.InstanceID, string) { // the spare may take its time to be ready
		for slot := uint32(0); ; slot++ {
			id := client.Start(key, slot, spec)
			client.Await(id, ready)
			if got := c.seatOf(id); got != "" || slot == 20 {
				return id, got
			}
			client.Stop(id, 0)
			client.AwaitGone(id)
			time.Sleep(100 * time.Millisecond)
		}
	}
	second, got := started("spread.second")
	if got != seat {
		t.Errorf("the second container has seat %q, want the prepared %q", got, seat)
	}
	// The next one has another, with other ids.
	third, other := started("spread.third")
	if other == "" || other == got {
		t.Errorf("the third container has seat %q, the second %q", other, got)
	}
	if c.log(second) == c.log(third) {
		t.Errorf("two containers with the ids %s", c.log(third))
	}

	// Killed, runnerd leaves no spare behind, and what has taken one over lives on.
	d.Kill()
	d.Run(t)
	client = d.Connect()
	client.Await(second, ready)
	eventually(t, "three seats", func() bool { return len(c.seats()) == 3 }) // two in use, one new

	// An instance that starts again does so in another one.
	p := processOf(client.Await(second, ready))
	_ = p.Signal(9)
	client.Until("another process", func() bool {
		i := client.Locked(second)
		return i.GetState() == message.InstanceState_INSTANCE_READY && processOf(i) != p
	})
	if again := c.seatOf(second); again == seat {
		t.Errorf("the second start has seat %s again", seat)
	}
	for _, id := range []runnerd.InstanceID{first, second, third} {
		client.Stop(id, 0)
		client.AwaitGone(id)
	}
	eventually(t, "the end of the last seat", func() bool { return len(c.seats()) == 0 })
	if c.groups != nil {
		for _, name := range c.groups.Names() {
			if strings.HasPrefix(name, "spare-") {
				t.Errorf("control group %s is left", name)
			}
		}
	}
	if t.Failed() {
		text, _ := os.ReadFile(d.Log)
		t.Logf("%s", text)
	}
}

// TestF134_ASpareOfAnotherRunnerdIsLeftAlone: those of several cells on one host share the parent of their control
// groups, and each removes what it finds of its own only.
func TestF134_ASpareOfAnotherRunnerdIsLeftAlone(t *testing.T) {
	c := newContainers(t, "allow_unlimited")
	client := c.connect()
	spec := c.spec(v1.Config{Entrypoint: []string{"sleep", "1000"}})
	ids := []runnerd.InstanceID{client.Start("spread.web", 0, spec)}
	client.Await(ids[0], ready)
	for slot := uint32(1); c.seatOf(ids[len(ids)-1]) == ""; slot++ {
		if slot == 20 {
			t.Fatal("no prepared sandbox was taken")
		}
		time.Sleep(200 * time.Millisecond)
		ids = append(ids, client.Start("spread.web", slot, spec))
		client.Await(ids[len(ids)-1], ready)
	}
	last := ids[len(ids)-1]
	p := processOf(client.Await(last, ready))
	for n := range 2 {
		other := &runnerdtest.Daemon{Directory: c.directory + "-other", Policy: c.policy}
		other.Run(t)
		other.Connect()
		other.Kill()
		if !p.Alive() {
			t.Fatalf("start %d of another runnerd ended a container", n)
		}
	}
	for _, id := range ids {
		client.Stop(id, 0)
		client.AwaitGone(id)
	}
}

// TestNoSpareWithoutContainers: none waits where the policy allows no containers any more.
func TestNoSpareWithoutContainers(t *testing.T) {
	c := newContainers(t, "allow_unlimited")
	client := c.connect()
	spec := c.spec(v1.Config{Entrypoint: []string{"sleep", "1000"}})
	spec.Restart = workload.RestartNever
	id := client.Start("spread.web", 0, spec)
	client.Await(id, ready)
	eventually(t, "a prepared sandbox", func() bool { return len(c.seats()) == 1 })
	text, err := os.ReadFile(c.policy)
	if err != nil {
		t.Fatal(err)
	}
	c.replacePolicy(string(text) + "containers none\n")
	client.Await(id, message.InstanceState_INSTANCE_DENIED)
	eventually(t, "no prepared sandbox", func() bool { return len(c.seats()) == 0 })
}

// TestADeniedContainerKeepsNoSandbox: what refuses an image after it has a prepared sandbox gives that back, its ids
// and its control group too.
func TestADeniedContainerKeepsNoSandbox(t *testing.T) {
	c := newContainers(t, "allow_unlimited")
	client := c.connect()
	first := client.Start("spread.first", 0, c.spec(v1.Config{Entrypoint: []string{"sleep", "1000"}}))
	client.Await(first, ready)
	spec := c.spec(v1.Config{}) // names no program
	slot := uint32(0)
	for round := range 4 {
		eventually(t, "a prepared sandbox", func() bool { return len(c.seats()) == 1 })
		before, taken := c.seats()[0], false
		for last := slot + 20; !taken && slot < last; slot++ { // it may take its time to be ready, and starts do without until then
			id := client.Start("spread.empty", slot, spec)
			client.Await(id, message.InstanceState_INSTANCE_DENIED)
			for end := time.Now().Add(300 * time.Millisecond); !taken && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
				taken = !slices.Contains(c.seats(), before)
			}
			client.Stop(id, 0)
			client.AwaitGone(id)
		}
		if !taken {
			t.Fatalf("round %d: the seat %s is still there", round, before)
		}
	}
	client.Stop(first, 0)
	client.AwaitGone(first)
	eventually(t, "no seats", func() bool { return len(c.seats()) == 0 })
	if c.groups != nil {
		for _, name := range c.groups.Names() {
			if strings.HasPrefix(name, "spare-") {
				t.Errorf("control group %s is left", name)
			}
		}
	}
}

// TestASpareYieldsTheLastAddress: in a range of five addresses five containers run, however they start, and runnerd
// outlives that no sandbox can be prepared.
func TestASpareYieldsTheLastAddress(t *testing.T) {
	if !inOwnNetwork(t) {
		return
	}
	c := newContainers(t, "allow_unlimited")
	c.replacePolicy(fmt.Sprintf("registry %s { http; private }\nallow_unlimited\npod_bridge pods0\n"+
		"pod_network 10.98.0.0/29 fd00:98::/64\n", c.registry.Host))
	d := c.daemon(0)
	d.Run(t)
	client := d.Connect()
	pid := d.PID()
	spec := c.spec(v1.Config{Entrypoint: []string{"sleep", "1000"}})
	var ids []runnerd.InstanceID
	running := func() (n int) {
		for _, id := range ids {
			if client.Instance(id).GetState() == ready {
				n++
			}
		}
		return n
	}
	for slot := range uint32(7) { // the spare is made after the first, and holds an address
		ids = append(ids, client.Start("spread.p", slot, spec))
		if slot == 0 {
			client.Await(ids[0], ready)
			eventually(t, "a prepared sandbox", func() bool { return len(c.seats()) == 1 })
		}
	}
	eventually(t, "five containers", func() bool { return running() == 5 })
	time.Sleep(time.Second)
	log, _ := os.ReadFile(d.Log)
	if n := running(); n != 5 || d.PID() != pid || strings.Contains(string(log), "panic") {
		t.Errorf("%d run, process %d was %d: %s", n, d.PID(), pid, log)
	}
	if n := strings.Count(string(log), "cannot prepare a sandbox"); n > 1 {
		t.Errorf("said %d times that none can be prepared: %s", n, log)
	}
	for _, id := range ids {
		client.Stop(id, 0)
		client.AwaitGone(id)
	}
	eventually(t, "the end of all seats", func() bool { return len(c.seats()) == 0 })
}
