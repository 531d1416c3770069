package runnerd

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/runnerd/cgroup"
	"colloid.net/runnerd/image"
	"colloid.net/runnerd/podnet"
	"colloid.net/runnerd/policy"
	"colloid.net/runnerd/procfs"
	"colloid.net/runnerd/sandbox"
	"colloid.net/runnerd/shim"
	"colloid.net/workload"
)

// denial is an error that starting again cannot mend.
type denial struct{ error }

func canSwitchUser() bool { return os.Geteuid() == 0 }

// beginLaunch starts the workload once, as soon as the pace of launches allows.
func (s *Supervisor) beginLaunch(i *instance, reason string) {
	// What is left of the last run must not look like this one after a restart of runnerd.
	_ = os.Remove(i.path(shim.FileRun))
	_ = os.Remove(i.path(shim.FileExit))
	s.enter(i, phaseLaunching, reason)
	now := procfs.BootTime()
	s.launchSlot = max(s.launchSlot, now-launchBurst*launchInterval) + launchInterval
	id, epoch := i.id, i.epoch
	i.timer = time.AfterFunc(max(0, s.launchSlot-now), func() {
		s.report(id, epoch, func(i *instance) { s.launchNow(i) })
	})
}

func (s *Supervisor) launchNow(i *instance) {
	permit, err := s.check(i.spec)
	if err != nil {
		s.stop(i, 0, "", err.Error())
		return
	}
	if i.awaitsEnvironment() {
		s.enter(i, phaseWaiting, "waits for its secrets and files") // supplyAgain goes on
		return
	}
	groups := s.options.Groups
	if groups != nil && i.group == "" {
		i.group = fmt.Sprintf("%016x-%d-%s", i.id.KeyHash, i.id.Slot, nonce())
		s.write(i)
	}
	job, err := s.newJob(i, permit)
	if err != nil {
		s.stop(i, 0, "", err.Error())
		return
	}
	i.moved = false // it is told the address of now
	job.limits = cgroup.Limits{
		CPUMillicores: i.spec.CPUMillicores, MemoryMiB: i.spec.MemoryMiB, PIDs: i.spec.PidsMax,
	}
	id, epoch := i.id, i.epoch
	ctx, cancel := context.WithCancel(context.Background())
	i.cancel = cancel
	over := make(chan struct{})
	i.launchOver = over
	go func() {
		defer close(over)
		if f, slow := job.backend.(fetcher); slow {
			if err := f.fetch(ctx, job, s.progressReporter(id, epoch)); err != nil {
				s.report(id, epoch, func(i *instance) { s.launched(i, job, shim.Started{}, err) })
				return
			}
		}
		select {
		case s.launch <- struct{}{}:
		case <-ctx.Done():
			return
		}
		defer func() { <-s.launch }()
		if ctx.Err() != nil {
			return
		}
		s.do(func() {
			if i := s.instances[id]; i != nil && i.epoch == epoch && s.spares != nil {
				job.yield = s.spares.yield
				s.useSpare(i, job)
			}
		})
		started, err := job.run(ctx)
		s.report(id, epoch, func(i *instance) { s.launched(i, job, started, err) })
	}()
}

// progressReporter makes how far a fetch is the reason of an instance, where `colloid status` shows it.
func (s *Supervisor) progressReporter(id InstanceID, epoch int) func(text string) {
	return func(text string) {
		s.report(id, epoch, func(i *instance) { i.reason, i.dirty = text, true })
	}
}

func nonce() string {
	var bytes [8]byte
	_, _ = rand.Read(bytes[:]) // never fails
	return hex.EncodeToString(bytes[:])
}

// environment is all that a workload gets (F145).
func environment(i *instance) []string {
	list := []string{
		"PATH=" + defaultPath,
		fmt.Sprintf("COLLOID_CELL=%016x", i.cell),
		"COLLOID_WORKLOAD=" + i.key,
		"COLLOID_SLOT=" + strconv.Itoa(int(i.id.Slot)),
		"COLLOID_ADDRESS=" + i.address.String(),
	}
	for n, port := range i.spec.Ports {
		value := strconv.Itoa(int(port.Container))
		if n == 0 {
			list = append(list, "PORT="+value)
		}
		list = append(list, "PORT_"+strconv.Itoa(n)+"="+value)
	}
	if i.supplied != nil && len(i.supplied.Files) > 0 && i.spec.Runtime == workload.RuntimeProcess {
		list = append(list, variableFiles+"="+filepath.Join(i.directory, dirFiles))
	}
	return append(append(list, i.spec.Environment...), secretsOf(i.supplied)...)
}

// launchJob is one launch, or one further process in a running instance, on a goroutine of its own. It
// holds copies: nothing in it is shared with the supervisor's goroutine but what never changes.
type launchJob struct {
	backend backend
	release func(directory string)
	id      InstanceID
	key     string
	spec    *workload.Spec
	permit  policy.Permit
	groups  *cgroup.Manager
	group   string
	limits  cgroup.Limits
	files   []workload.File // of its environment
	secrets []string        // its variables, which no file may hold
	image   image.Config    // of a container, after fetch
	cell    uint64
	// Its own addresses, after prepare; invalid = it has the cell's.
	address, addressIPv6 netip.Addr
	config               shim.Config // completed by the backend
	spare                *spare      // a sandbox that waits for it, nil = none
	// yield gives up the sandbox that waits for another one, and reports whether there was one; nil = cannot.
	yield func() bool
	// operator says that an operator wants a further process, not a health check.
	operator bool
}

// newJob makes the job of an instance with all that the runtimes have in common.
func (s *Supervisor) newJob(i *instance, permit policy.Permit) (*launchJob, error) {
	chosen := s.backends[i.spec.Runtime]
	if chosen == nil {
		return nil, fmt.Errorf("this runnerd cannot run the runtime class of %s", i.key)
	}
	var files []workload.File
	if i.supplied != nil {
		files = i.supplied.Files
	}
	return &launchJob{
		files: files, secrets: secretsOf(i.supplied), backend: chosen, release: s.release,
		id: i.id, key: i.key, spec: i.spec, permit: permit,
		groups: s.options.Groups, group: i.group, cell: i.cell,
		config: shim.Config{Directory: i.directory, LogRate: s.policy.LogRate, Environment: environment(i)},
	}, nil
}

// run launches. A sandbox that was prepared must not be why a start fails: what failed in one is tried without it,
// and what the one that stands ready holds is given up for a start that lacks it, once each.
func (j *launchJob) run(ctx context.Context) (shim.Started, error) {
	environment := j.config.Environment
	started, err := j.attempt(ctx)
	again := func() bool {
		var refused denial
		if err == nil || ctx.Err() != nil || errors.As(err, &refused) {
			return false
		}
		taken := j.spare != nil
		return isShortage(err) && j.yield != nil && j.yield() || taken
	}
	for range 2 {
		if !again() {
			break
		}
		// The control group keeps its name, which the instance's record has.
		j.spare, j.config.Environment = nil, environment
		started, err = j.attempt(ctx)
	}
	return started, err
}

// isShortage reports whether something was missing of which a host has only so much. What a shim says is text.
func isShortage(err error) bool {
	if errors.Is(err, podnet.ErrFull) || errors.Is(err, sandbox.ErrFull) {
		return true
	}
	for _, cause := range [...]unix.Errno{unix.ENOMEM, unix.ENOSPC, unix.EDQUOT, unix.EAGAIN, unix.EMFILE, unix.ENFILE} {
		if errors.Is(err, cause) || strings.Contains(err.Error(), cause.Error()) {
			return true
		}
	}
	return false
}

// attempt launches once. A failure leaves nothing behind.
func (j *launchJob) attempt(ctx context.Context) (shim.Started, error) {
	binary, err := j.backend.prepare(ctx, j)
	if err != nil {
		return shim.Started{}, j.giveUp(err)
	}
	if binary != nil {
		defer binary.Close()
	}
	if j.groups != nil {
		if j.config.Cgroup, err = j.groups.Create(j.group, j.limits); err != nil {
			return shim.Started{}, j.giveUp(err)
		}
	}
	var started shim.Started
	if j.spare != nil {
		started, err = j.spare.shim.Launch(&j.config)
	} else {
		started, err = shim.Launch(&j.config, binary)
	}
	j.closeExtra()
	if err != nil {
		j.abandon(started.Shim)
	}
	return started, err
}

// giveUp cleans up behind a launch that did not come to its shim.
func (j *launchJob) giveUp(err error) error {
	j.closeExtra()
	if j.spare != nil {
		j.spare.shim.Close()
		if j.groups != nil {
			_ = j.groups.Remove(j.group)
		}
	}
	j.release(j.config.Directory)
	return err
}

// closeExtra closes what the workload inherits and has, or will never have.
func (j *launchJob) closeExtra() {
	for _, file := range j.config.Extra {
		file.Close()
	}
	j.config.Extra = nil
}

// abandon makes sure that nothing of a failed launch runs.
func (j *launchJob) abandon(launched procfs.Process) {
	_ = launched.Signal(unix.SIGKILL)
	launched.Wait(time.Second, nil)
	r := run{
		directory: j.config.Directory, shim: launched, groups: j.groups, group: j.group, release: j.release,
		process: loadProcess(filepath.Join(j.config.Directory, shim.FileRun)),
	}
	reapShim(launched)
	r.clean()
}

// launched takes the result of a launch.
func (s *Supervisor) launched(i *instance, job *launchJob, started shim.Started, err error) {
	if err != nil {
		var refused denial
		if errors.As(err, &refused) {
			s.options.Log.Printf("%s is denied: %v", i.id, err)
			s.audit.write(peer{}, 0, "launch "+i.id.String()+" "+quoteKey(i.key), "denied: "+err.Error())
			s.stop(i, 0, "", err.Error())
			return
		}
		i.failed = "cannot start: " + err.Error()
		s.ended(i, shim.UnknownCode, i.failed, 0)
		return
	}
	i.process, i.shim, i.ownAddress = started.Workload, started.Shim, job.address
	i.ownAddressIPv6 = job.addressIPv6
	s.running(i)
}

// runProbe executes the program of an exec health check.
func (s *Supervisor) runProbe(i *instance, permit policy.Permit) (func(time.Duration) (int, error), error) {
	job, err := s.newJob(i, permit)
	if err != nil {
		return nil, err
	}
	if job.group != "" && job.groups != nil {
		job.config.Cgroup = job.groups.Path(job.group)
	}
	return func(timeout time.Duration) (int, error) {
		probe := *job
		config, binary, err := probe.backend.exec(&probe, probe.spec.Health.Command)
		if err != nil {
			return shim.UnknownCode, err
		}
		if binary != nil {
			defer binary.Close()
		}
		return shim.Run(config, binary, timeout)
	}, nil
}
