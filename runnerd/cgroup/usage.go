package cgroup

import (
	"path/filepath"
	"strconv"

	"colloid.net/runnerd/procfs"
)

// Usage is the processor time in microseconds that the group's processes have used since it was made, and the
// memory in bytes that they need now: without the part of the page cache that could be dropped at once. Where the
// host has no controller for memory, it is the sum of what its processes have resident.
func (g Group) Usage() (processorMicroseconds, memoryBytes uint64, ok bool) {
	for _, path := range g {
		if n, found := counter(filepath.Join(path, "cpu.stat"), "usage_usec"); found {
			processorMicroseconds, ok = n, true
			break
		}
	}
	if !ok {
		return 0, 0, false
	}
	for _, path := range g {
		for current, inactive := range map[string]string{
			"memory.current": "inactive_file", "memory.usage_in_bytes": "total_inactive_file",
		} {
			numbers := words(filepath.Join(path, current))
			if len(numbers) != 1 {
				continue
			}
			memoryBytes, _ = strconv.ParseUint(numbers[0], 10, 64)
			if n, found := counter(filepath.Join(path, "memory.stat"), inactive); found {
				memoryBytes -= min(n, memoryBytes)
			}
			return processorMicroseconds, memoryBytes, true
		}
	}
	_, memoryBytes = procfs.Usage(g.Members())
	return processorMicroseconds, memoryBytes, true
}
