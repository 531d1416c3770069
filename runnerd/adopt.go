package runnerd

import (
	"os"
	"path/filepath"
	"time"

	"colloid.net/ipc/message"
	"colloid.net/runnerd/shim"
)

// adoptAll finds the instances of a runnerd that was here before (F134).
func (s *Supervisor) adoptAll() {
	root := filepath.Join(s.options.Directory, instancesDirName)
	entries, err := os.ReadDir(root)
	if err != nil {
		s.options.Log.Printf("cannot read %s: %v", root, err)
		return
	}
	for _, entry := range entries {
		directory := filepath.Join(root, entry.Name())
		id, ok := parseInstanceID(entry.Name())
		if !ok || !entry.IsDir() {
			s.options.Log.Printf("%s is no directory of an instance and is left alone", directory)
			continue
		}
		s.adopt(id, directory)
	}
}

func (s *Supervisor) adopt(id InstanceID, directory string) {
	shim.EndInside(directory)
	i, boot, err := loadInstance(directory, id)
	if err != nil || !boot {
		if err != nil {
			s.options.Log.Printf("cannot adopt %s, it is removed: %v", id, err)
		}
		s.discard(id, directory, i)
		return
	}
	s.instances[id] = i
	i.dirty = true
	i.process = loadProcess(i.path(shim.FileRun))
	i.shim = loadProcess(i.path(shim.FileShim))
	switch {
	case i.phase == phaseStopping:
		denied := i.denied
		i.phase = phaseLaunching // it may have been stopped while it was launched
		s.stop(i, graceOf(i), i.reason, denied)
	case i.process.Alive():
		s.options.Log.Printf("adopted %s, process %d", id, i.process.PID)
		i.phase = phaseRunning
		s.running(i)
	case i.phase == phaseExited:
	case i.phase == phaseWaiting:
		s.waitForNext(i, i.reason)
	default:
		s.adoptUnsettled(i)
	}
}

// adoptUnsettled is for an instance whose process does not run: its shim may be about to start it, may
// be writing down how it ended, or has gone without a trace.
func (s *Supervisor) adoptUnsettled(i *instance) {
	i.stopTimers()
	i.phase = phaseLaunching
	id, epoch, r := i.id, i.epoch, s.runOf(i)
	go func() {
		if r.await() {
			s.report(id, epoch, func(i *instance) {
				i.process, i.shim = r.process, r.shim
				s.running(i)
			})
			return
		}
		if r.process.PID == 0 {
			s.report(id, epoch, func(i *instance) { s.beginLaunch(i, "") })
			return
		}
		code, reason := r.settle()
		s.report(id, epoch, func(i *instance) { s.ended(i, code, i.countKills(r.oomKills, reason), 0) })
	}()
}

// discard removes an instance that cannot be adopted: one of another boot, or with a broken record.
// In the latter case something may still run.
func (s *Supervisor) discard(id InstanceID, directory string, i *instance) {
	r := run{directory: directory, process: loadProcess(filepath.Join(directory, shim.FileRun)),
		shim: loadProcess(filepath.Join(directory, shim.FileShim)), groups: s.options.Groups, release: s.release}
	gone := &message.Instance{Id: id.message(), State: message.InstanceState_INSTANCE_GONE,
		ExitCode: shim.UnknownCode, Reason: "the host was restarted"}
	if i != nil {
		gone.Key, r.group = i.key, i.group
	}
	if r.process.Alive() {
		r.kill()
		r.settle()
	} else {
		r.release(directory)
	}
	s.dispose(id, directory)
	s.announceGone(gone)
}

// graceOf is the grace of a stop that nobody gave a grace for.
func graceOf(i *instance) time.Duration {
	if i.spec != nil && i.spec.StopGraceSeconds > 0 {
		return time.Duration(i.spec.StopGraceSeconds) * time.Second
	}
	return graceDefault
}
