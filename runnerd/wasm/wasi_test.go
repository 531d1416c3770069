package wasm

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// wasiProgram compiles testdata/wasi once, or says why it cannot.
var wasiProgram = sync.OnceValues(func() ([]byte, error) {
	directory, err := os.MkdirTemp("", "wasi-test-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(directory)
	path := filepath.Join(directory, "wasi.wasm")
	command := exec.Command("go", "build", "-o", path, "./testdata/wasi")
	command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=wasip1", "GOARCH=wasm")
	command.Stderr = os.Stderr
	if err := command.Run(); err != nil {
		return nil, err
	}
	return os.ReadFile(path)
})

// wasiRun runs the program as a service and gives its exit code and output.
func wasiRun(t *testing.T, change func(*Settings), words ...string) (int, string) {
	t.Helper()
	binary, err := wasiProgram()
	if err != nil {
		t.Fatal(err)
	}
	w := testWorker(t, binary, func(s *Settings) {
		s.Arguments, s.MemoryPages = words, 1024
		s.CacheDirectory, s.CacheKey = wasiCache, []byte("key")
		if change != nil {
			change(s)
		}
	})
	var output bytes.Buffer
	w.stdout, w.stderr = &output, &output
	code, err := w.runService(context.Background())
	if err != nil {
		output.WriteString(err.Error())
	}
	return code, output.String()
}

// wasiCache spares compiling the program for each test.
var wasiCache string

func TestMain(m *testing.M) {
	wasiCache, _ = os.MkdirTemp("", "wasi-cache-")
	code := m.Run()
	os.RemoveAll(wasiCache)
	os.Exit(code)
}

func TestWASI_ArgumentsEnvironmentAndStdio(t *testing.T) {
	for _, c := range []struct {
		words  []string
		code   int
		output string
	}{
		{[]string{"args", "a b", "", "é"}, 0, `\["test" "args" "a b" "" "é"\]`},
		{[]string{"env"}, 0, `\["A=1" "B=two words"\]`},
		{[]string{"stdio"}, 0, "to stdout\nto stderr\nstdin \"\" true"},
		{[]string{"exit"}, 7, ""}, {[]string{"panic"}, 2, "panic: on purpose"}, {nil, 2, "no word"},
		{[]string{"clock"}, 0, "true true"}, {[]string{"random"}, 0, "true <nil> <nil>"},
	} {
		code, output := wasiRun(t, func(s *Settings) { s.Environment = []string{"A=1", "B=two words"} }, c.words...)
		if code != c.code || !regexp.MustCompile(c.output).MatchString(output) {
			t.Errorf("%q: exit %d, %q", c.words, code, output)
		}
	}
}

func TestWASI_Files(t *testing.T) {
	directory := t.TempDir()
	volume := func(s *Settings) { s.Volumes = []Volume{{directory, "/data"}} }
	code, output := wasiRun(t, volume, "files")
	want := `seek 7
read "789"
pread 4 2345
pwrite 2
stat 8 true one
content "0123XY67"
link two 0123XY67!
readdir 100
entries [b true link false two false]
exclusive true
rmdir true
gone true
`
	want = strings.NewReplacer("b true", "btrue", "link false", "linkfalse", "two false", "twofalse").Replace(want)
	if code != 0 || output != want {
		t.Errorf("exit %d\n%s\nexpected\n%s", code, output, want)
	}
	if content, err := os.ReadFile(filepath.Join(directory, "a", "two")); string(content) != "0123XY67!" {
		t.Errorf("%q, %v", content, err)
	}
}

func TestWASI_ReadOnlyVolumes(t *testing.T) {
	directory := t.TempDir()
	if err := os.WriteFile(filepath.Join(directory, "file"), []byte("kept"), 0o644); err != nil {
		t.Fatal(err)
	}
	code, output := wasiRun(t, func(s *Settings) {
		s.Volumes = []Volume{{directory, "/data"}}
		s.Capabilities &^= capabilityFSWrite
	}, "readonly")
	if code != 0 || output != "read \"kept\"\ntrue true true true true\n" {
		t.Errorf("exit %d, %q", code, output)
	}
	code, output = wasiRun(t, func(s *Settings) {
		s.Volumes = []Volume{{directory, "/data"}}
		s.Capabilities &^= capabilityFSWrite | capabilityFSRead
	}, "readonly")
	if code != 1 || !strings.Contains(output, "failed: ") {
		t.Errorf("without the right to read: exit %d, %q", code, output)
	}
}

// TestWASI_NothingLeadsOutOfAVolume has links in the volume that somebody else put there.
func TestWASI_NothingLeadsOutOfAVolume(t *testing.T) {
	base := t.TempDir()
	directory, secret := filepath.Join(base, "volume"), filepath.Join(base, "secret")
	if err := os.Mkdir(directory, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(secret, []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{"absolute": secret, "up": "../secret", "directory": "..", "loop": "loop"} {
		if err := os.Symlink(target, filepath.Join(directory, link)); err != nil {
			t.Fatal(err)
		}
	}
	_ = os.WriteFile(filepath.Join(directory, "own"), nil, 0o644)
	code, output := wasiRun(t, func(s *Settings) { s.Volumes = []Volume{{directory, "/data"}} }, "escape")
	if code != 0 {
		t.Errorf("exit %d", code)
	}
	for line := range strings.Lines(output) {
		if name, rest, _ := strings.Cut(line, " "); strings.HasPrefix(name, "/") || strings.HasPrefix(name, "..") {
			if rest != "true true true\n" {
				t.Errorf("%s", line)
			}
		}
	}
	for _, want := range []string{"absolute link true", "link up true", "hard link false", "rename out true"} {
		if !strings.Contains(output, want) {
			t.Errorf("output lacks %q:\n%s", want, output)
		}
	}
	if content, _ := os.ReadFile(secret); string(content) != "secret" || strings.Contains(output, "walked to") {
		t.Errorf("the secret holds %q now\n%s", content, output)
	}
}

// TestWASI_Preview1 runs the cases of testdata/wasi, which use the functions of WASI themselves, each with an empty
// volume: the programs with which hosts of preview 1 are tested elsewhere, written anew under the same names.
func TestWASI_Preview1(t *testing.T) {
	binary, err := wasiProgram()
	if err != nil {
		t.Fatal(err)
	}
	w := testWorker(t, binary, func(s *Settings) {
		s.MemoryPages, s.CacheDirectory, s.CacheKey = 1024, wasiCache, []byte("key")
		s.Environment = []string{"A=1", "B=two words", "C="}
	})
	run := func(name string) (int, string) {
		var output bytes.Buffer
		w.stdout, w.stderr = &output, &output
		w.settings.Arguments = []string{"preview1", name}
		code, err := w.runService(t.Context())
		if err != nil {
			output.WriteString(err.Error())
		}
		return code, output.String()
	}
	_, all := run("list")
	names := strings.Fields(all)
	if len(names) < 60 {
		t.Fatalf("%d cases", len(names))
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			directory := t.TempDir()
			w.settings.Volumes = []Volume{{directory, "/data"}}
			if code, output := run(name); code != 0 || !strings.HasSuffix(output, "passed\n") {
				t.Errorf("exit %d: %s", code, output)
			}
		})
	}
}
