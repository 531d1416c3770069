package sim

import (
	"strings"
	"testing"
	"time"

	"colloid.net/meshd/reconcile"
	"colloid.net/workload"
)

// equipped forms a cluster of machines as they are written, plays operators, and waits for the wanted instances.
func equipped(t *testing.T, cells int, lines ...string) *World {
	t.Helper()
	w := New(Options{Seed: 1, Cells: cells})
	var writes []Fault
	for _, line := range lines {
		f, err := ParseFault(line)
		if err != nil {
			t.Fatal(err)
		}
		if f.Verb == Equip {
			w.Node(f.Node).equip(f.Machine)
		} else {
			writes = append(writes, f)
		}
	}
	for _, c := range Checkers() {
		w.AddChecker(c)
	}
	if err := w.Form(time.Minute); err != nil {
		t.Fatal(err)
	}
	w.cluster = w.nodes[0].cell.ClusterID()
	run(t, w, 15*time.Second)
	for _, f := range writes {
		w.Apply(f)
		run(t, w, 5*time.Second)
	}
	if !w.wait(5*time.Minute, "EXEC-1", func() bool { return w.placed() == nil && w.sameState() }) {
		t.Fatal(w.Failure)
	}
	run(t, w, time.Minute)
	if err := w.placed(); err != nil {
		t.Fatal(err)
	}
	return w
}

// What has no place is pending and starts nowhere; all that has one runs (F72, F77, F78).
func TestF72_F77_F78_WhatHasNoPlaceIsPending(t *testing.T) {
	for _, test := range []struct {
		name  string
		lines []string
		runs  map[string]int
	}{
		{"memory", []string{"equip 0 memory=1024", "equip 1 memory=512", "equip 2 memory=512",
			"write 0 spread.a replicas=3 image=/bin/a memory=768", "write 1 spread.b replicas=3 image=/bin/b memory=512"},
			map[string]int{"spread.a": 1, "spread.b": 2}},
		{"ports", []string{"write 0 spread.a replicas=2 image=/bin/a ports=80:80", "write 1 spread.b replicas=2 image=/bin/b ports=80:80",
			"write 1 spread.c replicas=3 image=/bin/b ports=80:80/udp"},
			map[string]int{"spread.a + spread.b": 3, "spread.c": 3}},
		{"labels", []string{"equip 1 labels=zone=a", "write 0 spread.a replicas=3 image=/bin/a where=zone=a",
			"write 0 stateful.b replicas=3 image=/bin/a where=zone!=a", "write 0 spread.c replicas=1 image=/bin/a where=zone=z"},
			map[string]int{"spread.a": 1, "stateful.b": 2, "spread.c": 0}},
		{"priority", []string{"equip 0 instances=1", "equip 1 instances=1", "equip 2 instances=1",
			"write 0 spread.a replicas=3 image=/bin/a", "write 0 stateful.b replicas=2 image=/bin/b priority=1"},
			map[string]int{"spread.a": 1, "stateful.b": 2}},
		{"policy and processor", []string{"equip 0 deny=/bin/a", "equip 1 arch=arm64", "equip 2 arch=amd64",
			"write 0 spread.a replicas=3 image=/bin/a", "write 0 spread.b replicas=3 image=/bin/b arch=arm64"},
			map[string]int{"spread.a": 2}},
		{"secrets", []string{"write 0 stateful.a replicas=2 image=/bin/a secret=7 volume=true"}, map[string]int{"stateful.a": 2}},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := equipped(t, 3, test.lines...)
			for keys, want := range test.runs {
				count := 0
				for _, n := range w.Nodes() {
					for _, i := range n.host.sorted() {
						if strings.Contains(keys, i.key) && i.state == reconcile.Ready {
							count++
						}
					}
				}
				if count != want {
					t.Errorf("%s: %d ready, want %d", keys, count, want)
				}
			}
		})
	}
}

// What is not as it should be is named, whatever the plans say.
func TestEXEC1_TheWantedInstancesAreWorkedOutFromTheMachines(t *testing.T) {
	for _, test := range []struct {
		name   string
		breaks func(w *World)
		want   string
	}{
		{"room", func(w *World) { w.Node(0).machine.Memory = 100 }, "MiB of memory"},
		{"instances", func(w *World) { w.Node(0).machine.Instances = 1 }, "instances"},
		{"label", func(w *World) { w.Node(0).machine.Labels = nil }, "against its label"},
		{"pending", func(w *World) { w.Node(2).machine.Labels = w.Node(0).machine.Labels }, "could run one"},
		{"port", func(w *World) {
			for _, i := range w.Node(0).host.sorted() {
				i.runs.Ports = []workload.Port{{Host: 80, Container: 80}}
			}
		}, "port in common"},
		{"nobody wants it", func(w *World) {
			for _, i := range w.Node(1).host.sorted() {
				i.key = "spread.other"
			}
		}, "nobody wants"},
		{"not ready", func(w *World) { w.Node(1).host.sorted()[0].state = reconcile.Backoff }, "1 others"},
	} {
		w := equipped(t, 3, "equip 0 labels=zone=a memory=1024", "equip 1 labels=zone=a",
			"write 0 spread.a replicas=3 image=/bin/a where=zone=a memory=256",
			"write 0 spread.b replicas=3 image=/bin/b where=zone=a memory=256")
		test.breaks(w)
		if err := w.placed(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
}

// An environment comes again to a runnerd that has forgotten it: an instance that ends meanwhile starts again (F83).
func TestF83_InstanceThatEndsWhileRunnerdIsAwayStartsAgain(t *testing.T) {
	w := equipped(t, 2, "write 0 spread.a replicas=2 image=/bin/a secret=2")
	n := w.Node(0)
	n.host.leave()
	n.host.exit(0)
	run(t, w, 5*time.Second)
	if n.host.sorted()[0].state == reconcile.Ready {
		t.Fatal("it started without its environment")
	}
	n.host.comeBack()
	run(t, w, 10*time.Second)
	if err := w.placed(); err != nil {
		t.Fatal(err)
	}
}
