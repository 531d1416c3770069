package sim

import (
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/workload"
)

// D2, F75: an update that every host refuses leaves what serves alone, also where the old copy would have to end before
// the new one begins; one that some hosts refuse gets to the others.
func TestF75_AnUpdateThatAllHostsRefuseEndsNothing(t *testing.T) {
	for _, seed := range seeds(4) {
		for _, refusing := range []int{3, 1} {
			w := form(t, Options{Seed: seed, Cells: 3})
			for _, n := range w.Nodes()[:refusing] {
				n.host.Deny = func(s *workload.Spec) string {
					if s.Ports[0].Host == 8084 {
						return "port 8084 is not listed"
					}
					return ""
				}
			}
			run(t, w, 15*time.Second)
			set := func(port uint16) {
				raw, err := workload.Encode(&workload.Spec{Runtime: workload.RuntimeProcess, Replicas: 2, Image: "/bin/a",
					Ports: []workload.Port{{Host: port, Container: port}}})
				if err != nil {
					t.Fatal(err)
				}
				w.Node(0).Set("spread.web", raw, uds.ExpectAny, nil)
			}
			set(8080)
			until(t, w, 30*time.Second, "2 replicas", func() bool { return running(w) == 2 })
			run(t, w, 10*time.Second)
			least := running(w)
			w.AddChecker(&Checker{Name: "least", Every: 50 * time.Millisecond, Periodic: func(w *World) error {
				least = min(least, running(w))
				return nil
			}})
			set(8084)
			run(t, w, 15*time.Minute)
			ports := map[uint16]int{}
			for _, n := range w.Nodes() {
				for _, i := range n.Host().sorted() {
					ports[i.hostPorts()[0]]++
				}
			}
			want := map[uint16]int{8080: 2}
			if refusing == 1 {
				want = map[uint16]int{8084: 2}
			}
			if ports[8080] != want[8080] || ports[8084] != want[8084] {
				t.Errorf("seed %d, %d hosts refuse: %v", seed, refusing, ports)
			}
			if refusing == 3 && least != 2 {
				t.Errorf("seed %d: at times %d copies", seed, least)
			}
		}
	}
}
