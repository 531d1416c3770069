//go:debug containermaxprocs=0

package shim

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/runnerd/record"
	"colloid.net/runnerd/sandbox"
)

func TestMain(m *testing.M) {
	if exit, is := Children(); is {
		os.Exit(exit)
	}
	code := m.Run()
	if built != "" {
		os.RemoveAll(built)
	}
	os.Exit(code)
}

// built is the directory with the program that tries to escape.
var built string

// escape builds it once: without cgo, because there is no C library in the test's image. The machine of make vm
// has it already, and no Go.
var escape = sync.OnceValues(func() (string, error) {
	if directory := os.Getenv("COLLOID_TEST_PROGRAMS"); directory != "" {
		return filepath.Join(directory, "escape"), nil
	}
	var err error
	if built, err = os.MkdirTemp("", "colloid-escape-"); err != nil {
		return "", err
	}
	command := exec.Command("go", "build", "-o", filepath.Join(built, "escape"), "colloid.net/runnerd/sandbox/escape")
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	output, err := command.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, output)
	}
	return filepath.Join(built, "escape"), err
})

// bases hands every container of the tests ids of its own.
var bases atomic.Uint32

// box is one container of a test.
type box struct {
	t       testing.TB
	config  *Config
	started Started
	spare   bool // start it in a sandbox that was made before
}

// newBox prepares a container with a root made of busybox and of the program /escape.
func newBox(t testing.TB) *box {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to make user namespaces with ids of their own")
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Skip("needs busybox (Debian: busybox-static)")
	}
	directory, err := os.MkdirTemp("", "colloid-box-")
	if err != nil {
		t.Fatal(err)
	}
	b := &box{t: t}
	t.Cleanup(func() { b.kill(); os.RemoveAll(directory) })
	base := 0x7f000000 + bases.Add(1)<<16
	rootfs := filepath.Join(directory, "root")
	makeRootfs(t, rootfs, busybox, int(base))
	b.config = &Config{
		Directory: directory, Arguments: []string{"sleep", "1000"}, Environment: []string{"PATH=/bin"},
		Sandbox: &sandbox.Config{Rootfs: rootfs, UIDBase: base, GIDBase: base, Count: sandbox.IDCount,
			Hostname: "box", Init: true},
	}
	return b
}

// makeRootfs makes the root file system of a small image, owned by ids from base on.
func makeRootfs(t testing.TB, rootfs, busybox string, base int) {
	t.Helper()
	for _, name := range []string{"bin", "etc", "tmp", "home/app"} {
		if err := os.MkdirAll(filepath.Join(rootfs, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	os.Chmod(filepath.Join(rootfs, "tmp"), 0o1777)
	program, err := escape()
	if err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{busybox: "bin/busybox", program: "escape"} {
		content, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(rootfs, to), content, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	applets, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.FieldsSeq(string(applets)) {
		_ = os.Symlink("busybox", filepath.Join(rootfs, "bin", name))
	}
	files := map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/sh\napp:x:1000:1000::/home/app:/bin/sh\n",
		"etc/group":  "root:x:0:\napp:x:1000:\nextra:x:2000:app\n",
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(rootfs, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	own := func(path string, id int) { _ = os.Lchown(path, base+id, base+id) }
	_ = filepath.Walk(rootfs, func(path string, _ os.FileInfo, _ error) error { own(path, 0); return nil })
	own(filepath.Join(rootfs, "home/app"), 1000)
}

// start launches the container; the error is that of the launch.
func (b *box) start() error {
	var err error
	if b.spare {
		b.started, err = b.startSpare()
		return err
	}
	b.started, err = Launch(b.config, nil)
	return err
}

// startSpare takes the detour of a prepared sandbox.
func (b *box) startSpare() (Started, error) {
	prepared := &Config{
		Directory: filepath.Dir(b.config.Directory), Cgroup: b.config.Cgroup,
		Sandbox: &sandbox.Config{UIDBase: b.config.Sandbox.UIDBase, GIDBase: b.config.Sandbox.GIDBase,
			Count: b.config.Sandbox.Count, NetworkNamespace: b.config.Sandbox.NetworkNamespace, Init: true},
	}
	spare, err := Prepare(prepared)
	if err != nil {
		return Started{}, err
	}
	return spare.Launch(b.config)
}

// kill ends everything and collects the shim.
func (b *box) kill() {
	if b.started.Workload.PID > 0 {
		_ = b.started.Workload.Signal(unix.SIGKILL)
	}
	if b.started.Shim.PID > 0 {
		b.started.Shim.Wait(5*time.Second, nil)
		_, _ = unix.Wait4(b.started.Shim.PID, nil, 0, nil)
	}
	b.started = Started{}
}

// wait waits for the end and gives the exit code, the reason and the output.
func (b *box) wait() (code int, reason, output string) {
	b.t.Helper()
	if !b.started.Shim.Wait(15*time.Second, nil) {
		b.t.Fatalf("it runs on; output: %s", b.output())
	}
	_, _ = unix.Wait4(b.started.Shim.PID, nil, 0, nil)
	b.started = Started{}
	r, err := record.Load(filepath.Join(b.config.Directory, FileExit))
	if err != nil {
		b.t.Fatal(err)
	}
	return int(r.Int("code")), r.Get("reason"), b.output()
}

func (b *box) output() string {
	text, _ := os.ReadFile(filepath.Join(b.config.Directory, FileLog))
	return string(text)
}

// run runs a program to its end and expects that it succeeds.
func (b *box) run(arguments ...string) string {
	b.t.Helper()
	b.config.Arguments = arguments
	if err := b.start(); err != nil {
		b.t.Fatal(err)
	}
	code, reason, output := b.wait()
	if code != 0 {
		b.t.Fatalf("%s: %s", reason, output)
	}
	return output
}

func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(15 * time.Second); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not come", what)
		}
	}
}
