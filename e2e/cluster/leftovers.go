package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Leftovers lists what of a closed cluster is still on this machine: processes, network namespaces,
// mounts, control groups, files. It is empty when everything is gone.
func Leftovers(directory string) []string {
	var left []string
	for _, id := range (membership{directory: directory}).find() {
		left = append(left, fmt.Sprintf("process %d", id))
	}
	name := filepath.Base(directory)
	for _, pattern := range []string{"/run/netns/" + name + "-*", directory} {
		found, err := filepath.Glob(pattern)
		if err == nil {
			left = append(left, found...)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err == nil {
		for line := range strings.Lines(string(mounts)) {
			if strings.Contains(line, " "+directory+"/") {
				left = append(left, "mount "+strings.TrimSpace(line))
			}
		}
	}
	for _, group := range controlGroups(directory) {
		left = append(left, "control group "+group)
	}
	return left
}

// controlGroupRoot is where control groups are mounted.
const controlGroupRoot = "/sys/fs/cgroup"

// controlGroups finds groups whose name carries the cluster's name.
func controlGroups(directory string) []string {
	name := filepath.Base(directory)
	var found []string
	_ = filepath.WalkDir(controlGroupRoot, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return fs.SkipDir // not readable for us, so not made by us
		}
		if entry.IsDir() && strings.Contains(entry.Name(), name) {
			found = append(found, path)
		}
		return nil
	})
	return found
}

// removeControlGroups removes the groups of a cluster, children first.
func removeControlGroups(directory string) error {
	var problems []error
	groups := controlGroups(directory)
	for i := len(groups) - 1; i >= 0; i-- {
		if err := unix.Rmdir(groups[i]); err != nil && !errors.Is(err, unix.ENOENT) {
			problems = append(problems, fmt.Errorf("remove control group %s: %w", groups[i], err))
		}
	}
	return errors.Join(problems...)
}

func ownedByUs(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if owner := info.Sys().(*syscall.Stat_t).Uid; owner != uint32(os.Geteuid()) || !info.IsDir() {
		return fmt.Errorf("%s belongs to user %d", path, owner)
	}
	return nil
}
