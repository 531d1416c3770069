package cgroup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestF141_VersionOneFillsWhatVersionTwoLacks(t *testing.T) {
	f := newFake(t, "/unified", "hugetlb")
	for _, path := range []string{"cpu,cpuacct", "memory/own", "pids", "freezer"} {
		if err := os.MkdirAll(filepath.Join(f.root, path), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	mounts := strings.ReplaceAll(`1 0 0:1 / ROOT/unified rw - cgroup2 cgroup2 rw
2 0 0:2 / ROOT/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
3 0 0:3 /docker/x ROOT/memory rw - cgroup cgroup rw,memory
4 0 0:4 / ROOT/pids rw shared:1 - cgroup cgroup rw,pids
`, "ROOT", f.root)
	groups := "4:pids:/\n3:memory:/docker/x/own\n2:cpu,cpuacct:/\n0::/\n"
	mkdir := func(path string) error {
		if err := f.mkdir(path); err != nil {
			return err
		}
		for _, name := range []string{"cpu.cfs_period_us", "cpu.cfs_quota_us", "memory.limit_in_bytes", "freezer.state"} {
			os.WriteFile(filepath.Join(path, name), nil, 0o644)
		}
		return nil
	}
	m, err := detect(mounts, groups, 4711, mkdir, f.rmdir)
	if err != nil || !m.Enforced() {
		t.Fatal(err, m.Missing())
	}
	// Every limit holds, and what is worse than with version 2 is said.
	if weaker := strings.Join(m.Weaker(), "\n"); strings.Count(weaker, "\n") != 2 || !strings.Contains(weaker, "kill one") ||
		!strings.Contains(weaker, "swap") || !strings.Contains(weaker, "controller io") {
		t.Errorf("weaker: %s", weaker)
	}
	group, err := m.Create("a", Limits{CPUMillicores: 500, MemoryMiB: 3})
	if err != nil || len(group) != 4 {
		t.Fatal(group, err)
	}
	for file, want := range map[string]string{
		"cpu,cpuacct/colloid/a/cpu.cfs_quota_us": "50000", "pids/colloid/a/pids.max": "512",
		"memory/own/colloid/a/memory.limit_in_bytes": "3145728",
	} {
		if got := f.read(file); got != want {
			t.Errorf("%s is %q, expected %q", file, got, want)
		}
	}
	if err := group.Add(7); err != nil || f.read("pids/colloid/a/cgroup.procs") != "7" {
		t.Error(err)
	}
	if err := m.Remove("a"); err != nil || len(m.Names()) != 0 {
		t.Error(err, m.Names())
	}
	// Without the memory hierarchy it is said to be missing.
	m, err = detect(strings.ReplaceAll(mounts, "rw,memory", "rw,net_cls"), groups, 4711, mkdir, f.rmdir)
	if err != nil || m.Enforced() || strings.Join(m.Missing(), ",") != "memory" {
		t.Error(err, m.Missing())
	}
	if m, err = detect("", "", 1, mkdir, f.rmdir); m != nil || err == nil {
		t.Error("opened nothing")
	}
}

func TestF141_MemoryKillsAreCounted(t *testing.T) {
	for file, text := range map[string]string{
		"memory.events":      "low 0\nhigh 3\nmax 9\noom 2\noom_kill 5\noom_group_kill 1\n",
		"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n",
	} {
		directory := t.TempDir()
		os.WriteFile(filepath.Join(directory, file), []byte(text), 0o644)
		if n := (Group{"/nowhere", directory}).OOMKills(); n != 5 {
			t.Errorf("%s: %d", file, n)
		}
	}
	if n := (Group{t.TempDir()}).OOMKills(); n != 0 {
		t.Error(n)
	}
}

// TestF141_WeakerIsToldByFile holds that a kernel that limits swap is believed, and that version 2 with all
// controllers lacks nothing.
func TestF141_WeakerIsToldByFile(t *testing.T) {
	parent := t.TempDir()
	m := &Manager{controllers: []string{"cpu", "pids", "io"}, legacy: []legacy{{"memory", parent}}}
	if weaker := m.Weaker(); len(weaker) != 2 {
		t.Errorf("%q", weaker)
	}
	os.WriteFile(filepath.Join(parent, legacySwapFile), nil, 0o644)
	if weaker := m.Weaker(); len(weaker) != 1 {
		t.Errorf("%q", weaker)
	}
	f := newFake(t, "/", "cpu io memory pids")
	if weaker := f.open("/").Weaker(); len(weaker) > 0 {
		t.Errorf("%q", weaker)
	}
	var none *Manager // what is missing altogether is said by Missing
	if weaker := none.Weaker(); len(weaker) > 0 {
		t.Errorf("%q", weaker)
	}
}

// TestF141_RealGroups needs a host that lets this process make groups.
func TestF141_RealGroups(t *testing.T) {
	m, err := Detect(os.Getpid())
	if err != nil {
		t.Skipf("no control groups to write to: %v", err)
	}
	name := "test-" + filepath.Base(t.TempDir()) + "-" + strings.ReplaceAll(filepath.Base(filepath.Dir(t.TempDir())), "/", "")
	group, err := m.Create(name, Limits{CPUMillicores: 500, MemoryMiB: 64, PIDs: 20})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.Remove(name); err != nil {
			t.Error(err)
		}
	}()
	child := startSleep(t)
	if err := group.Add(child.Pid); err != nil {
		t.Fatal(err)
	}
	if members := group.Members(); len(members) != 1 || members[0] != child.Pid {
		t.Errorf("members %v, expected %d", members, child.Pid)
	}
	if err := group.Freeze(); err != nil {
		t.Error(err)
	} else if !group.frozen() {
		t.Error("not frozen")
	}
	if err := group.Thaw(); err != nil || group.frozen() {
		t.Error("not thawed", err)
	}
	if !group.Kill() {
		_ = child.Kill()
	}
	if state, err := child.Wait(); err != nil || state.Exited() {
		t.Errorf("%v, %v", state, err)
	}
}

func startSleep(t *testing.T) *os.Process {
	t.Helper()
	process, err := os.StartProcess("/bin/sleep", []string{"sleep", "60"}, &os.ProcAttr{})
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = process.Kill() })
	return process
}
