package runnerd

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/ipc/attach"
	"colloid.net/runnerd/shim"
	"colloid.net/workload"
)

// execRequest is a program, or a copy, that an operator wants in an instance.
type execRequest struct {
	arguments     []string
	terminal      bool
	input         bool
	rows, columns uint16

	copy bool
	path string
	into bool
}

func (r *execRequest) String() string {
	switch {
	case r.copy && r.into:
		return fmt.Sprintf("copy into %.200q", r.path)
	case r.copy:
		return fmt.Sprintf("copy from %.200q", r.path)
	}
	return fmt.Sprintf("exec %.200q", r.arguments)
}

func (r *execRequest) validate() error {
	size := 0
	for _, word := range r.arguments {
		size += len(word)
		if strings.ContainsRune(word, 0) {
			return errors.New("an argument holds a zero byte")
		}
	}
	switch {
	case r.copy && (r.path == "" || len(r.path) > attach.PathMax || strings.ContainsRune(r.path, 0)):
		return fmt.Errorf("path of %d bytes, expected 1 to %d without zero bytes", len(r.path), attach.PathMax)
	case !r.copy && (len(r.arguments) == 0 || r.arguments[0] == ""):
		return errors.New("no command was given")
	case len(r.arguments) > attach.ArgumentsMax || size > attach.ArgumentsSizeMax:
		return fmt.Errorf("%d arguments of together %d bytes, expected at most %d and %d", len(r.arguments), size,
			attach.ArgumentsMax, attach.ArgumentsSizeMax)
	}
	return nil
}

// attachExec starts a program in an instance for whoever has a grant of one of the host's operators (F137). It
// runs as the workload's user, in its control group and its world, without new privileges.
func (s *Supervisor) attachExec(from *session, channel uint64, i *instance, grant []byte, r *execRequest) {
	what := fmt.Sprintf("%s in %s %s", r, i.id, quoteKey(i.key))
	job, operator, err := s.permitExec(i, grant, r)
	if err != nil {
		s.audit.write(from.peer, from.sequence, what, "denied: "+err.Error())
		s.attached(from, channel, err)
		return
	}
	s.audit.write(from.peer, from.sequence, what, "allowed: grant of operator "+operator)
	s.attachments.execs++
	s.pass(from, channel, func() (*os.File, error) {
		ours, theirs, err := socketPair()
		if err != nil {
			s.post(func() { s.attachments.execs-- })
			return nil, err
		}
		go func() {
			outcome := s.execute(job, r, ours)
			s.post(func() {
				s.attachments.execs--
				s.audit.write(peer{}, 0, what, "ended: "+outcome)
			})
		}()
		return theirs, nil
	})
}

func (s *Supervisor) permitExec(i *instance, grant []byte, r *execRequest) (*launchJob, string, error) {
	switch {
	case i.spec.Runtime == workload.RuntimeWasm:
		return nil, "", errors.New("a module has no programs to execute and no files to copy")
	case s.attachments.execs >= execsMax:
		return nil, "", fmt.Errorf("%d programs of operators run on this host already: end one", execsMax)
	}
	if err := r.validate(); err != nil {
		return nil, "", err
	}
	s.checkPolicy()
	if i.phase != phaseRunning { // by checkPolicy
		return nil, "", errors.New("the instance does not run")
	}
	permit, err := s.check(i.spec)
	if err != nil {
		return nil, "", err
	}
	operator, err := s.grants.use(grant, i.key, s.policy, s.options.PolicyFile, time.Now())
	if err != nil {
		return nil, "", err
	}
	job, err := s.newJob(i, permit)
	if err != nil {
		return nil, "", err
	}
	if job.group != "" && job.groups != nil {
		job.config.Cgroup = job.groups.Path(job.group)
	}
	job.operator = true
	return job, operator, nil
}

func socketPair() (ours, theirs *os.File, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(pair[0]), "exec"), os.NewFile(uintptr(pair[1]), "exec"), nil
}

// program configures what is started.
func (r *execRequest) program(job *launchJob) (*shim.Config, *os.File, error) {
	if !r.copy {
		config, binary, err := job.backend.exec(job, r.arguments)
		if err == nil && r.terminal && !slices.ContainsFunc(config.Environment, isTerm) {
			config.Environment = append(slices.Clone(config.Environment), "TERM=xterm-256color")
		}
		return config, binary, err
	}
	if job.spec.Runtime == workload.RuntimeOCI {
		arguments := shim.CopyArguments(r.into, "/", r.path)
		arguments[0] = "/proc/self/exe" // of the init, which is the same program
		return job.backend.exec(job, arguments)
	}
	binary, err := shim.OpenProgram()
	job.config.Identity, job.config.UID, job.config.GID = canSwitchUser(), job.permit.User.UID, job.permit.User.GID
	job.config.Arguments = shim.CopyArguments(r.into, ".", r.path) // a stage begins in the scratch directory
	return &job.config, binary, err
}

func isTerm(variable string) bool { return strings.HasPrefix(variable, "TERM=") }

// execute runs a program to its end over a connection, and says how that was.
func (s *Supervisor) execute(job *launchJob, r *execRequest, connection *os.File) string {
	defer connection.Close()
	e := &execution{connection: connection, frames: attach.NewWriter(connection), gone: make(chan struct{}), quit: s.quit,
		tidies: r.copy && r.into}
	if !r.copy {
		e.queue = newInputQueue()
	}
	exit, err := e.start(job, r)
	if err != nil {
		exit = attach.Exit{Code: codeNotFound, Reason: shorten(err.Error())}
	} else {
		exit = e.run()
	}
	_ = connection.SetWriteDeadline(time.Now().Add(execDrain))
	_ = e.frames.Write(attach.KindExit, exit.Append(nil))
	if exit.Reason != "" {
		return fmt.Sprintf("exit %d (%s)", exit.Code, exit.Reason)
	}
	return fmt.Sprintf("exit %d", exit.Code)
}

const (
	// codeNotFound is the exit code of a program that could not be started, as shells give it.
	codeNotFound = 127
	// execDrain is how long output is waited for after the end, while none comes, and how long the last
	// frame may take.
	execDrain = 500 * time.Millisecond
	// execLook is how often a program whose operator is gone is noticed.
	execLook = 500 * time.Millisecond
)
