package cli

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"colloid.net/ipc/uds"
	"colloid.net/workload"
)

const (
	web2 = "spread web {\n image example.org/web:1\n replicas 2\n}\n"
	web5 = "spread web {\n image example.org/web:1\n replicas 5\n}\n"
	api1 = "spread api {\n image example.org/api:1\n}\n"
)

func TestF156_ApplyReportsPerKeyAndWritesNothingTwice(t *testing.T) {
	d := newFake(t)
	d.run(web2+api1, "apply", "-f", "-").expect(t, 0, "spread.web created\nspread.api created\n")
	if d.writes != 2 {
		t.Fatalf("%d writes, want 2", d.writes)
	}
	d.run(web2+api1, "apply", "-f", "-").expect(t, 0, "spread.web unchanged\nspread.api unchanged\n")
	if d.writes != 2 {
		t.Fatal("an unchanged file was written again")
	}
	d.run(web5+api1, "apply", "-f", "-").expect(t, 0, "spread.web updated\nspread.api unchanged\n")
	if d.writes != 3 || d.held("spread.web").Replicas != 5 {
		t.Fatalf("%d writes, %d replicas", d.writes, d.held("spread.web").Replicas)
	}
}

func TestF156_OneInvalidBlockMeansNoWriteAtAll(t *testing.T) {
	d := newFake(t)
	for name, text := range map[string]string{
		"syntax":      web2 + "spread broken {\n",
		"unknown key": web2 + "spread broken {\n image a/b\n flavour sweet\n}\n",
		"too large":   web2 + "spread broken {\n image a/b\n env A \"" + strings.Repeat("x", 600) + "\"\n}\n",
		"twice":       web2 + web5,
	} {
		r := d.run(text, "apply", "-f", "-")
		if r.expectError(t, ExitUsage, "colloid: -:", "nothing was written"); r.output != "" {
			t.Errorf("%s: output %q", name, r.output)
		}
	}
	first := filepath.Join(t.TempDir(), "first")
	if err := os.WriteFile(first, []byte(web2), 0o600); err != nil {
		t.Fatal(err)
	}
	d.run(web5, "apply", "-f", first, "-f", "-").expectError(t, ExitUsage, "already in")
	d.run(web5, "apply", "-f", first, "-f", "/nonexistent").expectError(t, ExitUsage, "/nonexistent")
	if d.writes != 0 {
		t.Fatalf("%d writes", d.writes)
	}
}

func TestF55_ApplyNeverReplacesWhatItDidNotSee(t *testing.T) {
	d := newFake(t)
	d.hold(web2)
	d.beforeWrite = func() { // another operator is faster
		d.keys["spread.web"] = nil
		d.hold("spread web {\n image example.org/web:7\n}\n")
	}
	r := d.run(web5, "apply", "-f", "-")
	r.expect(t, ExitConflict, "spread.web conflict\n")
	r.expectError(t, ExitConflict, "changed while this ran", "apply again")
	if image := d.held("spread.web").Image; image != "example.org/web:7" {
		t.Fatalf("the other operator's write was lost: %s", image)
	}
	d.beforeWrite = func() { d.keys["spread.new"] = nil; d.hold("spread new {\n image x/other\n}\n") }
	d.run("spread new {\n image x/mine\n}\n", "apply", "-f", "-").expect(t, ExitConflict, "spread.new conflict\n")
	// The same value from two operators is no quarrel.
	d.beforeWrite = func() { d.keys["spread.web"] = nil; d.hold(web5) }
	d.run(web5, "apply", "-f", "-").expect(t, 0, "spread.web unchanged\n")
}

func TestSAFE1_ApplyLeavesAConflictAloneUnlessForced(t *testing.T) {
	d := newFake(t)
	d.hold(web2, web5)
	r := d.run(web2+api1, "apply", "-f", "-")
	r.expect(t, ExitConflict, "spread.web conflict\nspread.api created\n")
	digest := d.entries("spread.web").Digest
	r.expectError(t, ExitConflict, "1  replicas=2", "2  replicas=5", "colloid resolve spread.web --seen "+digest)
	if len(d.keys["spread.web"]) != 2 {
		t.Fatal("the conflict was overwritten")
	}
	d.run(web2, "apply", "-f", "-", "--force").expect(t, 0, "spread.web updated\n")
	if d.held("spread.web").Replicas != 2 {
		t.Fatal("--force did not write")
	}
}

func TestApplyAfterDeleteCreates(t *testing.T) {
	d := newFake(t)
	d.hold(web2)
	d.run("", "delete", "web").expect(t, 0, "spread.web deleted\n")
	d.run(web2, "apply", "-f", "-").expect(t, 0, "spread.web created\n")
}

func TestF156_DryRunAndDiffWriteNothing(t *testing.T) {
	d := newFake(t)
	d.hold(web2)
	r := d.run(web5+api1, "apply", "-f", "-", "--dry-run")
	for _, want := range []string{"spread.web updated (dry run, ", " of 512 bytes)", "  replicas 2 -> 5\n", "spread.api created"} {
		if !strings.Contains(r.output, want) {
			t.Errorf("dry run %q does not say %q", r.output, want)
		}
	}
	d.run(web2, "diff", "-f", "-").expect(t, 0, "")
	d.run(web5, "diff", "-f", "-").expect(t, 0, "spread.web differs\n  replicas 2 -> 5\n")
	d.hold(web5)
	d.run(web5, "diff", "-f", "-").expect(t, ExitConflict, "spread.web is in conflict\n")
	d.run(web5, "apply", "-f", "-", "--dry-run").expectError(t, ExitConflict, "resolve")
	if d.writes != 0 {
		t.Fatalf("%d writes", d.writes)
	}
}

func TestVariables(t *testing.T) {
	d := newFake(t)
	text := "spread web {\n image example.org/web:${TAG}\n}\n"
	d.run(text, "apply", "-f", "-", "--set", "TAG=9=x").expectError(t, ExitUsage)
	d.run(text, "apply", "-f", "-", "--set", "TAG=9").expect(t, 0, "spread.web created\n")
	if got := d.held("spread.web").Image; got != "example.org/web:9" {
		t.Errorf("image %q", got)
	}
	d.run(text, "apply", "-f", "-").expectError(t, ExitUsage, "TAG", "--set")
	d.run(text, "apply", "-f", "-", "--set", "TAG").expectError(t, ExitUsage, "NAME=VALUE")
	d.run(text, "apply", "-f", "-", "--set", "A=1", "--set", "A=2").expectError(t, ExitUsage, "once")
}

func TestF132_ApplyPinsAProcessToTheFileThatIsHere(t *testing.T) {
	d := newFake(t)
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, []byte("binary"), 0o755); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("spread web {\n process %s\n}\n", program)
	r := d.run(text, "apply", "-f", "-")
	r.expect(t, 0, "spread.web created\n")
	digest := sha256.Sum256([]byte("binary"))
	r.expectError(t, 0, fmt.Sprintf("%x", digest))
	if d.held("spread.web").ImageDigest != digest {
		t.Fatal("the digest is not that of the file")
	}
	d.run(text, "apply", "-f", "-").expect(t, 0, "spread.web unchanged\n")
	// A file that is not here is left to the cells that have it.
	d.run("spread other {\n process /nonexistent/program\n}\n", "apply", "-f", "-").
		expect(t, 0, "spread.other created\n")
	if d.held("spread.other").ImageDigest != [32]byte{} {
		t.Fatal("a digest was invented")
	}
}

// What is no program has no digest: a device has no end, a pipe no beginning, and an empty file was a
// mistake.
func TestF132_OnlyProgramsArePinned(t *testing.T) {
	directory := t.TempDir()
	pipe, empty := filepath.Join(directory, "pipe"), filepath.Join(directory, "empty")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(empty, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, empty, directory, "/dev/zero"} {
		d := newFake(t)
		r := d.run(fmt.Sprintf("spread web {\n process %s\n}\n", path), "apply", "-f", "-")
		r.expectError(t, ExitUsage, "is no program", "nothing was written")
	}
}

// A thousand blocks of one large program cost one reading of it: the second run would see another file.
func TestF132_AProgramIsReadOnceForAllItsBlocks(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, []byte("first"), 0o755); err != nil {
		t.Fatal(err)
	}
	a, want := &app{}, sha256.Sum256([]byte("first"))
	for range 2 {
		d := desired{key: "spread.web", spec: &workload.Spec{Runtime: workload.RuntimeProcess, Image: program}}
		if err := a.fillDigest(&d); err != nil || d.spec.ImageDigest != want {
			t.Fatalf("%v, digest %x", err, d.spec.ImageDigest)
		}
		if err := os.WriteFile(program, []byte("second"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// Only what is going to be written is announced, and nothing of it where only the keys count.
func TestF132_PinningIsNotAnnouncedInVain(t *testing.T) {
	d := newFake(t)
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, []byte("binary"), 0o755); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("spread web {\n process %s\n}\n", program)
	d.run(text, "apply", "-f", "-").expect(t, 0, "spread.web created\n")
	for _, run := range []result{d.run(text+text, "apply", "-f", "-"), d.run(text, "delete", "-f", "-")} {
		if strings.Contains(run.errors, "pinned") {
			t.Errorf("exit %d, errors %q", run.exit, run.errors)
		}
	}
	d.run("", "apply", "-f", "-").expectError(t, 0, "no workloads in it")
}

func TestF56_SyncingDaemonIsExplained(t *testing.T) {
	d := newFake(t)
	d.refuse[uds.CodeSet] = refusal{uds.ErrorBusy, "still syncing"}
	d.run(web2, "apply", "-f", "-").expectError(t, ExitError, "colloid: spread.web: still syncing: try again")
	d.refuse[uds.CodeSet] = refusal{uds.ErrorPermission, "not allowed"}
	d.run(web2, "apply", "-f", "-").expectError(t, ExitError, "colloid-admin")
}

func TestDelete(t *testing.T) {
	d := newFake(t)
	d.hold(web2)
	d.hold(api1)
	d.run("", "delete", "web", "nonexistent").expectError(t, ExitError, "nonexistent")
	d.run("", "delete", "web", "spread.nonexistent").expectError(t, ExitError, "spread.nonexistent")
	if d.writes != 0 {
		t.Fatal("a key was deleted although another does not exist")
	}
	d.run(web2+api1, "delete", "-f", "-").expect(t, 0, "spread.web deleted\nspread.api deleted\n")
	d.run(web2+api1, "delete", "-f", "-").expect(t, 0, "spread.web absent\nspread.api absent\n")
	d.run("", "delete").expectError(t, ExitUsage, "-f FILE")
	d.run(web2, "delete", "web", "-f", "-").expectError(t, ExitUsage)
}

func TestF55_DeleteNeverRemovesWhatItDidNotSee(t *testing.T) {
	d := newFake(t)
	d.hold(web2)
	d.beforeWrite = func() { d.keys["spread.web"] = nil; d.hold(web5) }
	d.run("", "delete", "web").expect(t, ExitConflict, "spread.web conflict\n")
	if d.held("spread.web").Replicas != 5 {
		t.Fatal("the other operator's write was deleted")
	}
	d.hold(web2)
	d.run("", "delete", "web").expect(t, ExitConflict, "spread.web conflict\n")
	d.run("", "delete", "web", "--force").expect(t, 0, "spread.web deleted\n")
}

func TestF156_ExportRoundTrip(t *testing.T) {
	d := newFake(t)
	d.hold(web2)
	d.hold(api1)
	d.hold("stateful db {\n image example.org/db:1\n volume data /data\n}\n")
	r := d.run("", "export")
	if r.exit != 0 || strings.Index(r.output, "spread api") > strings.Index(r.output, "spread web") {
		t.Fatalf("exit %d, output %q", r.exit, r.output)
	}
	d.run(r.output, "apply", "-f", "-").expect(t, 0, "spread.api unchanged\nspread.web unchanged\nstateful.db unchanged\n")
	// A conflict is exported as comments: applying the export must not decide it.
	d.hold(web5)
	r = d.run("", "export")
	if r.exit != ExitConflict {
		t.Errorf("exit %d with a conflict", r.exit)
	}
	d.run(r.output, "apply", "-f", "-").expect(t, 0, "spread.api unchanged\nstateful.db unchanged\n")
}
