// Command runtimes measures how long a container takes from a mounted root to the execution of its program,
// with runnerd's own sandbox, made ahead (container_start_ms) and not (container_start_cold_ms), and, in the same run,
// with the command runc. What a start is in a running cell, with everything around the sandbox, is measured by
// BenchmarkContainerStart of package runnerd. It needs root, a static busybox and runc; without them it says so and
// prints nothing. One line per figure: "BENCH name value", the median.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/runnerd/sandbox"
	"colloid.net/runnerd/shim"
)

const (
	rounds = 50
	base   = 0x7e000000
)

func main() {
	if len(os.Args) == 2 {
		switch os.Args[1] {
		case shim.ArgumentShim:
			os.Exit(shim.Main())
		case shim.ArgumentStage:
			os.Exit(shim.StageMain())
		}
	}
	log.SetFlags(0)
	if os.Geteuid() != 0 {
		log.Print("runtimes: needs root, nothing measured")
		return
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		log.Print("runtimes: needs a static busybox, nothing measured")
		return
	}
	// In memory, as runc keeps its state: what a disk takes to make three small files durable is another figure.
	directory, err := os.MkdirTemp("/dev/shm", "colloid-runtimes-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(directory)
	_ = os.Chmod(directory, 0o755)
	rootfs := makeRootfs(directory, busybox)
	bench("container_start_ms", measure(func() time.Duration { return startOwn(directory, rootfs, true) }))
	bench("container_start_cold_ms", measure(func() time.Duration { return startOwn(directory, rootfs, false) }))
	if runc, err := exec.LookPath("runc"); err == nil {
		bundle := makeBundle(directory, rootfs)
		bench("runc_start_ms", measure(func() time.Duration { return startRunc(runc, directory, bundle) }))
	} else {
		log.Print("runtimes: no runc to compare with")
	}
}

func bench(name string, value float64) { fmt.Printf("BENCH %s %.3f\n", name, value) }

func measure(start func() time.Duration) float64 {
	var list []time.Duration
	for range rounds {
		list = append(list, start())
	}
	slices.Sort(list)
	return float64(list[len(list)/2]) / float64(time.Millisecond)
}

// makeRootfs makes the root of an image with one program.
func makeRootfs(directory, busybox string) string {
	rootfs := filepath.Join(directory, "root")
	content, err := os.ReadFile(busybox)
	for _, name := range []string{"bin", "etc", "proc", "sys", "dev", "tmp"} {
		if err == nil {
			err = os.MkdirAll(filepath.Join(rootfs, name), 0o755)
		}
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(rootfs, "bin/true"), content, 0o755)
	}
	if err == nil {
		err = filepath.Walk(rootfs, func(path string, _ os.FileInfo, err error) error {
			if err != nil {
				return err
			}
			return os.Lchown(path, base, base)
		})
	}
	if err != nil {
		log.Fatal(err)
	}
	return rootfs
}

// startOwn starts a container as runnerd does: a shim that writes down who runs, then the sandbox.
// It has been executed when Launch returns. Making a sandbox ahead is not in the time.
func startOwn(directory, rootfs string, warm bool) time.Duration {
	config := &shim.Config{
		Directory: directory, Arguments: []string{"/bin/true"},
		Sandbox: &sandbox.Config{Rootfs: rootfs, UIDBase: base, GIDBase: base, Count: sandbox.IDCount, Hostname: "bench",
			Init: true},
	}
	launch := func() (shim.Started, error) { return shim.Launch(config, nil) }
	if warm {
		spare, err := shim.Prepare(&shim.Config{Directory: filepath.Dir(directory), Sandbox: &sandbox.Config{UIDBase: base,
			GIDBase: base, Count: sandbox.IDCount, Init: true}})
		if err != nil {
			log.Fatal(err)
		}
		launch = func() (shim.Started, error) { return spare.Launch(config) }
	}
	began := time.Now()
	started, err := launch()
	took := time.Since(began)
	if err != nil {
		log.Fatal(err)
	}
	started.Shim.Wait(10*time.Second, nil)
	_, _ = unix.Wait4(started.Shim.PID, nil, 0, nil)
	return took
}

// makeBundle describes the same container to runc.
func makeBundle(directory, rootfs string) string {
	bundle := filepath.Join(directory, "bundle")
	c := &sandbox.Config{Rootfs: rootfs, UIDBase: base, GIDBase: base, Count: sandbox.IDCount, Hostname: "bench"}
	err := os.Mkdir(bundle, 0o755)
	var config []byte
	if err == nil {
		config, _, err = sandbox.Bundle(c, sandbox.Program{Arguments: []string{"/bin/true"}}, rootfs, bundle)
	}
	if err == nil && !json.Valid(config) {
		err = fmt.Errorf("the bundle is not valid")
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(bundle, "config.json"), config, 0o644)
	}
	if err != nil {
		log.Fatal(err)
	}
	return bundle
}

// startRunc runs the same with "runc run", which returns when true has ended; the end of true itself takes
// a fraction of a millisecond.
func startRunc(runc, directory, bundle string) time.Duration {
	command := exec.Command(runc, "--root", filepath.Join(directory, "runc"), "run", "--bundle", bundle, "bench")
	began := time.Now()
	output, err := command.CombinedOutput()
	took := time.Since(began)
	if err != nil {
		log.Fatalf("%v: %s", err, output)
	}
	return took
}
