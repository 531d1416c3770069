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

// TestF144_ModulesAreInvokedThroughTheCommandLine is the whole way: a module in Go, placed on two of three
// cells, invoked on both, counting in the cluster's state; a cell without an instance has another one do it;
// a killed meshd and a killed runnerd find the worker again.
func TestEXEC4_F144_ModulesAreInvokedThroughTheCommandLine(t *testing.T) {
	f := start(t, 3)
	holders, others := f.modules()
	if got := f.run(holders[0], 0, "wasm", "invoke", "hello-wasm", "world"); got != "hello world, greeting 1\n" {
		t.Fatalf("%q", got)
	}
	f.wait("the count on the other cell", func(ctx context.Context) error {
		entries, err := holders[1].Command(ctx, "get", "kv.hello-wasm.greetings")
		if err == nil && !strings.Contains(entries, "1 value") && !strings.Contains(entries, "31") {
			err = fmt.Errorf("%q", entries)
		}
		return err
	})
	if got := f.run(holders[1], 0, "wasm", "invoke", "wasm.hello-wasm", "moon"); got != "hello moon, greeting 2\n" {
		t.Fatalf("%q", got)
	}
	if got := f.run(others[0], 0, "wasm", "invoke", "hello-wasm", "x"); !strings.HasPrefix(got, "hello x, greeting ") {
		t.Fatalf("%q", got)
	}
	for _, program := range []string{"meshd", "runnerd"} {
		if n, err := holders[0].KillProgram(program); n != 1 || err != nil {
			t.Fatalf("killed %d %s: %v", n, program, err)
		}
		began := time.Now()
		f.wait("an answer after "+program+" was killed", func(ctx context.Context) error {
			output, err := holders[0].Command(ctx, "wasm", "invoke", "hello-wasm", "again")
			if err == nil && !strings.HasPrefix(output, "hello again, greeting ") {
				err = fmt.Errorf("%q", output)
			}
			return err
		})
		t.Logf("invoked again %v after %s was killed", time.Since(began).Round(time.Millisecond), program)
	}
}
