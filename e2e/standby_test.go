package e2e

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"colloid.net/e2e/cluster"
	"colloid.net/ipc/uds"
)

// standsBy waits until one cell says of itself that it stands by for a workload, in a state.
func (f *fixture) standsBy(name, state string) (cell *cluster.Cell) {
	f.t.Helper()
	f.wait("a cell to stand by, "+state, func(ctx context.Context) error {
		var said strings.Builder
		for _, cell = range f.Running() {
			text, err := cell.Command(ctx, "explain", name)
			if err != nil || strings.Contains(text, "; stands by, "+state) {
				return err
			}
			said.WriteString(text)
		}
		return fmt.Errorf("none does:\n%s", said.String())
	})
	return cell
}

// Where a replica would go next, its image is there already: when the registry has gone and no other cell may give
// anything, a death costs no copy.
func TestStandby_AReplicaMovesWithoutTheRegistry(t *testing.T) {
	t.Parallel()
	c := startContainers(t, func(string, int) string { return "share_images none\n" })
	c.push("web:1", "one", nil)
	c.run(c.Cells[0], 0, "apply", "-f", c.webFile(c.in("web:1"), 2))
	before := c.serve(2, "one")
	third := c.standsBy("web", "prepared")
	for _, i := range before {
		if i.cell == third {
			t.Errorf("%s stands by and has a copy", third.Name)
		}
	}
	c.registry.Wrap(unreachable)
	asked, began := len(c.registry.Requests()), time.Now()
	if err := before[0].cell.Kill(); err != nil {
		t.Fatal(err)
	}
	after := c.serve(2, "one")
	if !slices.ContainsFunc(after, func(i copyOf) bool { return i.cell == third }) {
		t.Errorf("%s stood by, and there are now %s", third.Name, describeCopies(after))
	}
	if got := c.registry.Requests()[asked:]; len(got) > 0 {
		t.Errorf("the registry was asked: %v", got)
	}
	t.Logf("both answer %v after the death", time.Since(began).Round(10*time.Millisecond))
}

// updateWaits waits until a cell says why an update waits.
func (c *containers) updateWaits(words ...string) {
	c.t.Helper()
	c.waitLong("the reason why the update waits", func(ctx context.Context) error {
		var said strings.Builder
		for _, cell := range c.Cells {
			text, err := cell.Command(ctx, "status")
			if result, _ := cell.Run(ctx, "status"); err != nil && result.Exit == 3 {
				text, err = result.Output, nil
			}
			if err != nil {
				return err
			}
			found := strings.Contains(text, "the update waits, it cannot be prepared: ")
			for _, word := range words {
				found = found && strings.Contains(text, word)
			}
			if found {
				return nil
			}
			said.WriteString(text)
		}
		return fmt.Errorf("no status says it:\n%s", said.String())
	})
}

// Copies at a port of their hosts, which must end before their successors begin, serve on while those cannot be fetched:
// a digest that the registry does not have, and an image without its layers. What can be fetched then replaces them (F75).
func TestF75_AnUpdateThatCannotBeFetchedFailsNoRequest(t *testing.T) {
	t.Parallel()
	c := startContainers(t, nil)
	c.published = true
	c.push("web:1", "one", nil)
	torn := "web@" + c.push("web:2", "two", nil).String()
	c.push("web:3", "three", nil)
	first := c.Cells[0]
	c.run(first, 0, "apply", "-f", c.webFile(c.in("web:1"), 3))
	before := pids(c.serve(3, "one"))
	load := c.startClient()
	absent := "web@sha256:" + strings.Repeat("5", 64)
	c.run(first, 0, "apply", "-f", c.webFile(c.in(absent), 3))
	c.updateWaits("has no sha256:555555555555")
	c.run(first, 1, "apply", "-f", c.webFile(c.in("web:9"), 3)) // a tag is looked up when it is applied
	c.registry.Wrap(onPath("/blobs/", http.NotFound))
	c.run(first, 0, "apply", "-f", c.webFile(c.in(torn), 3))
	c.updateWaits("has no " + strings.TrimPrefix(torn, "web@")[:19])
	same(t, "copies while the update waits", before, pids(c.serve(3, "one")))
	c.registry.Wrap(nil)
	c.run(first, 0, "apply", "-f", c.webFile(c.in("web:3"), 3))
	c.serve(3, "three")
	load.stop(t, "update")
	if load.answers["two"] > 0 || load.answers["one"] == 0 || load.answers["three"] == 0 {
		t.Errorf("answers: %v", load.answers)
	}
}

// sinceStart is how long a copy took from the action that started it to ready, as its cell's runnerd wrote it down and its
// meshd saw it. It looks again and again, so it is to be called before the copy is there.
func (f *fixture) sinceStart(cell *cluster.Cell, key string) (took time.Duration) {
	f.t.Helper()
	client, err := uds.Dial(cell.Socket())
	if err != nil {
		f.t.Fatal(err)
	}
	defer client.Close()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		var status uds.Status
		if err := client.DoJSON(uds.CodeStatus, []byte{0}, &status); err != nil {
			f.t.Fatal(err)
		}
		w, _ := workloadOf(&status, key)
		if slices.ContainsFunc(w.Instances, func(i uds.InstanceInfo) bool { return i.Cell == status.Cell.ID && i.State == "ready" }) {
			break
		}
		if time.Now().After(end) {
			f.t.Fatalf("%s has no ready copy of %s after %v: %+v", cell.Name, key, patience, w)
		}
	}
	ready := time.Now()
	started, err := startedAt(cell, key)
	if err != nil {
		f.t.Fatal(err)
	}
	return ready.Sub(started)
}

// startedAt is when runnerd was told to start the last copy of a workload.
func startedAt(cell *cluster.Cell, key string) (at time.Time, err error) {
	text, err := os.ReadFile(filepath.Join(cell.Directory, "runnerd", "audit.log"))
	if err != nil {
		return at, err
	}
	err = errors.New("no start is written down")
	for line := range strings.Lines(string(text)) {
		if word, rest, _ := strings.Cut(line, " "); strings.Contains(rest, " start ") && strings.Contains(rest, fmt.Sprintf("%q: allowed", key)) {
			at, err = time.Parse("2006-01-02T15:04:05.000Z", word)
		}
	}
	return at, err
}

// The module of a replica that moves is compiled where it goes: a start there takes a part of what one takes that
// compiles.
func TestStandby_AModuleMovesWithoutACompilation(t *testing.T) {
	t.Parallel()
	f := start(t, 3)
	holders, others := f.modules()
	if third := f.standsBy("hello-wasm", "prepared"); third != others[0] {
		t.Fatalf("%s stands by, and the copies are on %s and %s", third.Name, holders[0].Name, holders[1].Name)
	}
	if err := holders[0].Kill(); err != nil {
		t.Fatal(err)
	}
	warm := f.sinceStart(others[0], "wasm.hello-wasm")
	binary, err := os.ReadFile(f.Program("hello.wasm"))
	if err != nil {
		t.Fatal(err)
	}
	f.run(others[0], 0, "apply", "-f", f.file(fmt.Sprintf("wasm cold {\n\tmodule file://%s\n\tsha256 %x\n\treplicas 2\n"+
		"\tcapabilities kv_read,kv_write,clock,random,env,stdio\n\tmem 64mb\n}\n",
		f.Program("hello.wasm"), sha256.Sum256(binary))))
	cold := f.sinceStart(others[0], "wasm.cold")
	t.Logf("a start took %v, one that compiles %v", warm, cold)
	if warm > cold/2 {
		t.Errorf("a start of what was prepared took %v, one that compiles %v", warm, cold)
	}
	if got := f.run(others[0], 0, "wasm", "invoke", "hello-wasm", "x"); !strings.HasPrefix(got, "hello x from cell ") {
		t.Errorf("%q", got)
	}
}
