package runnerd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"colloid.net/ipc/message"
	"colloid.net/runnerd/policy"
	"colloid.net/runnerd/procfs"
)

// fileIdentity changes whenever a file is written or replaced.
type fileIdentity struct {
	device, inode  uint64
	size           int64
	changed, wrote syscall.Timespec
	exists         bool
}

func identify(path string) fileIdentity {
	info, err := os.Stat(path)
	if err != nil {
		return fileIdentity{}
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fileIdentity{}
	}
	return fileIdentity{uint64(stat.Dev), stat.Ino, stat.Size, stat.Ctim, stat.Mtim, true}
}

// loadPolicy reads the policy for the first time or after it changed. A file that cannot be taken
// leaves the last good policy in force, or at first the empty one; a file that is absent allows
// nothing new.
func (s *Supervisor) loadPolicy() (taken bool) {
	s.policyFile = identify(s.options.PolicyFile)
	loaded, err := policy.Load(s.options.PolicyFile, s.options.Owners)
	switch {
	case err == nil:
		s.policy, s.offered, s.policyError = loaded, loaded, ""
		return true
	case errors.Is(err, fs.ErrNotExist):
		s.policy = policy.Empty() // still offered: without its capacity the cell would lose what it runs
		s.policyError = fmt.Sprintf("there is no policy file %s: no host process may run", s.options.PolicyFile)
	default:
		if s.policy == nil {
			s.policy = policy.Empty()
		}
		s.policyError = "the policy file is not in force: " + strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	if s.offered == nil {
		s.offered = s.policy
	}
	s.options.Log.Print(s.policyError)
	return false
}

// checkPolicy notices a changed file: what was denied is asked for again, what runs and is no longer
// allowed is stopped, and meshd hears of the new capacity.
func (s *Supervisor) checkPolicy() {
	if identify(s.options.PolicyFile) == s.policyFile {
		return
	}
	taken := s.loadPolicy()
	s.audit.write(peer{}, 0, "policy "+s.options.PolicyFile, fmt.Sprintf("taken: %v %s", taken, s.policyError))
	s.relist()
	if !taken {
		return
	}
	for _, id := range slices.Clone(s.denials) {
		if i := s.instances[id]; i != nil {
			s.dropDenial(id)
			s.forget(i)
		}
	}
	for _, i := range s.instances {
		if _, err := s.check(i.spec); err != nil && i.phase != phaseStopping {
			s.audit.write(peer{}, 0, "policy "+i.id.String()+" "+quoteKey(i.key), "denied: "+err.Error())
			s.stop(i, graceOf(i), "", err.Error())
		}
	}
}

// hello describes this host.
func (s *Supervisor) helloMessage() *message.Hello {
	cpu, memory := s.offered.Capacity(uint32(runtime.NumCPU())*1000, procfs.MemoryMiB())
	return &message.Hello{
		Protocol: protocolVersion, Helper: "runnerd", Software: s.options.Software,
		RunsProcess: len(s.offered.Processes) > 0, RunsWasm: s.offered.Wasm != nil,
		RunsOci:       s.containerImages() != nil && !s.offered.Containers.Denied,
		CpuMillicores: cpu, MemoryMib: memory,
		DiskMib: diskMiB(s.options.Directory), InstancesMax: uint32(s.offered.Instances),
		LimitsEnforced: s.options.Groups.Enforced(), Degradations: s.degradations(), Forbids: s.forbids(), TakesHost: true, TakesCheck: true,
		TakesPrepare: true,
	}
}

// forbids says for which runtime classes the policy is why this host offers none.
func (s *Supervisor) forbids() (bits uint32) {
	if s.offered.Containers.Denied {
		bits |= message.ForbidsOCI
	}
	if s.offered.Wasm == nil {
		bits |= message.ForbidsWasm
	}
	if len(s.offered.Processes) == 0 {
		bits |= message.ForbidsProcess
	}
	return bits
}

func (s *Supervisor) degradations() []string {
	var list []string
	if missing := s.options.Groups.Missing(); len(missing) > 0 {
		list = append(list, fmt.Sprintf("control group controllers %s are not available here: those limits are not enforced",
			strings.Join(missing, ", ")))
	}
	list = append(list, s.options.Groups.Weaker()...)
	if s.policyError != "" {
		list = append(list, shorten(s.policyError))
	}
	if !canSwitchUser() {
		list = append(list, fmt.Sprintf("runnerd runs without root: every process runs as uid %d, "+
			"and modules without namespaces of their own", os.Geteuid()))
	}
	if alarm := s.unwritten.alarm(s.options.Directory); alarm != "" {
		list = append(list, alarm)
	}
	return append(list, s.alarms...)
}

func diskMiB(directory string) uint32 {
	var stat unix.Statfs_t
	if err := unix.Statfs(directory, &stat); err != nil {
		return 0
	}
	return uint32(min(1<<32-1, stat.Bavail*uint64(stat.Bsize)>>20))
}
