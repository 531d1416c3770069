package shim_test

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"colloid.net/runnerd/shim"
)

// Two runnerds that see each other's processes and not each other's files, as in containers, may have state
// directories of one name: none stops or adopts what the other runs.
func TestF134_ShimsOfAnotherMountNamespaceAreNotFound(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes a mount namespace")
	}
	state, scripts := t.TempDir(), t.TempDir()
	// The file has the name that is looked for as first argument.
	err := os.WriteFile(filepath.Join(scripts, shim.ArgumentShim), []byte(
		"test -z \"$1\" || { mount --make-rprivate / && mount -t tmpfs none \"$1\"; } || exit 1\necho ready\nread end\n"), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	start := func(mounted string, flags uintptr) (end func()) {
		c := exec.Command("/bin/sh", shim.ArgumentShim, mounted)
		c.Dir, c.Env = scripts, []string{"PATH=" + os.Getenv("PATH"), "COLLOID_INSTANCE=0:0:" + state + "/instances/one"}
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
		in, _ := c.StdinPipe()
		out, _ := c.StdoutPipe()
		if err := c.Start(); err != nil {
			t.Skipf("no mount namespace here: %v", err)
		}
		end = sync.OnceFunc(func() { in.Close(); _ = c.Wait() })
		t.Cleanup(end)
		if line, _ := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
			t.Skipf("nothing can be mounted here: %q", line)
		}
		return end
	}
	other := start(state, syscall.CLONE_NEWNS)
	if found := shim.FindAll(state + "/instances"); len(found) != 0 {
		t.Fatalf("found what belongs to another: %+v", found)
	}
	start("", 0)
	if found := shim.FindAll(state + "/instances"); len(found) != 1 {
		t.Fatalf("found %d shims, want its own", len(found))
	}
	other() // its mount goes with the directory that is moved
	// Exchanged directories are seen by both alike.
	if err := os.Rename(state, state+".away"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(state + ".away") })
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	if found := shim.FindAll(state + "/instances"); len(found) != 1 {
		t.Fatalf("found %d shims after an exchange, want its own", len(found))
	}
}
