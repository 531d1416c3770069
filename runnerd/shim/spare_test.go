package shim

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/runnerd/procfs"
	"colloid.net/runnerd/sandbox"
)

// prepared makes the spare for a box.
func (b *box) prepare() *Spare {
	b.t.Helper()
	c := b.config.Sandbox
	spare, err := Prepare(&Config{
		Directory: filepath.Dir(b.config.Directory),
		Sandbox:   &sandbox.Config{UIDBase: c.UIDBase, GIDBase: c.GIDBase, Count: c.Count, Init: true},
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return spare
}

// initOf is the init of a spare, by its number outside.
func (s *Spare) initOf(t *testing.T) procfs.Process {
	t.Helper()
	lists, _ := filepath.Glob("/proc/" + strconv.Itoa(s.shim.PID) + "/task/*/children")
	for _, list := range lists {
		text, _ := os.ReadFile(list)
		if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
			p, err := procfs.Find(pid)
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
	}
	t.Fatal("the spare has no init")
	return procfs.Process{}
}

// TestASpareHoldsNothing: no path of the host, of an image or of another instance, and no descriptor of them.
func TestASpareHoldsNothing(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	spare := b.prepare()
	defer spare.Close()
	init := "/proc/" + strconv.Itoa(spare.initOf(t).PID)
	entries, err := os.ReadDir(init + "/root")
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	if got := strings.Join(names, " "); err != nil || got != "dev proc sys" {
		t.Errorf("the root holds %q, %v", got, err)
	}
	mounts, err := os.ReadFile(init + "/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line)
		kind := fields[len(fields)-3]
		device := fields[3] != "/" && strings.HasPrefix(fields[4], "/dev/")
		masked := strings.HasPrefix(fields[4], "/proc/") || strings.HasPrefix(fields[4], "/sys/")
		switch kind {
		case "proc", "sysfs", "tmpfs", "devpts", "mqueue", "cgroup2":
		default:
			if !device && !masked { // nodes of the host's /dev, the same for everybody
				t.Errorf("a mount of the host: %s", line)
			}
		}
	}
	descriptors, _ := os.ReadDir(init + "/fd")
	for _, entry := range descriptors {
		target, _ := os.Readlink(init + "/fd/" + entry.Name())
		if strings.HasPrefix(target, "/") && !strings.HasPrefix(target, "/dev/") && !strings.HasPrefix(target, "/proc") &&
			!strings.HasPrefix(target, "/sys") && target != "/" {
			t.Errorf("descriptor %s is %s", entry.Name(), target)
		}
	}
	environment, _ := os.ReadFile(init + "/environ")
	if strings.Contains(string(environment), "COLLOID") || strings.Contains(string(environment), os.Getenv("HOME")+"\x00") {
		t.Errorf("the environment of the init: %q", environment)
	}
}

// TestASpareEndsWithWhoeverWantedIt: a runnerd that is killed leaves none behind.
func TestASpareEndsWithWhoeverWantedIt(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	spare := b.prepare()
	init := spare.initOf(t)
	spare.conn.Close() // as the kernel does for a process that ends
	if !spare.shim.Wait(5*time.Second, nil) || !init.Wait(5*time.Second, nil) {
		t.Error("a spare outlives its runnerd")
	}
	spare.Close()
	if entries, _ := os.ReadDir(b.config.Directory); len(entries) != 1 { // root
		t.Errorf("%d files in a directory that it never had", len(entries))
	}
}

// TestF134_ASpareIsFoundLikeEveryShim: by the directory in its environment, once it has one.
func TestF134_ASpareIsFoundLikeEveryShim(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	spare := b.prepare()
	mine := func() (list []Found) {
		for _, found := range FindAll(filepath.Dir(b.config.Directory)) {
			if found.Shim == spare.shim {
				list = append(list, found)
			}
		}
		return list
	}
	if list := mine(); len(list) != 0 {
		t.Errorf("a spare without an instance is found: %v", list)
	}
	var err error
	if b.started, err = spare.Launch(b.config); err != nil {
		t.Fatal(err)
	}
	list := mine()
	if len(list) != 1 || list[0].Directory != b.config.Directory || list[0].Workload != b.started.Workload {
		t.Errorf("found %v, want %s with %v", list, b.config.Directory, b.started)
	}
}

// TestASpareIsForItsIds: what was prepared with other ids or another network is refused, and ends.
func TestASpareIsForItsIds(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Config){
		"ids":        func(c *Config) { c.Sandbox.UIDBase += sandbox.IDCount },
		"network":    func(c *Config) { c.Sandbox.NetworkNamespace = "/proc/self/ns/net" },
		"no init":    func(c *Config) { c.Sandbox.Init = false },
		"no sandbox": func(c *Config) { c.Sandbox = nil },
		"a spare":    func(c *Config) { c.Spare = true },
	} {
		b := newBox(t)
		spare := b.prepare()
		init := spare.initOf(t)
		change(b.config)
		var err error
		b.started, err = spare.Launch(b.config)
		if err == nil || !strings.Contains(err.Error(), "prepared") {
			t.Errorf("%s: %v", name, err)
		}
		if !init.Wait(5*time.Second, nil) {
			t.Errorf("%s: the sandbox lives on", name)
		}
	}
}

// TestASpareSaysWhatFails: an error of the second half reaches whoever launches, as of a cold start.
func TestASpareSaysWhatFails(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.spare = true
	b.config.Arguments = []string{"/bin/absent"}
	if err := b.start(); err == nil || !strings.Contains(err.Error(), "/bin/absent") {
		t.Errorf("%v", err)
	}
	_ = b.started.Shim.Signal(unix.SIGKILL)
	b.kill()
	b.config.Arguments = []string{"sh", "-c", "echo out; echo err >&2; exit 7"}
	if err := b.start(); err != nil {
		t.Fatal(err)
	}
	if code, _, output := b.wait(); code != 7 || !strings.Contains(output, "out\n") || !strings.Contains(output, "err\n") {
		t.Errorf("code %d, output %q", code, output)
	}
}
