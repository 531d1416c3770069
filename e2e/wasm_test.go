package e2e

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"colloid.net/e2e/cluster"
	"colloid.net/ipc/invoke"
	"colloid.net/ipc/uds"
)

// modules applies examples/hello-wasm.colloid and waits until each cell answers, or another one for it.
func (f *fixture) modules() (holders, others []*cluster.Cell) {
	f.t.Helper()
	binary, err := os.ReadFile(f.Program("hello.wasm"))
	if err != nil {
		f.t.Fatal(err)
	}
	root, err := cluster.ModuleRoot()
	if err != nil {
		f.t.Fatal(err)
	}
	f.run(f.Cells[0], 0, "apply", "-f", filepath.Join(root, "examples", "hello-wasm.colloid"),
		"--set", "FILE="+f.Program("hello.wasm"), "--set", fmt.Sprintf("SHA256=%x", sha256.Sum256(binary)))
	f.wait("two instances that can be invoked", func(ctx context.Context) error {
		holders, others = nil, nil
		for _, cell := range f.Cells {
			result, err := cell.Run(ctx, "wasm", "invoke", "--function", "missing", "hello-wasm")
			switch {
			case err != nil:
				return err
			case strings.Contains(result.Errors, "has no function") && strings.Contains(result.Errors, " on cell "):
				others = append(others, cell)
			case strings.Contains(result.Errors, "has no function"):
				holders = append(holders, cell)
			}
		}
		if len(holders) != 2 || len(others) != len(f.Cells)-2 {
			return fmt.Errorf("%d cells have it, %d reach it", len(holders), len(others))
		}
		return nil
	})
	return holders, others
}

// callBetweenModules has a module call hello-wasm, over a stream of its own, from each cell: with and without an
// instance of hello-wasm beside it.
func (f *fixture) callBetweenModules() {
	f.t.Helper()
	binary, err := os.ReadFile(f.Program("streams.wasm"))
	if err != nil {
		f.t.Fatal(err)
	}
	text := fmt.Sprintf("wasm streams {\n\tmodule file://%s\n\tsha256 %x\n\treplicas 3\n\tcapabilities streams\n\tmem 16mb\n}\n",
		f.Program("streams.wasm"), sha256.Sum256(binary))
	path := filepath.Join(f.t.TempDir(), "streams.colloid")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		f.t.Fatal(err)
	}
	f.run(f.Cells[0], 0, "apply", "-f", path)
	request := invoke.AppendCall(nil, "hello-wasm", &invoke.Invocation{Arguments: [][]byte{[]byte("module")}})
	call := invoke.AppendCall(nil, "streams", &invoke.Invocation{Arguments: [][]byte{[]byte("hello-wasm"), request}})
	for _, cell := range f.Cells {
		f.wait("a module on "+cell.Name+" to call another", func(context.Context) error {
			client, err := uds.Dial(cell.Socket())
			if err != nil {
				return err
			}
			defer client.Close()
			reply, err := client.Do(uds.CodeWasmInvoke, call)
			if err != nil {
				return err
			}
			outcome, err := invoke.ParseOutcome(reply)
			if err == nil && (outcome.Status != 0 || !strings.Contains(string(outcome.Output), "hello module from cell ")) {
				err = fmt.Errorf("status %d, %q", outcome.Status, outcome.Output)
			}
			return err
		})
		f.endRunaways(cell)
	}
}

// endRunaways: an endless loop ends at its deadline, endless recursion as a trap, and memory at the limit, on every
// cell; the worker is there afterwards (F142, F144).
func (f *fixture) endRunaways(cell *cluster.Cell) {
	f.t.Helper()
	began := time.Now()
	result, err := cell.Run(f.t.Context(), "wasm", "invoke", "--timeout", "300ms", "--function", "spin", "streams")
	if took := time.Since(began); err != nil || result.Exit == 0 || !strings.Contains(result.Errors, "deadline of 300 ms") || took > 10*time.Second {
		f.t.Fatalf("after %v: %+v, %v", took, result, err)
	}
	for range 2 {
		result, err := cell.Run(f.t.Context(), "wasm", "invoke", "--function", "recurse", "streams")
		if err != nil || result.Exit == 0 || !strings.Contains(result.Errors, "recurse trapped: stack overflow") {
			f.t.Fatalf("%+v, %v", result, err)
		}
	}
	if got := f.run(cell, 0, "wasm", "invoke", "--function", "grow_all", "streams"); got != "256" && got != "256\n" { // 16 MiB
		f.t.Fatalf("%q", got)
	}
}

// TestEXEC4_F144_ModulesAreInvokedThroughTheCommandLine is the whole way: a module in Go, placed on two of three
// cells, invoked on both, counting in the cluster's state; a cell without an instance has another one do it;
// a killed meshd and a killed runnerd find the worker again.
func TestEXEC4_F144_ModulesAreInvokedThroughTheCommandLine(t *testing.T) {
	t.Parallel()
	f := start(t, 3)
	holders, others := f.modules()
	greets := func(got, whom string, count int) {
		t.Helper()
		if !strings.HasPrefix(got, "hello "+whom+" from cell ") || !strings.HasSuffix(got, fmt.Sprintf(", greeting %d\n", count)) {
			t.Fatalf("%q", got)
		}
	}
	greets(f.run(holders[0], 0, "wasm", "invoke", "hello-wasm", "world"), "world", 1)
	f.wait("the count on the other cell", func(ctx context.Context) error {
		entries, err := holders[1].Command(ctx, "get", "kv.hello-wasm.greetings")
		if err == nil && !strings.Contains(entries, "1 value") && !strings.Contains(entries, "31") {
			err = fmt.Errorf("%q", entries)
		}
		return err
	})
	greets(f.run(holders[1], 0, "wasm", "invoke", "wasm.hello-wasm", "moon"), "moon", 2)
	if got := f.run(others[0], 0, "wasm", "invoke", "hello-wasm", "x"); !strings.HasPrefix(got, "hello x from cell ") {
		t.Fatalf("%q", got)
	}
	f.callBetweenModules()
	for _, program := range []string{"meshd", "runnerd"} {
		if n, err := holders[0].KillProgram(program); n != 1 || err != nil {
			t.Fatalf("killed %d %s: %v", n, program, err)
		}
		began := time.Now()
		f.wait("an answer after "+program+" was killed", func(ctx context.Context) error {
			output, err := holders[0].Command(ctx, "wasm", "invoke", "hello-wasm", "again")
			if err == nil && !strings.HasPrefix(output, "hello again from cell ") {
				err = fmt.Errorf("%q", output)
			}
			return err
		})
		t.Logf("invoked again %v after %s was killed", time.Since(began).Round(time.Millisecond), program)
	}
}
