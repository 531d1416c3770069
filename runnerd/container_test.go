package runnerd_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"colloid.net/runnerd"
	"colloid.net/runnerd/cgroup"
	"colloid.net/runnerd/image/imagetest"
	"colloid.net/runnerd/runnerdtest"
	"colloid.net/workload"
)

// containers is a host with a registry beside it.
type containers struct {
	*host
	registry *imagetest.Registry
}

func newContainers(t *testing.T, policy string) *containers {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to give containers ids of their own")
	}
	if !imagetest.HasShell() {
		t.Skip("needs a static busybox (Debian: busybox-static)")
	}
	c := &containers{host: newHost(t), registry: imagetest.NewPlainRegistry(t)}
	c.replacePolicy(fmt.Sprintf("registry %s { http; private }\npod_network none\n%s\n", c.registry.Host, policy))
	t.Cleanup(c.endContainers)
	return c
}

// endContainers ends what a failed test left running, so that the directory can be removed.
func (c *containers) endContainers() {
	directories, _ := filepath.Glob(filepath.Join(c.directory, "instances", "*"))
	for _, directory := range directories {
		var pid int
		text, _ := os.ReadFile(filepath.Join(directory, "run"))
		for line := range strings.Lines(string(text)) {
			_, _ = fmt.Sscanf(line, "pid \"%d\"", &pid)
		}
		if pid > 1 {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
	eventually(c.t, "no mounts", func() bool {
		mounts := c.mounts()
		for _, mount := range mounts {
			_ = unix.Unmount(mount, unix.MNT_DETACH)
		}
		return len(mounts) == 0
	})
}

// connect starts the real daemon, which is linked without a C library as it is shipped.
func (c *containers) connect() *runnerdtest.Client {
	c.t.Helper()
	d := c.daemon(0)
	d.Run(c.t)
	return d.Connect()
}

// mounts are the mount points below the host's directory.
func (c *containers) mounts() []string {
	var list []string
	text, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); strings.HasPrefix(fields[4], c.directory+"/") {
			list = append(list, fields[4])
		}
	}
	return list
}

// spec pushes an image with a configuration and gives a specification that runs it.
func (c *containers) spec(config v1.Config, arguments ...string) *workload.Spec {
	c.t.Helper()
	digest := c.registry.Push(c.t, "test/box:1", imagetest.Busybox(c.t, runtime.GOARCH, config))
	var sum [32]byte
	for n := range sum {
		fmt.Sscanf(digest.Hex[2*n:2*n+2], "%02x", &sum[n])
	}
	return &workload.Spec{
		Runtime: workload.RuntimeOCI, Replicas: 1, Image: c.registry.Host + "/test/box:1", ImageDigest: sum,
		Arguments: arguments,
	}
}

func (c *containers) log(id runnerd.InstanceID) string {
	text, _ := os.ReadFile(c.instanceFile(id, "log"))
	return string(text)
}

// TestContainersLive takes one container through its life with the real daemon, a real registry and the
// death of runnerd in between.
func TestContainersLive(t *testing.T) {
	c := newContainers(t, "allow_unlimited")
	d := c.daemon(0)
	d.Run(t)
	client := d.Connect()
	if !client.Hello.RunsOci {
		t.Fatalf("%v", client.Hello)
	}
	config := v1.Config{
		Entrypoint: []string{"sh", "-c"}, Cmd: []string{"false"}, Env: []string{"FROM=image", "PATH=/bin", "BOTH=image"},
		User: "app", WorkingDir: "/home/app/work", StopSignal: "SIGQUIT",
	}
	spec := c.spec(config, `trap 'echo quit; exit 7' QUIT; id; pwd; hostname; env; cat /etc/hosts; echo started;
		while true; do sleep 0.05; done`)
	spec.Environment = []string{"BOTH=spec", "MORE=spec"}
	spec.Restart = workload.RestartOnFailure
	spec.Health = workload.Health{Kind: workload.HealthExec, Command: []string{"sh", "-c", "test $FROM = image"}}
	id := client.Start("spread.web", 3, spec)
	p := processOf(client.Await(id, ready))
	eventually(t, "output", func() bool { return strings.Contains(c.log(id), "started\n") })
	for _, want := range []string{
		"uid=1000(app) gid=1000(app) groups=2000(extra)", "/home/app/work\n", "web-3-00000000\n", "FROM=image\n", "PATH=/bin\n",
		"BOTH=spec\n", "MORE=spec\n", "HOME=/home/app\n", "COLLOID_SLOT=3\n", "127.0.1.1 web-3-00000000\n",
	} {
		if !strings.Contains(c.log(id), want) {
			t.Errorf("lacks %q: %s", want, c.log(id))
		}
	}
	if strings.Contains(c.log(id), "SECRET_OF_RUNNERD") {
		t.Error("a variable of runnerd")
	}
	for round := range 2 {
		d.Kill()
		if !p.Alive() {
			t.Fatalf("round %d: the container died with runnerd", round)
		}
		d.Run(t)
		client = d.Connect()
		if i := client.Await(id, ready); processOf(i) != p || i.Restarts != 0 {
			t.Fatalf("round %d: %v became %v", round, p, i)
		}
	}
	watcher := c.shimOf(id)
	_ = watcher.Signal(unix.SIGKILL)
	eventually(t, "a new shim", func() bool { now := c.shimOf(id); return now != watcher && now.Alive() })
	if i := client.Instance(id); !p.Alive() || processOf(i) != p || i.State != ready {
		t.Errorf("after the death of its shim: %v", i)
	}
	client.Stop(id, 5*time.Second)
	client.AwaitGone(id)
	if p.Alive() || len(c.mounts()) != 0 {
		t.Errorf("left: alive %v, mounts %v", p.Alive(), c.mounts())
	}
	text, _ := os.ReadFile(filepath.Join(c.directory, "ids"))
	if strings.Contains(string(text), "range") {
		t.Errorf("ids are not given back: %s", text)
	}
}

// TestAContainerRestartsFresh has a program that fails and writes to its root.
func TestAContainerRestartsFresh(t *testing.T) {
	c := newContainers(t, "allow_unlimited")
	client := c.connect()
	spec := c.spec(v1.Config{Entrypoint: []string{"sh", "-c"}},
		"test -e /made && echo old root; touch /made; echo run; sleep 0.1; exit 5")
	id := client.Start("spread.fails", 0, spec)
	client.Until("restarts", func() bool { return client.Locked(id).GetRestarts() >= 2 })
	if i := client.Instance(id); i.ExitCode != 5 || strings.Contains(c.log(id), "old root") {
		t.Errorf("%v: %s", i, c.log(id))
	}
	client.Stop(id, 0)
	client.AwaitGone(id)
	// Its own words about what does not work.
	spec.Arguments, spec.Command = nil, []string{"/bin/none"}
	id = client.Start("spread.none", 0, spec)
	client.Until("the reason", func() bool {
		return strings.Contains(client.Locked(id).GetReason(), "execute /bin/none in /: no such file or directory")
	})
	client.Stop(id, 0)
	client.AwaitGone(id)
	if len(c.mounts()) != 0 {
		t.Errorf("mounts left: %v", c.mounts())
	}
}

// TestF139_VolumesKeepTheirOwners has files that outlive an instance whose ids another one does not get.
func TestF139_VolumesKeepTheirOwners(t *testing.T) {
	c := newContainers(t, "allow_unlimited\nbind media "+t.TempDir()+" read_only")
	client := c.connect()
	script := "stat -c '%n %u %g' /data /data/*; touch /data/$COLLOID_SLOT-$NAME && echo wrote; touch /media/x; sleep 100"
	for round, name := range []string{"first", "second"} {
		spec := c.spec(v1.Config{Entrypoint: []string{"sh", "-c"}, User: "app"}, script)
		spec.Environment = []string{"NAME=" + name}
		spec.Stateful, spec.ReplicationFactor = true, 1
		spec.Volumes = []workload.Volume{{Name: "data", MountPath: "/data"}, {Name: "media", MountPath: "/media"}}
		if round == 0 {
			spec.Command, spec.Arguments = []string{"sh", "-c", "chown 1000:1000 /data; touch /data/own; sleep 100"}, nil
			spec.User = "0"
		}
		id := client.Start("stateful.store", 0, spec)
		client.Await(id, ready)
		if round == 1 {
			eventually(t, "output", func() bool { return strings.Contains(c.log(id), "wrote") })
			for _, want := range []string{"/data 1000 1000\n", "/data/own 0 0\n", "/media/x: Read-only file system"} {
				if !strings.Contains(c.log(id), want) {
					t.Errorf("lacks %q: %s", want, c.log(id))
				}
			}
		}
		client.Stop(id, 0)
		client.AwaitGone(id)
	}
}

func TestContainersThatMayNotRun(t *testing.T) {
	c := newContainers(t, "image_deny docker.io/*")
	client := c.connect()
	low := c.spec(v1.Config{}, "true")
	low.Ports = []workload.Port{{Host: 80, Container: 80}}
	elsewhere := c.spec(v1.Config{}, "true")
	elsewhere.Image = "docker.io/library/busybox"
	lies := c.spec(v1.Config{}, "true")
	lies.ImageDigest[0]++
	for name, spec := range map[string]*workload.Spec{"port 80 is below": low, "image_deny": elsewhere} {
		id := client.Start("spread.denied", 0, spec)
		if i := client.Await(id, denied); !strings.Contains(i.Reason, name) {
			t.Errorf("%s: %v", name, i)
		}
	}
	if groups, err := cgroup.Detect(os.Getpid()); err != nil || !groups.Enforced() {
		limited := c.spec(v1.Config{}, "true")
		limited.MemoryMiB = 64
		id := client.Start("spread.limited", 0, limited)
		if i := client.Await(id, denied); !strings.Contains(i.Reason, "controller memory") {
			t.Errorf("%v", i)
		}
	}
	c.replacePolicy("containers none")
	id := client.Start("spread.none", 0, c.spec(v1.Config{}, "true"))
	if i := client.Await(id, denied); !strings.Contains(i.Reason, "containers none") {
		t.Errorf("%v", i)
	}
}

// TestF141_MemoryLimitKillsTheRightContainer needs a memory controller, of either version.
func TestF141_MemoryLimitKillsTheRightContainer(t *testing.T) {
	c := newContainers(t, "")
	groups, err := cgroup.Detect(os.Getpid())
	if err != nil || !groups.Enforced() {
		t.Skipf("no controllers: %v", err)
	}
	client := c.connect()
	if !client.Hello.LimitsEnforced {
		t.Errorf("%v", client.Hello.Degradations)
	}
	calm := c.spec(v1.Config{}, "sleep", "1000")
	calm.MemoryMiB = 64
	quiet := client.Start("spread.calm", 0, calm)
	p := processOf(client.Await(quiet, ready))
	greedy := c.spec(v1.Config{Entrypoint: []string{"sh", "-c"}}, "dd if=/dev/zero of=/dev/null bs=64M count=1")
	greedy.MemoryMiB, greedy.CPUMillicores, greedy.PidsMax = 16, 500, 50
	id := client.Start("spread.greedy", 0, greedy)
	client.Until("the reason", func() bool {
		i := client.Locked(id)
		return i.GetOomKills() > 0 && strings.Contains(i.GetReason(), "memory limit of 16 MiB")
	})
	if !p.Alive() || client.Instance(quiet).OomKills != 0 {
		t.Error("the calm one was hit")
	}
	for _, id := range []runnerd.InstanceID{id, quiet} {
		client.Stop(id, 0)
		client.AwaitGone(id)
	}
	for _, name := range groups.Names() {
		if strings.HasPrefix(name, fmt.Sprintf("%016x-", id.KeyHash)) {
			t.Errorf("control group %s is left", name)
		}
	}
}

// TestAnExternalRuntimeRunsTheSame hands the container to runc.
func TestAnExternalRuntimeRunsTheSame(t *testing.T) {
	path, err := exec.LookPath("runc")
	if err != nil {
		t.Skip("needs runc (Debian: runc)")
	}
	c := newContainers(t, "allow_unlimited\nruntime "+path)
	d := c.daemon(0)
	d.Run(t)
	client := d.Connect()
	spec := c.spec(v1.Config{Entrypoint: []string{"sh", "-c"}, User: "app", StopSignal: "SIGQUIT"},
		`trap 'echo quit; exit 7' QUIT; id; hostname; grep -E 'Seccomp:|NoNewPrivs|CapBnd' /proc/self/status;
		mount -t tmpfs none /tmp; cat /proc/self/uid_map; echo "secret $PASSWORD" | tr 0-9 a-j; echo started
		while true; do sleep 0.05; done`)
	spec.Health = workload.Health{Kind: workload.HealthExec, Command: []string{"sh", "-c", "test -z \"$PASSWORD\""}}
	spec.Restart, spec.EnvironmentDigest = workload.RestartNever, [32]byte{1}
	command := supplied(t, spec, nil)
	client.Send(command)
	id := runnerdtest.IDOf(command.GetStart().Id)
	client.Until("an answer", func() bool {
		i := client.Locked(id)
		return i.GetState() == ready || i.GetState() == exited || i.GetState() == denied
	})
	i := client.Instance(id)
	if i.State != ready {
		t.Fatalf("%v: %s", i, c.log(id))
	}
	p := processOf(i)
	eventually(t, "output", func() bool { return strings.Contains(c.log(id), "started\n") })
	for _, want := range []string{"uid=1000(app)", "secret-0-00000000\n", "CapBnd:\t00000000000004fb", "NoNewPrivs:\t1", "Seccomp:\t2",
		"ermission denied", "65536\n", "secret geheimnis-ehbb\n"} {
		if !strings.Contains(c.log(id), want) {
			t.Errorf("lacks %q: %s", want, c.log(id))
		}
	}
	if path := c.onDisk("geheimnis-4711"); path != "" {
		t.Errorf("%s holds the secret", path)
	}
	d.Kill()
	d.Run(t)
	client = d.Connect()
	if i := client.Await(id, ready); processOf(i) != p {
		t.Fatalf("%v became %v", p, i)
	}
	client.Stop(id, 5*time.Second)
	client.Until("its end", func() bool { return client.Locked(id) == nil })
	if p.Alive() || len(c.mounts()) != 0 {
		t.Errorf("left: alive %v, mounts %v", p.Alive(), c.mounts())
	}
}
