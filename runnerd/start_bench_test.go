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

	"colloid.net/runnerd/image/imagetest"
	"colloid.net/runnerd/runnerdtest"
	"colloid.net/workload"
)

// BenchmarkContainerStart measures what a start takes from the Start command to the execution of the program,
// as the meshd sees it: runnerd, the image store, the pod network and the control groups are those of a
// running host, the image is here. It reports medians.
func BenchmarkContainerStart(b *testing.B) {
	const variable = "RUNNERD_TEST_OWN_NETWORK"
	if os.Geteuid() != 0 || !imagetest.HasShell() {
		b.Skip("needs root and a static busybox")
	}
	if os.Getenv(variable) == "" {
		command := exec.Command("/proc/self/exe", "-test.run", "^$", "-test.bench", "^"+b.Name()+"$", "-test.benchtime", "40x")
		command.Env = append(os.Environ(), variable+"=1")
		command.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
		command.Stdout, command.Stderr = os.Stdout, os.Stderr
		if err := command.Run(); err != nil {
			b.Fatal(err)
		}
		return
	}
	if b.N == 1 {
		return
	}
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
	digest := registry.Push(b, "test/box:1", imagetest.Busybox(b, runtime.GOARCH, v1.Config{Entrypoint: []string{"/bin/sleep", "1000"}}))
	var sum [32]byte
	for n := range sum {
		fmt.Sscanf(digest.Hex[2*n:2*n+2], "%02x", &sum[n])
	}
	d := &runnerdtest.Daemon{Directory: filepath.Join(base, "state"), Policy: policy}
	d.Run(b)
	client := d.Connect()
	start := func(slot uint32) time.Duration {
		spec := &workload.Spec{
			Runtime: workload.RuntimeOCI, Replicas: 1, Image: registry.Host + "/test/box:1", ImageDigest: sum,
			Ports: []workload.Port{{Host: uint16(20000 + slot), Container: 80}},
		}
		began := time.Now()
		id := client.Start("spread.bench", slot, spec)
		client.Until("a process", func() bool { return client.Locked(id).GetPid() != 0 })
		took := time.Since(began)
		if slot == 0 { // the host has a container all the time
			return took
		}
		client.Stop(id, 0)
		client.AwaitGone(id)
		return took
	}
	start(0)
	pause, _ := time.ParseDuration(os.Getenv("PAUSE"))
	var times []time.Duration
	for n := range b.N {
		time.Sleep(pause)
		times = append(times, start(uint32(n+1)))
	}
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Microseconds())/1000, "ms/start")
	if text, err := os.ReadFile(d.Log); err == nil {
		os.Stderr.Write(text)
	}
}
