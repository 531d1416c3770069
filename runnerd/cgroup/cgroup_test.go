package cgroup

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// fake is a directory that behaves like cgroupfs: a new group has its control files.
type fake struct {
	t    *testing.T
	root string
}

func newFake(t *testing.T, own, controllers string) *fake {
	f := &fake{t: t, root: t.TempDir()}
	base := filepath.Join(f.root, own)
	if err := os.MkdirAll(base, 0o755); err != nil {
		t.Fatal(err)
	}
	f.populate(base, controllers)
	return f
}

func (f *fake) populate(path, controllers string) {
	for _, name := range []string{"cgroup.procs", "cgroup.subtree_control", "cgroup.kill", "cpu.max", "cpu.weight", "memory.max",
		"memory.swap.max", "memory.high", "memory.oom.group", "pids.max", "io.weight", "cgroup.freeze"} {
		os.WriteFile(filepath.Join(path, name), nil, 0o644)
	}
	os.WriteFile(filepath.Join(path, "cgroup.controllers"), []byte(controllers+"\n"), 0o644)
}

func (f *fake) mkdir(path string) error {
	if err := os.Mkdir(path, 0o755); err != nil {
		return err
	}
	f.populate(path, "")
	return nil
}

func (f *fake) rmdir(path string) error {
	if entries, err := os.ReadDir(path); err == nil {
		for _, entry := range entries {
			if entry.IsDir() {
				return os.Remove(path) // not empty
			}
		}
	}
	return os.RemoveAll(path)
}

func (f *fake) read(path string) string {
	f.t.Helper()
	text, err := os.ReadFile(filepath.Join(f.root, path))
	if err != nil {
		f.t.Fatal(err)
	}
	return string(text)
}

func (f *fake) open(own string) *Manager {
	f.t.Helper()
	m, err := open(f.root, own, 4711, f.mkdir, f.rmdir)
	if err != nil {
		f.t.Fatal(err)
	}
	return m
}

func TestF141_LimitsAreSetInAGroupBelowTheOwn(t *testing.T) {
	f := newFake(t, "/colloid.slice/runnerd.service", "cpuset cpu io memory pids")
	m := f.open("/colloid.slice/runnerd.service")
	if !m.Enforced() || len(m.Missing()) != 0 {
		t.Fatalf("missing %v", m.Missing())
	}
	base := "/colloid.slice/runnerd.service"
	if got := f.read(base + "/daemon/cgroup.procs"); got != "4711" {
		t.Errorf("runnerd moved to its leaf: %q", got)
	}
	group, err := m.Create("0123-0-abcd", Limits{CPUMillicores: 250, MemoryMiB: 64, PIDs: 7})
	if err != nil || len(group) != 1 || group[0] != filepath.Join(f.root, base, "colloid/0123-0-abcd") {
		t.Fatal(group, err)
	}
	for file, want := range map[string]string{
		"cpu.max": "25000 100000", "memory.max": "67108864", "memory.swap.max": "0", "memory.oom.group": "1",
		"pids.max": "7", "memory.high": "66060288", "io.weight": "100",
	} {
		if got := f.read(base + "/colloid/0123-0-abcd/" + file); got != want {
			t.Errorf("%s is %q, expected %q", file, got, want)
		}
	}
	if err := group.Add(99); err != nil || !slices.Equal(group.Members(), []int{99}) {
		t.Errorf("%v, %v", err, group.Members())
	}
	if !group.Kill() || f.read(base+"/colloid/0123-0-abcd/cgroup.kill") != "1" {
		t.Error("not killed")
	}
	if err := f.mkdir(filepath.Join(group[0], "made-by-the-workload")); err != nil {
		t.Fatal(err)
	}
	if err := m.Remove("0123-0-abcd"); err != nil || len(m.Names()) != 0 {
		t.Errorf("%v, left %v", err, m.Names())
	}
	if err := m.Remove("0123-0-abcd"); err != nil {
		t.Errorf("removing twice: %v", err)
	}
	for _, name := range []string{"", "..", "../x", "a/b"} {
		if err := m.Remove(name); err == nil {
			t.Errorf("removed %q", name)
		}
	}
	again := f.open(base + "/daemon") // after a restart inside the leaf
	if again.parent != m.parent {
		t.Errorf("%s, expected %s", again.parent, m.parent)
	}
}

func TestF141_DefaultsWithoutARequest(t *testing.T) {
	f := newFake(t, "/", "cpu memory pids")
	m := f.open("/")
	if _, err := os.Stat(filepath.Join(f.root, "daemon")); err == nil {
		t.Error("the root group needs no leaf")
	}
	if _, err := m.Create("a", Limits{}); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{"cpu.max": "max 100000", "memory.max": "max", "pids.max": "512"} {
		if got := f.read("/colloid/a/" + file); got != want {
			t.Errorf("%s is %q, expected %q", file, got, want)
		}
	}
	if _, err := m.Create("tiny", Limits{CPUMillicores: 1}); err != nil || f.read("/colloid/tiny/cpu.max") != "1000 100000" {
		t.Error(err, f.read("/colloid/tiny/cpu.max"))
	}
}

func TestF141_MissingControllersAreNamed(t *testing.T) {
	f := newFake(t, "/own", "cpu")
	m := f.open("/own")
	if m.Enforced() || strings.Join(m.Missing(), ",") != "memory,pids" {
		t.Fatalf("%v", m.Missing())
	}
	if _, err := m.Create("a", Limits{CPUMillicores: 1000, MemoryMiB: 5}); err != nil {
		t.Fatal(err)
	}
	if f.read("/own/colloid/a/memory.max") != "" || f.read("/own/colloid/a/cpu.max") != "100000 100000" {
		t.Error("wrong limits")
	}
	var none *Manager
	if none.Enforced() || len(none.Missing()) != 3 {
		t.Error("a host without groups enforces nothing")
	}
	refuse := func(string) error { return os.ErrPermission }
	if _, err := open(f.root, "/other", 1, refuse, f.rmdir); err == nil {
		t.Error("opened where nothing may be written")
	}
}

func TestFindReadsMountsAndGroups(t *testing.T) {
	const hybrid = `24 1 0:22 / /sys/fs/cgroup rw - tmpfs tmpfs rw
25 24 0:23 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu
26 24 0:24 / /sys/fs/cgroup/unified rw,nosuid shared:9 - cgroup2 cgroup2 rw
`
	for _, c := range []struct{ mounts, groups, root, own string }{
		{hybrid, "4:memory:/x\n0::/a/b\n", "/sys/fs/cgroup/unified", "/a/b"},
		{hybrid, "0::/\n", "/sys/fs/cgroup/unified", "/"},
		{hybrid, "4:memory:/x\n", "", ""},
		{"", "0::/\n", "", ""},
		{"1 2 3 - cgroup2", "0::/\n", "", ""},
	} {
		root, own, err := find(c.mounts, c.groups)
		if root != c.root || own != c.own || (err != nil) != (c.root == "") {
			t.Errorf("%q, %q, %v", root, own, err)
		}
	}
	_, _, _ = Mount()
}

// TestCloseRemovesWhatNobodyUses: the group above those of instances goes with the last runnerd, not before the last
// instance, and another runnerd that shares it makes it again.
func TestCloseRemovesWhatNobodyUses(t *testing.T) {
	f := newFake(t, "/own", "cpu io memory pids")
	m, other := f.open("/own"), f.open("/own")
	parent := filepath.Join(f.root, "own", instancesName)
	if _, err := m.Create("one", Limits{}); err != nil {
		t.Fatal(err)
	}
	m.Close()
	if _, err := os.Stat(filepath.Join(parent, "one")); err != nil {
		t.Fatalf("the group of an instance is gone: %v", err)
	}
	if err := m.Remove("one"); err != nil {
		t.Fatal(err)
	}
	m.Close()
	if _, err := os.Stat(parent); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", parent, err)
	}
	if _, err := other.Create("two", Limits{MemoryMiB: 7}); err != nil {
		t.Fatal(err)
	}
	if enabled := f.read("own/colloid/cgroup.subtree_control"); enabled == "" {
		t.Error("the controllers are not handed down in the group that was made again")
	}
	(*Manager)(nil).Close()
}

// TestStandby_WhatNobodyWaitsForWeighsLittle, until it is weighed again.
func TestStandby_WhatNobodyWaitsForWeighsLittle(t *testing.T) {
	f := newFake(t, "/r", "cpu io memory pids")
	m := f.open("/r")
	for _, c := range []struct {
		percent      uint32
		cpu, io, v1s string
	}{{0, "100", "100", ""}, {1, "1", "1", "10"}, {10, "10", "10", "102"}} {
		group, err := m.Create("x", Limits{WeightPercent: c.percent})
		if err != nil {
			t.Fatal(err)
		}
		if c.percent > 0 && f.read("/r/colloid/x/cpu.weight") != c.cpu || f.read("/r/colloid/x/io.weight") != c.io {
			t.Errorf("%d: %s, %s", c.percent, f.read("/r/colloid/x/cpu.weight"), f.read("/r/colloid/x/io.weight"))
		}
		found := slices.Contains(legacy{controller: "cpu"}.controls(Limits{WeightPercent: c.percent}), control{"cpu.shares", c.v1s, true})
		if found != (c.v1s != "") {
			t.Errorf("%d: version 1 gets %v", c.percent, legacy{controller: "cpu"}.controls(Limits{WeightPercent: c.percent}))
		}
		group.Weigh(100)
		if f.read("/r/colloid/x/cpu.weight") != "100" || f.read("/r/colloid/x/io.weight") != "100" {
			t.Error("it is not even again")
		}
		if err := m.Remove("x"); err != nil {
			t.Fatal(err)
		}
	}
}
