package runnerd_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"colloid.net/runnerd"
	"colloid.net/runnerd/image/imagetest"
	"colloid.net/runnerd/record"
	"colloid.net/runnerd/runnerdtest"
	"colloid.net/workload"
)

// BenchmarkContainerStart measures what a start takes from the Start command to the execution of the program,
// as meshd sees it: with the command of runnerd, its image store, the network of containers and control groups,
// on a host where a container runs already and the image is here. It reports medians: ms/start is that of starts
// that a prepared sandbox waited for, ms/cold that of the others. Their workload has a volume, which keeps it
// from having one.
func BenchmarkContainerStart(b *testing.B) {
	const variable = "RUNNERD_TEST_OWN_NETWORK"
	if os.Geteuid() != 0 || !imagetest.HasShell() {
		b.Skip("needs root and a static busybox")
	}
	if os.Getenv(variable) == "" {
		runInOwnNetwork(b, variable)
		return
	}
	if b.N == 1 { // the framework's first try
		return
	}
	s := newStarts(b)
	s.start(0, false) // runs to the end
	times := map[bool][]time.Duration{}
	for n := range b.N {
		time.Sleep(400 * time.Millisecond) // starts come seldom
		took, prepared := s.start(uint32(n+1), n%2 == 1)
		times[prepared] = append(times[prepared], took)
	}
	for prepared, unit := range map[bool]string{true: "ms/start", false: "ms/cold"} {
		if list := times[prepared]; len(list) > 0 {
			slices.Sort(list)
			b.ReportMetric(float64(list[len(list)/2].Microseconds())/1000, unit)
		}
	}
	s.client.Stop(s.first, 0)
	s.client.AwaitGone(s.first)
}

func runInOwnNetwork(b *testing.B, variable string) {
	if b.N > 1 {
		return
	}
	command := exec.Command("/proc/self/exe", "-test.run", "^$", "-test.bench", "^"+b.Name()+"$", "-test.benchtime", "60x")
	command.Env = append(os.Environ(), variable+"=1")
	command.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	if err := command.Run(); err != nil {
		b.Fatal(err)
	}
}

// starts is a runnerd with an image.
type starts struct {
	b         *testing.B
	client    *runnerdtest.Client
	spec      workload.Spec
	directory string
	first     runnerd.InstanceID
}

func newStarts(b *testing.B) *starts {
	loopback, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(loopback)
	}
	if err != nil {
		b.Fatal(err)
	}
	registry := imagetest.NewPlainRegistry(b)
	base := b.TempDir()
	policy := filepath.Join(base, "policy")
	text := fmt.Sprintf("registry %s { http; private }\nallow_unlimited\ninstances 1024\n", registry.Host)
	if err := os.WriteFile(policy, []byte(text), 0o644); err != nil {
		b.Fatal(err)
	}
	config := v1.Config{Entrypoint: []string{"/bin/sleep", "1000"}}
	digest := registry.Push(b, "test/box:1", imagetest.Busybox(b, runtime.GOARCH, config))
	s := &starts{b: b, directory: filepath.Join(base, "state"), spec: workload.Spec{
		Runtime: workload.RuntimeOCI, Replicas: 1, Image: registry.Host + "/test/box:1",
	}}
	for n := range s.spec.ImageDigest {
		fmt.Sscanf(digest.Hex[2*n:2*n+2], "%02x", &s.spec.ImageDigest[n])
	}
	d := &runnerdtest.Daemon{Directory: s.directory, Policy: policy}
	d.Run(b)
	s.client = d.Connect()
	return s
}

// start starts a container that publishes a port, and ends it unless it is the first. Prepared says whether a
// sandbox waited for it.
func (s *starts) start(slot uint32, volume bool) (took time.Duration, prepared bool) {
	spec := s.spec
	spec.Ports = []workload.Port{{Host: uint16(20000 + slot), Container: 80}}
	key := "spread.bench"
	if volume {
		key, spec.Stateful = "stateful.bench", true
		spec.Volumes = []workload.Volume{{Name: "data", MountPath: "/data"}}
	}
	began := time.Now()
	id := s.client.Start(key, slot, &spec)
	s.client.Until("a process", func() bool { return s.client.Locked(id).GetPid() != 0 })
	took = time.Since(began)
	r, err := record.Load(filepath.Join(s.directory, "instances", id.String(), "container"))
	if err != nil {
		s.b.Fatal(err)
	}
	if slot == 0 {
		s.first = id
		return took, false
	}
	s.client.Stop(id, 0)
	s.client.AwaitGone(id)
	return took, r.Get("seat") != ""
}
