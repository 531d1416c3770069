package sim

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/cell"
)

// statusOf and explainOf ask a cell as the command line does.
func statusOf(t *testing.T, n *Node) (status uds.Status) {
	t.Helper()
	n.Command(cell.Request{Code: uds.CodeStatus}, func(r cell.Response) {
		if err := json.Unmarshal(r.Payload, &status); err != nil {
			t.Fatal(err)
		}
	})
	return status
}

func explainOf(t *testing.T, n *Node, key string) (e uds.Explanation) {
	t.Helper()
	n.Command(cell.Request{Code: uds.CodeExplain, Payload: []byte(key)}, func(r cell.Response) {
		if err := json.Unmarshal(r.Payload, &e); err != nil {
			t.Fatal(err)
		}
	})
	return e
}

// A cell that died and is back is held out of placement, but not where nobody else takes a replica: with as many
// replicas as cells none is called unplaced while it is held, and both status and explain say how long (F64).
func TestF64_HeldCellIsTheLastResort(t *testing.T) {
	for _, seed := range seeds(3) {
		w := form(t, Options{Seed: seed, Cells: 3})
		run(t, w, 15*time.Second)
		w.Node(0).Set("spread.web", spec(t, 3, "/bin/a"), uds.ExpectAny, nil)
		w.Node(0).Set("spread.one", spec(t, 1, "/bin/b"), uds.ExpectAny, nil)
		until(t, w, 10*time.Second, "4 replicas", func() bool { return running(w) == 4 })
		dead := w.Node(2)
		dead.PowerOff()
		until(t, w, 30*time.Second, "known dead", func() bool { return w.Node(0).cell.AliveCount() == 2 })
		run(t, w, 20*time.Second)
		dead.Boot()
		until(t, w, 30*time.Second, "back", func() bool { return w.Node(0).cell.AliveCount() == 3 })
		run(t, w, time.Second)
		status := statusOf(t, w.Node(0))
		held := 0
		for _, c := range status.Cells {
			held += c.HeldSeconds
		}
		if held < 1 || held > 10 {
			t.Fatalf("seed %d: held for %d s: %+v", seed, held, status.Cells)
		}
		for _, l := range status.Workloads {
			if l.State == "unsatisfied" {
				t.Errorf("seed %d: %s is unsatisfied while a cell is held: %s", seed, l.Key, l.Reason)
			}
		}
		verdicts := func(key string) string {
			var all strings.Builder
			for _, line := range explainOf(t, w.Node(0), key).Ranking {
				if line.Cell == dead.ID().String() {
					all.WriteString(line.Verdict)
				}
			}
			return all.String()
		}
		if v := verdicts("spread.web"); !strings.Contains(v, "placed as last resort: died and is back, counts fully in") {
			t.Errorf("seed %d: %q", seed, v)
		}
		if v := verdicts("spread.one"); !strings.HasPrefix(v, "died and is back, counts fully in") {
			t.Errorf("seed %d: %q", seed, v)
		}
		until(t, w, time.Minute, "all run", func() bool { return settled(w) && running(w) == 4 })
	}
}
