package runnerd

import (
	"errors"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/runnerd/procfs"
	"colloid.net/runnerd/record"
	"colloid.net/runnerd/shim"
)

// stop ends an instance for good. With denied set it is remembered as denied afterwards, else it is
// gone. A second stop without grace hurries the first.
func (s *Supervisor) stop(i *instance, grace time.Duration, reason, denied string) {
	switch i.phase {
	case phaseDenied:
		s.dropDenial(i.id)
		s.forget(i)
		return
	case phaseStopping:
		if grace == 0 && i.hurry != nil {
			close(i.hurry)
			i.hurry = nil
		}
		if denied == "" {
			i.denied = "" // asked for by meshd meanwhile: gone afterwards
		}
		return
	}
	if denied != "" {
		reason = denied
	}
	i.denied = denied
	s.cancelPreparation(i.id)
	launching := i.phase == phaseLaunching
	s.enter(i, phaseStopping, reason)
	hurry := make(chan struct{})
	i.hurry = hurry
	id, epoch, r, over := i.id, i.epoch, s.runOf(i), i.launchOver
	go func() {
		if launching {
			if over != nil {
				<-over
			}
			r.await()
		}
		r.end(grace, hurry)
		s.report(id, epoch, func(i *instance) { s.stopEnded(i) })
	}()
}

// await waits while a shim is at work whose workload does not run yet, or no longer, and reads what it
// wrote down. It reports whether the workload runs.
func (r *run) await() bool {
	for deadline := time.Now().Add(shimPatience); ; time.Sleep(10 * time.Millisecond) {
		locked := shim.Locked(r.directory)
		r.process = loadProcess(filepath.Join(r.directory, shim.FileRun))
		r.shim = loadProcess(filepath.Join(r.directory, shim.FileShim))
		if r.process.Alive() {
			return true
		}
		if !locked || time.Now().After(deadline) {
			return false
		}
	}
}

// end asks the workload to end, makes it end, and cleans up.
func (r *run) end(grace time.Duration, hurry <-chan struct{}) {
	if r.process.Alive() && grace > 0 {
		_ = r.process.Signal(r.stopSignal())
		r.process.Wait(grace, hurry)
	}
	if r.process.Alive() {
		r.kill()
	}
	if r.process.PID > 0 || shim.Locked(r.directory) {
		r.settle()
		return
	}
	r.clean()
}

// stopSignal asks a workload to end. The init of runnerd's own sandboxes passes the image's stop signal on;
// an external runtime has none.
func (r *run) stopSignal() unix.Signal {
	record, err := record.Load(filepath.Join(r.directory, fileContainer))
	if err == nil && record.Get("runtime") != "" && record.Int("stop") > 0 {
		return unix.Signal(record.Int("stop"))
	}
	return unix.SIGTERM
}

// kill ends the whole tree, the shim excepted, which takes the last output.
func (r *run) kill() {
	if group := r.groupPath(); len(group) > 0 {
		killGroup(group)
	}
	_ = r.process.Signal(unix.SIGKILL)
	tree := procfs.Tree{Session: r.process.PID, Root: r.process, Adopter: r.shim, Keep: r.shim.PID}
	tree.Kill()
}

func (s *Supervisor) stopEnded(i *instance) {
	if code, _ := readExit(i.directory, i.process); i.process.PID > 0 {
		i.exitCode = code
	}
	if i.denied == "" {
		s.forget(i)
		return
	}
	reason := i.denied
	i.denied, i.group, i.process = "", "", procfs.Process{}
	s.deny(i, errors.New(reason))
}
