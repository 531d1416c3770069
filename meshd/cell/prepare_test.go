package cell_test

import (
	"strings"
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/clock"
	"colloid.net/meshd/reconcile"
	"colloid.net/meshd/sim"
	"colloid.net/workload"
)

// What stands by is prepared without the secrets of the workload; before an update they are handed over, for the policy of
// the host looks at them (F83).
func TestF83_SecretsGoNowhereToStandBy(t *testing.T) {
	w := cluster(t, sim.Options{Seed: 3, Cells: 3})
	w.Run(15 * time.Second)
	seen := map[bool]int{}
	w.AddChecker(&sim.Checker{Name: "secrets", Action: func(_ *sim.World, n *sim.Node, a reconcile.Action) error {
		if a.Kind == reconcile.Prepare {
			update := len(n.Running()) > 0
			if seen[update]++; update != (a.Environment != nil) {
				t.Errorf("prepared for an update: %t, with secrets: %t", update, a.Environment != nil)
			}
		}
		return nil
	}})
	e := &workload.Environment{Variables: []workload.Variable{{Name: "TOKEN", Value: "secret"}}}
	for _, image := range []string{"registry.example/a", "registry.example/b"} {
		w.Node(0).Environment("spread.web", e, true, func(digest [32]byte) {
			raw, err := workload.Encode(&workload.Spec{Runtime: workload.RuntimeOCI, Replicas: 1, Image: image,
				Ports: []workload.Port{{Host: 80, Container: 80}}, EnvironmentDigest: digest})
			if err != nil {
				t.Fatal(err)
			}
			w.Node(0).Set("spread.web", raw, uds.ExpectAny, nil)
		})
		w.Run(time.Minute)
	}
	if seen[true] == 0 || seen[false] < 2 {
		t.Errorf("%v", seen)
	}
}

// What a helper says unasked changes nothing, and a cell that is not told of a preparation shows none.
func TestHelperPrepared_UnaskedIsIgnored(t *testing.T) {
	w := running(t, 2)
	n := w.Node(0)
	for _, failure := range []string{"", "no", strings.Repeat("x", 1<<16)} {
		n.Input(func(now clock.Instant) {
			n.Cell().HelperPrepared(now, reconcile.InstanceID{KeyHash: 1, Digest: 2}, failure)
			for _, i := range n.Cell().Instances("spread.web") {
				n.Cell().HelperPrepared(now, i.ID, failure)
			}
		})
	}
	w.Run(time.Second)
	if got := n.Workload("spread.web"); got.State != "ok" || got.Reason != "" {
		t.Errorf("%+v", got)
	}
	for _, o := range n.Cell().Occupancies() {
		if o.Name == "preparations" && o.Used != 0 {
			t.Errorf("%+v", o)
		}
	}
}
