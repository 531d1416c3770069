package cluster

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
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
	for _, mount := range MountsBelow(directory) {
		left = append(left, "mount "+mount)
	}
	for _, group := range controlGroups(directory) {
		left = append(left, "control group "+group)
	}
	return left
}

// MountsBelow lists where something is mounted inside a directory, in the order of mounting.
func MountsBelow(directory string) (found []string) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(fields[4], directory+"/") {
			found = append(found, fields[4])
		}
	}
	return found
}

// unmountBelow takes away what the processes of a cell mounted, as the end of a machine does.
func unmountBelow(directory string) error {
	var problems []error
	for _, path := range slices.Backward(MountsBelow(directory)) {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			problems = append(problems, fmt.Errorf("unmount %s: %w", path, err))
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
