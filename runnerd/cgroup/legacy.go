package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// legacy is one hierarchy of version 1 that stands in for a controller which version 2 lacks here.
type legacy struct {
	controller string
	parent     string // directory of the instances' groups
}

// legacyWanted are the controllers that are looked for in version 1, with the freezer, which version 2
// has without a controller.
var legacyWanted = append(slices.Clone(controllersWanted), "freezer")

// findLegacy finds where a controller of version 1 is mounted and which group this process is in there.
func findLegacy(mounts, groups, controller string) (path string, found bool) {
	root, inside := "", ""
	for line := range strings.SplitSeq(mounts, "\n") {
		before, after, ok := strings.Cut(line, " - ")
		fields, options := strings.Fields(before), strings.Fields(after)
		if ok && len(fields) >= 5 && len(options) == 3 && options[0] == "cgroup" &&
			slices.Contains(strings.Split(options[2], ","), controller) {
			inside, root = fields[3], fields[4]
			break
		}
	}
	if root == "" || strings.Contains(root, `\`) {
		return "", false
	}
	for line := range strings.SplitSeq(groups, "\n") {
		fields := strings.SplitN(line, ":", 3)
		if len(fields) == 3 && slices.Contains(strings.Split(fields[1], ","), controller) && filepath.IsAbs(fields[2]) {
			// In a container the mount shows a part of the hierarchy only.
			return filepath.Join(root, strings.TrimPrefix(filepath.Clean(fields[2]), strings.TrimSuffix(inside, "/"))), true
		}
	}
	return "", false
}

// Detect opens what this host has: version 2 first, version 1 for the controllers that are missing there
// (hybrid hosts). A nil Manager with an error means that there will be no groups.
func Detect(pid int) (*Manager, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	return detect(string(mounts), string(groups), pid, mkdir, os.Remove)
}

func detect(mounts, groups string, pid int, mkdir, rmdir func(string) error) (*Manager, error) {
	root, own, err := find(mounts, groups)
	m := &Manager{mkdir: mkdir, rmdir: rmdir}
	if err == nil {
		var opened *Manager
		if opened, err = open(root, own, pid, mkdir, rmdir); err == nil {
			m = opened
		}
	}
	for _, controller := range legacyWanted {
		if slices.Contains(m.controllers, controller) || controller == "freezer" && m.canFreeze() {
			continue
		}
		if path, found := findLegacy(mounts, groups, controller); found {
			m.addLegacy(controller, path, pid)
		}
	}
	if m.parent == "" && len(m.legacy) == 0 {
		return nil, err
	}
	return m, nil
}

// canFreeze reports whether version 2 is there at all: freezing needs no controller.
func (m *Manager) canFreeze() bool {
	_, err := os.Stat(filepath.Join(m.parent, "cgroup.freeze"))
	return m.parent != "" && err == nil
}

// addLegacy takes a hierarchy of version 1 if groups can be made in it.
func (m *Manager) addLegacy(controller, path string, pid int) {
	parent := filepath.Join(path, instancesName)
	probe := filepath.Join(parent, fmt.Sprintf("probe-%d", pid))
	if m.ensure(parent) != nil || m.ensureBelow(probe) != nil {
		return
	}
	_ = m.rmdir(probe)
	m.legacy = append(m.legacy, legacy{controller, parent})
}

// legacySwapFile limits memory and swap together.
const legacySwapFile = "memory.memsw.limit_in_bytes"

// controls are the files of a group of version 1 and what they are set to. In memory the limit of memory
// and swap together can only be set after the one of memory, and only where swap is accounted.
func (l legacy) controls(limits Limits) []control {
	switch l.controller {
	case "cpu":
		quota := "-1"
		if limits.CPUMillicores > 0 {
			quota = strconv.FormatUint(quotaOf(limits.CPUMillicores), 10)
		}
		list := []control{
			{"cpu.cfs_period_us", strconv.Itoa(periodMicroseconds), false}, {"cpu.cfs_quota_us", quota, false},
		}
		if limits.WeightPercent > 0 { // 1 % is well above the least that the kernel takes
			list = append(list, control{"cpu.shares", weightOf(limits.WeightPercent, cpuShares), true})
		}
		return list
	case "memory":
		if limits.MemoryMiB == 0 {
			return nil
		}
		bytes := strconv.FormatUint(uint64(limits.MemoryMiB)<<20, 10)
		return []control{
			{"memory.swappiness", "0", true}, {"memory.limit_in_bytes", bytes, false},
			{legacySwapFile, bytes, true},
		}
	case "pids":
		return []control{{"pids.max", pidsOf(limits), false}}
	}
	return nil
}
