package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A cell's processes start in a control group of their own where version 2 can be written; the helpers
// then make theirs below it. The kernel kills such a group as one, and removing it is easy.

// controlGroupBase is the directory of our own version 2 group, "" when there is none.
func controlGroupBase() string {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return ""
	}
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return ""
	}
	root, own := "", ""
	for line := range strings.Lines(string(mounts)) {
		before, after, found := strings.Cut(line, " - ")
		if fields := strings.Fields(before); found && len(fields) > 4 && strings.HasPrefix(after, "cgroup2 ") {
			root = fields[4]
		}
	}
	for line := range strings.Lines(string(groups)) {
		if path, found := strings.CutPrefix(line, "0::"); found {
			own = strings.TrimSpace(path)
		}
	}
	if root == "" || own == "" {
		return ""
	}
	return filepath.Join(root, own)
}

// controlGroup makes the group of a cell, "" when that is not possible.
func controlGroup(clusterDirectory, cell string) string {
	base := controlGroupBase()
	if base == "" {
		return ""
	}
	path := filepath.Join(base, filepath.Base(clusterDirectory), cell)
	if err := os.MkdirAll(path, 0o755); err != nil {
		return ""
	}
	return path
}

// startInGroup starts a command inside a group; with "" it just starts it.
func startInGroup(group string, command *exec.Cmd, start func() error) error {
	if group == "" {
		return start()
	}
	directory, err := os.Open(group)
	if err != nil {
		return fmt.Errorf("control group: %w", err)
	}
	defer directory.Close()
	command.SysProcAttr.UseCgroupFD = true
	command.SysProcAttr.CgroupFD = int(directory.Fd())
	return start()
}

// groupProcesses lists the processes of a group and of all below it.
func groupProcesses(group string) map[int]bool {
	found := map[int]bool{}
	if group == "" {
		return found
	}
	_ = filepath.WalkDir(group, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return nil
		}
		text, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		if err != nil {
			return nil // removed meanwhile
		}
		for _, word := range strings.Fields(string(text)) {
			if id, err := strconv.Atoi(word); err == nil {
				found[id] = true
			}
		}
		return nil
	})
	return found
}

// killGroup kills a whole group at once. Kernels before 5.14 lack the file; the caller then kills one
// by one.
func killGroup(group string) {
	if group == "" {
		return
	}
	file, err := os.OpenFile(filepath.Join(group, "cgroup.kill"), os.O_WRONLY, 0)
	if err != nil {
		return
	}
	defer file.Close()
	_, _ = file.WriteString("1")
}

// controlGroups finds the groups of a cluster, parents before children.
func controlGroups(directory string) []string {
	base := controlGroupBase()
	if base == "" {
		return nil
	}
	return groupTree(filepath.Join(base, filepath.Base(directory)))
}

func groupTree(top string) []string {
	var found []string
	_ = filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			found = append(found, path)
		}
		return nil
	})
	return found
}

// legacyGroups finds the groups of version 1 that runnerd made for instances (package cgroup) and that hold
// some of these processes. They lie below the group of whoever started the tests, which is not the cell's alone.
func legacyGroups(processes []int) []string {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	found := map[string]bool{}
	for _, id := range processes {
		groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", id))
		if err != nil {
			continue // it ended meanwhile
		}
		for line := range strings.Lines(string(groups)) {
			fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
			if len(fields) != 3 || filepath.Base(filepath.Dir(fields[2])) != "colloid" {
				continue
			}
			if root := legacyRoot(string(mounts), fields[1]); root != "" {
				found[filepath.Join(root, fields[2])] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// legacyRoot is where the hierarchy of these controllers is mounted, "" if it is not of version 1.
func legacyRoot(mounts, controllers string) string {
	for line := range strings.Lines(mounts) {
		before, after, found := strings.Cut(line, " - ")
		fields, options := strings.Fields(before), strings.Fields(after)
		if found && len(fields) > 4 && len(options) == 3 && options[0] == "cgroup" && fields[3] == "/" &&
			strings.HasSuffix(","+options[2], ","+controllers) {
			return fields[4]
		}
	}
	return ""
}

// removeTries bounds the wait for a group that was just emptied.
const removeTries = 100

// removeControlGroups removes the groups of a cluster.
func removeControlGroups(directory string) error { return removeGroups(controlGroups(directory)) }

// removeGroups removes empty groups, children first.
func removeGroups(groups []string) error {
	var problems []error
	for i := len(groups) - 1; i >= 0; i-- {
		var err error
		for range removeTries {
			if err = unix.Rmdir(groups[i]); !errors.Is(err, unix.EBUSY) {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			problems = append(problems, fmt.Errorf("remove control group %s: %w", groups[i], err))
		}
	}
	return errors.Join(problems...)
}
