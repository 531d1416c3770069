package procfs

import (
	"os"
	"strconv"
	"strings"
	"syscall"
)

// Marked is a process that carries a mark in its environment.
type Marked struct {
	Process
	Value string // of the variable
	// Leader is the process that the marked one started first in a session of its own; zero if there is none.
	Leader Process
}

// FindMarked lists the processes of this user that were started with the first argument and the environment
// variable. Both are as the program was started: nobody else can have set them.
func FindMarked(argument, variable string) []Marked {
	var found []Marked
	all := scan()
	for i := range all {
		s := &all[i]
		if s.state == 'Z' || s.state == 'X' || s.PID == os.Getpid() || !ours(s.PID) {
			continue
		}
		arguments := procFields(s.PID, "cmdline")
		if len(arguments) < 2 || arguments[1] != argument {
			continue
		}
		for _, field := range procFields(s.PID, "environ") {
			if value, ok := strings.CutPrefix(field, variable+"="); ok {
				found = append(found, Marked{Process: s.Process, Value: value, Leader: leaderOf(s, all)})
				break
			}
		}
	}
	return found
}

func leaderOf(parent *stat, all []stat) Process {
	var leader Process
	for i := range all {
		s := &all[i]
		if s.parent == parent.PID && s.session == s.PID && s.state != 'Z' && s.state != 'X' &&
			(leader.PID == 0 || s.StartTicks < leader.StartTicks) {
			leader = s.Process
		}
	}
	return leader
}

func ours(pid int) bool {
	info, err := os.Stat("/proc/" + strconv.Itoa(pid))
	if err != nil {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid()
}

// procFields reads a file of fields that end with zero bytes.
func procFields(pid int, name string) []string {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/" + name)
	if err != nil {
		return nil
	}
	return strings.Split(string(raw), "\x00")
}
