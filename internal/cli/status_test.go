package cli

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"colloid.net/ipc/uds"
)

func sampleStatus(d *fakeDaemon) uds.Status {
	key := d.hold(web2, web5)
	entries := d.entries(key)
	return uds.Status{
		Cell: uds.CellSelf{ID: ownActor, State: "active", Version: "1", Cluster: "00000000000000cc", Door: "open",
			Address: "192.0.2.1:12421", Driver: "epoll", UptimeSeconds: 3700, Authoritative: true, Keys: 7,
			StateDirectory: "/var/lib/colloid/meshd",
			Helpers:        []uds.HelperInfo{{Name: "runnerd", Connected: true, Degradations: []string{"no cgroups"}}}},
		Cells: []uds.CellInfo{
			{ID: ownActor, Hostname: "one", Address: "192.0.2.1:12421", State: "alive", Self: true, InPlacement: true,
				Runtimes: []string{"process"}, HeardSeconds: -1},
			{ID: "00000000000000b2", Hostname: "two", Address: "192.0.2.2:12421", State: "dead", HeardSeconds: 12.3,
				RTTMicrosecond: 812},
		},
		Workloads: []uds.WorkloadStatus{{Key: "spread.api", Runtime: "process", Replicas: 2, Ready: 1,
			State: "unsatisfied", Reason: "1 cell is too few", Instances: []uds.InstanceInfo{
				{Cell: ownActor, State: "ready", Address: "192.0.2.1", Ports: []uint16{8080, 8443}, Placed: true},
				{Cell: "00000000000000b2", State: "backoff", Restarts: 3, Placed: false}}}},
		Conflicts:  []uds.ConflictInfo{{Key: key, Digest: entries.Digest, Values: entries.Entries}},
		Alarms:     []uds.Alarm{{Severity: "critical", Text: "disk is full\x1b[1m", Hint: "free some"}},
		NeedsHuman: true,
		Metrics: []uds.Metric{
			{Name: "colloid_datagrams_received_total", Help: "All.\nReally.", Kind: "counter", Value: 1e7},
			{Name: "bad name{", Kind: "counter"}, {Name: "colloid_cells", Kind: "gauge", Value: 99},
		},
	}
}

func TestStatusPictureAndNeedsHuman(t *testing.T) {
	d := newFake(t)
	d.status = sampleStatus(d)
	r := d.run("", "status")
	if r.exit != ExitNeedsHuman {
		t.Errorf("exit %d, want %d", r.exit, ExitNeedsHuman)
	}
	for _, want := range []string{
		"cell " + ownActor + "  active", "up 1h1m", "runnerd connected\n    without: no cgroups",
		"CELLS  1 of 2 alive", "12.3s ago",
		"spread.api  process  1/2    unsatisfied, 1 cell is too few  /0 00000000 192.0.2.1:8080,8443, " +
			"/1 00000000 (backoff, surplus, 3 restarts)",
		"CONFLICT on spread.web: 2 values", "  1  replicas=2, image=example.org/web:1, sha256=1b0bb9e04a8c  by cell 00000000000000a1 at {00000000000000a1:1}",
		"colloid resolve spread.web --seen " + d.status.Conflicts[0].Digest + " --take N",
		"critical  disk is full?[1m\n          free some",
	} {
		if !strings.Contains(r.output, want) {
			t.Errorf("status lacks %q:\n%s", want, r.output)
		}
	}
	d.status = uds.Status{Cell: uds.CellSelf{ID: ownActor, State: "active"}}
	if r := d.run("", "status"); r.exit != 0 || !strings.Contains(r.output, "none yet: colloid apply") {
		t.Errorf("quiet cluster: exit %d, output %q", r.exit, r.output)
	}
}

func TestStatusJSONIsTheDocumentUnchanged(t *testing.T) {
	d := newFake(t)
	d.status = sampleStatus(d)
	r := d.run("", "status", "-o", "json")
	var got uds.Status
	if err := json.Unmarshal([]byte(r.output), &got); err != nil {
		t.Fatal(err)
	}
	if r.exit != ExitNeedsHuman || !reflect.DeepEqual(got, d.status) {
		t.Errorf("exit %d, document %+v", r.exit, got)
	}
	r = d.run("", "cells", "-o", "json")
	var cells []uds.CellInfo
	if err := json.Unmarshal([]byte(r.output), &cells); err != nil || !reflect.DeepEqual(cells, d.status.Cells) {
		t.Errorf("%v: %+v", err, cells)
	}
	if r := d.run("", "cells"); r.exit != 0 || !strings.Contains(r.output, "810µs") {
		t.Errorf("exit %d, output %q", r.exit, r.output)
	}
	d.run("", "status", "-o", "yaml").expectError(t, ExitUsage, "yaml")
}

func TestMetricsAreReadableByPrometheus(t *testing.T) {
	d := newFake(t)
	d.status = sampleStatus(d)
	r := d.run("", "status", "--metrics")
	if r.exit != 0 {
		t.Errorf("exit %d: a scrape must not fail because of a conflict", r.exit)
	}
	for _, want := range []string{
		"# HELP colloid_datagrams_received_total All.\\nReally.\n# TYPE colloid_datagrams_received_total counter\n" +
			"colloid_datagrams_received_total 1e+07\n",
		"colloid_cells 2\n", "colloid_cells_alive 1\n", "colloid_conflicts 1\n", "colloid_needs_human 1\n",
		"colloid_workload_ready{key=\"spread.api\"} 1\n",
	} {
		if !strings.Contains(r.output, want) {
			t.Errorf("metrics lack %q:\n%s", want, r.output)
		}
	}
	names := map[string]bool{}
	for line := range strings.Lines(r.output) {
		fields := strings.Fields(line)
		if strings.HasPrefix(line, "# TYPE ") {
			if names[fields[2]] {
				t.Errorf("metric %s appears twice", fields[2])
			}
			names[fields[2]] = true
		} else if !strings.HasPrefix(line, "#") && (len(fields) != 2 || strings.Contains(line, "bad name")) {
			t.Errorf("broken line %q", line)
		}
	}
	d.run("", "status", "--metrics", "-o", "json").expectError(t, ExitUsage, "--metrics")
}

func TestExplain(t *testing.T) {
	d := newFake(t)
	d.hold(web2)
	r := d.run("", "explain", "web")
	for _, want := range []string{"spread.web: unsatisfied, one cell lacks memory", "placed", "denied?[2J"} {
		if !strings.Contains(r.output, want) {
			t.Errorf("explain lacks %q:\n%s", want, r.output)
		}
	}
}

// Copies of an old version serve while an update or a conflict lasts, and are counted.
func TestF78_ReadyCountsCopiesOfOldVersions(t *testing.T) {
	d := newFake(t)
	instance := func(digest, state string) uds.InstanceInfo {
		return uds.InstanceInfo{Cell: ownActor, State: state, Digest: digest, Placed: true}
	}
	for _, c := range []struct {
		state     string
		ready     int
		instances []uds.InstanceInfo
		want      string
	}{
		{"updating", 0, []uds.InstanceInfo{instance("a", "ready"), instance("a", "ready"), instance("b", "starting")},
			"  2/2 (old version)  updating"},
		{"updating", 1, []uds.InstanceInfo{instance("a", "ready"), instance("b", "ready")},
			"  2/2 (1 in the old version)  updating"},
		{"ok", 2, []uds.InstanceInfo{instance("a", "ready"), instance("b", "ready"), instance("b", "ready")}, "  2/2    ok"},
		{"conflict", 0, []uds.InstanceInfo{instance("a", "ready"), instance("a", "ready")},
			"  2/2 (2 in another version)  conflict"},
		{"starting", 0, []uds.InstanceInfo{instance("a", "starting")}, "  0/2    starting"},
		{"updating", 0, []uds.InstanceInfo{instance("a", "unreachable"), instance("a", "ready")}, "  1/2 (old version)  updating"},
	} {
		d.workload(c.state, func(w *uds.WorkloadStatus) { w.Digest, w.Ready, w.Instances = "b", c.ready, c.instances })
		if r := d.run("", "status"); !strings.Contains(r.output, c.want) {
			t.Errorf("%q is not in\n%s", c.want, r.output)
		}
	}
	d.workload("updating", func(w *uds.WorkloadStatus) { w.Ready, w.Serving = 0, 2 })
	if r := d.run("", "rollout", "status", "spread.web"); !strings.Contains(r.output, "0 of 2 ready in version 00000000000000d2, 2 serve in all") {
		t.Errorf("%q", r.output)
	}
}

// A cell that is cut off says so before anything else, and counts nobody alive who gives no answer; `top`
// shows no figures of them.
func TestF66_StatusOfACellThatIsCutOff(t *testing.T) {
	d := newFake(t)
	half := 50
	d.status = uds.Status{
		Cell: uds.CellSelf{ID: ownActor, State: "active", CutOff: "this cell is cut off: it reaches 0 of the 1 other cells"},
		Cells: []uds.CellInfo{{ID: ownActor, State: "alive", Self: true, CPUPercent: &half},
			{ID: "00000000000000b2", State: "alive", Unreached: true}},
		NeedsHuman: true,
	}
	r := d.run("", "status")
	if r.exit != ExitNeedsHuman || !strings.HasPrefix(r.output, "ATTENTION: this cell is cut off") ||
		!strings.Contains(r.output, "CELLS  1 of 2 alive") || !strings.Contains(r.output, "no answer, last alive") {
		t.Errorf("exit %d:\n%s", r.exit, r.output)
	}
	if r := d.run("", "cells"); !strings.Contains(r.output, "no answer, last alive") {
		t.Errorf("cells:\n%s", r.output)
	}
}
