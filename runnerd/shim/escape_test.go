package shim

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/runnerd/cgroup"
	"colloid.net/runnerd/sandbox"
)

// TestF138_EscapesAreRefused runs the checklist inside a container, as its root and as a user.
func TestF138_EscapesAreRefused(t *testing.T) {
	t.Parallel()
	for _, user := range []string{"root", "app"} {
		t.Run(user, func(t *testing.T) { tryEscapes(t, user, false) })
		t.Run(user+" in a prepared sandbox", func(t *testing.T) { tryEscapes(t, user, true) })
	}
}

// tryEscapes runs the checklist. The root and a volume hold device nodes that anybody may open by their modes.
func tryEscapes(t *testing.T, user string, spare bool) {
	b := newBox(t)
	b.spare = spare
	b.config.Sandbox.User = user
	volume := filepath.Join(b.config.Directory, "volume")
	if err := os.Mkdir(volume, 0o755); err != nil {
		t.Fatal(err)
	}
	b.config.Sandbox.Mounts = []sandbox.Mount{{Source: volume, Target: "/volume"}}
	root := b.config.Sandbox.Rootfs
	for path, device := range map[string]uint64{root + "/node": unix.Mkdev(1, 5), volume + "/node": unix.Mkdev(1, 5)} {
		b.makeNode(path, unix.S_IFCHR, device)
	}
	b.makeNode(root+"/disk", unix.S_IFBLK, unix.Mkdev(254, 0))
	if file, err := os.Open(root + "/node"); err != nil {
		t.Skipf("needs a directory for temporary files on which devices can be opened: %v", err)
	} else {
		file.Close()
	}
	output := b.run("/escape", "try")
	if strings.Contains(output, "ESCAPED") || strings.Count(output, "refused: ") < 60 {
		t.Errorf("as %s:\n%s", user, output)
	}
	// The answer must be the filter's or the capability's, not an accident of the attempt.
	for _, name := range []string{"mount", "ptrace init", "bpf", "keyctl", "io_uring", "setns", "chroot",
		"module", "reboot", "unshare user", "clone user", "raw socket", "userfaultfd", "perf", "mknod block"} {
		if !strings.Contains(output, "refused: "+name+": operation not permitted\n") {
			t.Errorf("as %s: %s is not answered by EPERM:\n%s", user, name, output)
		}
	}
	for _, name := range []string{"clone3", "new number"} {
		if !strings.Contains(output, "refused: "+name+": function not implemented\n") {
			t.Errorf("as %s: %s is not answered by ENOSYS", user, name)
		}
	}
	// Every mount but /dev is made nodev, and a user namespace may make no node that opens.
	for _, name := range []string{"device open", "device write", "device mount", "device disk"} {
		if !strings.Contains(output, "refused: "+name+": permission denied\n") {
			t.Errorf("as %s: %s is not answered by EACCES:\n%s", user, name, output)
		}
	}
}

// makeNode makes a device node that belongs to the container and that everybody may open.
func (b *box) makeNode(path string, kind uint32, device uint64) {
	b.t.Helper()
	err := unix.Mknod(path, kind|0o666, int(device))
	if err == nil {
		err = os.Chmod(path, 0o666)
	}
	if err == nil {
		err = os.Lchown(path, int(b.config.Sandbox.UIDBase), int(b.config.Sandbox.GIDBase))
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

func TestF138_TheWorldInside(t *testing.T) {
	t.Parallel()
	t.Run("cold", func(t *testing.T) { theWorldInside(t, false) })
	t.Run("prepared", func(t *testing.T) { theWorldInside(t, true) })
}

func theWorldInside(t *testing.T, spare bool) {
	b := newBox(t)
	b.spare = spare
	b.config.Sandbox.Files = []sandbox.File{{Path: "/etc/made/greeting", Content: []byte("written by runnerd\n"), Mode: 0o444, ReadOnly: true}}
	output := b.run("sh", "-c", `echo host $(hostname); cat /etc/made/greeting; echo pwd $(pwd); ls /dev | tr '\n' ' '; echo;
		echo sys $(ls /sys /sys/fs | tr '\n' ' '); touch /sys/x; grep -c ' /sys/fs/cgroup ' /proc/self/mountinfo;
		echo fds $(ls /proc/self/fd | tr '\n' ' '); grep -E 'Cap|NoNewPrivs|Seccomp:' /proc/self/status;
		echo processes $(ls -d /proc/[0-9]* | wc -l); ip -o link; cat /proc/self/mountinfo; echo map $(cat /proc/self/uid_map)`)
	for _, want := range []string{
		"host box\n", "written by runnerd\n", "pwd /\n", "fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero \n",
		"sys /sys: fs /sys/fs: cgroup\n", "touch: /sys/x: Read-only file system\n",
		"fds 0 1 2 3", // 3 is ls itself
		"CapBnd:\t00000000000004fb\n", "CapPrm:\t00000000000004fb\n", "CapInh:\t0000000000000000\n",
		"CapAmb:\t0000000000000000\n", "NoNewPrivs:\t1\n", "Seccomp:\t2\n", "1: lo: <LOOPBACK,UP,LOWER_UP>",
		fmt.Sprintf("map 0 %d 65536\n", b.config.Sandbox.UIDBase),
	} {
		if !strings.Contains(output, want) {
			t.Errorf("lacks %q", want)
		}
	}
	if strings.Contains(output, "2: ") && strings.Contains(output, "eth") {
		t.Error("an interface of the host")
	}
	for line := range strings.Lines(output) {
		if strings.Contains(line, "shared:") || strings.Contains(line, "master:") {
			t.Errorf("a mount that propagates: %s", line)
		}
	}
	if t.Failed() {
		t.Log(output)
	}
}

func TestF138_NamespacesAreItsOwn(t *testing.T) {
	t.Parallel()
	t.Run("cold", func(t *testing.T) { namespacesAreItsOwn(t, false) })
	t.Run("prepared", func(t *testing.T) { namespacesAreItsOwn(t, true) })
}

func namespacesAreItsOwn(t *testing.T, spare bool) {
	b := newBox(t)
	b.spare = spare
	if err := b.start(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"user", "pid", "uts", "ipc", "mnt", "net", "cgroup"} {
		inside, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", b.child(), name))
		outside, _ := os.Readlink("/proc/self/ns/" + name)
		if err != nil || inside == outside {
			t.Errorf("%s is %s inside and %s outside, %v", name, inside, outside, err)
		}
	}
}

// child is the process that the init of the box started, by its number outside.
func (b *box) child() int {
	path := fmt.Sprintf("/proc/%d/task/*/children", b.started.Workload.PID)
	var pid int
	eventually(b.t, "the program", func() bool {
		lists, _ := filepath.Glob(path)
		for _, list := range lists {
			if text, _ := os.ReadFile(list); len(text) > 0 {
				fmt.Sscan(string(text), &pid)
			}
		}
		return pid > 0
	})
	return pid
}

// TestF138_ADescriptorLeftOpenDoesNotLeak has a shim that inherited descriptors of who started it.
func TestF138_ADescriptorLeftOpenDoesNotLeak(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	secret, err := os.Open(b.config.Directory)
	if err != nil {
		t.Fatal(err)
	}
	defer secret.Close()
	_, _ = unix.FcntlInt(secret.Fd(), unix.F_SETFD, 0) // not close-on-exec
	output := b.run("sh", "-c", "ls -l /proc/self/fd")
	if strings.Count(output, " -> ") != 3 || strings.Contains(output, "4 ->") {
		t.Errorf("descriptors: %s", output)
	}
}

// TestF138_AForkBombEndsAtItsLimit needs the pids controller, of either version.
func TestF138_AForkBombEndsAtItsLimit(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	groups, err := cgroup.Detect(os.Getpid())
	if err != nil || slices.Contains(groups.Missing(), "pids") {
		t.Skipf("no pids controller: %v", err)
	}
	name := fmt.Sprintf("bomb-%d", time.Now().UnixNano())
	if b.config.Cgroup, err = groups.Create(name, cgroup.Limits{PIDs: 40}); err != nil {
		t.Fatal(err)
	}
	defer groups.Remove(name)
	output := b.run("/escape", "fork")
	var forked int
	fmt.Sscanf(output[strings.Index(output, "forked"):], "forked %d", &forked)
	if forked < 5 || forked >= 40 {
		t.Errorf("forked %d processes with room for 40 threads", forked)
	}
}

func TestF138_ReadOnlyRoot(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.config.Sandbox.ReadOnlyRoot = true
	b.config.Sandbox.Mounts = []sandbox.Mount{{Target: "/tmp", Tmpfs: true, SizeMiB: 1}}
	output := b.run("sh", "-c", `touch /x 2>&1; touch /dev/x 2>&1; touch /tmp/x && echo tmp; touch /dev/shm/x && echo shm;
		dd if=/dev/zero of=/tmp/big bs=1M count=3 2>&1 | tail -1`)
	if strings.Count(output, "Read-only file system") != 2 || !strings.Contains(output, "tmp\nshm\n") {
		t.Error(output)
	}
	if info, err := os.Stat(filepath.Join(b.config.Sandbox.Rootfs, "x")); err == nil {
		t.Errorf("%v was written", info.Name())
	}
}

// TestF138_LinksOfAnImageLeadNowhere has an image whose mount points are links to places of the host.
func TestF138_LinksOfAnImageLeadNowhere(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	rootfs := b.config.Sandbox.Rootfs
	outside := filepath.Join(b.config.Directory, "outside")
	os.Mkdir(outside, 0o777)
	for _, name := range []string{"proc", "sys", "dev"} {
		if err := os.Symlink(outside, filepath.Join(rootfs, name)); err != nil {
			t.Fatal(err)
		}
	}
	os.Symlink("../../../../../../../../"+outside, filepath.Join(rootfs, "data"))
	b.config.Sandbox.Mounts = []sandbox.Mount{{Target: "/data/x", Tmpfs: true}}
	b.config.Sandbox.Files = []sandbox.File{{Path: "/data/secret", Mode: 0o600, Content: []byte("secret")}}
	os.Chmod(outside, 0o777)
	b.config.Arguments = []string{"cat", "/data/secret"}
	err := b.start()
	if err == nil {
		b.wait()
	}
	entries, _ := os.ReadDir(outside)
	if len(entries) != 0 {
		t.Errorf("%v, outside has %v", err, entries)
	}
}

// TestF138_NothingIsLeftBehind starts and stops many times and looks for what the kernel still holds.
func TestF138_NothingIsLeftBehind(t *testing.T) {
	b := newBox(t)
	b.run("true")
	runtime.GC()
	mounts, namespaces, descriptors := countMounts(t), countNamespaces(), countDescriptors(t)
	boxes := []*box{b, newBox(t), newBox(t), newBox(t)}
	var all sync.WaitGroup
	for _, each := range boxes {
		all.Go(func() {
			for range 50 {
				each.config.Arguments = []string{"true"}
				if err := each.start(); err != nil {
					t.Error(err)
					return
				}
				each.started.Shim.Wait(15*time.Second, nil)
				_, _ = unix.Wait4(each.started.Shim.PID, nil, 0, nil)
				each.started = Started{}
			}
		})
	}
	all.Wait()
	eventually(t, "as many mounts as before", func() bool { return countMounts(t) <= mounts })
	eventually(t, "as few namespaces as before", func() bool { return countNamespaces() <= namespaces })
	if now := countDescriptors(t); now > descriptors+2 {
		t.Errorf("%d descriptors, %d before", now, descriptors)
	}
}

func countMounts(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(text), "colloid-box-")
}

// countNamespaces counts the user namespaces that map ids of these tests, by way of their processes.
func countNamespaces() int {
	maps, _ := filepath.Glob("/proc/[0-9]*/uid_map")
	count := 0
	for _, name := range maps {
		var inside, outside, size uint32
		text, _ := os.ReadFile(name)
		if _, err := fmt.Sscan(string(text), &inside, &outside, &size); err == nil &&
			outside >= 0x7f000000 && outside <= 0x7f000000+bases.Load()<<16 {
			count++
		}
	}
	return count
}

func countDescriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
