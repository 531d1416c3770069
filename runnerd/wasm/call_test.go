package wasm

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"colloid.net/ipc/invoke"
)

// fixture reads a module of testdata. Each .wasm is made of the .wat beside it.
func fixture(t testing.TB, name string) []byte {
	t.Helper()
	binary, err := os.ReadFile(filepath.Join("testdata", name+".wasm"))
	if err != nil {
		t.Fatal(err)
	}
	return binary
}

// TestFixturesAreMadeOfTheirText compares each binary with what wat2wasm makes of its text.
func TestFixturesAreMadeOfTheirText(t *testing.T) {
	assembler, err := exec.LookPath("wat2wasm")
	if err != nil {
		t.Skip("wat2wasm (package wabt) is not installed")
	}
	texts, _ := filepath.Glob("testdata/*.wat")
	for _, text := range texts {
		made := filepath.Join(t.TempDir(), "made.wasm")
		out, err := exec.Command(assembler, "--enable-threads", text, "-o", made).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %s", text, out)
		}
		binary, _ := os.ReadFile(made)
		kept, _ := os.ReadFile(strings.TrimSuffix(text, "t") + "sm")
		if !bytes.Equal(binary, kept) {
			t.Errorf("%s was changed: run wat2wasm on it", text)
		}
	}
}

const allCapabilities = 1<<10 - 1

// testWorker opens a module as the worker does, without a process around it.
func testWorker(t testing.TB, binary []byte, change func(*Settings)) *worker {
	t.Helper()
	w, err := tryWorker(t, binary, change)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func tryWorker(t testing.TB, binary []byte, change func(*Settings)) (*worker, error) {
	settings := &Settings{Workload: "test", Digest: "00", Capabilities: allCapabilities, MemoryPages: 64}
	if change != nil {
		change(settings)
	}
	w := newWorker(settings, &bytes.Buffer{})
	interpreter := settings.Digest == "interpreter"
	err := w.open(context.Background(), binary, interpreter)
	if w.engine != nil {
		t.Cleanup(func() { w.engine.runtime.Close(context.Background()) })
	}
	return w, err
}

func call(w *worker, function string, arguments ...string) *invoke.Result {
	v := &invoke.Invocation{Function: function, Milliseconds: 1000}
	for _, argument := range arguments {
		v.Arguments = append(v.Arguments, []byte(argument))
	}
	return w.execute(v)
}

// deterministic leaves out the key-value space: reading it needs a connection.
func deterministic(s *Settings) {
	s.Deterministic = true
	s.Capabilities &^= capabilityRandom | capabilityStreams | capabilityFSWrite | capabilityKVRead
}

func TestFunctionsAreInvokedByName(t *testing.T) {
	w := testWorker(t, fixture(t, "functions"), nil)
	for _, c := range []struct {
		function  string
		arguments []string
		output    string
	}{
		{"add", []string{"2", "3"}, "5"}, {"add", []string{"-2", "0xffffffff"}, "-3"},
		{"half", []string{"5"}, "2.5"}, {"swap", []string{"1", "-9000000000"}, "-9000000000 1"},
		{"fib", []string{"20"}, "6765"}, {"", []string{"a", "", "b c"}, "a\n\nb c\n"}, {"colloid_invoke", nil, ""},
	} {
		if got := call(w, c.function, c.arguments...); got.Errno != 0 || string(got.Output) != c.output {
			t.Errorf("%s %q: errno %d, %q, expected %q", c.function, c.arguments, got.Errno, got.Output, c.output)
		}
	}
	for i := range 3 {
		if got := call(w, "calls"); string(got.Output) != string(rune('1'+i)) {
			t.Errorf("the instance of call %d was not the one before: %q", i, got.Output)
		}
	}
}

func TestWrongInvocationsAreRefusedWithAReason(t *testing.T) {
	w := testWorker(t, fixture(t, "functions"), nil)
	for _, c := range []struct {
		function  string
		arguments []string
		errno     uint16
		text      string
	}{
		{"missing", nil, invoke.ErrorNotFound, `no function "missing", it has add`},
		{"_initialize", nil, invoke.ErrorNotFound, "no function"},
		{"memory", nil, invoke.ErrorNotFound, "no function"},
		{"add", []string{"1"}, invoke.ErrorInvalid, "arguments of add: expected 2, given were 1"},
		{"add", []string{"1", "x"}, invoke.ErrorInvalid, "argument 2 of add is no i32"},
		{"add", []string{"1", "4294967296"}, invoke.ErrorInvalid, "is no i32"},
		{"trap", nil, invoke.ErrorIO, "trap trapped: unreachable"},
	} {
		got := call(w, c.function, c.arguments...)
		if got.Errno != c.errno || !strings.Contains(string(got.Output), c.text) {
			t.Errorf("%s: errno %d, %q", c.function, got.Errno, got.Output)
		}
	}
	if got := call(w, "exit", "3"); got.Errno != 0 || got.Status != 3 {
		t.Errorf("proc_exit: %+v", got)
	}
	if got := call(w, "outside"); string(got.Output) != "-22" {
		t.Errorf("output from outside the memory: %+v", got)
	}
}

// TestF144_RunawaysStopAtTheirDeadline: loops, sleeps and bulk operations end in time with ETIME, and the
// next invocation has a new instance.
func TestF144_RunawaysStopAtTheirDeadline(t *testing.T) {
	for _, mode := range []func(*Settings){nil, deterministic} {
		w := testWorker(t, fixture(t, "functions"), mode)
		for _, function := range []string{"spin", "sleep", "fill_forever"} {
			if function == "sleep" && w.settings.Deterministic {
				continue // an hour of logical time passes at once
			}
			began := time.Now()
			got := w.execute(&invoke.Invocation{Function: function, Milliseconds: 100})
			if took := time.Since(began); got.Errno != invoke.ErrorTimeout || took > 2*time.Second {
				t.Errorf("%s: errno %d after %v: %q", function, got.Errno, took, got.Output)
			}
			if got := call(w, "calls"); string(got.Output) != "1" {
				t.Errorf("after %s: %+v", function, got)
			}
		}
	}
}

// TestF142_MemoryEndsAtTheLimit: growing answers -1 there, and all of it can be used.
func TestF142_MemoryEndsAtTheLimit(t *testing.T) {
	w := testWorker(t, fixture(t, "functions"), nil)
	if got := call(w, "grow", "1000"); string(got.Output) != "-1" {
		t.Errorf("%+v", got)
	}
	if got := call(w, "grow_all"); string(got.Output) != "64" {
		t.Errorf("%+v", got)
	}
	if got := call(w, "fill"); string(got.Output) != "64" {
		t.Errorf("%+v", got)
	}
}

func TestEvilModulesAreRefusedWithAReason(t *testing.T) {
	for name, reason := range map[string]string{
		"unknown_import":  `imports the unknown function "env"."system"`,
		"wrong_signature": "colloid_time",
		"huge_table":      "tables begin with 100000000 elements",
		"huge_memory":     "begins with 4194304 KiB of memory, its limit is 4096 KiB",
		"import_memory":   "is no function",
		"threads":         "threads are not supported",
	} {
		w, err := tryWorker(t, fixture(t, name), nil)
		if err == nil {
			_, err = w.instantiate(context.Background(), [32]byte{})
		}
		if err == nil || !strings.Contains(err.Error(), reason) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"vector", "service"} {
		if _, err := tryWorker(t, fixture(t, name), deterministic); err == nil {
			t.Errorf("%s was taken as deterministic", name)
		}
	}
	w := testWorker(t, fixture(t, "grow_table"), nil)
	if got := call(w, "grow", "2000000"); string(got.Output) != "-1" {
		t.Errorf("table.grow: %+v", got)
	}
	for _, binary := range [][]byte{nil, []byte("\x7fELF"), []byte("\x00asm\x01\x00\x00\x00\x01\xff"), make([]byte, 100)} {
		if _, err := tryWorker(t, binary, nil); err == nil {
			t.Errorf("%q was taken", binary)
		}
	}
}

func TestStartFunctionLoopEnds(t *testing.T) {
	if testing.Short() {
		t.Skip("takes the whole patience of 10 s")
	}
	t.Parallel()
	w := testWorker(t, fixture(t, "start_loop"), nil)
	if _, err := w.instantiate(context.Background(), [32]byte{}); err == nil || !strings.Contains(err.Error(), "longer than 10s") {
		t.Fatal(err)
	}
}

// TestCapabilitiesThatAreNotGrantedAnswerEPERM takes one away after the other.
func TestCapabilitiesThatAreNotGrantedAnswerEPERM(t *testing.T) {
	for _, c := range []struct {
		capability uint32
		function   string
		arguments  []string
		refused    string
	}{
		{capabilityKVRead, "get", []string{"k"}, "-1"}, {capabilityKVRead, "siblings", []string{"k"}, "-1"},
		{capabilityKVWrite, "set", []string{"k", "v"}, "-1"}, {capabilityKVWrite, "delete", []string{"k"}, "-1"},
		{capabilityMetrics, "metric", []string{"1"}, "-1"}, {capabilityStreams, "stream", nil, "-1"},
		{capabilityStdio, "log", nil, "-1"}, {capabilityRandom, "random", nil, "-1"},
		{capabilityClock, "time", nil, "-1"}, {capabilityClock, "wasi_clock", nil, "63"},
		{capabilityRandom, "wasi_random", nil, "63"},
	} {
		w := testWorker(t, fixture(t, "functions"), func(s *Settings) { s.Capabilities &^= c.capability })
		if got := call(w, c.function, c.arguments...); string(got.Output) != c.refused {
			t.Errorf("%s without its capability: %q", c.function, got.Output)
		}
		w = testWorker(t, fixture(t, "functions"), func(s *Settings) { s.Capabilities = c.capability })
		if got := call(w, c.function, c.arguments...); string(got.Output) == c.refused || got.Errno != 0 {
			t.Errorf("%s with its capability: %d %q", c.function, got.Errno, got.Output)
		}
	}
}

func BenchmarkInvoke(b *testing.B) {
	w := testWorker(b, fixture(b, "functions"), nil)
	for b.Loop() {
		if got := call(w, "add", "2", "3"); got.Errno != 0 {
			b.Fatal(got.Output)
		}
	}
}

func BenchmarkInvokeDeterministic(b *testing.B) {
	w := testWorker(b, fixture(b, "functions"), deterministic)
	for b.Loop() {
		if got := call(w, "add", "2", "3"); got.Errno != 0 {
			b.Fatal(got.Output)
		}
	}
}

// withoutMemory is (module (import "colloid" "colloid_output" (func $output (param i32 i32) (result i32)))
// (func (export "colloid_invoke") (result i32) (call $output (i32.const 0) (i32.const 100)))).
const withoutMemory = "\x00\x61\x73\x6d\x01\x00\x00\x00\x01\x0b\x02\x60\x02\x7f\x7f\x01\x7f\x60\x00\x01\x7f\x02\x1a\x01" +
	"\x07\x63\x6f\x6c\x6c\x6f\x69\x64\x0e\x63\x6f\x6c\x6c\x6f\x69\x64\x5f\x6f\x75\x74\x70\x75\x74\x00" +
	"\x00\x03\x02\x01\x01\x07\x12\x01\x0e\x63\x6f\x6c\x6c\x6f\x69\x64\x5f\x69\x6e\x76\x6f\x6b\x65\x00" +
	"\x01\x0a\x0b\x01\x09\x00\x41\x00\x41\xe4\x00\x10\x00\x0b"

// TestHostFunctionsOfAModuleWithoutMemory: they answer EINVAL; the engine's memory of such a module must not be touched.
func TestHostFunctionsOfAModuleWithoutMemory(t *testing.T) {
	w := testWorker(t, []byte(withoutMemory), nil)
	if got := call(w, "colloid_invoke"); got.Errno != 0 || got.Status != -22 {
		t.Errorf("%+v, want the status -22", got)
	}
}
