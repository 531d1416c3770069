package cell_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/cell"
	"colloid.net/meshd/clock"
	"colloid.net/meshd/reconcile"
	"colloid.net/meshd/sim"
	"colloid.net/workload"
)

// put writes a value as the daemon does for a worker, and waits until it is stored or refused.
func put(t *testing.T, w *sim.World, n *sim.Node, workload, key, value string, seen []byte) error {
	t.Helper()
	var result error
	done := false
	n.Input(func(now clock.Instant) {
		n.Cell().WriteValue(now, workload, key, []byte(value), seen, 1000, func(err error) {
			if done {
				t.Fatal("answered twice")
			}
			result, done = err, true
		})
	})
	if _, ok := w.Until(time.Minute, func() bool { return done }); !ok {
		t.Fatal("not answered")
	}
	return result
}

func get(t *testing.T, n *sim.Node, workload, key string, index int) cell.Value {
	t.Helper()
	value, err := n.Cell().ReadValue(workload, key, index)
	if err != nil {
		t.Fatalf("%s of %s: %v", key, workload, err)
	}
	return value
}

// TestF19_AWorkloadReachesItsOwnKeysOnly tries every name that might lead elsewhere and looks at all keys of
// the store.
func TestF19_AWorkloadReachesItsOwnKeysOnly(t *testing.T) {
	w := cluster(t, sim.Options{Seed: 1, Cells: 1})
	n := w.Node(0)
	before := len(keys(t, w, n))
	for _, key := range []string{
		"", "\x00", "a\x00b", "../spread.x", "spread.evil", "..", "/", strings.Repeat("k", 300), "health.x.status", "\x7f",
		"é", "kv.other.x", "other.x",
	} {
		err := put(t, w, n, "mine", key, "v", nil)
		allowed := key != "" && len(key) < 90 && !strings.ContainsAny(key, "\x00\x7fé")
		if (err == nil) != allowed || err != nil && !errors.Is(err, cell.ErrValueKey) {
			t.Errorf("%.20q: %v", key, err)
		}
	}
	for _, workload := range []string{"", "a.b", "A", "../x", "a b", strings.Repeat("w", 64)} {
		if err := put(t, w, n, workload, "k", "v", nil); !errors.Is(err, cell.ErrValueKey) {
			t.Errorf("workload %.20q: %v", workload, err)
		}
	}
	after := keys(t, w, n)
	for _, key := range after {
		if strings.HasPrefix(key, "kv.") && !strings.HasPrefix(key, "kv.mine.") {
			t.Errorf("key %q was written", key)
		}
	}
	if len(after) != before+7 {
		t.Errorf("%d keys became %d: %q", before, len(after), after)
	}
}

func keys(t *testing.T, w *sim.World, n *sim.Node) []string {
	t.Helper()
	var list uds.KeyList
	if err := json.Unmarshal(ask(t, w, n, cell.Request{Code: uds.CodeList}).Payload, &list); err != nil {
		t.Fatal(err)
	}
	return list.Keys
}

// TestF148_TwoWriters: concurrent values stand beside each other, a write supersedes what its writer's last
// read saw and no more, and all cells agree on which one is first.
func TestF148_TwoWriters(t *testing.T) {
	w := cluster(t, sim.Options{Seed: 2, Cells: 2})
	a, b := w.Node(0), w.Node(1)
	if err := put(t, w, a, "w", "k", "one", nil); err != nil {
		t.Fatal(err)
	}
	w.Run(2 * time.Second)
	atA, atB := get(t, a, "w", "k", 0), get(t, b, "w", "k", 0)
	if string(atB.Data) != "one" || atB.Siblings != 1 || !bytes.Equal(atA.Seen, atB.Seen) {
		t.Fatalf("%+v and %+v", atA, atB)
	}
	// Both write over "one" without having seen each other.
	if err := errors.Join(put(t, w, a, "w", "k", "from a", atA.Seen), put(t, w, b, "w", "k", "from b", atB.Seen)); err != nil {
		t.Fatal(err)
	}
	w.Run(2 * time.Second)
	first := map[string]bool{}
	for _, n := range []*sim.Node{a, b} {
		v := get(t, n, "w", "k", 0)
		second := get(t, n, "w", "k", 1)
		if v.Siblings != 2 || bytes.Equal(v.Data, second.Data) || string(v.Data) == "one" {
			t.Fatalf("%+v, then %+v", v, second)
		}
		first[string(v.Data)] = true
		if _, err := n.Cell().ReadValue("w", "k", 2); !errors.Is(err, cell.ErrValueAbsent) {
			t.Fatalf("a third value: %v", err)
		}
	}
	if len(first) != 1 {
		t.Fatalf("the cells give different values first: %v", first)
	}
	// B writes without reading again: what A wrote stays beside it, what B wrote itself does not.
	if err := put(t, w, b, "w", "k", "b again", atB.Seen); err != nil {
		t.Fatal(err)
	}
	if v := get(t, b, "w", "k", 0); v.Siblings != 2 || string(v.Data) != "b again" {
		t.Fatalf("%+v", v)
	}
	// With what it read last, its write is the only one.
	if err := put(t, w, b, "w", "k", "merged", get(t, b, "w", "k", 0).Seen); err != nil {
		t.Fatal(err)
	}
	w.Run(2 * time.Second)
	if v := get(t, a, "w", "k", 0); v.Siblings != 1 || string(v.Data) != "merged" {
		t.Fatalf("%+v", v)
	}
	if err := put(t, w, a, "w", "k", "", get(t, a, "w", "k", 0).Seen); err != nil {
		t.Fatal(err)
	}
	w.Run(2 * time.Second)
	for _, n := range []*sim.Node{a, b} {
		if _, err := n.Cell().ReadValue("w", "k", 0); !errors.Is(err, cell.ErrValueAbsent) {
			t.Fatalf("deleted: %v", err)
		}
	}
	if err := put(t, w, a, "w", "k", "", nil); !errors.Is(err, cell.ErrValueAbsent) {
		t.Fatalf("deleted twice: %v", err)
	}
}

// TestF19_AWorkloadHoldsSoManyKeysAndNoMore, and deleting makes room again.
func TestF19_AWorkloadHoldsSoManyKeysAndNoMore(t *testing.T) {
	w := cluster(t, sim.Options{Seed: 3, Cells: 1})
	n := w.Node(0)
	limited := func(key, value string) (result error) {
		done := false
		n.Input(func(now clock.Instant) {
			n.Cell().WriteValue(now, "w", key, []byte(value), nil, 5, func(err error) { result, done = err, true })
		})
		w.Until(time.Minute, func() bool { return done })
		return result
	}
	for i := range 5 {
		if err := limited(fmt.Sprint(i), "v"); err != nil {
			t.Fatal(err)
		}
	}
	if err := limited("5", "v"); !errors.Is(err, cell.ErrValueRoom) {
		t.Fatalf("a sixth key: %v", err)
	}
	if err := errors.Join(limited("4", "changed"), limited("3", ""), limited("5", "v")); err != nil {
		t.Fatal(err)
	}
	var seen []string
	n.Cell().ReadValues("w", func(key string, value cell.Value) { seen = append(seen, key+"="+string(value.Data)) })
	if got := strings.Join(seen, " "); got != "0=v 1=v 2=v 4=changed 5=v" {
		t.Fatal(got)
	}
}

// TestF148_ValuesSurviveARestart: they come back with their list of keys.
func TestF148_ValuesSurviveARestart(t *testing.T) {
	w := cluster(t, sim.Options{Seed: 4, Cells: 1})
	n := w.Node(0)
	if err := put(t, w, n, "w", "k", "v", nil); err != nil {
		t.Fatal(err)
	}
	n.PowerOff()
	w.Run(time.Second)
	n.Boot()
	w.Run(30 * time.Second)
	count := 0
	w.Node(0).Cell().ReadValues("w", func(key string, value cell.Value) { count++ })
	if v := get(t, w.Node(0), "w", "k", 0); string(v.Data) != "v" || count != 1 {
		t.Fatalf("%q, %d keys", v.Data, count)
	}
}

// Whoever invokes a workload that is a process is not sent round all cells that run it.
func TestF144_WhatIsNoModuleIsNamed(t *testing.T) {
	w := cluster(t, sim.Options{Seed: 3, Cells: 1})
	n := w.Node(0)
	digest(t, ask(t, w, n, write(uds.CodeSet, "spread.web", spec(t, 1), uds.ExpectAbsent)))
	wanted := &workload.Spec{Runtime: workload.RuntimeWasm, Replicas: 1, Image: "https://modules.example/a.wasm"}
	module, err := workload.Encode(wanted)
	if err != nil {
		t.Fatal(err)
	}
	digest(t, ask(t, w, n, write(uds.CodeSet, "wasm.thumbs", module, uds.ExpectAbsent)))
	for name, want := range map[string]string{
		"web":     "spread.web is no module: only modules have functions to invoke",
		"unknown": "no workload is named \"unknown\": see `colloid status`",
	} {
		if got, again := n.Cell().WhyNotInvoked(name); got != want || again {
			t.Errorf("%s: %q, %v, want %q", name, got, again, want)
		}
	}
	w.Run(10 * time.Second)
	// The one that the simulated host runs: beside another its readiness would count.
	id := reconcile.InstanceID{Digest: wanted.InstanceDigest(), KeyHash: n.Cell().Store().Hash([]byte("wasm.thumbs"))}
	on := fmt.Sprintf("the instance of wasm.thumbs on cell %s ", n.ID())
	for _, test := range []struct {
		state    reconcile.State
		reason   string
		restarts uint32
		serves   int
		want     string
		again    bool
	}{
		{reconcile.Ready, "", 0, 2, on + "does not answer or has just ended: try again", true},
		{reconcile.Starting, "", 0, 1, on + "is starting: try again", true},
		{reconcile.Starting, "", 3, 1, on + "is starting, after 3 restarts: try again", true},
		{reconcile.Backoff, "the module cannot be instantiated: unreachable", 4, 0,
			on + "has ended: the module cannot be instantiated: unreachable", false},
	} {
		actual := reconcile.Actual{Key: "wasm.thumbs", Spec: module, State: test.state, Reason: test.reason,
			Restarts: test.restarts, PID: 7, ID: id}
		n.Input(func(now clock.Instant) { n.Cell().HelperInstance(now, actual) })
		w.Run(time.Millisecond)
		if got, again := n.Cell().WhyNotInvoked("thumbs"); got != test.want || again != test.again {
			t.Errorf("%v: %q, %v, want %q", test.state, got, again, test.want)
		}
		if got := n.Cell().Serves("thumbs", n.ID()); got != test.serves {
			t.Errorf("%v: serves %d, want %d", test.state, got, test.serves)
		}
	}
}
