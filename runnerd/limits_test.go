package runnerd_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"colloid.net/runnerd/cgroup"
	"colloid.net/runnerd/runnerdtest"
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
