package runnerd

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/ipc/message"
	"colloid.net/runnerd/procfs"
	"colloid.net/runnerd/shim"
)

// An orphan is a shim whose instance the state directory does not know, or knows as another run, because
// somebody has restored or exchanged the directory. Where the directory still says what the instance is, the
// orphan is adopted; otherwise it is stopped, since the cluster believes that it does not run and would start
// it a second time.

// orphanGrace is how long orphans have between SIGTERM and SIGKILL; runnerd takes no commands meanwhile.
const orphanGrace = 5 * time.Second

// orphanAge is longer than a launch takes.
const orphanAge = 30 * time.Second

// alarmsMax bounds what is said of orphans; the log has the rest.
const alarmsMax = 8

// reclaimOrphans runs before anything is adopted or started.
func (s *Supervisor) reclaimOrphans() {
	var stops sync.WaitGroup
	for _, found := range shim.FindAll(filepath.Join(s.options.Directory, instancesDirName)) {
		name := filepath.Base(found.Directory)
		run := loadProcess(filepath.Join(found.Directory, shim.FileRun))
		watcher := loadProcess(filepath.Join(found.Directory, shim.FileShim))
		if watcher == found.Shim && (run == found.Workload || found.Workload.PID == 0) {
			continue // known
		}
		if shim.Locked(found.Directory) && found.Shim.Age() < orphanAge {
			continue // it has just been started and is writing down who it is
		}
		if found.Workload.PID == 0 { // nothing runs: it would only be in the way of the next one
			s.options.Log.Printf("a shim of %s (process %d) without a workload is stopped", name, found.Shim.PID)
			stops.Go(func() { stopOrphan(found) })
			continue
		}
		known := watcher != found.Shim && watcher.Alive() && run.Alive() // of another shim: there is one too many
		if !known && describes(found.Directory) {
			err := shim.Restore(found.Directory, found.Workload, found.Shim)
			if err == nil {
				s.tellOrphan(fmt.Sprintf("%s (process %d) runs although the state directory was exchanged: adopted",
					name, found.Workload.PID))
				continue
			}
			s.options.Log.Printf("cannot adopt %s: %v", name, err)
		}
		s.tellOrphan(fmt.Sprintf("%s (process %d) runs and the state directory does not know it: stopped",
			name, found.Workload.PID))
		stops.Go(func() { stopOrphan(found) })
	}
	stops.Wait()
}

// describes reports whether a directory says what the instance is, for this boot.
func describes(directory string) bool {
	id, ok := parseInstanceID(filepath.Base(directory))
	if !ok {
		return false
	}
	_, boot, err := loadInstance(directory, id)
	return err == nil && boot
}

func stopOrphan(found shim.Found) {
	if found.Workload.PID != 0 {
		_ = found.Workload.Signal(unix.SIGTERM)
		found.Workload.Wait(orphanGrace, nil)
	}
	_ = found.Shim.Signal(unix.SIGSTOP) // it stays the parent of what is left until that is found
	procfs.Tree{Session: found.Workload.PID, Root: found.Workload, Adopter: found.Shim, Keep: found.Shim.PID}.Kill()
	_ = found.Shim.Signal(unix.SIGKILL)
	found.Shim.Wait(time.Second, nil)
}

func (s *Supervisor) tellOrphan(text string) {
	s.options.Log.Print(text)
	s.audit.write(peer{}, 0, "orphan", text)
	if len(s.alarms) < alarmsMax {
		s.alarms = append(s.alarms, message.AlarmPrefix+shorten(text))
	}
}

// keepRecords writes down again what somebody has deleted: what runs must be found by the next runnerd.
func (s *Supervisor) keepRecords() {
	for _, name := range []string{instancesDirName, trashDirName} {
		_ = os.MkdirAll(filepath.Join(s.options.Directory, name), directoryMode)
	}
	if _, err := os.Lstat(filepath.Join(s.options.Directory, "lock")); os.IsNotExist(err) {
		if lock, err := lockDirectory(s.options.Directory); err == nil {
			s.lock.Close()
			s.lock = lock
		}
	}
	if _, err := os.Lstat(s.audit.path); os.IsNotExist(err) {
		s.audit.close()
		_ = s.audit.open()
	}
	lost := 0
	for _, i := range s.instances {
		if i.directory == "" || i.phase == phaseDenied || s.recorded(i) {
			continue
		}
		if err := s.recordAgain(i); err != nil {
			s.options.Log.Printf("cannot write down the state of %s again: %v", i.id, err)
			continue
		}
		lost++
	}
	if lost == 0 {
		return
	}
	text := fmt.Sprintf("records of instances were deleted from %s while runnerd runs, and written again: %d",
		s.options.Directory, lost)
	s.options.Log.Print(text)
	s.audit.write(peer{}, 0, "records", text)
	if len(s.alarms) < alarmsMax {
		s.alarms = append(s.alarms, message.AlarmPrefix+shorten(text))
	}
	s.relist()
}

func (s *Supervisor) recorded(i *instance) bool {
	names := []string{fileState}
	if i.phase == phaseRunning {
		names = append(names, shim.FileRun, shim.FileShim)
	}
	for _, name := range names {
		if _, err := os.Lstat(i.path(name)); os.IsNotExist(err) {
			return false
		}
	}
	return true
}

func (s *Supervisor) recordAgain(i *instance) error {
	if err := os.MkdirAll(i.directory, directoryMode); err != nil {
		return err
	}
	if err := i.save(); err != nil {
		return err
	}
	if i.phase == phaseRunning {
		return shim.Restore(i.directory, i.process, i.shim)
	}
	return nil
}
