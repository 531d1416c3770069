package cluster

import (
	"fmt"
	"os"
	"strings"
	"syscall"
)

// Leftovers lists what of a closed cluster is still on this machine: processes, mounts (network
// namespaces are such), control groups, files. It is empty when everything is gone.
func Leftovers(directory string) []string {
	var left []string
	for _, id := range (membership{directory: directory}).find() {
		left = append(left, fmt.Sprintf("process %d", id))
	}
	if _, err := os.Lstat(directory); err == nil {
		left = append(left, directory)
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
