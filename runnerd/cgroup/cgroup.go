// Package cgroup keeps each instance in a control group of its own (F141), below the group that
// runnerd itself was given:
//
//	<own group>/daemon                                runnerd, where controllers are handed down
//	<own group>/colloid/<key hash>-<slot>-<nonce>     one instance
//
// Version 2 comes first. Where it lacks a controller, as on hybrid hosts, the hierarchy of version 1 that
// has it is used beside it, with a group of the same name. What neither has is named by Missing, and
// Enforced is then false. Where nothing can be written, Manager is nil and instances run without groups.
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Limits of one instance. Zero means none, except PIDs: zero is PIDsDefault.
type Limits struct {
	CPUMillicores uint32
	MemoryMiB     uint32
	PIDs          uint32
	// WeightPercent is the share of processors and disks beside the others, where there is not enough of them: 100 is an even
	// one, as 0 is.
	WeightPercent uint32
}

// PIDsDefault bounds the processes of an instance whose specification says nothing.
const PIDsDefault = 512

const (
	periodMicroseconds = 100_000
	quotaMinimum       = 1_000 // the kernel refuses less
	ioWeight           = 100   // all instances share a disk evenly
	cpuWeight          = 100   // the kernel's own default
	cpuShares          = 1024  // the same, version 1
	// highFraction of the limit is a brake: from there on the kernel takes page cache back before it kills.
	// It is small, because what is not cache is slowed down there for nothing.
	highFraction  = 64
	instancesName = "colloid"
	daemonName    = "daemon"
	removeTries   = 100
)

var controllersWanted = []string{"cpu", "memory", "pids"}

// Manager makes and removes groups. Its methods may be called from several goroutines.
type Manager struct {
	parent      string // directory of the instances' groups, "" = no version 2
	controllers []string
	legacy      []legacy                // of version 1, for what version 2 lacks
	mkdir       func(path string) error // os.Mkdir, or that of a fake
	rmdir       func(path string) error
}

// Mount finds where version 2 is mounted and which group this process is in there.
func Mount() (root, own string, err error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", "", err
	}
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", "", err
	}
	return find(string(mounts), string(groups))
}

var errAbsent = errors.New("cgroup v2 is not mounted")

func find(mounts, groups string) (root, own string, err error) {
	for line := range strings.SplitSeq(mounts, "\n") {
		before, after, found := strings.Cut(line, " - ")
		fields := strings.Fields(before)
		if found && len(fields) >= 5 && strings.HasPrefix(after, "cgroup2 ") {
			root = fields[4]
			break
		}
	}
	if root == "" || strings.Contains(root, `\`) { // an escaped path: nobody mounts it there
		return "", "", errAbsent
	}
	for line := range strings.SplitSeq(groups, "\n") {
		if path, found := strings.CutPrefix(line, "0::"); found && filepath.IsAbs(path) {
			return root, filepath.Clean(path), nil
		}
	}
	return "", "", errAbsent
}

// Open prepares the hierarchy. A nil Manager with an error means that there will be no groups.
func Open(root, own string, pid int) (*Manager, error) {
	return open(root, own, pid, mkdir, os.Remove)
}

func mkdir(path string) error { return os.Mkdir(path, 0o755) }

func open(root, own string, pid int, mkdir, rmdir func(string) error) (*Manager, error) {
	if filepath.Base(own) == daemonName { // started again from inside its own leaf
		own = filepath.Dir(own)
	}
	base := filepath.Join(root, own)
	m := &Manager{parent: filepath.Join(base, instancesName), mkdir: mkdir, rmdir: rmdir}
	if err := m.ensure(m.parent); err != nil {
		return nil, fmt.Errorf("cgroup: create %s: %w", m.parent, err)
	}
	// It may be there and belong to somebody else.
	probe := filepath.Join(m.parent, fmt.Sprintf("probe-%d", pid))
	if err := m.ensureBelow(probe); err != nil {
		return nil, fmt.Errorf("cgroup: create %s: %w", probe, err)
	}
	_ = m.rmdir(probe)
	m.handDown(base, own, pid)
	return m, nil
}

func (m *Manager) ensure(path string) error {
	if err := m.mkdir(path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// ensureBelow makes a group in a parent that another runnerd may be removing, which shares it and has no instances any
// more (Close).
func (m *Manager) ensureBelow(path string) (err error) {
	for range removeTries {
		if err = m.ensure(path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		parent := filepath.Dir(path)
		if err := m.ensure(parent); err != nil {
			return err
		}
		if parent == m.parent {
			for _, name := range m.controllers {
				_ = write(filepath.Join(parent, "cgroup.subtree_control"), "+"+name) // its absence is an error of the limits
			}
		}
	}
	return err
}

// Close removes the groups that hold those of instances, where nobody has instances any more.
func (m *Manager) Close() {
	if m == nil {
		return
	}
	for _, parent := range m.parents() {
		_ = m.rmdir(parent) // refused while there is a group in it
	}
}

// handDown enables what controllers there are for base/colloid/*. A group with processes cannot hand
// controllers down, so runnerd moves to a leaf first, except out of the root group, which may.
func (m *Manager) handDown(base, own string, pid int) {
	available := words(filepath.Join(base, "cgroup.controllers"))
	var wanted []string
	for _, name := range append(slices.Clone(controllersWanted), "io") {
		if slices.Contains(available, name) {
			wanted = append(wanted, name)
		}
	}
	if len(wanted) == 0 {
		return
	}
	if own != "/" {
		leaf := filepath.Join(base, daemonName)
		if m.ensure(leaf) != nil || write(filepath.Join(leaf, "cgroup.procs"), strconv.Itoa(pid)) != nil {
			return
		}
	}
	for _, name := range wanted {
		if write(filepath.Join(base, "cgroup.subtree_control"), "+"+name) == nil &&
			write(filepath.Join(m.parent, "cgroup.subtree_control"), "+"+name) == nil {
			m.controllers = append(m.controllers, name)
		}
	}
}

func words(path string) []string {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	return strings.Fields(string(text))
}

// write writes an existing control file; it creates none.
func write(path, value string) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(value)
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	return err
}

// Enforced reports whether all three limits hold here.
func (m *Manager) Enforced() bool { return m != nil && len(m.Missing()) == 0 }

// Missing names the controllers that are not available.
func (m *Manager) Missing() []string {
	var missing []string
	for _, name := range controllersWanted {
		if m == nil || !slices.Contains(m.controllers, name) && !m.hasLegacy(name) {
			missing = append(missing, name)
		}
	}
	return missing
}

// Weaker says in words what of version 2 this host lacks although every limit holds: what status prints after
// "without".
func (m *Manager) Weaker() []string {
	if m == nil {
		return nil
	}
	var list []string
	for _, l := range m.legacy {
		if l.controller != "memory" {
			continue
		}
		list = append(list, "the end of a whole instance at its memory limit: control groups of version 1 kill one of its processes")
		if _, err := os.Stat(filepath.Join(l.parent, legacySwapFile)); err != nil {
			list = append(list, "a bound on swap: control groups of version 1 limit memory alone on this kernel")
		}
	}
	if !slices.Contains(m.controllers, "io") {
		list = append(list, "even shares of the disk: there is no control group controller io of version 2")
	}
	return list
}

func (m *Manager) hasLegacy(name string) bool {
	return slices.ContainsFunc(m.legacy, func(l legacy) bool { return l.controller == name })
}

// Create makes the group of one instance with its limits.
func (m *Manager) Create(name string, limits Limits) (Group, error) {
	group := m.Path(name)
	controls := make([][]control, 0, len(group))
	if m.parent != "" {
		controls = append(controls, m.controls(limits))
	}
	for _, l := range m.legacy {
		controls = append(controls, l.controls(limits))
	}
	for n, path := range group {
		if err := m.ensureBelow(path); err != nil {
			return nil, fmt.Errorf("cgroup: create %s: %w", path, err)
		}
		for _, control := range controls[n] {
			if err := write(filepath.Join(path, control.file), control.value); err != nil && !control.optional {
				return nil, fmt.Errorf("cgroup: set %s of %s to %s: %w", control.file, name, control.value, err)
			}
		}
	}
	return group, nil
}

type control struct {
	file, value string
	optional    bool // a kernel without the file is no reason not to start
}

func (m *Manager) controls(limits Limits) []control {
	var list []control
	if slices.Contains(m.controllers, "cpu") {
		value := fmt.Sprintf("max %d", periodMicroseconds)
		if limits.CPUMillicores > 0 {
			value = fmt.Sprintf("%d %d", quotaOf(limits.CPUMillicores), periodMicroseconds)
		}
		list = append(list, control{"cpu.max", value, false})
		if limits.WeightPercent > 0 {
			list = append(list, control{"cpu.weight", weightOf(limits.WeightPercent, cpuWeight), true})
		}
	}
	if slices.Contains(m.controllers, "memory") {
		value := "max"
		if limits.MemoryMiB > 0 {
			bytes := uint64(limits.MemoryMiB) << 20
			value = strconv.FormatUint(bytes, 10)
			high := strconv.FormatUint(bytes-bytes/highFraction, 10)
			list = append(list, control{"memory.swap.max", "0", true}, control{"memory.high", high, true})
		}
		list = append(list, control{"memory.max", value, false}, control{"memory.oom.group", "1", true})
	}
	if slices.Contains(m.controllers, "pids") {
		list = append(list, control{"pids.max", pidsOf(limits), false})
	}
	if slices.Contains(m.controllers, "io") {
		list = append(list, control{"io.weight", weightOf(limits.WeightPercent, ioWeight), true})
	}
	return list
}

// weightOf is a part of a weight that is even.
func weightOf(percent uint32, even uint64) string {
	if percent == 0 {
		percent = 100
	}
	return strconv.FormatUint(max(1, even*uint64(percent)/100), 10)
}

// quotaOf is the share of one period.
func quotaOf(millicores uint32) uint64 {
	return max(quotaMinimum, uint64(millicores)*periodMicroseconds/1000)
}

func pidsOf(limits Limits) string {
	if limits.PIDs == 0 {
		return strconv.Itoa(PIDsDefault)
	}
	return strconv.FormatUint(uint64(limits.PIDs), 10)
}

// Remove removes the group with what the instance made below it. It waits for killed processes.
func (m *Manager) Remove(name string) error {
	if name == "" || filepath.Base(name) != name || name == "." || name == ".." {
		return fmt.Errorf("cgroup: %q is no name of a group", name)
	}
	for _, path := range m.Path(name) {
		var err error
		for range removeTries {
			if err = m.removeTree(path, 0); err == nil || errors.Is(err, fs.ErrNotExist) {
				err = nil
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if err != nil {
			return fmt.Errorf("cgroup: remove %s: %w", path, err)
		}
	}
	return nil
}

func (m *Manager) removeTree(path string, depth int) error {
	if entries, err := os.ReadDir(path); err == nil && depth < 16 {
		for _, entry := range entries {
			if entry.IsDir() {
				_ = m.removeTree(filepath.Join(path, entry.Name()), depth+1)
			}
		}
	}
	return m.rmdir(path)
}

// Names are the groups that exist, for finding those nobody remembers.
func (m *Manager) Names() []string {
	var names []string
	for _, parent := range m.parents() {
		entries, err := os.ReadDir(parent)
		if err != nil {
			continue
		}
		for _, entry := range entries {
			if entry.IsDir() && !slices.Contains(names, entry.Name()) {
				names = append(names, entry.Name())
			}
		}
	}
	return names
}

func (m *Manager) parents() []string {
	var list []string
	if m.parent != "" {
		list = append(list, m.parent)
	}
	for _, l := range m.legacy {
		list = append(list, l.parent)
	}
	return list
}

// Path is the group of a name.
func (m *Manager) Path(name string) Group {
	var group Group
	for _, parent := range m.parents() {
		group = append(group, filepath.Join(parent, name))
	}
	return group
}
