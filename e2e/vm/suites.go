package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// suite is one test binary and what of it is run in the guest.
type suite struct {
	name, packagePath, run string
	leave                  string // what of it takes minutes on an emulated processor and is tested elsewhere as well
	counted                bool   // it measures: it gets a guest whose clock counts instructions
	// skips are the tests that may skip, with the reason. Every other one that does fails the whole: what a
	// suite finds missing in the guest has to be put there.
	skips map[string]string
}

// suites are in the order of what they stand on.
var suites = []suite{
	{name: "cgroup", packagePath: "./runnerd/cgroup", run: "."},
	{name: "reactor", packagePath: "./meshd/reactor", run: ".", skips: map[string]string{
		"TestF127_LoopLatencyUnderGarbageCollection": "its bound is one of a real processor",
	}},
	{name: "seccomp", packagePath: "./runnerd/sandbox/seccomp", run: "."},
	{name: "store", packagePath: "./runnerd/image/store", run: ".", leave: "ManyLayers|ScratchSpaceIsLimited|AFullDiskRefuses"},
	{name: "shim", packagePath: "./runnerd/shim", run: "F138|F139", leave: "NothingIsLeftBehind|UsersAreThoseOfTheImage"},
	{name: "guest", packagePath: "./runnerd/guest", run: "."},
	{name: "netem", packagePath: "./meshd/netem", run: ".", counted: true},
}

// programs are what the suites start, built as they are shipped, and the checklist of ways out of a container.
var programs = []string{"./cmd/colloid", "./cmd/runnerd", "./cmd/runnerd-shim", "./runnerd/sandbox/escape"}

// names of the directories on the guest's disk.
const (
	testsName    = "t"
	programsName = "p"
)

// choose gives the suites that the flags ask for.
func choose() ([]suite, error) {
	var chosen []suite
	for _, s := range suites {
		if *only != "" && !slices.Contains(strings.Split(*only, ","), s.name) {
			continue
		}
		if *pattern != "" {
			s.run, s.leave = *pattern, ""
		}
		s.counted = s.counted || *counted
		chosen = append(chosen, s)
	}
	if len(chosen) == 0 {
		var names []string
		for _, s := range suites {
			names = append(names, s.name)
		}
		return nil, fmt.Errorf("no suite %q: there are %s", *only, strings.Join(names, ", "))
	}
	return chosen, nil
}

// compile builds the test binaries of the suites and the programs that they start.
func compile(ctx context.Context, root string, chosen []suite) error {
	build := func(arguments ...string) error {
		command := exec.CommandContext(ctx, "go", arguments...)
		command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH=amd64", "GOOS=linux")
		command.Stderr = os.Stderr
		if err := command.Run(); err != nil {
			return fmt.Errorf("go %s: %w", strings.Join(arguments, " "), err)
		}
		return nil
	}
	for _, name := range []string{testsName, programsName} {
		if err := os.Mkdir(filepath.Join(root, name), 0o755); err != nil {
			return err
		}
	}
	const strip = "-ldflags=-s -w"
	for _, s := range chosen {
		path := filepath.Join(root, testsName, s.name+".test")
		if err := build("test", "-c", strip, "-o", path, s.packagePath); err != nil {
			return err
		}
	}
	return build(append([]string{"build", strip, "-o", filepath.Join(root, programsName) + "/"}, programs...)...)
}
