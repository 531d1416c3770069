package wasm

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestDocumentedCommandsMakeModules runs the commands by which docs/wasm.md makes the examples, and calls what
// comes out: the text one echoes, the Go one greets or, without a cell that counts, says why not.
func TestDocumentedCommandsMakeModules(t *testing.T) {
	root := filepath.Join("..", "..")
	page, err := os.ReadFile(filepath.Join(root, "docs", "wasm.md"))
	if err != nil {
		t.Fatal(err)
	}
	made := 0
	for line := range strings.Lines(string(page)) {
		command := strings.TrimSpace(line)
		text, program := strings.HasPrefix(command, "wat2wasm "), strings.HasPrefix(command, "GOOS=wasip1 ")
		if !text && !program {
			continue
		}
		if _, err := exec.LookPath("wat2wasm"); text && err != nil {
			t.Log("wat2wasm (package wabt) is not installed")
			continue
		}
		module := filepath.Join(t.TempDir(), "hello.wasm")
		if !strings.Contains(command, "-o hello.wasm") {
			t.Fatalf("%q does not make hello.wasm", command)
		}
		shell := exec.Command("sh", "-c", strings.Replace(command, "-o hello.wasm", "-o "+module, 1))
		shell.Dir = root
		if out, err := shell.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", command, err, out)
		}
		binary, err := os.ReadFile(module)
		if err != nil {
			t.Fatal(err)
		}
		w := testWorker(t, binary, func(s *Settings) { s.MemoryPages = 1024 })
		instance, err := w.instantiate(context.Background(), [32]byte{})
		if err != nil {
			t.Fatal(err)
		}
		w.instance = instance
		result := call(w, "colloid_invoke", "world")
		if result.Errno != 0 || text && string(result.Output) != "world" || program && result.Status == 0 &&
			!strings.HasPrefix(string(result.Output), "hello world") {
			t.Fatalf("%s: %+v %s", command, result, result.Output)
		}
		made++
	}
	if made == 0 {
		t.Fatal("docs/wasm.md has no command that makes a module")
	}
}

// TestDocumentedHostFunctionsAreThose: docs/wasm.md lists each host function once, and none that is not there.
func TestDocumentedHostFunctionsAreThose(t *testing.T) {
	page, err := os.ReadFile("../../docs/wasm.md")
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for line := range strings.Lines(string(page)) {
		if name, found := strings.CutPrefix(line, "| `colloid_"); found && strings.Contains(name, ") -> i") {
			name, _, _ = strings.Cut(name, "(")
			listed = append(listed, "colloid_"+name)
		}
	}
	want := slices.Clone(hostNames)
	slices.Sort(want)
	slices.Sort(listed)
	if !slices.Equal(listed, want) {
		t.Errorf("listed are %q, there are %q", listed, want)
	}
}
