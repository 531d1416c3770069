package cell_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/cell"
	"colloid.net/meshd/sim"
	"colloid.net/workload"
)

func sealed(t *testing.T, key, value string, store bool) cell.Request {
	t.Helper()
	plain, err := workload.EncodeEnvironment(&workload.Environment{
		Variables: []workload.Variable{{Name: "PASSWORD", Value: value}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return cell.Request{Code: uds.CodeEnvironment,
		Payload: uds.EnvironmentRequest{Store: store, Key: key, Plain: plain}.Append(nil)}
}

// F83: the digest is the same on every cell of the cluster and another one in another cluster; asking for it stores
// nothing; malformed requests are refused without echoing what they hold.
func TestF83_EnvironmentDigestIsKeyed(t *testing.T) {
	w := cluster(t, sim.Options{Seed: 1, Cells: 2})
	first := ask(t, w, w.Node(0), sealed(t, "spread.web", "geheim", false))
	keys := func() int { return w.Node(0).Cell().Store().Len() }
	before := keys()
	if first.Status != uds.OK || len(first.Payload) != 32 {
		t.Fatalf("%d %s", first.Status, first.Text)
	}
	if again := ask(t, w, w.Node(1), sealed(t, "spread.web", "geheim", false)); string(again.Payload) != string(first.Payload) {
		t.Error("two cells of one cluster give two digests")
	}
	if keys() != before {
		t.Error("asking for a digest stored something")
	}
	other := cluster(t, sim.Options{Seed: 2, Cells: 1})
	if foreign := ask(t, other, other.Node(0), sealed(t, "spread.web", "geheim", false)); string(foreign.Payload) == string(first.Payload) {
		t.Error("two clusters give one digest: it can be searched for")
	}
	ask(t, w, w.Node(0), sealed(t, "spread.web", strings.Repeat("geheim", 300), true))
	w.Run(time.Second)
	if got := keys() - before; got != 4 {
		t.Errorf("1800 bytes take %d keys, want 4", got)
	}
	for name, request := range map[string]cell.Request{
		"no workload": sealed(t, "cluster.door", "geheim", true),
		"empty":       {Code: uds.CodeEnvironment},
		"cut":         {Code: uds.CodeEnvironment, Payload: []byte{1, 200, 'x'}},
		"no environment": {Code: uds.CodeEnvironment,
			Payload: uds.EnvironmentRequest{Store: true, Key: "spread.web", Plain: []byte("geheim")}.Append(nil)},
	} {
		if r := ask(t, w, w.Node(0), request); r.Status != uds.Error || strings.Contains(r.Text, "geheim") {
			t.Errorf("%s: %d %s", name, r.Status, r.Text)
		}
	}
}

func TestDrainCommandIsChecked(t *testing.T) {
	w := cluster(t, sim.Options{Seed: 1, Cells: 2})
	request := func(payload string) cell.Request { return cell.Request{Code: uds.CodeDrain, Payload: []byte(payload)} }
	if r := ask(t, w, w.Node(0), request("")); r.Status != uds.Error {
		t.Errorf("empty: %d", r.Status)
	}
	if r := ask(t, w, w.Node(0), request("\x00\x00\x00\x00\x00\x00\x00\x01\x03")); r.Status != uds.Error {
		t.Errorf("wish 3: %d", r.Status)
	}
	if r := ask(t, w, w.Node(0), request("\x00\x00\x00\x00\x00\x00\x00\x01\x01")); r.Status != uds.NotFound {
		t.Errorf("unknown cell: %d", r.Status)
	}
	w.Node(0).Drain(w.Node(1), true)
	w.Run(3 * time.Second)
	var status uds.Status
	if err := json.Unmarshal(ask(t, w, w.Node(1), cell.Request{Code: uds.CodeStatus}).Payload, &status); err != nil {
		t.Fatal(err)
	}
	drained := 0
	for _, c := range status.Cells {
		if c.Drained && !c.InPlacement && c.Self {
			drained++
		}
	}
	if drained != 1 {
		t.Errorf("%+v", status.Cells)
	}
	// The keys of cells are not for `colloid apply`.
	if r := ask(t, w, w.Node(0), write(uds.CodeSet, "cell.0000000000000001.drain", []byte("x"), uds.ExpectAny)); r.Status != uds.Error {
		t.Error("a plain write of a drain key was taken")
	}
	if r := ask(t, w, w.Node(0), write(uds.CodeSet, "rollout.web.good", []byte("x"), uds.ExpectAny)); r.Status != uds.Error {
		t.Error("a plain write of what cells keep was taken")
	}
}
