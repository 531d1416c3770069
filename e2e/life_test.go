package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/e2e/cluster"
	"colloid.net/ipc/uds"
)

// strictLoad sends each request to one endpoint that a cell calls ready, as a load balancer does, and tries no
// other when it fails. The list is as old as the cell's view and up to 200 ms more.
func (f *fixture) strictLoad(from *cluster.Cell) *cluster.Load {
	f.t.Helper()
	var ready atomic.Pointer[[]string]
	look := func() {
		status, err := from.Status(f.t.Context())
		if err != nil {
			return
		}
		var urls []string
		for _, i := range cluster.ReadyInstances(status, key) {
			urls = append(urls, cluster.InstanceURL(i))
		}
		ready.Store(&urls)
	}
	look()
	ctx, cancel := context.WithCancel(f.t.Context())
	f.t.Cleanup(cancel)
	go func() {
		for ctx.Err() == nil {
			time.Sleep(200 * time.Millisecond)
			look()
		}
	}()
	turn := 0
	return f.StartLoad(f.t.Context(), 5*time.Millisecond, func() []string {
		urls := *ready.Load()
		if len(urls) == 0 {
			return nil
		}
		turn++
		return []string{urls[turn%len(urls)]}
	})
}

func (f *fixture) noneFailed(load *cluster.Load) {
	f.t.Helper()
	result := load.Stop()
	if result.Errors > 0 || result.Requests < 20 {
		f.t.Errorf("%d of %d requests failed, last with %v", result.Errors, result.Requests, result.LastError)
	}
	f.t.Logf("%d requests, longest %v", result.Requests, result.Longest)
}

func (f *fixture) file(text string) string {
	f.t.Helper()
	path := filepath.Join(f.t.TempDir(), "workload.colloid")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
	return path
}

// workload is what a cell says of hello.
func (f *fixture) workload(from *cluster.Cell) uds.WorkloadStatus {
	f.t.Helper()
	status, err := from.Status(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	for _, w := range status.Workloads {
		if w.Key == key {
			return w
		}
	}
	f.t.Fatalf("%s is unknown on %s", key, from.Name)
	return uds.WorkloadStatus{}
}

// An update of a service with a host port, under load: every cell has to stop the old copy before it starts the new
// one, and no request fails (F75). Then back to the former version by `rollout undo`.
func TestF75_UpdateUnderLoadFailsNoRequest(t *testing.T) {
	t.Parallel()
	f := start(t, 3)
	first := f.Cells[0]
	f.run(first, 0, "apply", "-f", f.config(3, ""))
	before := f.answers(first, 3)
	f.run(first, 0, "rollout", "status", "hello", "--watch", "--timeout", "50s")
	digest := f.workload(first).Digest
	load := f.strictLoad(f.Cells[1])
	f.run(first, 0, "apply", "-f", f.config(3, "env VERSION 2"))
	f.run(f.Cells[2], 0, "rollout", "status", "hello", "--watch", "--timeout", "55s")
	f.noneFailed(load)
	after := f.answers(first, 3)
	for i := range before {
		for j := range after {
			if before[i] == after[j] {
				t.Errorf("%q was not replaced", before[i])
			}
		}
	}
	load = f.strictLoad(f.Cells[2])
	f.run(f.Cells[1], 0, "rollout", "undo", "hello")
	f.run(first, 0, "rollout", "status", "hello", "--watch", "--timeout", "55s")
	f.noneFailed(load)
	if now := f.workload(first).Digest; now != digest {
		t.Errorf("version %s after undo, want %s", now, digest)
	}
	if out := f.run(first, 0, "rollout", "history", "hello"); strings.Count(out, "\n") != 2 || strings.Count(out, "good") != 2 {
		t.Errorf("history: %q", out)
	}
}

// A version that needs seconds until it listens gets no request before, and the next copy is not touched before (F158).
func TestF158_SlowStartFailsNoRequest(t *testing.T) {
	t.Parallel()
	f := start(t, 3)
	first := f.Cells[0]
	f.run(first, 0, "apply", "-f", f.config(3, ""))
	f.answers(first, 3)
	load := f.strictLoad(f.Cells[1])
	slow := fmt.Sprintf("spread hello {\n process %s\n args slow\n replicas 3\n port %d\n}\n", f.Program("misbehave"), f.port)
	f.run(first, 0, "apply", "-f", f.file(slow)) // the default check: a connection to the first port
	f.run(f.Cells[2], 0, "rollout", "status", "hello", "--watch", "--timeout", "55s")
	f.noneFailed(load)
	for _, answer := range f.answers(first, 3) {
		if !strings.HasPrefix(answer, "slow pid ") {
			t.Errorf("still answers %q", answer)
		}
	}
	// A check that fails is named on every cell, by both commands.
	f.run(first, 0, "apply", "-f", f.file(strings.Replace(slow, "replicas 3", "replicas 3\n health tcp 9", 1)))
	for _, cell := range f.Cells {
		for _, command := range [][]string{{"explain", "hello"}, {"status"}, {"rollout", "status", "hello"}} {
			f.wait("the reason on "+cell.Name, func(ctx context.Context) error {
				result, err := cell.Run(ctx, command...)
				if err == nil && !strings.Contains(result.Output, "tcp 9: connection refused") {
					err = fmt.Errorf("%v: %s", command, result.Output)
				}
				return err
			})
		}
	}
}

// An update that crashes is taken back by the cluster itself, while requests run; the key stays what was applied,
// status says so and ends with 3; the next apply ends it.
func TestF75_BadUpdateRollsBackByItself(t *testing.T) {
	t.Parallel()
	f := start(t, 3)
	first := f.Cells[0]
	f.run(first, 0, "apply", "-f", f.config(3, "update rollback=true"))
	f.answers(first, 3)
	f.run(first, 0, "rollout", "status", "hello", "--watch", "--timeout", "50s")
	good := f.workload(first).Digest
	load := f.strictLoad(f.Cells[1])
	bad := f.file(fmt.Sprintf("spread hello {\n process %s\n args crash\n replicas 3\n port %d\n update rollback=true\n}\n",
		f.Program("misbehave"), f.port))
	f.run(first, 0, "apply", "-f", bad)
	f.wait("the other cell to hear of it", func(ctx context.Context) error {
		text, err := f.Cells[1].Command(ctx, "get", "hello")
		if err == nil && !strings.Contains(text, "args crash") {
			err = errors.New(text)
		}
		return err
	})
	f.run(f.Cells[1], 3, "rollout", "status", "hello", "--watch", "--timeout", "55s")
	f.answers(first, 3)
	f.noneFailed(load)
	for _, cell := range f.Cells {
		f.wait("the hold on "+cell.Name, func(ctx context.Context) error {
			result, err := cell.Run(ctx, "status")
			if err == nil && (result.Exit != 3 || !strings.Contains(result.Output, "held") ||
				!strings.Contains(result.Output, "code 7")) {
				err = fmt.Errorf("exit %d: %s", result.Exit, result.Output)
			}
			return err
		})
		if text := f.run(cell, 0, "get", "hello"); !strings.Contains(text, "args crash") {
			t.Errorf("the operator's key was changed: %s", text)
		}
	}
	if now := f.workload(first); now.Digest != good || now.Ready != 3 {
		t.Errorf("%+v", now)
	}
	// Undo goes to the good version, and not from there to the one that failed.
	f.run(f.Cells[2], 0, "rollout", "undo", "hello")
	f.run(f.Cells[2], 0, "rollout", "status", "hello", "--watch", "--timeout", "55s")
	result, err := first.Run(t.Context(), "rollout", "undo", "hello")
	if err != nil || result.Exit != 1 || !strings.Contains(result.Errors, "no other version that is known to be good") {
		t.Errorf("%+v, %v", result, err)
	}
	history := strings.Split(f.run(first, 0, "rollout", "history", "hello"), "\n")
	if len(history) != 3 || !strings.HasPrefix(history[0], good+"  current, good") || !strings.Contains(history[1], "  failed  ") {
		t.Errorf("history: %q", history)
	}
}

// A machine is emptied under load, from another one, and stays so over a restart of its daemons.
func TestDrainUnderLoadFailsNoRequest(t *testing.T) {
	t.Parallel()
	f := start(t, 3)
	f.run(f.Cells[0], 0, "apply", "-f", f.config(2, ""))
	f.answers(f.Cells[0], 2)
	holders, others := f.holders()
	if len(holders) != 2 || len(others) != 1 {
		t.Fatalf("%d cells hold replicas", len(holders))
	}
	target, operator := holders[0], others[0]
	status, err := target.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	id := status.Cell.ID
	load := f.strictLoad(operator)
	f.run(operator, 0, "drain", id, "--timeout", "50s")
	f.noneFailed(load)
	if running := target.Running("hello"); len(running) > 0 {
		t.Errorf("still there: %v", running)
	}
	f.answers(operator, 2)
	if n, err := target.KillProgram("meshd"); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if err := target.WaitActive(t.Context(), patience); err != nil {
		t.Fatal(err)
	}
	// A third copy has no place; the second drained machine keeps its own.
	f.run(operator, 0, "apply", "-f", f.config(3, ""))
	if text := f.run(target, 0, "cells"); !strings.Contains(text, "drained") {
		t.Errorf("cells: %s", text)
	}
	second, err := holders[1].Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	text := f.run(operator, 1, "drain", second.Cell.ID, "--timeout", "6s")
	if text != "" {
		t.Errorf("output %q", text)
	}
	f.answers(operator, 2)
	f.run(target, 0, "uncordon", id)
	f.run(target, 0, "uncordon", second.Cell.ID)
	f.answers(operator, 3)
}

// Secrets and files reach the process and nothing else: not the disks of the daemons, not the wire, not the output
// of commands. A changed secret replaces the copies one after the other, under load (F83).
func TestF83_SecretsReachTheWorkloadOnly(t *testing.T) {
	t.Parallel()
	needRoot(t, "reads what passes the network")
	f := start(t, 3)
	first := f.Cells[0]
	directory := t.TempDir()
	secret := func(value, content string) string {
		text := fmt.Sprintf("spread hello {\n process %s\n args secret\n replicas 3\n port %d\n secret PASSWORD from file %s\n"+
			" file /etc/key from file %s mode=0440\n}\n", f.Program("misbehave"), f.port, filepath.Join(directory, "password"),
			filepath.Join(directory, "key"))
		for name, content := range map[string]string{"password": value + "\n", "key": content} {
			if err := os.WriteFile(filepath.Join(directory, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return f.file(text)
	}
	answer := func(value, content string) string {
		return fmt.Sprintf("%x %x", sha256.Sum256([]byte(value)), sha256.Sum256([]byte(content)))
	}
	const one, two, content = "geheimnis-nummer-eins", "geheimnis-nummer-zwei", "inhalt-der-datei"
	leaked := f.capture(f.Cells[1], []byte("geheimnis-nummer"), []byte(content))
	text := f.run(first, 0, "apply", "-f", secret(one, content))
	for _, got := range f.answers(first, 3) {
		if got != answer(one, content) {
			t.Errorf("answers %q", got)
		}
	}
	f.run(first, 0, "rollout", "status", "hello", "--watch", "--timeout", "50s")
	f.run(f.Cells[2], 0, "diff", "-f", secret(one, content))
	text += f.run(f.Cells[1], 0, "apply", "-f", secret(one, content))
	if !strings.Contains(text, "spread.hello unchanged") {
		t.Errorf("equal values: %s", text)
	}
	load := f.strictLoad(f.Cells[2])
	text += f.run(f.Cells[1], 0, "apply", "-f", secret(two, content))
	text += f.run(first, 0, "rollout", "status", "hello", "--watch", "--timeout", "55s")
	f.noneFailed(load)
	for _, got := range f.answers(first, 3) {
		if got != answer(two, content) {
			t.Errorf("answers %q", got)
		}
	}
	// A helper that was killed asks for the secrets again before it can start a copy.
	if n, err := first.KillProgram("runnerd"); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	for id := range first.Running("misbehave") {
		_ = unix.Kill(id, unix.SIGKILL)
	}
	f.wait("the copy to be back", func(ctx context.Context) error {
		if len(first.Running("misbehave")) == 0 {
			return errors.New("it is not")
		}
		return nil
	})
	for _, got := range f.answers(first, 3) {
		if got != answer(two, content) {
			t.Errorf("answers %q", got)
		}
	}
	for _, arguments := range [][]string{{"get", "hello"}, {"get", "hello", "-o", "json"}, {"export"}, {"status", "-o", "json"},
		{"explain", "hello"}} {
		text += f.run(f.Cells[2], 0, arguments...)
	}
	if !strings.Contains(text, "sealed: secret PASSWORD") || !strings.Contains(text, "/etc/key") {
		t.Errorf("get names nothing: %s", text)
	}
	for _, value := range []string{"geheimnis-nummer", content} {
		if strings.Contains(text, value) {
			t.Errorf("%s is in the output of a command", value)
		}
		for _, path := range f.filesWith(value) {
			t.Errorf("%s is in %s", value, path)
		}
	}
	if where := leaked(); where != "" {
		t.Errorf("on the wire: %s", where)
	}
}

// filesWith lists the files of all cells that hold a text, but for those that a workload was given.
func (f *fixture) filesWith(text string) (found []string) {
	_ = filepath.WalkDir(f.Directory, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() && !strings.Contains(path, "/files/etc/") {
			if raw, err := os.ReadFile(path); err == nil && bytes.Contains(raw, []byte(text)) {
				found = append(found, path)
			}
		}
		return nil
	})
	return found
}

// capture looks at every frame of a cell's network for texts; the result ends it and says what was seen.
func (f *fixture) capture(cell *cluster.Cell, texts ...[]byte) func() string {
	f.t.Helper()
	socket := -1
	err := cell.Do(func() (err error) {
		socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0x0300) // ETH_P_ALL in network order
		return err
	})
	if err != nil {
		f.t.Fatal(err)
	}
	_ = unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100000})
	var end atomic.Bool
	type result struct {
		frames int
		seen   string
	}
	done := make(chan result)
	go func() {
		defer unix.Close(socket)
		var r result
		frame := make([]byte, 1<<16)
		for !end.Load() {
			n, _, err := unix.Recvfrom(socket, frame, 0)
			if err != nil || n <= 0 {
				continue
			}
			r.frames++
			for _, text := range texts {
				if bytes.Contains(frame[:n], text) {
					r.seen = string(text)
				}
			}
		}
		done <- r
	}()
	return func() string {
		end.Store(true)
		r := <-done
		if r.frames < 100 {
			return fmt.Sprintf("only %d frames were seen", r.frames)
		}
		return r.seen
	}
}
