package cell_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/cell"
	"colloid.net/meshd/clock"
	"colloid.net/meshd/reconcile"
	"colloid.net/meshd/sim"
	"colloid.net/meshd/state"
)

// TestF158_WhyAnInstanceIsNotReadyReachesAllCells: status, its JSON and explain say so everywhere; the same reason again
// is no news, and how far a pull is stays on its cell.
func TestF158_WhyAnInstanceIsNotReadyReachesAllCells(t *testing.T) {
	w := cluster(t, sim.Options{Seed: 5, Cells: 2})
	digest(t, ask(t, w, w.Node(0), write(uds.CodeSet, "spread.web", spec(t, 1), uds.ExpectAbsent)))
	w.Run(10 * time.Second)
	var host, other *sim.Node
	for _, n := range w.Nodes() {
		if len(n.Running()) > 0 {
			host = n
		} else {
			other = n
		}
	}
	if host == nil || other == nil {
		t.Fatal("nobody runs it")
	}
	const reason = "http 80 /nope answers 404"
	says := func(n *sim.Node) (state, text string) {
		status := statusOf(t, w, n)
		if len(status.Workloads) != 1 || len(status.Workloads[0].Instances) != 1 {
			t.Fatalf("%+v", status.Workloads)
		}
		one := status.Workloads[0]
		explained := ask(t, w, n, cell.Request{Code: uds.CodeExplain, Payload: []byte("spread.web")})
		if strings.Contains(string(explained.Payload), reason) != strings.Contains(one.Reason, reason) {
			t.Errorf("status says %q, explain %s", one.Reason, explained.Payload)
		}
		return one.Instances[0].State, one.Instances[0].Reason + " | " + one.Reason
	}
	report := func(change func(*reconcile.Actual)) {
		actual := host.Cell().Instances("spread.web")[0]
		change(&actual)
		host.Input(func(now clock.Instant) { host.Cell().HelperInstance(now, actual) })
		w.Run(5 * time.Second)
	}
	for _, s := range []reconcile.State{reconcile.Starting, reconcile.Unready} {
		report(func(a *reconcile.Actual) { a.State, a.Reason, a.PID = s, reason, 7 })
		for _, n := range []*sim.Node{host, other} {
			if state, text := says(n); state != s.String() || strings.Count(text, reason) != 2 {
				t.Errorf("%v: %s, %s", s, state, text)
			}
		}
		value := func() []byte {
			register, _ := other.Cell().Store().Get([]byte(state.EndpointKey(host.ID(), "web")))
			return slices.Clone(register.Entries())
		}
		before := value()
		for range 5 {
			report(func(*reconcile.Actual) {})
		}
		if string(before) != string(value()) {
			t.Errorf("%v: the same reason was written again", s)
		}
	}
	report(func(a *reconcile.Actual) { a.State, a.Reason, a.PID = reconcile.Starting, "pulls: 7 of 90 MiB", 0 })
	if _, text := says(host); !strings.Contains(text, "7 of 90 MiB") {
		t.Error(text)
	}
	if _, text := says(other); strings.Contains(text, "MiB") {
		t.Error(text)
	}
	report(func(a *reconcile.Actual) { a.State, a.Reason, a.PID = reconcile.Ready, "", 7 })
	if state, text := says(other); state != "ready" || text != " | " {
		t.Errorf("%s, %s", state, text)
	}
}
