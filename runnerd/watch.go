package runnerd

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/runnerd/cgroup"
	"colloid.net/runnerd/health"
	"colloid.net/runnerd/policy"
	"colloid.net/runnerd/procfs"
	"colloid.net/runnerd/record"
	"colloid.net/runnerd/shim"
	"colloid.net/runnerd/wasm"
	"colloid.net/workload"
)

// running begins the watch over a workload that runs: its end, the end of its shim, its health.
func (s *Supervisor) running(i *instance) {
	wasReady := i.ready == readinessReady && i.phase == phaseRunning // adopted
	i.stopTimers()
	i.phase, i.dirty, i.reason, i.failed = phaseRunning, true, "", ""
	if !wasReady {
		i.ready = readinessUnknown
	}
	s.write(i)
	ctx, cancel := context.WithCancel(context.Background())
	i.cancel = cancel
	if i.moved { // it may wait for its address, which does not come back
		i.ready = readinessFailed
		s.watchLiveness(i)
	}
	i.moved = false
	s.watch(ctx, i)
	s.watchHealth(ctx, i, wasReady)
}

// run is the copy of an instance that its goroutines work on.
type run struct {
	directory string
	process   procfs.Process
	shim      procfs.Process
	groups    *cgroup.Manager
	group     string
	release   func(directory string) // undoes what the backend made on the host
	oomKills  uint32                 // of the group when it was removed
}

func (s *Supervisor) runOf(i *instance) run {
	return run{
		directory: i.directory, process: i.process, shim: i.shim, groups: s.options.Groups, group: i.group,
		release: s.release,
	}
}

func (s *Supervisor) watch(ctx context.Context, i *instance) {
	id, epoch, r := i.id, i.epoch, s.runOf(i)
	go func() {
		if !r.process.Wait(-1, ctx.Done()) {
			return
		}
		age := r.process.Age()
		code, reason := r.settle()
		s.report(id, epoch, func(i *instance) {
			s.ended(i, code, i.countKills(r.oomKills, reason), age)
		})
	}()
	go s.watchShim(ctx, id, epoch, r)
}

// watchShim replaces a shim that was killed while its workload lives (crash independence, docs/ARCHITECTURE.md).
func (s *Supervisor) watchShim(ctx context.Context, id InstanceID, epoch int, r run) {
	for {
		if !r.shim.Wait(-1, ctx.Done()) {
			return
		}
		reapShim(r.shim)
		if !r.process.Alive() {
			return
		}
		started, err := shim.Launch(&shim.Config{
			Directory: r.directory, Watch: true, Root: r.process, Session: r.process.PID,
			Cgroup: r.groupPath(), LogRate: s.logRate(),
		}, nil)
		if err != nil {
			s.options.Log.Printf("cannot replace the shim of %s: %v", id, err)
			reapShim(started.Shim)
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Second):
			}
			continue
		}
		s.options.Log.Printf("the shim of %s was killed and has been replaced", id)
		r.shim = started.Shim
		s.report(id, epoch, func(i *instance) { i.shim = started.Shim })
	}
}

func (s *Supervisor) logRate() (rate int) {
	rate = policy.LogRateDefault
	s.do(func() { rate = s.policy.LogRate })
	return rate
}

func (r *run) groupPath() cgroup.Group {
	if r.groups == nil || r.group == "" {
		return nil
	}
	return r.groups.Path(r.group)
}

// settle waits until the shim has cleaned up behind an ended workload, and reads the exit status.
func (r *run) settle() (code int, reason string) {
	for deadline := time.Now().Add(shimPatience); shim.Locked(r.directory); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			if now := loadProcess(filepath.Join(r.directory, shim.FileShim)); now.PID != 0 {
				_ = now.Signal(unix.SIGKILL)
			}
			break
		}
	}
	reapShim(r.shim)
	r.clean()
	return readExit(r.directory, r.process)
}

// clean kills what is left of the workload's processes and removes its control group.
func (r *run) clean() {
	if group := r.groupPath(); len(group) > 0 {
		killGroup(group)
	}
	if r.process.PID > 0 {
		tree := procfs.Tree{Session: r.process.PID, Root: r.process, Adopter: r.shim, Keep: r.shim.PID}
		tree.Kill()
	}
	if r.groups != nil && r.group != "" {
		r.oomKills = max(r.oomKills, r.groupPath().OOMKills())
		_ = r.groups.Remove(r.group)
	}
	r.release(r.directory)
}

// killGroup ends all processes of a control group.
func killGroup(group cgroup.Group) {
	if group.Kill() {
		return
	}
	// Before Linux 5.14, and with version 1 alone: nobody forks while they are killed one by one.
	_ = group.Freeze()
	defer func() { _ = group.Thaw() }()
	for _, pid := range group.Members() {
		if p, err := procfs.Find(pid); err == nil {
			_ = p.Signal(unix.SIGKILL)
		}
	}
}

// reapShim collects a shim that is a child of this runnerd and has ended.
func reapShim(p procfs.Process) {
	if p.PID > 0 && !p.Alive() {
		_, _ = unix.Wait4(p.PID, nil, unix.WNOHANG, nil)
	}
}

// loadProcess reads a process of this boot from a record, the zero Process if there is none.
func loadProcess(path string) procfs.Process {
	r, err := record.Load(path)
	if err != nil {
		return procfs.Process{}
	}
	return parseProcess(r, procfs.BootID())
}

func parseProcess(r record.Record, boot string) procfs.Process {
	pid := r.Int("pid")
	if r.Get("boot") != boot || pid <= 0 || pid > math.MaxInt32 {
		return procfs.Process{}
	}
	return procfs.Process{PID: int(pid), StartTicks: r.Uint("ticks")}
}

// parseExit reads how a process ended, if the record is about it.
func parseExit(r record.Record, boot string, p procfs.Process) (code int, reason string) {
	number, err := strconv.ParseInt(r.Get("code"), 10, 16)
	if err != nil || number < shim.UnknownCode || number > exitCodeMax || parseProcess(r, boot) != p {
		return shim.UnknownCode, "ended, its exit code is unknown"
	}
	return int(number), r.Get("reason")
}

// exitCodeMax is the greatest of a process; 128+n stands for signal n.
const exitCodeMax = 255

func readExit(directory string, p procfs.Process) (code int, reason string) {
	r, _ := record.Load(filepath.Join(directory, shim.FileExit))
	code, reason = parseExit(r, procfs.BootID(), p)
	if code == wasm.ExitModule || code == wasm.ExitTrap {
		reason = wasmReason(directory, reason)
	}
	return code, reason
}

func (s *Supervisor) watchHealth(ctx context.Context, i *instance, wasReady bool) {
	id, epoch, address := i.id, i.epoch, i.address
	if i.ownAddress.IsValid() {
		address = i.ownAddress
	}
	check := health.Check{
		Spec: i.spec, Address: address, Own: i.ownAddress.IsValid(), Ready: wasReady,
		Changed: func(ready bool, reason string) {
			s.report(id, epoch, func(i *instance) { s.healthChanged(i, ready, reason) })
		},
		Failing: func(reason string) {
			s.report(id, epoch, func(i *instance) { s.healthFails(i, reason) })
		},
	}
	if i.spec.Runtime == workload.RuntimeWasm {
		check.Loaded = moduleLoaded(cacheOf(s.options.Directory, id), i.process)
	}
	if i.spec.Health.Kind == workload.HealthExec {
		permit, err := s.check(i.spec)
		if err != nil {
			return // checkPolicy stops the instance
		}
		if check.Execute, err = s.runProbe(i, permit); err != nil {
			s.healthFails(i, "the program of the health check cannot run: "+err.Error())
			return
		}
	}
	go check.Run(ctx)
}

func (s *Supervisor) healthChanged(i *instance, ready bool, reason string) {
	next := readinessFailed
	if ready {
		next = readinessReady
	}
	if i.ready == next && i.reason == reason {
		return
	}
	changed := i.ready != next
	switch {
	case !ready:
		s.options.Log.Printf("%s: unready: %s", i.id, reason)
	case i.reason != "":
		s.options.Log.Printf("%s: ready", i.id)
	}
	i.ready, i.reason, i.dirty = next, reason, true
	if changed {
		s.watchLiveness(i)
	}
	s.write(i)
}

// healthFails notes why an instance is not ready yet, or not ready any more. The check says so rarely (health.TellAgain):
// each time is an event for meshd, and there a change that all cells get.
func (s *Supervisor) healthFails(i *instance, reason string) {
	if i.reason == reason {
		return
	}
	s.options.Log.Printf("%s: not ready: %s", i.id, reason)
	i.reason, i.dirty = reason, true
}

// ended decides what follows the end of a workload that should run.
func (s *Supervisor) ended(i *instance, code int, reason string, ran time.Duration) {
	i.exitCode, i.process, i.group = code, procfs.Process{}, ""
	policy := i.spec.Restart
	hung := i.hung != ""
	if hung {
		reason, i.hung = i.hung, ""
	}
	if policy == workload.RestartNever || policy == workload.RestartOnFailure && code == 0 && !hung {
		s.enter(i, phaseExited, reason)
		return
	}
	timing := &s.options.Timing
	if ran >= timing.BackoffReset {
		i.delay = 0
	}
	i.delay = NextDelay(i.delay, *timing)
	i.restarts++
	i.next = procfs.BootTime() + i.delay
	s.waitForNext(i, reason)
}

// NextDelay is the back-off after one of the given length; 0 stands for none yet.
func NextDelay(delay time.Duration, timing Timing) time.Duration {
	timing.complete()
	if delay == 0 {
		return timing.BackoffFirst
	}
	return min(delay*backoffNumerator/backoffDenominator, timing.BackoffMax)
}

// waitForNext launches again when the back-off is over.
func (s *Supervisor) waitForNext(i *instance, reason string) {
	s.enter(i, phaseWaiting, reason)
	id, epoch := i.id, i.epoch
	i.timer = time.AfterFunc(max(0, i.next-procfs.BootTime()), func() {
		s.report(id, epoch, func(i *instance) { s.beginLaunch(i, reason) })
	})
}

// countKills adds the processes of a run that the kernel killed for memory, and says so in the reason.
func (i *instance) countKills(kills uint32, reason string) string {
	i.oomNow = 0
	i.oomKills += kills
	if kills == 0 {
		return reason
	}
	return fmt.Sprintf("killed by the kernel: it needed more than its memory limit of %d MiB (%s)",
		i.spec.MemoryMiB, reason)
}

// lookForKills notices processes that were killed for memory in instances that go on.
func (s *Supervisor) lookForKills() {
	if s.options.Groups == nil {
		return
	}
	for _, i := range s.instances {
		if i.phase != phaseRunning || i.group == "" {
			continue
		}
		if now := s.options.Groups.Path(i.group).OOMKills(); now != i.oomNow {
			i.oomNow, i.dirty = now, true
		}
	}
}
