package procfs

import (
	"maps"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Tree describes the processes of one instance where no cgroup can: the members of its session and
// the descendants of its roots. A process that leaves the session and loses its parent is still
// found as a descendant of the shim, which adopts orphans.
type Tree struct {
	Session int     // session id, 0 = none
	Root    Process // descendants of it belong, itself too
	Adopter Process // descendants of it belong, itself not
	Keep    int     // never touched
}

const (
	// processesMax bounds one scan; pid_max is at most 4194304, real hosts are far below.
	processesMax = 1 << 17
	// killRounds bounds how often the tree is looked at again; a fork bomb without a cgroup may win.
	killRounds = 200
)

// Members are the processes of the tree that are alive now.
func (t Tree) Members() []Process {
	all := scan()
	byPID := make(map[int]*stat, len(all))
	for i := range all {
		byPID[all[i].PID] = &all[i]
	}
	root, adopter := byPID[t.Root.PID], byPID[t.Adopter.PID]
	if root != nil && root.Process != t.Root {
		root = nil
	}
	if adopter != nil && adopter.Process != t.Adopter {
		adopter = nil
	}
	var members []Process
	for i := range all {
		s := &all[i]
		if s.PID == t.Keep || s.PID <= 1 || s.state == 'Z' || s.state == 'X' || s == adopter {
			continue
		}
		if t.Session > 0 && s.session == t.Session || descends(s, root, byPID) ||
			descends(byPID[s.parent], adopter, byPID) {
			members = append(members, s.Process)
		}
	}
	return members
}

// descends reports whether s is ancestor or comes from it.
func descends(s, ancestor *stat, byPID map[int]*stat) bool {
	if ancestor == nil {
		return false
	}
	for range 1 << 12 { // parents cannot form a ring, but the scan is no snapshot
		if s == nil {
			return false
		}
		if s == ancestor {
			return true
		}
		s = byPID[s.parent]
	}
	return false
}

// Kill sends SIGKILL to the tree until nothing of it is left, and reports whether that was reached. What was signalled
// counts until it has ended, also when the death of its parent has taken it out of the tree meanwhile.
func (t Tree) Kill() bool {
	members := map[Process]bool{}
	for round := range killRounds {
		maps.DeleteFunc(members, func(p Process, _ bool) bool { return !p.Alive() })
		for _, p := range t.Members() {
			members[p] = true
		}
		if len(members) == 0 {
			return true
		}
		for p := range members {
			_ = p.Signal(unix.SIGKILL)
		}
		time.Sleep(min(time.Millisecond<<min(round, 5), 20*time.Millisecond))
	}
	return false
}

func scan() []stat {
	directory, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer directory.Close()
	var all []stat
	for len(all) < processesMax {
		names, err := directory.Readdirnames(256)
		for _, name := range names {
			pid, err := strconv.Atoi(name)
			if err != nil {
				continue
			}
			if s, err := readStat(pid); err == nil {
				all = append(all, s)
			}
		}
		if err != nil {
			break
		}
	}
	return all
}
