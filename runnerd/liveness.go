package runnerd

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/workload"
)

// watchLiveness begins or ends the time after which an instance that was ready and fails its check without a
// break is ended, to be started again like one that crashed.
func (s *Supervisor) watchLiveness(i *instance) {
	if i.timer != nil {
		i.timer.Stop()
		i.timer = nil
	}
	if i.ready != readinessFailed || i.spec.Restart == workload.RestartNever {
		return
	}
	id, epoch, limit := i.id, i.epoch, s.options.Timing.Liveness
	i.timer = time.AfterFunc(limit, func() {
		s.report(id, epoch, func(i *instance) { s.giveUp(i, limit) })
	})
}

// giveUp ends the run of an instance that hangs. The watch over its process does the rest.
func (s *Supervisor) giveUp(i *instance, after time.Duration) {
	if i.phase != phaseRunning || i.ready != readinessFailed || i.hung != "" {
		return
	}
	i.hung = fmt.Sprintf("ended because its health check failed for %v: %s", after, i.reason)
	s.options.Log.Printf("%s: %s", i.id, i.hung)
	r, grace := s.runOf(i), graceOf(i)
	process := r.process
	go func() {
		if process.Alive() {
			_ = process.Signal(unix.SIGTERM)
			process.Wait(grace, nil)
		}
		if process.Alive() {
			r.kill()
		}
	}()
}
