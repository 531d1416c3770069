package runnerd

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/runnerd/cgroup"
	"colloid.net/runnerd/policy"
	"colloid.net/runnerd/procfs"
	"colloid.net/runnerd/shim"
	"colloid.net/runnerd/trust"
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
	permit, err := s.policy.Check(i.spec)
	if err != nil {
		s.stop(i, 0, "", err.Error())
		return
	}
	groups := s.options.Groups
	if groups != nil && i.group == "" {
		i.group = fmt.Sprintf("%016x-%d-%s", i.id.KeyHash, i.id.Slot, nonce())
		if err := i.save(); err != nil {
			s.options.Log.Printf("cannot write down the state of %s: %v", i.id, err)
		}
	}
	job := launchJob{
		owners: s.options.Owners, permit: permit, wanted: i.spec.ImageDigest,
		groups: groups, group: i.group,
		limits: cgroup.Limits{CPUMillicores: i.spec.CPUMillicores, MemoryMiB: i.spec.MemoryMiB, PIDs: i.spec.PidsMax},
		config: shim.Config{
			Directory: i.directory, LogRate: s.policy.LogRate, Environment: environment(i),
			Arguments: append([]string{permit.Process.Path}, i.spec.Arguments...),
			Identity:  canSwitchUser(), UID: permit.User.UID, GID: permit.User.GID,
		},
	}
	id, epoch := i.id, i.epoch
	ctx, cancel := context.WithCancel(context.Background())
	i.cancel = cancel
	over := make(chan struct{})
	i.launchOver = over
	go func() {
		defer close(over)
		select {
		case s.launch <- struct{}{}:
		case <-ctx.Done():
			return
		}
		defer func() { <-s.launch }()
		if ctx.Err() != nil {
			return
		}
		started, err := job.run()
		s.report(id, epoch, func(i *instance) { s.launched(i, started, err) })
	}()
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
	return append(list, i.spec.Environment...)
}

// launchJob is one launch, on a goroutine of its own.
type launchJob struct {
	owners trust.Users
	permit policy.Permit
	wanted [32]byte
	groups *cgroup.Manager
	group  string
	limits cgroup.Limits
	config shim.Config
}

func (j *launchJob) run() (shim.Started, error) {
	binary, err := openBinary(j.owners, j.permit.Process, j.wanted)
	if err != nil {
		return shim.Started{}, err
	}
	defer binary.Close()
	if j.groups != nil {
		if j.config.Cgroup, err = j.groups.Create(j.group, j.limits); err != nil {
			return shim.Started{}, err
		}
	}
	started, err := shim.Launch(&j.config, binary)
	if err != nil {
		j.abandon(started.Shim)
	}
	return started, err
}

// abandon makes sure that nothing of a failed launch runs.
func (j *launchJob) abandon(launched procfs.Process) {
	_ = launched.Signal(unix.SIGKILL)
	launched.Wait(time.Second, nil)
	r := run{
		directory: j.config.Directory, shim: launched, groups: j.groups, group: j.group,
		process: loadProcess(filepath.Join(j.config.Directory, shim.FileRun)),
	}
	reapShim(launched)
	r.clean()
}

// openBinary opens a listed binary and checks what it opened: the file that is executed is the very
// one whose digest was taken, through its descriptor (F145).
func openBinary(owners trust.Users, process *policy.Process, wanted [32]byte) (*os.File, error) {
	file, path, err := owners.OpenFile(process.Path)
	if err != nil {
		return nil, denial{fmt.Errorf("%s may not run: %w", process.Path, err)}
	}
	if err := checkBinary(file, path, process, wanted); err != nil {
		file.Close()
		return nil, denial{err}
	}
	return file, nil
}

func checkBinary(file *os.File, path string, process *policy.Process, wanted [32]byte) error {
	var magic [4]byte
	if _, err := file.ReadAt(magic[:], 0); err != nil || string(magic[:]) != "\x7fELF" {
		return fmt.Errorf("%s is no binary: to run a script, list its interpreter and pass the script as an argument",
			path)
	}
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if info.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 {
		return fmt.Errorf("%s is set-user-id or set-group-id and is never run", path)
	}
	if process.AnyDigest && wanted == ([32]byte{}) {
		return nil
	}
	if info.Size() > binarySizeMax {
		return fmt.Errorf("%s has %d bytes, expected at most %d", path, info.Size(), binarySizeMax)
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, io.NewSectionReader(file, 0, binarySizeMax)); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return process.Accepts([32]byte(hash.Sum(nil)), wanted)
}

// launched takes the result of a launch.
func (s *Supervisor) launched(i *instance, started shim.Started, err error) {
	if err != nil {
		var refused denial
		if errors.As(err, &refused) {
			s.options.Log.Printf("%s is denied: %v", i.id, err)
			s.audit.write(peer{}, 0, "launch "+i.id.String()+" "+quoteKey(i.key), "denied: "+err.Error())
			s.stop(i, 0, "", err.Error())
			return
		}
		s.ended(i, shim.UnknownCode, "cannot start: "+err.Error(), 0)
		return
	}
	i.process, i.shim = started.Workload, started.Shim
	s.running(i)
}

// runProbe executes the program of an exec health check.
func (s *Supervisor) runProbe(i *instance, permit policy.Permit) func(time.Duration) (int, error) {
	owners := s.options.Owners
	config := shim.Config{
		Directory: i.directory, Environment: environment(i), Arguments: i.spec.Health.Command,
		Identity: canSwitchUser(), UID: permit.User.UID, GID: permit.User.GID,
	}
	if i.group != "" && s.options.Groups != nil {
		config.Cgroup = s.options.Groups.Path(i.group)
	}
	return func(timeout time.Duration) (int, error) {
		binary, err := openBinary(owners, permit.Health, [32]byte{})
		if err != nil {
			return shim.UnknownCode, err
		}
		defer binary.Close()
		return shim.Run(&config, binary, timeout)
	}
}
