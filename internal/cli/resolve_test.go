package cli

import (
	"strings"
	"testing"

	"colloid.net/ipc/uds"
)

func TestResolveTakesAValueAndKeepsATraceOfTheOther(t *testing.T) {
	d := newFake(t)
	d.hold(web2, web5)
	seen := d.entries("spread.web").Digest
	r := d.run("", "resolve", "web", "--seen", seen, "--take", "2")
	r.expect(t, 0, "spread.web resolved\n")
	if d.held("spread.web").Replicas != 5 {
		t.Fatal("another value was taken")
	}
	r.expectError(t, 0, "#     replicas 2")
	if strings.Contains(r.errors, "replicas 5") {
		t.Errorf("the chosen value is reported as replaced: %q", r.errors)
	}
	d.run("", "resolve", "web", "--take", "1").expectError(t, ExitError, "not in conflict", "apply")
}

func TestResolveFromFile(t *testing.T) {
	d := newFake(t)
	d.hold(web2, web5)
	d.run(api1, "resolve", "spread.web", "--from-file", "-").expectError(t, ExitUsage, "no block for spread.web")
	d.run("spread web {\n image example.org/web:1\n replicas ${N}\n}\n", "resolve", "spread.web", "--from-file", "-",
		"--set", "N=3").expect(t, 0, "spread.web resolved\n")
	if d.held("spread.web").Replicas != 3 {
		t.Fatal("the file's value was not written")
	}
}

func TestF55_ResolveRefusesWhenAThirdValueArrived(t *testing.T) {
	third := "spread web {\n image example.org/web:1\n replicas 9\n}\n"
	d := newFake(t)
	d.hold(web2, web5)
	seen := d.entries("spread.web").Digest
	d.hold(third) // between the operator's look and the decision
	d.run("", "resolve", "web", "--seen", seen, "--take", "1").
		expectError(t, ExitConflict, "has changed since it was shown", "replicas=9")
	d.beforeWrite = func() { d.hold(third) } // between the command's look and its write
	d.run("", "resolve", "web", "--take", "1").expectError(t, ExitConflict, "changed while this ran")
	if d.writes != 0 {
		t.Fatal("values nobody saw were replaced")
	}
}

func TestResolveUsage(t *testing.T) {
	d := newFake(t)
	d.hold(web2, web5)
	d.run("", "resolve", "web").expectError(t, ExitUsage, "--take")
	d.run(web2, "resolve", "web", "--take", "1", "--from-file", "-").expectError(t, ExitUsage)
	d.run("", "resolve", "web", "--take", "0").expectError(t, ExitUsage, "values 1 to 2")
	d.run("", "resolve", "web", "--take", "3").expectError(t, ExitUsage, "values 1 to 2")
}

func TestResolveMayChooseADeletion(t *testing.T) {
	d := newFake(t)
	key := d.hold(web2)
	d.keys[key] = append(d.keys[key], d.value("00000000000000a2", nil))
	d.run("", "resolve", key, "--take", "2").expect(t, 0, "spread.web resolved\n")
	if len(d.keys[key]) != 1 || !d.keys[key][0].Deleted {
		t.Fatal("the deletion was not chosen")
	}
}

func TestGetShowsAllValuesOfAConflict(t *testing.T) {
	d := newFake(t)
	d.hold(web2)
	r := d.run("", "get", "web")
	if r.exit != 0 || !strings.Contains(r.output, "of 512 bytes") || !strings.Contains(r.output, "\n    replicas 2\n") {
		t.Errorf("exit %d, output %q", r.exit, r.output)
	}
	d.hold(web5)
	r = d.run("", "get", "web")
	if r.exit != ExitConflict || !strings.Contains(r.output, "#     replicas 2") ||
		!strings.Contains(r.output, "#     replicas 5") {
		t.Errorf("exit %d, output %q", r.exit, r.output)
	}
	r = d.run("", "get", "web", "-o", "json")
	if r.exit != ExitConflict || !strings.Contains(r.output, `"digest": "`+d.entries("spread.web").Digest) {
		t.Errorf("exit %d, output %q", r.exit, r.output)
	}
	d.run("", "get", "spread.none").expectError(t, ExitError, "not found")
}

// Two values that differ only in what a summary leaves out must not look alike where one is to be chosen.
func TestConflictShowsInWhatTheValuesDiffer(t *testing.T) {
	d := newFake(t)
	d.hold("spread web {\n process /b\n args 711\n}\n")
	d.hold("spread web {\n process /b\n args 723\n}\n")
	r := d.run("spread web {\n process /nowhere/b\n}\n", "apply", "-f", "-")
	if r.exit != ExitConflict || !strings.Contains(r.errors, "args 711") || !strings.Contains(r.errors, "args 723") {
		t.Errorf("exit %d, errors %q", r.exit, r.errors)
	}
}

// What is no key at all is a wrong argument, said without letting it at the terminal or filling the screen.
func TestWhatIsNoKeyIsRefusedHere(t *testing.T) {
	d := newFake(t)
	for _, name := range []string{"A_B", "\x1b[31mred", "spread.\x1b]0;title\x07", strings.Repeat("a", 100000),
		"spread." + strings.Repeat("a", 100)} {
		for _, command := range []string{"get", "delete", "explain"} {
			r := d.run("", command, name)
			r.expectError(t, ExitUsage, "is no key")
			if len(r.errors) > 500 || strings.Contains(r.errors, "\x1b") {
				t.Errorf("%s: %d bytes, %.100q", command, len(r.errors), r.errors)
			}
		}
	}
}

// The way out is named once, and it is the right one.
func TestRefusalsAreNotSaidTwice(t *testing.T) {
	for _, c := range []struct {
		refusal
		want string
	}{
		{refusal{uds.ErrorBusy, "still syncing: try again in a moment"},
			"colloid: spread.web: still syncing: try again in a moment\n"},
		{refusal{uds.ErrorBusy, "too many writes"}, "colloid: spread.web: too many writes: try again in a few seconds\n"},
		{refusal{uds.ErrorExists, "spread.web: wasm.web has this name"}, "colloid: spread.web: wasm.web has this name\n"},
		{refusal{uds.ErrorNoSpace, "spread.web: the cluster holds 58982 keys"},
			"colloid: spread.web: the cluster holds 58982 keys\n"},
	} {
		d := newFake(t)
		d.refuse[uds.CodeSet] = c.refusal
		pinned := strings.Replace(web2, "web:1", "web:1@sha256:"+strings.Repeat("a", 64), 1)
		if r := d.run(pinned, "apply", "-f", "-"); r.exit != ExitError || r.errors != c.want {
			t.Errorf("exit %d, errors %q, want %q", r.exit, r.errors, c.want)
		}
	}
}

func TestShorthandMustBeUnambiguous(t *testing.T) {
	d := newFake(t)
	d.hold(web2)
	d.run("", "get", "nothing").expectError(t, ExitError, "no workload is named nothing")
	d.hold("stateful web {\n image example.org/db:1\n volume data /data\n}\n")
	d.run("", "get", "web").expectError(t, ExitUsage, "ambiguous", "spread.web", "stateful.web")
	if r := d.run("", "get", "stateful.web"); r.exit != 0 {
		t.Errorf("exit %d, errors %q", r.exit, r.errors)
	}
}

func TestValuesThatAreNoWorkloadAreShownHarmlessly(t *testing.T) {
	d := newFake(t)
	d.keys["health.x.contact"] = []uds.EntryValue{{Actor: ownActor, Sequence: 1, Value: []byte{1, 0x1b}}}
	r := d.run("", "get", "health.x.contact")
	if r.exit != 0 || !strings.HasSuffix(r.output, "\n011b\n") {
		t.Errorf("exit %d, output %q", r.exit, r.output)
	}
	d.keys["spread.bad"] = []uds.EntryValue{{Actor: ownActor, Sequence: 2, Value: []byte("\xff garbage")}}
	if r := d.run("", "get", "bad"); !strings.Contains(r.output, "no valid specification") {
		t.Errorf("output %q", r.output)
	}
	d.run("spread bad {\n image a/b\n}\n", "diff", "-f", "-").
		expect(t, 0, "spread.bad differs\n  replaces a value that is no valid specification\n")
}
