package cluster

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// process is one entry of /proc.
type process struct{ id, parent int }

// scanProcesses lists the living processes of this machine, without zombies.
func scanProcesses() []process {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var all []process
	for _, entry := range entries {
		id, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + entry.Name() + "/stat")
		if err != nil {
			continue // it ended meanwhile
		}
		if p, ok := parseStat(id, stat); ok {
			all = append(all, p)
		}
	}
	return all
}

// parseStat reads state and parent behind the name, which is in parentheses and may contain some.
func parseStat(id int, stat []byte) (process, bool) {
	end := bytes.LastIndexByte(stat, ')')
	if end < 0 {
		return process{}, false
	}
	fields := strings.Fields(string(stat[end+1:]))
	if len(fields) < 2 || fields[0] == "Z" || fields[0] == "X" {
		return process{}, false
	}
	parent, err := strconv.Atoi(fields[1])
	return process{id: id, parent: parent}, err == nil
}

// membership says which processes belong to a cell.
type membership struct {
	keeper    int    // the root of its process tree, 0 = none
	namespace string // target of /proc/<pid>/ns/net, "" = not used
	directory string // of the cell; a command line or working directory below it belongs
	group     string // control group, "" = not used
}

// find returns the process ids of a cell, never our own.
func (m membership) find() []int {
	all := scanProcesses()
	grouped := groupProcesses(m.group)
	found := map[int]bool{}
	for _, p := range all {
		if p.id != os.Getpid() && (p.id == m.keeper || grouped[p.id] || m.owns(p.id)) {
			found[p.id] = true
		}
	}
	for grown := true; grown; { // at most as many rounds as the tree is deep
		grown = false
		for _, p := range all {
			if !found[p.id] && found[p.parent] && p.id != os.Getpid() {
				found[p.id], grown = true, true
			}
		}
	}
	ids := make([]int, 0, len(found))
	for id := range found {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func (m membership) owns(id int) bool {
	base := "/proc/" + strconv.Itoa(id)
	if m.namespace != "" {
		if link, err := os.Readlink(base + "/ns/net"); err == nil && link == m.namespace {
			return true
		}
	}
	if within(readLink(base+"/cwd"), m.directory) {
		return true
	}
	line, err := os.ReadFile(base + "/cmdline")
	if err != nil {
		return false
	}
	for _, argument := range strings.Split(string(line), "\x00") {
		if within(argument, m.directory) {
			return true
		}
	}
	return false
}

func readLink(path string) string {
	target, err := os.Readlink(path)
	if err != nil {
		return ""
	}
	return target
}

func within(path, directory string) bool {
	return directory != "" && (path == directory || strings.HasPrefix(path, directory+"/"))
}

// killRounds bounds killAll: between two rounds a process may have forked, but not for ever.
const killRounds = 500

// killAll sends SIGKILL until nothing of the cell is left.
func (m membership) killAll() error {
	var left []int
	killGroup(m.group)
	for range killRounds {
		if left = m.find(); len(left) == 0 {
			return nil
		}
		for _, id := range left {
			_ = unix.Kill(id, unix.SIGKILL) // gone already is fine
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("processes %v of %s survive SIGKILL", left, m.directory)
}

// signalAll sends one signal to all and returns whom it found.
func (m membership) signalAll(signal unix.Signal) []int {
	ids := m.find()
	for _, id := range ids {
		_ = unix.Kill(id, signal)
	}
	return ids
}
