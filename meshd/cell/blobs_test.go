package cell_test

import (
	"slices"
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/sim"
	"colloid.net/meshd/wire"
	"colloid.net/workload"
)

// Cells that may have an image are those with an instance of a workload that has it, for every cell the same ones but
// in different orders, never the asking cell, and none that is dead or to be avoided (F76).
func TestF76_HoldersAreThoseThatRunTheImage(t *testing.T) {
	w := cluster(t, sim.Options{Seed: 5, Cells: 6})
	image := [32]byte{1, 2, 3}
	container := func(replicas uint16, digest [32]byte) []byte {
		raw, err := workload.Encode(&workload.Spec{Runtime: workload.RuntimeOCI, Replicas: replicas,
			Image: "docker.io/library/web:1", ImageDigest: digest})
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	digest(t, ask(t, w, w.Node(0), write(uds.CodeSet, "spread.web", container(4, image), uds.ExpectAny)))
	digest(t, ask(t, w, w.Node(0), write(uds.CodeSet, "spread.other", container(6, [32]byte{9}), uds.ExpectAny)))
	w.Run(30 * time.Second)
	var runs []wire.CellID
	for _, n := range w.Nodes() {
		if slices.Contains(n.Running(), "spread.web") {
			runs = append(runs, n.ID())
		}
	}
	if len(runs) != 4 {
		t.Fatalf("%d cells run it", len(runs))
	}
	all := func(wire.CellID) bool { return false }
	firsts := map[wire.CellID]bool{}
	for _, n := range w.Nodes() {
		got := n.Cell().Holders(image, all, 10)
		firsts[got[0]] = true
		slices.Sort(got)
		want := slices.DeleteFunc(slices.Clone(runs), func(id wire.CellID) bool { return id == n.ID() })
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("n%d: %v, want %v", n.Index, got, want)
		}
		if got := n.Cell().Holders(image, all, 2); len(got) != 2 {
			t.Errorf("n%d: %d cells, want 2", n.Index, len(got))
		}
		if got := n.Cell().Holders([32]byte{8}, all, 10); len(got) != 0 {
			t.Errorf("n%d: %v have an image that nobody names", n.Index, got)
		}
	}
	if len(firsts) == 1 {
		t.Error("all ask the same cell first")
	}
	asker, victim := w.Nodes()[0], w.Nodes()[0]
	for _, n := range w.Nodes() {
		if n.ID() == runs[0] {
			victim = n
		} else {
			asker = n
		}
	}
	avoid := func(id wire.CellID) bool { return id == runs[1] }
	if got := asker.Cell().Holders(image, avoid, 10); slices.Contains(got, runs[1]) {
		t.Errorf("%v with the one to avoid", got)
	}
	victim.PowerOff()
	w.Run(30 * time.Second)
	if got := asker.Cell().Holders(image, all, 10); slices.Contains(got, runs[0]) {
		t.Errorf("%v with a dead one", got)
	}
}
