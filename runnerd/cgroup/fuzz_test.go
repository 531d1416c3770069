package cgroup

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// FuzzFind holds where groups are looked for: in absolute directories below a mount, in both versions.
func FuzzFind(f *testing.F) {
	f.Add("30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "0::/user.slice\n")
	f.Add("31 23 0:27 /a /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n", "5:pids:/a/b\n0::/../x\n")
	f.Add("30 23 0:26 / /a\\040b rw - cgroup2 cgroup2 rw\n", "0::/\n")
	f.Fuzz(func(t *testing.T, mounts, groups string) {
		if root, own, err := find(mounts, groups); err == nil {
			if root == "" || !filepath.IsAbs(own) || filepath.Clean(own) != own || !strings.Contains(mounts, root) {
				t.Fatalf("%q and %q give %q, %q", mounts, groups, root, own)
			}
		} else if root != "" || own != "" {
			t.Fatalf("%q, %q beside %v", root, own, err)
		}
		for _, controller := range legacyWanted {
			path, found := findLegacy(mounts, groups, controller)
			if found != (path != "") {
				t.Fatalf("%q, %t", path, found)
			}
			if found && (!strings.Contains(mounts, controller) || !strings.Contains(groups, controller) || filepath.Clean(path) != path) {
				t.Fatalf("%s at %q out of %q and %q", controller, path, mounts, groups)
			}
		}
	})
}

func FuzzParseCounter(f *testing.F) {
	f.Add("anon 5\noom_kill 7\n", "oom_kill")
	f.Add("oom_kill -1\n", "oom_kill")
	f.Add(strings.Repeat("x", 70_000)+"\noom_kill 1\n", "oom_kill")
	f.Fuzz(func(t *testing.T, text, name string) {
		n, found := parseCounter(strings.NewReader(text), name)
		if found && !strings.Contains(text, name) || !found && n != 0 && n != 1<<64-1 {
			t.Fatalf("%q of %q is %d, %t", name, text, n, found)
		}
		if len(strings.Fields(name)) == 1 && strings.TrimSpace(name) == name && len(name) < 1<<10 {
			line := fmt.Sprintf("%s 42\n", name)
			if n, found := parseCounter(strings.NewReader(line+text), name); !found || n != 42 {
				t.Fatalf("%q: %d, %t", line, n, found)
			}
		}
	})
}

func FuzzParseMembers(f *testing.F) {
	f.Add("1\n2\n2\n-5\n99999999999\n007\n")
	f.Fuzz(func(t *testing.T, text string) {
		pids := parseMembers(parseMembers(nil, strings.Fields(text)), strings.Fields(text))
		if len(pids) > len(strings.Fields(text)) {
			t.Fatalf("%v out of %q", pids, text)
		}
		slices.Sort(pids)
		if len(slices.Compact(pids)) != len(pids) || len(pids) > 0 && pids[0] <= 0 {
			t.Fatalf("%v out of %q", pids, text)
		}
	})
}
