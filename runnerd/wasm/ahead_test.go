package wasm

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// compileOnly runs what a worker does that only compiles.
func compileOnly(t *testing.T, settings *Settings, name string) (code int, said string, err error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "module")
	if err := os.WriteFile(path, fixture(t, name), 0o600); err != nil {
		t.Fatal(err)
	}
	descriptor, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	w := newWorker(settings, &log)
	err = w.load(descriptor)
	if err != nil {
		code = ExitModule
	}
	if w.engine != nil && w.instance != nil {
		t.Error("it made an instance")
	}
	return code, log.String(), err
}

// TestStandby_TheCompiledModuleIsTheOneThatRuns: what a worker leaves that only compiles, another one uses as it is, for
// deterministic modules too.
func TestStandby_TheCompiledModuleIsTheOneThatRuns(t *testing.T) {
	for _, deterministic := range []bool{false, true} {
		directory := t.TempDir()
		settings := &Settings{Workload: "test", MemoryPages: 256, CacheDirectory: directory, CacheKey: []byte("key"),
			CompileOnly: true, Deterministic: deterministic}
		if code, said, err := compileOnly(t, settings, "functions"); code != 0 {
			t.Fatal(said, err)
		}
		before, _ := filepath.Glob(directory + "/*/*")
		if len(before) != 2 {
			t.Fatalf("the cache has %q", before)
		}
		info, err := os.Stat(before[0])
		if err != nil {
			t.Fatal(err)
		}
		runs := *settings
		runs.CompileOnly, runs.MemoryPages, runs.Capabilities = false, 512, allCapabilities
		if code, said, err := compileOnly(t, &runs, "functions"); code != 0 || said != "" {
			t.Fatal(said, err)
		}
		after, err := os.Stat(before[0])
		if err != nil || !os.SameFile(info, after) || !after.ModTime().Equal(info.ModTime()) {
			t.Errorf("compiled again: %v", err)
		}
	}
}

// TestStandby_ACacheThatCannotBeWrittenIsTheAnswer of a worker that only compiles; one that runs goes on without.
func TestStandby_ACacheThatCannotBeWrittenIsTheAnswer(t *testing.T) {
	directory := t.TempDir()
	settings := &Settings{Workload: "test", MemoryPages: 256, CacheDirectory: filepath.Join(directory, "absent"), CacheKey: []byte("key"),
		CompileOnly: true}
	if code, _, err := compileOnly(t, settings, "functions"); code == 0 || !strings.Contains(err.Error(), "cache cannot be used") {
		t.Errorf("%v", err)
	}
	settings.CompileOnly = false
	if code, said, err := compileOnly(t, settings, "functions"); code != 0 || !strings.Contains(said, "cache cannot be used") {
		t.Errorf("%q, %v", said, err)
	}
	for _, wrong := range []Settings{
		{CompileOnly: true, MemoryPages: 1}, {CompileOnly: true, MemoryPages: 1, CacheDirectory: "/x"},
		{CompileOnly: true, MemoryPages: 1, CacheDirectory: "/x", CacheKey: []byte("k"), Volumes: []Volume{{"/a", "/b"}}},
	} {
		if wrong.check() == nil {
			t.Errorf("%+v is taken", wrong)
		}
	}
}
