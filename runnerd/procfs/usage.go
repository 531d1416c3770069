package procfs

import (
	"bytes"
	"os"
	"strconv"
)

// Usage adds up the processor time in microseconds and the resident memory in bytes of processes, as
// /proc tells it. Pages that several share count for each.
func Usage(pids []int) (processorMicroseconds, memoryBytes uint64) {
	page := uint64(os.Getpagesize())
	for _, pid := range pids {
		text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil {
			continue
		}
		ticks, pages := parseUsage(text)
		processorMicroseconds += ticks * (1_000_000 / ticksPerSecond)
		memoryBytes += pages * page
	}
	return processorMicroseconds, memoryBytes
}

// parseUsage finds the ticks and resident pages in a stat file, 0 where it has another form.
func parseUsage(text []byte) (ticks, pages uint64) {
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:]) // field 3 (state) is index 0
	if len(fields) < 22 {
		return 0, 0
	}
	number := func(index int) uint64 {
		n, _ := strconv.ParseUint(string(fields[index]), 10, 63)
		return n
	}
	return number(11) + number(12), number(21)
}

// Usage adds up what the processes of the tree use. Processor time of those that have ended is not in it.
func (t Tree) Usage() (processorMicroseconds, memoryBytes uint64, ok bool) {
	members := t.Members()
	pids := make([]int, 0, len(members))
	for _, p := range members {
		pids = append(pids, p.PID)
	}
	processorMicroseconds, memoryBytes = Usage(pids)
	return processorMicroseconds, memoryBytes, len(pids) > 0
}
