package e2e

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"colloid.net/e2e/cluster"
	"colloid.net/ipc/caller"
	"colloid.net/ipc/invoke"
	"colloid.net/ipc/uds"
)

// applyStreams applies the module streams with so much memory: its function grow_all says how many pages that are.
func (f *fixture) applyStreams(megabytes int) {
	f.t.Helper()
	binary, err := os.ReadFile(f.Program("streams.wasm"))
	if err != nil {
		f.t.Fatal(err)
	}
	text := fmt.Sprintf("wasm streams {\n\tmodule file://%s\n\tsha256 %x\n\treplicas 1\n\tmem %dmb\n}\n",
		f.Program("streams.wasm"), sha256.Sum256(binary), megabytes)
	path := filepath.Join(f.t.TempDir(), "streams.colloid")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		f.t.Fatal(err)
	}
	f.run(f.Cells[0], 0, "apply", "-f", path)
}

// repeated calls one function again and again and keeps what came, in order and without repetitions.
type repeated struct {
	caller *caller.Caller

	mutex  sync.Mutex
	seen   []string
	calls  int // that brought something
	failed []error
}

func (r *repeated) run(ctx context.Context) {
	for ctx.Err() == nil {
		result, err := r.caller.Call(&invoke.Invocation{Function: "grow_all"})
		r.mutex.Lock()
		switch {
		case err != nil:
			r.failed = append(r.failed, err)
		case len(r.seen) == 0 || r.seen[len(r.seen)-1] != string(result.Output):
			r.seen = append(r.seen, string(result.Output))
		}
		if err == nil {
			r.calls++
		}
		r.mutex.Unlock()
		if err != nil {
			time.Sleep(time.Millisecond)
		}
	}
}

// soFar is what has come and how many calls brought it.
func (r *repeated) soFar() (seen string, calls int) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return strings.Join(r.seen, " "), r.calls
}

// TestWasmCallersFollowTheirModule: a program that calls without a pause reaches each version from when it runs, and none
// that ran before; a meshd and a worker that are killed cost it what was under way.
func TestWasmCallersFollowTheirModule(t *testing.T) {
	t.Parallel()
	f := start(t, 1)
	cell := f.Cells[0]
	f.applyStreams(4)
	c, err := caller.Open(cell.Socket(), "streams")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	f.wait("an answer", func(context.Context) error {
		_, err := c.Call(&invoke.Invocation{Function: "grow_all"})
		return err
	})
	ctx, cancel := context.WithCancel(t.Context())
	r := &repeated{caller: c}
	done := make(chan struct{})
	go func() { r.run(ctx); close(done) }()
	shows := func(what, want string) {
		t.Helper()
		_, before := r.soFar()
		f.wait(what, func(context.Context) error {
			if seen, calls := r.soFar(); seen != want || calls < before+50 {
				return fmt.Errorf("%q after %d calls", seen, calls)
			}
			return nil
		})
	}
	shows("the first version", "64")
	f.applyStreams(8)
	shows("the second version", "64 128")
	if n, err := cell.KillProgram("meshd"); n != 1 || err != nil {
		t.Fatalf("killed %d meshd: %v", n, err)
	}
	shows("answers after meshd was killed", "64 128")
	killWorkers(t, cell)
	shows("answers after the worker was killed", "64 128")
	cancel()
	<-done
	gone, unknown := 0, 0
	for _, err := range r.failed {
		var refused *uds.ReplyError
		switch {
		case errors.As(err, &refused) && refused.Errno == invoke.ErrorGone:
			gone++
		case errors.As(err, &refused) && (refused.Errno == uds.ErrorBusy || refused.Errno == uds.ErrorNotFound):
		case strings.Contains(err.Error(), "no daemon is running"), strings.Contains(err.Error(), "has closed the connection"):
		default:
			unknown++
			t.Errorf("%v", err)
		}
	}
	if gone > 6 { // an update, meshd and the worker: what was under way, perhaps also through meshd
		t.Errorf("%d calls may have run and gave nothing", gone)
	}
	f.wait("a line about the end of a channel", func(context.Context) error {
		again, err := caller.Open(cell.Socket(), "streams")
		if err != nil {
			return err
		}
		defer again.Close()
		if text := cell.LogTail(1 << 20); !strings.Contains(text, "worker of streams: channels ended: ") {
			_, err := again.Call(&invoke.Invocation{Function: "grow_all"})
			return errors.Join(errors.New("there is none"), err)
		}
		return nil
	})
	t.Logf("%d calls, %d failed, %d of them under way", r.calls, len(r.failed), gone)
}

// killWorkers kills the workers of a cell's modules.
func killWorkers(t *testing.T, cell *cluster.Cell) {
	t.Helper()
	killed := 0
	for _, id := range cell.Processes() {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", id))
		if err != nil || string(line) != "runnerd\x00wasm-worker\x00" {
			continue
		}
		if process, err := os.FindProcess(id); err == nil && process.Kill() == nil {
			killed++
		}
	}
	if killed != 1 {
		t.Fatalf("killed %d workers", killed)
	}
}
