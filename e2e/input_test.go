package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"colloid.net/e2e/cluster"
)

// refused demands an exit status, one line of reason that says certain words, and no output. What apply says
// about everything it was given, whatever becomes of it, does not count.
func refused(t *testing.T, what string, result cluster.Result, err error, exit int, words ...string) {
	t.Helper()
	var reasons []string
	for line := range strings.Lines(result.Errors) {
		if line != "colloid: nothing was written\n" && !strings.Contains(line, ": pinned to the file here") {
			reasons = append(reasons, strings.TrimSuffix(line, "\n"))
		}
	}
	text := strings.Join(reasons, "\n")
	if err != nil || result.Exit != exit || result.Output != "" || text == "" || strings.Contains(text, "\n") {
		t.Errorf("%s: exit %d, want %d; %v\n%s%s", what, result.Exit, exit, err, result.Output, result.Errors)
		return
	}
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("%s: %q does not say %q", what, text, word)
		}
	}
	t.Logf("%-24s %s", what, text)
}

// Wrong input gets one line of reason and changes nothing, even where a good block stands before it (F156).
func TestF156_WrongInputChangesNothing(t *testing.T) {
	t.Parallel()
	f := start(t, 1)
	cell := f.Cells[0]
	good := fmt.Sprintf("spread good {\n\tprocess %s\n\tport %d\n}\n", f.Program("hello"), f.port)
	block := func(line string) string {
		return fmt.Sprintf("%sspread bad {\n\tprocess %s\n\t%s\n}\n", good, f.Program("hello"), line)
	}
	for _, test := range []struct {
		name, text string
		exit       int
		words      []string
	}{
		{"unknown key", block("replicaz 3"), 2, []string{":7:", "replicaz", "replicas"}},
		{"bad unit", block("mem 64XB"), 2, []string{":7:", "64XB"}},
		{"port twice", block("port 9000\n\tport 9000"), 2, []string{"9000"}},
		{"600-byte specification", block("args" + strings.Repeat(" "+strings.Repeat("x", 200), 3)), 2, []string{"bytes"}},
		{"unclosed block", good + "spread bad {\n", 2, nil},
	} {
		path := filepath.Join(t.TempDir(), "bad.colloid")
		if err := os.WriteFile(path, []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		result, err := cell.Run(t.Context(), "apply", "-f", path)
		refused(t, test.name, result, err, test.exit, test.words...)
	}
	result, err := cell.Run(t.Context(), "apply", "-f", "/nonexistent/file.colloid")
	refused(t, "missing file", result, err, 2, "/nonexistent/file.colloid")
	result, err = cell.Run(t.Context(), "apply", "-f", t.TempDir())
	refused(t, "directory", result, err, 2, "directory")
	if out := f.run(cell, 0, "export"); strings.Contains(out, "spread") {
		t.Errorf("half applied: %s", out)
	}
	if err := cell.Kill(); err != nil {
		t.Fatal(err)
	}
	result, err = cell.Run(t.Context(), "apply", "-f", f.config(1, ""))
	refused(t, "daemon down", result, err, 4, "no daemon")
	result, err = cell.Run(t.Context(), "status")
	refused(t, "status, daemon down", result, err, 4, "no daemon")
}

// The blocks of the specification's example become keys of three kinds, each of which is planned: what this host cannot
// run is said, with the reason, and what no cell has room for as well (F72, F81).
func TestF72_F81_EveryKindIsPlannedAndExplained(t *testing.T) {
	t.Parallel()
	f := start(t, 1)
	cell := f.Cells[0]
	const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	f.run(cell, 0, "apply", "-f", f.file(`spread nginx {
    image docker.io/nginx@`+digest+`
    replicas 3
    port 80:8080
    port 443:8443
    cpu 500m
    mem 256mb
}
stateful redis {
    image docker.io/redis@`+digest+`
    replicas 1
    replication_factor 3
    port 6379:6379
    volume data /data
    cpu 1000m
    mem 1024mb
}
wasm transformer {
    module https://wasm.example.com/transform.wasm
    sha256 `+digest[7:]+`
    replicas 5
    capabilities kv_read,metrics
    deterministic true
}
spread huge {
    process `+f.Program("hello")+`
    mem 900gb
}
`))
	for name, words := range map[string][]string{
		"spread.nginx":     {"port 80 is below port_min"},
		"stateful.redis":   {"docker.io"},
		"wasm.transformer": {"module"},
		"spread.huge":      {"memory"},
	} {
		f.wait("the reason of "+name, func(ctx context.Context) error {
			text, err := cell.Command(ctx, "explain", name)
			if err != nil {
				return err
			}
			for _, word := range words {
				if !strings.Contains(text, word) {
					return fmt.Errorf("explain does not say %q:\n%s", word, text)
				}
			}
			return nil
		})
		t.Log(f.run(cell, 0, "explain", name))
	}
}

// Three kinds of users at the socket: group colloid-admin writes, group colloid reads, others may not even
// connect; root may everything (F135).
func TestF135_ThreeUsersAtTheSocket(t *testing.T) {
	needRoot(t, "runs commands as other users")
	const readers, writers, user = 61001, 61002, 61000
	groups := filepath.Join(t.TempDir(), "group")
	text := fmt.Sprintf("root:x:0:\ncolloid:x:%d:\ncolloid-admin:x:%d:\n", readers, writers)
	if err := os.WriteFile(groups, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	f := startWith(t, cluster.Options{Cells: 1, GroupFile: groups})
	cell := f.Cells[0]
	file := f.config(1, "")
	shared := filepath.Join(f.Directory, "hello.colloid") // where everybody can read it
	content, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(shared, content, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	as := func(group ...uint32) func(arguments ...string) (cluster.Result, error) {
		return func(arguments ...string) (cluster.Result, error) {
			return cell.RunAs(t.Context(), syscall.Credential{Uid: user, Gid: user, Groups: group}, arguments...)
		}
	}
	nobody, reader, writer := as(), as(readers), as(readers, writers)
	result, err := nobody("status")
	refused(t, "nobody reads", result, err, 1, "permission denied", "group colloid")
	result, err = nobody("apply", "-f", shared)
	refused(t, "nobody writes", result, err, 1, "permission denied", "group colloid")
	if result, err = reader("status"); err != nil || result.Exit != 0 {
		t.Errorf("a reader reads: exit %d, %v %s", result.Exit, err, result.Errors)
	}
	for _, arguments := range [][]string{{"apply", "-f", shared}, {"lock"}, {"connect", "10.0.0.1"}, {"leave"}} {
		result, err = reader(arguments...)
		refused(t, "a reader: "+arguments[0], result, err, 1, "colloid-admin")
	}
	if out := f.run(cell, 0, "export"); strings.Contains(out, "spread") {
		t.Errorf("a reader wrote: %s", out)
	}
	if result, err = writer("apply", "-f", shared); err != nil || result.Exit != 0 {
		t.Errorf("a writer writes: exit %d, %v %s", result.Exit, err, result.Errors)
	}
	f.run(cell, 0, "delete", "hello") // root
}

// A cell with configuration does not slip into another cluster by a wrong address; --merge takes it along
// and shows what differs (F7, SAFE-4).
func TestF7_OtherClustersAddressIsRefused(t *testing.T) {
	t.Parallel()
	f := startWith(t, cluster.Options{Cells: 2, Apart: true})
	left, right := f.Cells[0], f.Cells[1]
	f.run(left, 0, "apply", "-f", f.config(1, "priority 1"))
	f.run(right, 0, "apply", "-f", f.config(1, "priority 2"))
	address := left.Endpoint()
	result, err := right.Run(t.Context(), "connect", address)
	refused(t, "another cluster", result, err, 1, "--merge", key)
	for _, cell := range f.Cells {
		status, err := cell.Status(t.Context())
		if err != nil || len(status.Cells) != 1 || len(status.Conflicts) != 0 {
			t.Fatalf("%s after the refusal: %d cells, %d conflicts, %v", cell.Name, len(status.Cells), len(status.Conflicts), err)
		}
	}
	f.run(right, 0, "connect", address, "--merge")
	for _, cell := range f.Cells {
		f.wait("CONFLICT on "+cell.Name, func(ctx context.Context) error {
			result, err := cell.Run(ctx, "status")
			if err == nil && (result.Exit != 3 || !strings.Contains(result.Output, "CONFLICT on "+key)) {
				err = fmt.Errorf("exit %d", result.Exit)
			}
			return err
		})
	}
}

// A locked cluster lets in who has the key, and nobody else, until it is unlocked.
func TestD1_LockedDoor(t *testing.T) {
	t.Parallel()
	f := startWith(t, cluster.Options{Cells: 3, Apart: true})
	inside, guest, late := f.Cells[0], f.Cells[1], f.Cells[2]
	address := inside.Endpoint()
	secret := strings.TrimSpace(f.run(inside, 0, "lock"))
	if len(secret) < 16 || strings.ContainsAny(secret, " \n") {
		t.Fatalf("lock prints %q instead of a key", secret)
	}
	result, err := guest.Run(t.Context(), "connect", address)
	refused(t, "no key", result, err, 1, "locked")
	wrong := secret[1:] + secret[:1]
	result, err = guest.Run(t.Context(), "connect", address+"#"+wrong)
	refused(t, "wrong key", result, err, 1)
	f.run(guest, 0, "connect", address+"#"+secret)
	f.run(guest, 0, "unlock")
	f.wait("the door to open", func(ctx context.Context) error {
		result, err := late.Run(ctx, "connect", address)
		if err == nil && result.Exit != 0 {
			err = fmt.Errorf("exit %d: %s", result.Exit, result.Errors)
		}
		return err
	})
	if err := f.WaitConverged(t.Context(), patience); err != nil {
		t.Fatal(err)
	}
}
