package sim

import (
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/workload"
)

// Every host refuses a workload, for a reason that passes: a registry did not have the image. It is asked for again
// after one or two minutes and then more seldom, until it runs; a refusal that does no harm is never withdrawn (D2, F76).
func TestD2_RefusalsAreEarnedAnew(t *testing.T) {
	for _, seed := range seeds(3) {
		w := form(t, Options{Seed: seed, Cells: 3})
		run(t, w, 15*time.Second)
		refuse, asked := true, 0
		for _, n := range w.nodes {
			n.host.Deny = func(s *workload.Spec) string {
				switch {
				case s.Image == "/bin/never" && n.Index == 0:
					return "not on this host"
				case s.Image != "/bin/a" || !refuse:
					return ""
				}
				asked++
				return "the registry has no such image"
			}
		}
		w.Node(0).Set("spread.web", spec(t, 1, "/bin/a"), uds.ExpectAny, nil)
		w.Node(0).Set("spread.other", spec(t, 2, "/bin/never"), uds.ExpectAny, nil)
		run(t, w, time.Minute/2)
		if asked != 3 || running(w) != 2 {
			t.Fatalf("seed %d: refused %d times, %d run", seed, asked, running(w))
		}
		run(t, w, 30*time.Minute)
		if asked < 9 || asked > 24 {
			t.Errorf("seed %d: refused %d times in half an hour", seed, asked)
		}
		refuse = false
		until(t, w, 17*time.Minute, "the workload to run", func() bool { return running(w) == 3 })
	}
}
