package sim

import (
	"slices"
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/reconcile"
	"colloid.net/workload"
)

// F83, F84: after a verdict the good version runs again with the secrets that it had, not with those that came with
// the version that failed; also where it is started only later, because another machine has died.
func TestF83_F84_TheGoodVersionKeepsItsEnvironment(t *testing.T) {
	w := form(t, Options{Seed: 12, Cells: 4})
	w.AddChecker(checkEnvironments())
	run(t, w, 15*time.Second)
	set := func(image, secret string) {
		e := &workload.Environment{Variables: []workload.Variable{{Name: "TOKEN", Value: secret}}}
		w.Node(0).Environment("spread.web", e, true, func(digest [32]byte) {
			raw, err := workload.Encode(&workload.Spec{Runtime: workload.RuntimeProcess, Replicas: 2, Image: image,
				Update: workload.Update{AutoRollback: true, DeadlineSeconds: 8}, EnvironmentDigest: digest})
			if err != nil {
				t.Fatal(err)
			}
			w.Node(0).Set("spread.web", raw, uds.ExpectAny, nil)
		})
	}
	set("/bin/a", "first")
	until(t, w, 30*time.Second, "2 replicas", func() bool { return readyNow(w, "/bin/a") == 2 })
	run(t, w, 20*time.Second)
	var secrets []string
	w.AddChecker(&Checker{Name: "secrets", Action: func(_ *World, _ *Node, a reconcile.Action) error {
		if spec, err := workload.Decode(a.Spec); a.Kind == reconcile.Start && err == nil && spec.Image == "/bin/a" {
			secrets = append(secrets, a.Environment.Variables[0].Value)
		}
		return nil
	}})
	set(imageHangs, "second")
	until(t, w, time.Minute, "the verdict", func() bool { return w.Node(0).Workload("spread.web").State == "held" })
	until(t, w, 2*time.Minute, "the good version", func() bool { return readyNow(w, "/bin/a") == 2 && running(w) == 2 })
	for _, n := range w.Nodes()[1:] {
		if len(n.Running()) > 0 {
			n.PowerOff()
			break
		}
	}
	run(t, w, 2*time.Minute)
	if readyNow(w, "/bin/a") < 2 || len(secrets) == 0 || slices.ContainsFunc(secrets, func(s string) bool { return s != "first" }) {
		t.Errorf("%d run, and were started with %q", readyNow(w, "/bin/a"), secrets)
	}
}
