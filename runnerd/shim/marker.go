package shim

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"colloid.net/runnerd/procfs"
	"colloid.net/runnerd/record"
)

// A shim carries the directory of its instance in its environment, and in watch mode the workload too. When the
// directory is exchanged or restored from a copy, this is how the next runnerd finds what still runs.
const markVariable = "COLLOID_INSTANCE"

// markUnnamed stands where a name will be.
const markUnnamed = "#"

func (c *Config) mark() string {
	if c.Watch {
		return fmt.Sprintf("%s=%d:%d:%s", markVariable, c.Root.PID, c.Root.StartTicks, c.Directory)
	}
	if c.Spare { // the name is written over it, see remark
		return fmt.Sprintf("%s=0:0:%s/%s", markVariable, c.Directory, strings.Repeat(markUnnamed, nameSpace))
	}
	return fmt.Sprintf("%s=0:0:%s", markVariable, c.Directory)
}

// Found is a shim that runs.
type Found struct {
	Shim      procfs.Process
	Workload  procfs.Process // zero: none runs
	Directory string
}

// FindAll lists the shims of this user whose instances lie directly below a directory.
func FindAll(root string) []Found {
	var list []Found
	for _, marked := range procfs.FindMarked(ArgumentShim, markVariable) {
		watched, directory, ok := parseMark(marked.Value)
		if !ok || filepath.Dir(directory) != filepath.Clean(root) {
			continue
		}
		if strings.HasPrefix(filepath.Base(directory), markUnnamed) { // a spare, which ends with its runnerd
			continue
		}
		if elsewhere(marked.Process.PID, filepath.Dir(filepath.Clean(root))) {
			continue
		}
		found := Found{Shim: marked.Process, Workload: marked.Leader, Directory: directory}
		if watched.Alive() {
			found.Workload = watched
		}
		list = append(list, found)
	}
	return list
}

// parseMark reads PID:TICKS:DIRECTORY. The process is zero where there is none yet.
func parseMark(value string) (watched procfs.Process, directory string, ok bool) {
	parts := strings.SplitN(value, ":", 3)
	if len(parts) != 3 {
		return procfs.Process{}, "", false
	}
	pid, err1 := strconv.ParseUint(parts[0], 10, 31)
	ticks, err2 := strconv.ParseUint(parts[1], 10, 64)
	if err1 == nil && err2 == nil && pid > 0 {
		watched = procfs.Process{PID: int(pid), StartTicks: ticks}
	}
	return watched, parts[2], true
}

// elsewhere reports whether a path means another directory to a process: it has mounts of its own, and is the shim
// of a runnerd there, as in a container that shares the host's processes. The directory as both see it now is
// compared, so that one that was exchanged makes no difference.
func elsewhere(pid int, path string) bool {
	theirs, err := os.Stat(filepath.Join("/proc", strconv.Itoa(pid), "root", path))
	if err != nil {
		return false
	}
	own, err := os.Stat(path)
	return err == nil && !os.SameFile(theirs, own)
}

// Restore writes down again who runs and who watches, as a shim does at its start.
func Restore(directory string, workload, watcher procfs.Process) error {
	if err := record.Keep(filepath.Join(directory, FileRun), processRecord(workload)); err != nil {
		return err
	}
	return record.Keep(filepath.Join(directory, FileShim), processRecord(watcher))
}
