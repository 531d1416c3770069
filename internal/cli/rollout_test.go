package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"colloid.net/ipc/uds"
	"colloid.net/workload"
)

// F83: values go to the daemon's seal and nowhere else; equal values are unchanged, another value is an
// update.
func TestF83_ApplySealsSecretsAndFiles(t *testing.T) {
	d := newFake(t)
	directory := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(directory, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("password", "geheim-1\n")
	write("app.conf", "line\n")
	file := write("web.colloid", `spread web {
    image example.org/web:1
    secret PASSWORD from file password
    secret TOKEN from env TOKEN_HERE
    secret FIXED from literal geheim-3
    file /etc/app.conf from file app.conf mode=0444
}`)
	run := func(arguments ...string) result {
		return runCommand("", map[string]string{"COLLOID_SOCKET": d.path, "TOKEN_HERE": "geheim-2"}, arguments...)
	}
	r := run("apply", "-f", file)
	r.expect(t, 0, "spread.web created\n")
	if len(d.sealed) != 1 {
		t.Fatalf("%d environments stored", len(d.sealed))
	}
	e, err := workload.DecodeEnvironment([]byte(d.sealed[0]))
	if err != nil {
		t.Fatal(err)
	}
	want := []workload.Variable{{Name: "FIXED", Value: "geheim-3"}, {Name: "PASSWORD", Value: "geheim-1"},
		{Name: "TOKEN", Value: "geheim-2"}}
	if fmt.Sprint(e.Variables) != fmt.Sprint(want) || string(e.Files[0].Content) != "line\n" || e.Files[0].Mode != 0o444 {
		t.Errorf("%+v", e)
	}
	if d.held("spread.web").EnvironmentDigest == ([32]byte{1}) {
		t.Error("the specification has no digest of the daemon's")
	}
	run("apply", "-f", file).expect(t, 0, "spread.web unchanged\n")
	run("diff", "-f", file).expect(t, 0, "")
	if len(d.sealed) != 1 {
		t.Error("an unchanged environment was stored again")
	}
	write("password", "geheim-4\n")
	if r := run("diff", "-f", file); !strings.Contains(r.output, "env_digest") || strings.Contains(r.output, "geheim") {
		t.Errorf("diff says %q", r.output)
	}
	run("apply", "-f", file).expect(t, 0, "spread.web updated\n")
	for _, value := range d.keys["spread.web"] {
		if strings.Contains(string(value.Value), "geheim") {
			t.Error("a secret is in the specification")
		}
	}
	d.keys["spread.web"][0].Sealed = []string{"secret PASSWORD"}
	if r := run("get", "web"); !strings.Contains(r.output, "# sealed: secret PASSWORD\n") {
		t.Errorf("get says %q", r.output)
	}
}

func TestF83_UnreadableSourcesAreErrorsWithoutValues(t *testing.T) {
	d := newFake(t)
	for statement, complaint := range map[string]string{
		"secret A from file /nonexistent": "-:1: A: stat /nonexistent",
		"secret A from env NOT_SET":       "NOT_SET is not set",
		"file /etc/x from file /dev/zero": "no regular file",
		`secret A from file ""`:           `from file "" names nothing`,
		"secret A from literal geheim; file /a from literal x; file /a/b from literal y": "-:1: spread.web: ",
		"secret A from literal " + strings.Repeat("geheim", 800):                         "expected at most",
	} {
		r := d.run("spread web { image a/b; "+statement+" }", "apply", "-f", "-")
		r.expectError(t, ExitUsage, complaint, "nothing was written")
		if strings.Contains(r.errors, "geheim") {
			t.Errorf("the error shows a value: %.200s", r.errors)
		}
	}
}

// F82, F83: variables that do not fit into the specification are sealed with the secrets.
func TestF82_VariablesThatDoNotFitAreSealed(t *testing.T) {
	d := newFake(t)
	text := "spread web {\n image a/b\n"
	for i := range 5 {
		text += fmt.Sprintf(" env V%d %s\n", i, strings.Repeat("x", 150))
	}
	d.run(text+"}\n", "apply", "-f", "-").expect(t, 0, "spread.web created\n")
	if len(d.sealed) != 1 || len(d.held("spread.web").Environment) != 0 {
		t.Errorf("%d sealed, %d variables in the specification", len(d.sealed), len(d.held("spread.web").Environment))
	}
}

// status gives the fake one workload.
func (d *fakeDaemon) workload(state string, change func(*uds.WorkloadStatus)) {
	w := uds.WorkloadStatus{Key: "spread.web", Replicas: 2, Ready: 2, State: state, Digest: "00000000000000d2",
		Instances: []uds.InstanceInfo{{Cell: ownActor, State: "ready", Digest: "00000000000000d2", Placed: true}}}
	if change != nil {
		change(&w)
	}
	d.status.Workloads = []uds.WorkloadStatus{w}
}

func TestRolloutStatusExits(t *testing.T) {
	d := newFake(t)
	d.hold(web2)
	old := func(w *uds.WorkloadStatus) {
		w.Instances = append(w.Instances, uds.InstanceInfo{Cell: ownActor, State: "ready", Digest: "00000000000000d1"})
	}
	for _, test := range []struct {
		state  string
		change func(*uds.WorkloadStatus)
		exit   int
		says   string
	}{
		{"ok", nil, ExitOK, "2 of 2 ready in version 00000000000000d2"},
		{"ok", old, ExitError, "old 00000000000000d1"},
		{"updating", old, ExitError, "updating"},
		{"held", func(w *uds.WorkloadStatus) { w.Reason = "exit code 1\x1b[2J" }, ExitNeedsHuman, "held"},
		{"stalled", nil, ExitNeedsHuman, "stalled"},
		{"conflict", nil, ExitNeedsHuman, "conflict"},
	} {
		d.workload(test.state, test.change)
		r := d.run("", "rollout", "status", "web")
		if r.exit != test.exit || !strings.Contains(r.output, test.says) || strings.Contains(r.output, "\x1b") {
			t.Errorf("%s: exit %d, %q, want %d, %q", test.state, r.exit, r.output, test.exit, test.says)
		}
	}
	d.workload("ok", nil) // ready, and not for ten seconds yet
	if r := d.run("", "rollout", "status", "web", "--watch", "--timeout", "50ms"); r.exit != ExitError {
		t.Errorf("watch: exit %d", r.exit)
	}
	d.workload("ok", func(w *uds.WorkloadStatus) { w.Good = true })
	r := d.run("", "rollout", "status", "web", "--watch", "-o", "json")
	var w uds.WorkloadStatus
	if err := json.Unmarshal([]byte(r.output), &w); err != nil || r.exit != ExitOK || !w.Good {
		t.Errorf("exit %d, %v, %q", r.exit, err, r.output)
	}
	d.run("", "rollout", "status", "other").expectError(t, ExitError, "no workload is named other")
	d.run("", "rollout", "status", "web", "--timeout", "1s").expectError(t, ExitUsage, "--watch")
}

// former puts a version among those that the cluster remembers.
func (d *fakeDaemon) former(text string) string {
	d.t.Helper()
	blocks, err := workload.Parse("test", []byte(text), workload.ParseOptions{})
	if err != nil {
		d.t.Fatal(err)
	}
	encoded, err := workload.Encode(blocks[0].Spec)
	if err != nil {
		d.t.Fatal(err)
	}
	digest := fmt.Sprintf("%016x", blocks[0].Spec.Digest())
	d.keys["rollout.web.past-"+digest] = []uds.EntryValue{d.value(ownActor, encoded)}
	list := d.value(ownActor, []byte{1})
	list.Text = digest
	if before := d.keys["rollout.web.past"]; len(before) > 0 {
		list.Text += " " + before[0].Text
	}
	d.keys["rollout.web.past"] = []uds.EntryValue{list}
	return digest
}

// instances is the digest under which status shows the instances of a specification.
func (d *fakeDaemon) instances(key string) string {
	return fmt.Sprintf("%016x", d.held(key).InstanceDigest())
}

// F74: status, history and --to name a version alike; versions of one name differ in what no instance sees.
func TestF74_HistoryNamesVersionsAsStatusDoes(t *testing.T) {
	d := newFake(t)
	d.hold(strings.Replace(web2, "web:1", "web:3", 1))
	five := d.former(web5)
	two := d.former(web2)
	name := d.instances("rollout.web.past-" + two)
	if name == two || name != d.instances("rollout.web.past-"+five) {
		t.Fatalf("%s, %s, %s", name, two, five)
	}
	d.run("", "rollout", "history", "web").expect(t, 0,
		d.instances("spread.web")+"  current          replicas=2, image=example.org/web:3, sha256=f2d887004394\n"+
			name+"  unproven         replicas=2, image=example.org/web:1\n"+
			name+"  unproven         replicas=5, image=example.org/web:1  (the same with other replicas or placement: --to "+five+")\n")
	for to, replicas := range map[string]int{name: 2, name[:8]: 2, five: 5, two: 2} {
		d.run("", "rollout", "undo", "web", "--to", to).expect(t, 0,
			fmt.Sprintf("spread.web back to %s: replicas=%d, image=example.org/web:1\n", name, replicas))
	}
}

func TestRolloutUndo(t *testing.T) {
	d := newFake(t)
	d.hold(web5)
	d.run("", "rollout", "undo", "web").expectError(t, ExitError, "no former version")
	oldestStored := d.former(strings.Replace(web2, "web:1", "web:0", 1))
	beforeStored := d.former(web2)
	oldest, before := d.instances("rollout.web.past-"+oldestStored), d.instances("rollout.web.past-"+beforeStored)
	d.run("", "rollout", "history", "web").expect(t, 0,
		d.instances("spread.web")+"  current          replicas=5, image=example.org/web:1, sha256=1b0bb9e04a8c\n"+
			before+"  unproven         replicas=2, image=example.org/web:1\n"+
			oldest+"  unproven         replicas=2, image=example.org/web:0\n")
	d.run("", "rollout", "undo", "web").expectError(t, ExitError, "no other version that is known to be good", "--to")
	d.marks(oldestStored+"=good", beforeStored+"=good")
	d.run("", "rollout", "undo", "web").expect(t, 0, "spread.web back to "+before+": replicas=2, image=example.org/web:1\n")
	if d.held("spread.web").Replicas != 2 {
		t.Error("not written")
	}
	d.run("", "rollout", "undo", "web", "--to", oldest[:6]).expect(t, 0,
		"spread.web back to "+oldest+": replicas=2, image=example.org/web:0\n")
	d.run("", "rollout", "undo", "web", "--to", oldestStored).expect(t, 0,
		"spread.web back to "+oldest+": replicas=2, image=example.org/web:0\n")
	d.run("", "rollout", "undo", "web", "--to", "ffffff").expectError(t, ExitError, "rollout history")
	// The last good version comes first.
	delete(d.keys, "spread.web")
	d.hold(web5)
	d.keys["rollout.web.good"] = d.keys["rollout.web.past-"+beforeStored]
	d.run("", "rollout", "undo", "web").expect(t, 0, "spread.web back to "+before+": replicas=2, image=example.org/web:1\n")
	delete(d.keys, "spread.web")
	d.hold(web5)
	writes := d.writes
	d.beforeWrite = func() { d.keys["spread.web"][0].Sequence++ }
	d.run("", "rollout", "undo", "web").expectError(t, ExitConflict, "changed while this ran")
	if d.writes != writes {
		t.Error("written over somebody's change")
	}
}

// marks is what cells keep of the outcomes of former versions.
func (d *fakeDaemon) marks(words ...string) {
	value := d.value(ownActor, []byte{1})
	value.Text = strings.Join(words, " ")
	d.keys["rollout.web.marks"] = []uds.EntryValue{value}
}

// TestUndoNeverChoosesWhatFailed: after an update that failed, undo goes back to the good version, and once
// more does nothing but say why; history says what became of each; --to goes to a failed one on purpose.
func TestUndoNeverChoosesWhatFailed(t *testing.T) {
	d := newFake(t)
	bad := strings.Replace(web2, "web:1", "web:bad", 1)
	goodStored := d.former(web2)
	earlier := d.keys["rollout.web.past"]
	badStored := d.former(bad)
	later := d.keys["rollout.web.past"] // what cells keep of the bad one once it is undone
	d.keys["rollout.web.past"] = earlier
	d.keys["spread.web"] = d.keys["rollout.web.past-"+badStored]
	d.keys["rollout.web.good"] = d.keys["rollout.web.past-"+goodStored]
	d.workload("held", nil)
	good, failed := d.instances("rollout.web.good"), d.instances("spread.web")
	d.run("", "rollout", "history", "web").expect(t, 0,
		failed+"  current, failed  replicas=2, image=example.org/web:bad\n"+
			good+"  good             replicas=2, image=example.org/web:1\n")
	d.run("", "rollout", "undo", "web").expect(t, 0, "spread.web back to "+good+": replicas=2, image=example.org/web:1\n")
	d.keys["rollout.web.past"] = later
	d.marks(badStored + "=failed")
	d.workload("ok", nil)
	writes := d.writes
	d.run("", "rollout", "undo", "web").expectError(t, ExitError, "no other version that is known to be good", "history")
	d.marks() // it was undone before there was a verdict
	d.run("", "rollout", "undo", "web").expectError(t, ExitError, "no other version that is known to be good")
	if d.writes != writes {
		t.Error("something was written")
	}
	d.marks(badStored + "=failed")
	d.run("", "rollout", "history", "web").expect(t, 0,
		good+"  current, good    replicas=2, image=example.org/web:1\n"+
			failed+"  failed           replicas=2, image=example.org/web:bad\n")
	d.run("", "rollout", "undo", "web", "--to", failed[:8]).expect(t, 0,
		"spread.web back to "+failed+": replicas=2, image=example.org/web:bad\n")
}

// Applying the same file after a failure tries once more; otherwise it writes nothing.
func TestApplyRetriesAFailedUpdate(t *testing.T) {
	d := newFake(t)
	d.run(web2, "apply", "-f", "-").expect(t, 0, "spread.web created\n")
	d.keys["rollout.web.verdict"] = []uds.EntryValue{d.value(ownActor, []byte("v"))}
	d.workload("ok", nil) // an old verdict
	d.run(web2, "apply", "-f", "-").expect(t, 0, "spread.web unchanged\n")
	d.workload("held", nil)
	d.run(web2, "apply", "-f", "-").expect(t, 0, "spread.web retried\n")
	if d.writes != 2 {
		t.Errorf("%d writes, want 2", d.writes)
	}
}

// A local daemon that restarts while a drain waits is waited for: the wish is written down, and others go on.
func TestF134_DrainOutlivesARestartOfTheDaemon(t *testing.T) {
	d := newFake(t)
	d.status.Cells = []uds.CellInfo{{ID: ownActor, Hostname: "one", State: "alive", Drained: true}}
	d.workload("ok", func(*uds.WorkloadStatus) {})
	d.restart()
	r := d.run("", "drain", "one", "--timeout", "20s")
	r.expect(t, 0, ownActor+" is empty and takes no new work\n")
	if !strings.Contains(r.errors, "connected to the daemon again") {
		t.Errorf("%q", r.errors)
	}
	d.status.Cells[0].Drained = true
	d.run("", "drain", "one", "--abandon-volumes").expect(t, 0, ownActor+" is empty and takes no new work\n")
	want := fmt.Sprintf("28 %q", "\x00\x00\x00\x00\x00\x00\x00\xa1\x02")
	if joined := strings.Join(d.requests, "\n"); !strings.Contains(joined, want) {
		t.Errorf("no request %s in\n%s", want, joined)
	}
}

func TestDrainWaitsAndReports(t *testing.T) {
	d := newFake(t)
	cell := uds.CellInfo{ID: ownActor, Hostname: "one", State: "alive", Drained: true}
	d.status.Cells = []uds.CellInfo{cell}
	d.run("", "drain", "one").expect(t, 0, ownActor+" is empty and takes no new work\n")
	d.run("", "uncordon", "one").expect(t, 0, ownActor+" takes work again\n")
	d.run("", "drain", "one", "--timeout", "0").expect(t, 0, ownActor+" takes no new work\n")
	d.run("", "drain", "two").expectError(t, ExitError, `no cell is called "two"`)
	d.workload("unsatisfied", func(w *uds.WorkloadStatus) { w.Reason = "no cell for 1 of 2 replicas" })
	d.run("", "drain", "one", "--timeout", "10ms").expectError(t, ExitError, "not empty after 10ms",
		"spread.web (ready, no cell for 1 of 2 replicas)")
	want := fmt.Sprintf("28 %q", "\x00\x00\x00\x00\x00\x00\x00\xa1\x01")
	if joined := strings.Join(d.requests, "\n"); !strings.Contains(joined, want) {
		t.Errorf("no request %s in\n%s", want, joined)
	}
	if r := d.run("", "cells"); !strings.Contains(r.output, "alive (drained)") {
		t.Errorf("cells: %q", r.output)
	}
	d.status.Conflicts = []uds.ConflictInfo{{Key: "cell." + ownActor + ".drain", Digest: "1",
		Values: []uds.EntryValue{{Actor: ownActor}}}}
	if r := d.run("", "status"); !strings.Contains(r.output, "colloid uncordon "+ownActor) ||
		strings.Contains(r.output, "colloid resolve") {
		t.Errorf("status: %q", r.output)
	}
}
