package cgroup

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Group is the control group of one instance: its directories, that of version 2 first if there is one.
// The empty Group is none.
type Group []string

// Add moves a process into the group.
func (g Group) Add(pid int) error {
	for _, path := range g {
		if err := write(filepath.Join(path, "cgroup.procs"), strconv.Itoa(pid)); err != nil {
			return fmt.Errorf("cgroup: move process %d to %s: %w", pid, path, err)
		}
	}
	return nil
}

// Weigh changes Limits.WeightPercent of the group.
func (g Group) Weigh(percent uint32) {
	for _, path := range g {
		for file, even := range map[string]uint64{"cpu.weight": cpuWeight, "io.weight": ioWeight, "cpu.shares": cpuShares} {
			_ = write(filepath.Join(path, file), weightOf(percent, even)) // each hierarchy has its own
		}
	}
}

// Members are the ids of the processes in the group.
func (g Group) Members() []int {
	var pids []int
	for _, path := range g {
		pids = parseMembers(pids, words(filepath.Join(path, "cgroup.procs")))
	}
	return pids
}

// parseMembers adds the process ids among words to a list, each once.
func parseMembers(pids []int, words []string) []int {
	seen := make(map[int]bool, len(pids))
	for _, pid := range pids {
		seen[pid] = true
	}
	for _, word := range words {
		if pid, err := strconv.ParseUint(word, 10, 31); err == nil && pid > 0 && !seen[int(pid)] {
			seen[int(pid)] = true
			pids = append(pids, int(pid))
		}
	}
	return pids
}

// Kill ends every process of the group and of groups below it at once, and reports whether the
// kernel can (cgroup.kill, version 2, Linux 5.14).
func (g Group) Kill() bool {
	return len(g) > 0 && write(filepath.Join(g[0], "cgroup.kill"), "1") == nil
}

// freezePatience bounds how long a group may take to stand still: a process in the middle of a system
// call is stopped at its end.
const freezePatience = 2 * time.Second

// Freeze stops every process of the group until Thaw. The error says that the kernel cannot, or that
// not all of them stand still yet; the group is thawed then.
func (g Group) Freeze() error {
	err := g.freeze("1", "FROZEN")
	if err == nil {
		for deadline := time.Now().Add(freezePatience); ; time.Sleep(time.Millisecond) {
			if g.frozen() {
				return nil
			}
			if time.Now().After(deadline) {
				err = fmt.Errorf("cgroup: processes of %s do not stand still after %v", g[0], freezePatience)
				break
			}
		}
	}
	_ = g.Thaw()
	return err
}

// Thaw lets a frozen group run on.
func (g Group) Thaw() error { return g.freeze("0", "THAWED") }

func (g Group) freeze(state, legacy string) error {
	for _, path := range g {
		if write(filepath.Join(path, "cgroup.freeze"), state) == nil {
			return nil
		}
		if write(filepath.Join(path, "freezer.state"), legacy) == nil {
			return nil
		}
	}
	return fmt.Errorf("cgroup: this host cannot freeze the group %v", []string(g))
}

func (g Group) frozen() bool {
	for _, path := range g {
		if n, found := counter(filepath.Join(path, "cgroup.events"), "frozen"); found {
			return n == 1
		}
		if text, err := os.ReadFile(filepath.Join(path, "freezer.state")); err == nil {
			return strings.TrimSpace(string(text)) == "FROZEN"
		}
	}
	return false
}

// OOMKills is how many processes of the group the kernel has killed because of its memory limit.
func (g Group) OOMKills() uint32 {
	for _, path := range g {
		for _, file := range []string{"memory.events", "memory.oom_control"} {
			if n, found := counter(filepath.Join(path, file), "oom_kill"); found {
				return uint32(min(n, 1<<32-1))
			}
		}
	}
	return 0
}

// counter reads one line "name number" of a flat control file.
func counter(path, name string) (uint64, bool) {
	file, err := os.Open(path)
	if err != nil {
		return 0, false
	}
	defer file.Close()
	return parseCounter(file, name)
}

func parseCounter(file io.Reader, name string) (uint64, bool) {
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) == 2 && fields[0] == name {
			n, err := strconv.ParseUint(fields[1], 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}
