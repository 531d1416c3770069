package shim

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/runnerd/sandbox"
)

func TestF139_OwnersInsideAndOutside(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.config.Sandbox.User = "app"
	b.config.Sandbox.WorkingDirectory = "/home/app"
	b.config.Sandbox.Files = []sandbox.File{
		{Path: "/etc/secret", Mode: 0o400, Content: []byte("hidden"), Owned: true, ReadOnly: true},
		{Path: "/etc/hosts", Mode: 0o644, Content: []byte("127.0.0.1 localhost\n")},
	}
	output := b.run("sh", "-c", `id; pwd; stat -c '%n %u %g' / /bin/busybox /home/app /etc/secret; cat /etc/secret; echo;
		touch made; echo home $HOME; cat /etc/hosts; echo x > /etc/secret; echo again > /dev/stdout`)
	for _, want := range []string{
		"uid=1000(app) gid=1000(app) groups=2000(extra)", "/home/app\n", "/ 0 0\n", "/bin/busybox 0 0\n",
		"/home/app 1000 1000\n", "/etc/secret 1000 1000\nhidden\n", "home /home/app\n", "127.0.0.1 localhost\n",
		"can't create /etc/secret: Read-only file system", "again\n",
	} {
		if !strings.Contains(output, want) {
			t.Errorf("lacks %q: %s", want, output)
		}
	}
	info, err := os.Stat(filepath.Join(b.config.Sandbox.Rootfs, "home/app/made"))
	if err != nil {
		t.Fatal(err)
	}
	if owner := info.Sys().(*syscall.Stat_t).Uid; owner != b.config.Sandbox.UIDBase+1000 {
		t.Errorf("outside the file belongs to %d", owner)
	}
	if content, err := os.ReadFile(filepath.Join(b.config.Sandbox.Rootfs, "etc/secret")); err != nil || len(content) != 0 {
		t.Errorf("the secret reached the disk: %q, %v", content, err)
	}
}

func TestF139_UsersAreThoseOfTheImage(t *testing.T) {
	t.Parallel()
	for user, want := range map[string]string{
		"app:root": "uid=1000(app) gid=0(root)", "1000": "uid=1000(app) gid=1000(app)", "77": "uid=77 gid=0",
		"77:88": "uid=77 gid=88", "app:extra": "gid=2000(extra)", "": "uid=0(root) gid=0(root)",
	} {
		b := newBox(t)
		b.config.Sandbox.User = user
		if output := b.run("id"); !strings.Contains(output, want) {
			t.Errorf("%q: %s", user, output)
		}
	}
	for user, want := range map[string]string{
		"nobody": `the image has no user "nobody"`, "app:none": `the image has no group "none"`, "70000": "beyond the 65536",
		"4000000000":           "user 4000000000 is beyond the 65536 ids of an instance: choose one from 0 to 65535",
		"99999999999999999999": "beyond the 65536", "77:4000000000": "group 4000000000 is beyond the 65536",
	} {
		b := newBox(t)
		b.config.Sandbox.User = user
		b.config.Arguments = []string{"true"}
		if err := b.start(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", user, err)
		}
	}
}

func TestF138_ZombiesAreReaped(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	output := b.run("/escape", "zombies")
	if !strings.Contains(output, " 0 zombies") {
		t.Error(output)
	}
}

// TestF138_TheInitKeepsStatusAndSignals covers the ways to end.
func TestF138_TheInitKeepsStatusAndSignals(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.config.Arguments = []string{"sh", "-c", "exit 42"}
	if err := b.start(); err != nil {
		t.Fatal(err)
	}
	if code, reason, _ := b.wait(); code != 42 || reason != "exited with code 42" {
		t.Errorf("%d %s", code, reason)
	}
	b.config.Arguments = []string{"sh", "-c", "kill -9 $$"}
	if err := b.start(); err != nil {
		t.Fatal(err)
	}
	if code, reason, _ := b.wait(); code != 137 || reason != "ended by signal 9 (killed)" {
		t.Errorf("%d %s", code, reason)
	}
	for stop, want := range map[int]int{0: int(unix.SIGTERM), int(unix.SIGQUIT): int(unix.SIGQUIT)} {
		b := newBox(t)
		b.config.Sandbox.StopSignal = stop
		b.config.Arguments = []string{"/escape", "signals"}
		if err := b.start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the program", func() bool { return strings.Contains(b.output(), "waiting") })
		_ = b.started.Workload.Signal(unix.SIGTERM)
		if code, _, output := b.wait(); code != want {
			t.Errorf("stop signal %d: code %d, %s", stop, code, output)
		}
	}
}

func TestAProgramThatDoesNotExist(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"nothing": `the image has no program "nothing"`, "/bin/none": "execute /bin/none in /: no such file",
		"/etc/passwd": "permission denied",
	} {
		b := newBox(t)
		b.config.Arguments = []string{name}
		if err := b.start(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	b := newBox(t)
	b.config.Sandbox.WorkingDirectory = "/made/for/it"
	if output := b.run("pwd"); output != "/made/for/it\n" {
		t.Errorf("%q", output)
	}
}

func TestF158_AProbeRunsInside(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	if err := b.start(); err != nil {
		t.Fatal(err)
	}
	probe := func(timeout time.Duration, arguments ...string) (int, error) {
		config := *b.config
		config.Arguments = arguments
		return Run(&config, nil, timeout)
	}
	for _, c := range []struct {
		arguments []string
		code      int
	}{
		{[]string{"true"}, 0}, {[]string{"false"}, 1}, {[]string{"sh", "-c", "test $(hostname) = box"}, 0},
		{[]string{"sh", "-c", "kill -9 $$"}, 137}, {[]string{"sh", "-c", "grep -q 'Seccomp:.2' /proc/self/status"}, 0},
		{[]string{"sh", "-c", "grep -q 'CapBnd:.00000000000004fb' /proc/self/status && test $(ls /proc/self/fd | wc -l) = 4"}, 0},
	} {
		if code, err := probe(5*time.Second, c.arguments...); err != nil || code != c.code {
			t.Errorf("%v: %d, %v", c.arguments, code, err)
		}
	}
	if _, err := probe(time.Second, "nothing"); err == nil || !strings.Contains(err.Error(), "no program") {
		t.Error(err)
	}
	if _, err := probe(100*time.Millisecond, "sh", "-c", "sleep 300 & sleep 300"); err == nil ||
		!strings.Contains(err.Error(), "took longer") {
		t.Error(err)
	}
	eventually(t, "end of the probe's processes", func() bool {
		code, err := probe(5*time.Second, "sh", "-c", "! pidof -o $(pidof -s sleep) sleep | grep -q .")
		_ = err
		return code == 0 || onlyTheProgram(b)
	})
	// It works without any shim: the init is the one that is asked.
	shim := b.started.Shim
	_ = shim.Signal(unix.SIGKILL)
	shim.Wait(5*time.Second, nil)
	if code, err := probe(5*time.Second, "true"); err != nil || code != 0 {
		t.Errorf("without the shim: %d, %v", code, err)
	}
	_ = b.started.Workload.Signal(unix.SIGKILL)
	eventually(t, "the end of the container", func() bool { return !b.started.Workload.Alive() })
	if _, err := probe(time.Second, "true"); err == nil {
		t.Error("a probe in a container that is gone")
	}
}

// onlyTheProgram reports whether the init has one child.
func onlyTheProgram(b *box) bool {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", b.started.Workload.PID))
	count := 0
	for _, list := range lists {
		text, _ := os.ReadFile(list)
		count += len(strings.Fields(string(text)))
	}
	return count == 1
}

// TestPlacesThatTheImageHasOtherwiseAreNamed holds that a file over a directory of the image, or the other way round,
// ends the start with a sentence that says which place it is.
func TestPlacesThatTheImageHasOtherwiseAreNamed(t *testing.T) {
	t.Parallel()
	directory := t.TempDir()
	source := filepath.Join(directory, "file")
	if err := os.WriteFile(source, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*sandbox.Config)
		want   string
	}{
		"a file over a directory": {func(c *sandbox.Config) { c.Files = []sandbox.File{{Path: "/bin", Mode: 0o400, Content: []byte("x")}} },
			"/bin is a directory in the image, and has to be a file"},
		"a mounted file over a directory": {func(c *sandbox.Config) { c.Mounts = []sandbox.Mount{{Source: source, Target: "/home/app"}} },
			"/home/app is a directory in the image, and has to be a file"},
		"a file below a file": {func(c *sandbox.Config) { c.Files = []sandbox.File{{Path: "/etc/passwd/x", Mode: 0o400}} },
			"/etc/passwd is a file in the image, and has to be a directory"},
		"a directory over a file": {func(c *sandbox.Config) { c.Mounts = []sandbox.Mount{{Source: directory, Target: "/etc/group"}} },
			"/etc/group is a file in the image, and has to be a directory"},
		"a working directory that is a file": {func(c *sandbox.Config) { c.WorkingDirectory = "/etc/group" },
			"/etc/group is a file in the image, and has to be a directory"},
	} {
		b := newBox(t)
		c.change(b.config.Sandbox)
		if err := b.start(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestAPreparedNetworkNamespaceIsJoined(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	other := newBox(t)
	if err := other.start(); err != nil {
		t.Fatal(err)
	}
	path := fmt.Sprintf("/proc/%d/ns/net", other.started.Workload.PID)
	want, err := os.Readlink(path)
	if err != nil {
		t.Fatal(err)
	}
	own, _ := os.Readlink("/proc/self/ns/net")
	b.config.Sandbox.NetworkNamespace = path
	if err := b.start(); err != nil {
		t.Fatal(err)
	}
	for _, of := range []*box{b, other} { // its /sys is like that of a sandbox with a network of its own
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/root/sys", of.started.Workload.PID))
		if err != nil || len(entries) != 1 || entries[0].Name() != "fs" {
			t.Errorf("/sys holds %v, %v", entries, err)
		}
	}
	if got, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", b.started.Workload.PID)); got != want {
		t.Errorf("is in %s, expected %s", got, want)
	}
	if got, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", b.started.Shim.PID)); got != own {
		t.Errorf("the shim stayed in %s, expected %s", got, own)
	}
	b.config.Sandbox.NetworkNamespace = "/nowhere"
	failing := newBox(t)
	failing.config.Sandbox.NetworkNamespace = "/nowhere"
	if err := failing.start(); err == nil || !strings.Contains(err.Error(), "open network namespace /nowhere") {
		t.Error(err)
	}
}

// TestASandboxWithoutAnImage is what a Wasm worker gets: a checked binary, by descriptor, in an empty world.
func TestASandboxWithoutAnImage(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	program, err := os.Open(filepath.Join(b.config.Sandbox.Rootfs, "bin/busybox"))
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	b.config.Sandbox.Rootfs, b.config.Sandbox.Init = "", false
	b.config.Sandbox.UID, b.config.Sandbox.GID = 5, 6
	b.config.Arguments = []string{"sh", "-c", "echo pid $$; cd /; echo *; read line < /proc/self/uid_map; echo $line; : > /x"}
	b.started, err = Launch(b.config, program)
	if err != nil {
		t.Fatal(err)
	}
	code, _, output := b.wait()
	if code != 1 || !strings.Contains(output, "pid 1\ndev proc sys\n") || !strings.Contains(output, "Read-only file system") {
		t.Errorf("%d: %s", code, output)
	}
}

// TestF83_AnExternalRuntimeKeepsSecretsInMemory drives runc through the life of a container.
func TestF83_AnExternalRuntimeKeepsSecretsInMemory(t *testing.T) {
	t.Parallel()
	path, err := exec.LookPath("runc")
	if err != nil {
		t.Skip("needs runc (Debian: runc)")
	}
	b := newBox(t)
	b.config.Runtime, b.config.Name = path, "box"
	b.config.Sandbox.User = "app"
	b.config.Environment = append(b.config.Environment, "PASSWORD=geheim-im-kasten")
	b.config.Sandbox.Files = []sandbox.File{
		{Path: "/etc/hosts", Mode: 0o644, Content: []byte("127.0.0.1 localhost\n")},
		{Path: "/run/secret", Mode: 0o440, Content: []byte("geheime-datei\n"), ReadOnly: true, Owned: true},
	}
	b.config.Arguments = []string{"sh", "-c", "echo $PASSWORD | tr a-z A-Z; cat /run/secret | tr a-z A-Z; " +
		"stat -c '%u %g %a' /run/secret; true > /run/secret; cat /etc/hosts; exec sleep 1000"}
	if err := b.start(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); !strings.Contains(b.output(), "localhost") && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	for _, want := range []string{"GEHEIM-IM-KASTEN\n", "GEHEIME-DATEI\n", "1000 1000 440\n", "Read-only file system"} {
		if !strings.Contains(b.output(), want) {
			t.Errorf("lacks %q: %s", want, b.output())
		}
	}
	for _, secret := range []string{"geheim-im-kasten", "geheime-datei"} { // F83: on no disk, and not in what is kept
		if path := holds(b.config.Directory, secret); path != "" {
			t.Errorf("%s holds %s", path, secret)
		}
	}
	for program, want := range map[string]int{"true": 0, "false": 1} {
		config := *b.config
		config.Arguments = []string{program}
		if code, err := Run(&config, nil, 10*time.Second); err != nil || code != want {
			t.Errorf("%s: %d, %v", program, code, err)
		}
	}
	_ = b.started.Workload.Signal(unix.SIGKILL)
	if code, reason, output := b.wait(); code != 137 {
		t.Errorf("%d, %s, %s", code, reason, output)
	}
	if _, err := os.Stat(filepath.Join(b.config.Directory, dirState)); !os.IsNotExist(err) {
		t.Errorf("the runtime's state is left: %v", err)
	}
	b.config.Environment, b.config.Sandbox.Files = b.config.Environment[:1], nil
	output := b.run("sh", "-c", "id; hostname; grep -E 'Seccomp:|NoNewPrivs|CapBnd' /proc/self/status; stat -c '%u' /bin/busybox")
	for _, want := range []string{"uid=1000(app)", "box\n", "CapBnd:\t00000000000004fb", "NoNewPrivs:\t1", "Seccomp:\t2", "\n0\n"} {
		if !strings.Contains(output, want) {
			t.Errorf("lacks %q: %s", want, output)
		}
	}
	for line := range strings.Lines(b.run("/escape", "try")) { // process 1 is the program itself here
		if name, escaped := strings.CutPrefix(line, "ESCAPED: "); escaped && !strings.HasPrefix(name, "init ") &&
			name != "read memory\n" {
			t.Error(line)
		}
	}
}

// holds finds a file below a directory that has a text in it.
func holds(directory, text string) (found string) {
	_ = filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			if raw, err := os.ReadFile(path); err == nil && bytes.Contains(raw, []byte(text)) {
				found = path
			}
		}
		return nil
	})
	return found
}

// TestF147_OutputOfAContainerIsBounded has a container that writes as fast as it can.
func TestF147_OutputOfAContainerIsBounded(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.config.LogRate = 256 << 10
	b.config.Arguments = []string{"yes"}
	if err := b.start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	_ = b.started.Workload.Signal(unix.SIGTERM)
	if code, reason, _ := b.wait(); code != 128+int(unix.SIGTERM) {
		t.Errorf("%d, %s", code, reason)
	}
	info, err := os.Stat(filepath.Join(b.config.Directory, FileLog))
	dropped, _ := os.ReadFile(filepath.Join(b.config.Directory, FileDropped))
	if err != nil || info.Size() > 3<<20 || len(dropped) < 2 {
		t.Errorf("%v, %v, dropped %s", err, info, dropped)
	}
}
