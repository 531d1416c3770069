package guest

import (
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"colloid.net/runnerd"
	"colloid.net/runnerd/cgroup"
	"colloid.net/runnerd/image/imagetest"
	"colloid.net/runnerd/runnerdtest"
	"colloid.net/runnerd/shim"
	"colloid.net/workload"
)

// pods is the daemon runnerd as it is shipped, in a control group of its own as a unit of systemd gives it one, with an
// image that the command line loaded from a file.
type pods struct {
	*runnerdtest.Client
	t         *testing.T
	daemon    *runnerdtest.Daemon
	directory string
	socket    string // for operators
	unit      string // control group, as from the root
	groups    *cgroup.Manager
	digest    [32]byte
}

const (
	groupsRoot = "/sys/fs/cgroup"
	boxName    = "localhost/box:1"
)

// boxText is what the image serves.
const boxText = "of the image\n"

func newPods(t *testing.T) *pods {
	t.Helper()
	if os.Getenv("COLLOID_VM") == "" {
		t.Skip("not in the machine of make vm")
	}
	base := t.TempDir()
	p := &pods{t: t, directory: filepath.Join(base, "state")}
	policy := filepath.Join(base, "policy")
	text := "pod_bridge pods0\npod_network 10.99.0.0/24 fd00:99::/64\n"
	if err := os.WriteFile(policy, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	p.makeUnit()
	p.socket = filepath.Join(base, "runnerd.sock")
	p.daemon = &runnerdtest.Daemon{Directory: p.directory, Policy: policy, ControlGroup: groupsRoot + p.unit,
		Arguments: []string{"--operator-socket", p.socket}}
	t.Cleanup(func() {
		if text, err := os.ReadFile(p.daemon.Log); err == nil && t.Failed() {
			t.Logf("runnerd: %s", text)
		}
	})
	p.start()
	if !p.Hello.RunsOci || !p.Hello.LimitsEnforced || len(p.Hello.Degradations) > 0 {
		t.Fatalf("this host cannot do all that it should: %v", p.Hello)
	}
	var err error
	if p.groups, err = cgroup.Open(groupsRoot, p.leaf(), p.daemon.PID()); err != nil {
		t.Fatal(err)
	}
	p.load(base)
	return p
}

// start starts the daemon and connects to it once it is there: an emulated processor takes its time.
func (p *pods) start() {
	p.t.Helper()
	_ = os.Remove(p.socket)
	p.daemon.Run(p.t)
	eventually(p.t, "runnerd's socket", func() bool { _, err := os.Stat(p.socket); return err == nil })
	p.Client = p.daemon.Connect()
}

// units counts the control groups of daemons.
var units atomic.Int32

// makeUnit makes the control group that systemd would make for a unit with Delegate=yes.
func (p *pods) makeUnit() {
	p.t.Helper()
	p.unit = fmt.Sprintf("/colloid-%d.service", units.Add(1))
	if err := os.Mkdir(groupsRoot+p.unit, 0o755); err != nil {
		p.t.Fatal(err)
	}
	for _, controller := range []string{"cpu", "memory", "pids", "io"} {
		if err := os.WriteFile(groupsRoot+"/cgroup.subtree_control", []byte("+"+controller), 0); err != nil {
			p.t.Fatalf("controller %s: %v", controller, err)
		}
	}
}

// leaf is where runnerd moves itself, since a group that hands controllers down holds no processes.
func (p *pods) leaf() string { return p.unit + "/daemon" }

// load has the command line load an image, as an operator without a registry does.
func (p *pods) load(base string) {
	p.t.Helper()
	path := filepath.Join(base, "box.tar")
	tag, err := name.NewTag(boxName)
	if err == nil {
		image := imagetest.Busybox(p.t, runtime.GOARCH, v1.Config{Entrypoint: []string{"sh", "-c"}, Env: []string{"PATH=/bin"}},
			imagetest.File{Name: "www/index.html", Content: boxText})
		err = tarball.WriteToFile(path, tag, image)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	program := filepath.Join(os.Getenv(runnerdtest.EnvironmentPrograms), "colloid")
	output, err := exec.Command(program, "--socket", filepath.Join(base, "colloid.sock"), "image", "load", path).CombinedOutput()
	if err != nil {
		p.t.Fatalf("colloid image load: %v: %s", err, output)
	}
	_, digest, _ := strings.Cut(strings.TrimSpace(string(output)), boxName+"@sha256:")
	bytes, err := hex.DecodeString(digest)
	if err != nil || len(bytes) != len(p.digest) {
		p.t.Fatalf("colloid image load says %q", output)
	}
	copy(p.digest[:], bytes)
}

// run starts a container with a script and ends it with the test.
func (p *pods) run(t *testing.T, name, script string, change func(*workload.Spec)) runnerd.InstanceID {
	t.Helper()
	spec := &workload.Spec{Runtime: workload.RuntimeOCI, Replicas: 1, Image: boxName, ImageDigest: p.digest,
		Arguments: []string{script}}
	if change != nil {
		change(spec)
	}
	id := p.Start("spread."+name, 0, spec)
	t.Cleanup(func() {
		p.Stop(id, 0)
		p.AwaitGone(id)
	})
	return id
}

// file is one of an instance's directory.
func (p *pods) file(id runnerd.InstanceID, name string) string {
	return filepath.Join(p.directory, "instances", id.String(), name)
}

// output is what the container has written.
func (p *pods) output(id runnerd.InstanceID) string {
	text, _ := os.ReadFile(p.file(id, shim.FileLog))
	return string(text)
}

// awaitOutput waits for a text in the output.
func (p *pods) awaitOutput(t *testing.T, id runnerd.InstanceID, want string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%q in the output", want), func() bool { return strings.Contains(p.output(id), want) })
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(runnerdtest.Patience); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not come", what)
		}
	}
}
