package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
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
