package cell_test

import (
	"reflect"
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/sim"
	"colloid.net/meshd/state"
	"colloid.net/workload"
)

// TestF74_WhatBecameOfVersionsIsKept: what was good, what failed and what nobody knows of is kept beside the former
// versions, as long as they are, and on all cells.
func TestF74_WhatBecameOfVersionsIsKept(t *testing.T) {
	w := cluster(t, sim.Options{Seed: 4, Cells: 3})
	expect := uds.ExpectAbsent
	set := func(image string) uint64 {
		t.Helper()
		raw := sim.RolloutSpec(1, image, workload.Update{AutoRollback: true, DeadlineSeconds: 8, UnavailableMax: 1})
		expect = digest(t, ask(t, w, w.Node(1), write(uds.CodeSet, "spread.web", raw, expect)))
		spec, err := workload.Decode(raw)
		if err != nil {
			t.Fatal(err)
		}
		return spec.Digest()
	}
	good := set("/bin/a")
	w.Run(30 * time.Second)
	bad := set("/bin/hangs")
	w.Run(40 * time.Second)
	quick := set("/bin/b")
	w.Run(2 * time.Second)
	set("/bin/c")
	w.Run(5 * time.Second)
	marks := func(n *sim.Node) []state.Mark {
		register, _ := n.Cell().Store().Get([]byte(state.RolloutKey("web", state.RolloutMarks)))
		raw, _ := register.Live()
		marks, _ := state.ParseMarks(raw)
		return marks
	}
	want := []state.Mark{{Digest: bad, Outcome: state.OutcomeFailed}, {Digest: good, Outcome: state.OutcomeGood}}
	for _, n := range w.Nodes() {
		if got := marks(n); !reflect.DeepEqual(got, want) {
			t.Errorf("%v, expected %v and nothing of %016x", got, want, quick)
		}
	}
	for i := range state.PastMax {
		set("/bin/d" + string(rune('0'+i)))
		w.Run(time.Second)
	}
	w.Run(5 * time.Second)
	if got := marks(w.Node(0)); len(got) != 0 {
		t.Errorf("marks of versions that are forgotten: %v", got)
	}
}
