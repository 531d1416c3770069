package daemon

import (
	"bytes"
	"os"
	"strconv"
	"time"

	"colloid.net/meshd/cell"
	"golang.org/x/sys/unix"
)

// loadInterval is how often the host's load is sampled (SPEC-REVIEW Part 1 section 5.4).
const loadInterval = 5 * time.Second

// sampleLoad feeds the cell with the load of the host until the daemon stops. What cannot be read counts
// as zero: these figures are for people.
func (d *Daemon) sampleLoad() {
	ticker := time.NewTicker(loadInterval)
	defer ticker.Stop()
	var before processorTime
	for round := 0; ; round++ {
		if round%linkRounds == 1 {
			d.checkLinks()
		}
		now := readProcessorTime()
		sample := cell.HostLoad{CPU: now.since(before), Memory: memoryInUse(), Disk: diskInUse(d.options.Directory)}
		if before.total != 0 {
			d.inbox.post(func() { d.cell.Load(d.reactor.Now(), sample) })
		}
		before = now
		select {
		case <-d.stopped:
			return
		case <-ticker.C:
		}
	}
}

// processorTime is the first line of /proc/stat, in ticks.
type processorTime struct{ total, idle uint64 }

func readProcessorTime() (t processorTime) {
	raw, err := os.ReadFile("/proc/stat")
	if err != nil {
		return t
	}
	return parseProcessorTime(raw)
}

func parseProcessorTime(raw []byte) (t processorTime) {
	line, _, _ := bytes.Cut(raw, []byte("\n"))
	for i, field := range bytes.Fields(line) {
		if i == 0 || i > 8 { // the name; guest time is contained in user time
			continue
		}
		ticks, _ := strconv.ParseUint(string(field), 10, 64)
		t.total += ticks
		if i == 4 || i == 5 {
			t.idle += ticks
		}
	}
	return t
}

// since returns the share of busy time after before, in hundredths of a percent.
func (t processorTime) since(before processorTime) int {
	total, idle := t.total-before.total, t.idle-before.idle
	if t.total <= before.total || idle > total {
		return 0
	}
	return int((total - idle) * 10000 / total)
}

func memoryInUse() int {
	raw, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	return parseMemory(raw)
}

// parseMemory gives the share of memory in use, in hundredths of a percent, 0 where it is not known.
func parseMemory(raw []byte) int {
	total, available := memoryLine(raw, "MemTotal:"), memoryLine(raw, "MemAvailable:")
	if total == 0 || available > total {
		return 0
	}
	return int((total - available) * 10000 / total)
}

func memoryLine(raw []byte, name string) uint64 {
	_, rest, _ := bytes.Cut(raw, []byte(name))
	fields := bytes.Fields(rest[:min(len(rest), 64)])
	if len(fields) == 0 {
		return 0
	}
	value, _ := strconv.ParseUint(string(fields[0]), 10, 64)
	return value
}

func diskInUse(path string) int {
	var s unix.Statfs_t
	if unix.Statfs(path, &s) != nil || s.Blocks == 0 || s.Bavail > s.Blocks {
		return 0
	}
	return int((s.Blocks - s.Bavail) * 10000 / s.Blocks)
}
