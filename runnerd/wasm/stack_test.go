package wasm

import (
	"context"
	"os"
	"strconv"
	"strings"
	"testing"

	"colloid.net/ipc/invoke"
)

// residentKiB is the memory of this process that is in use, as its control group counts it, and the most there was.
func residentKiB(t *testing.T) (now, most int) {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		name, rest, _ := strings.Cut(line, ":")
		value, _ := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(rest), " kB"))
		switch name {
		case "VmRSS":
			now = value
		case "VmHWM":
			most = value
		}
	}
	return now, most
}

// TestF142_EndlessRecursionIsATrap: however calls nest, they end below a few MiB as a trap, the worker goes on, and the
// memory is given back.
func TestF142_EndlessRecursionIsATrap(t *testing.T) {
	for _, change := range []func(*Settings){nil, deterministic} {
		w := testWorker(t, fixture(t, "recursion"), change)
		limit := (w.engine.stack.size + 8<<20) >> 10
		_ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) // VmHWM begins anew
		before, _ := residentKiB(t)
		for range 3 {
			for function, argument := range map[string][]string{"rec": nil, "around": nil, "large": {"1"}} {
				r := call(w, function, argument...)
				if text := string(r.Output); r.Errno != invoke.ErrorIO || !strings.Contains(text, "stack overflow") &&
					!strings.Contains(text, "nest deeper") {
					t.Fatalf("%s: errno %d, %q", function, r.Errno, text)
				}
				if r := call(w, "down", "100"); r.Errno != 0 || string(r.Output) != "100" {
					t.Fatalf("after %s: errno %d, %q", function, r.Errno, r.Output)
				}
			}
		}
		after, most := residentKiB(t)
		if most-before > limit || after-before > 4<<10 {
			t.Errorf("%d KiB more, at most %d KiB more, expected at most 4096 and %d", after-before, most-before, limit)
		}
	}
}

// TestCallsNestDeep: what compilers make of ordinary recursion fits.
func TestCallsNestDeep(t *testing.T) {
	w := testWorker(t, fixture(t, "recursion"), nil)
	if r := call(w, "down", "50000"); r.Errno != 0 || string(r.Output) != "50000" {
		t.Fatalf("errno %d, %q", r.Errno, r.Output)
	}
}

// TestF142_EndlessRecursionAtTheStart: a start function has the same stack and runs once, in its order.
func TestF142_EndlessRecursionAtTheStart(t *testing.T) {
	w := testWorker(t, fixture(t, "start_recursion"), nil)
	_, err := w.instantiate(context.Background(), [32]byte{})
	if err == nil || !strings.Contains(err.Error(), "cannot be instantiated: stack overflow") {
		t.Fatal(err)
	}
	for _, change := range []func(*Settings){nil, deterministic} {
		w := testWorker(t, fixture(t, "start_counts"), change)
		for range 2 {
			if r := call(w, "n"); string(r.Output) != "33" {
				t.Fatalf("errno %d, %q", r.Errno, r.Output)
			}
		}
		if r := call(w, startSectionExport); r.Errno != invoke.ErrorNotFound || strings.Contains(string(r.Output), "start") &&
			strings.Contains(string(r.Output), "it has colloid:") {
			t.Errorf("errno %d, %q", r.Errno, r.Output)
		}
	}
}
