package runnerd_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"colloid.net/ipc/message"
	"colloid.net/runnerd/cgroup"
	"colloid.net/runnerd/runnerdtest"
	"colloid.net/workload"
)

// TestF141_StatusTellsWhatIsNotEnforced: a host without control groups names every limit that does not hold, and one with
// those of version 1 says what they do worse. The strings are what `colloid status` prints after "without".
func TestF141_StatusTellsWhatIsNotEnforced(t *testing.T) {
	t.Run("none", func(t *testing.T) {
		client := runnerdtest.Attach(t, newHost(t).open())
		said := strings.Join(client.Hello.Degradations, "\n")
		if client.Hello.LimitsEnforced || !strings.Contains(said, "cpu, memory, pids are not available here") {
			t.Errorf("enforced %v: %s", client.Hello.LimitsEnforced, said)
		}
	})
	t.Run("those of this host", func(t *testing.T) {
		h := newHost(t)
		var err error
		if h.groups, err = cgroup.Detect(os.Getpid()); err != nil {
			t.Skipf("no control groups to write to: %v", err)
		}
		client := runnerdtest.Attach(t, h.open())
		if client.Hello.LimitsEnforced != (len(h.groups.Missing()) == 0) {
			t.Errorf("enforced %v, missing %v", client.Hello.LimitsEnforced, h.groups.Missing())
		}
		for _, weaker := range h.groups.Weaker() {
			if !slices.Contains(client.Hello.Degradations, weaker) {
				t.Errorf("%q is not said: %q", weaker, client.Hello.Degradations)
			}
		}
	})
}

// TestF141_AContainerIsNotStartedWithoutTheLimitsItAsksFor on a host that cannot hold them, unless its policy says
// allow_unlimited. One that asks for none may run.
func TestF141_AContainerIsNotStartedWithoutTheLimitsItAsksFor(t *testing.T) {
	h := newHost(t) // without control groups
	registry := "registry registry.invalid { private }\npod_network none\n"
	h.replacePolicy(registry)
	client := runnerdtest.Attach(t, h.open())
	reason := func(change func(*workload.Spec)) string {
		spec := &workload.Spec{
			Runtime: workload.RuntimeOCI, Replicas: 1, Image: "registry.invalid/box:1", ImageDigest: [32]byte{1},
		}
		change(spec)
		m := runnerdtest.StartOf(t, "spread.web", 0, spec)
		m.CheckOnly = true
		client.AwaitAcknowledged(client.Send(&message.Command{Body: &message.Command_Start{Start: m}}))
		if i := client.Instance(runnerdtest.IDOf(m.Id)); i != nil && i.State == denied {
			return i.Reason
		}
		return ""
	}
	limits := map[string]func(*workload.Spec){
		"cpu":    func(s *workload.Spec) { s.CPUMillicores = 100; s.MemoryMiB = 64 },
		"memory": func(s *workload.Spec) { s.MemoryMiB = 64 },
		"pids":   func(s *workload.Spec) { s.PidsMax = 10 },
	}
	for controller, limit := range limits {
		if got := reason(limit); !strings.Contains(got, "no control group controller "+controller+" ") ||
			!strings.Contains(got, "allow_unlimited") {
			t.Errorf("%s: %q", controller, got)
		}
	}
	if got := reason(func(*workload.Spec) {}); got != "" {
		t.Errorf("one without limits: %q", got)
	}
	h.replacePolicy(registry + "allow_unlimited\n")
	for controller, limit := range limits {
		if got := reason(limit); got != "" {
			t.Errorf("%s with allow_unlimited: %q", controller, got)
		}
	}
}
