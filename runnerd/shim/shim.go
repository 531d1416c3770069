package shim

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/runnerd/procfs"
	"colloid.net/runnerd/record"
	"colloid.net/runnerd/sandbox"
)

const (
	// lockPatience is how long a new shim waits for its predecessor to finish.
	lockPatience = 2 * time.Second
	// drainPatience is how long output is still taken after the last process was killed.
	drainPatience = 2 * time.Second
)

// Main is the program "runnerd shim". It returns the exit status of the shim itself.
func Main() int {
	closeOnExec()
	// Caught, not ignored: an ignored signal would stay ignored in the workload.
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP, unix.SIGPIPE, unix.SIGTERM, unix.SIGINT)
	ready := os.NewFile(descriptorReady, "ready")
	config, err := readConfig(os.NewFile(descriptorConfig, "config"))
	var s *shim
	if err == nil && config.Spare {
		s, err = startSpare(config, ready)
		if s == nil && err == nil { // nobody needed it
			return 0
		}
	} else if err == nil {
		if s, err = prepare(config); err == nil {
			err = s.start()
		}
	}
	if err != nil {
		fmt.Fprintf(ready, "error %s\n", strings.ReplaceAll(err.Error(), "\n", " "))
		return 1
	}
	s.tell(ready)
	ready.Close()
	s.wait()
	s.finish()
	return 0
}

// tell is the word of a shim: the process that runs.
func (s *shim) tell(ready io.Writer) {
	fmt.Fprintf(ready, "ok %d %d\n", s.workload.PID, s.workload.StartTicks)
}

// shim is one running shim.
type shim struct {
	config   *Config
	self     procfs.Process
	lock     *os.File
	keep     *os.File // the pipe, open for both ends until the workload is gone
	reader   *os.File
	drained  chan struct{}
	workload procfs.Process
	status   *os.File // how the workload ended, from the init of its sandbox; nil without one
}

func (s *shim) path(name string) string { return filepath.Join(s.config.Directory, name) }

// prepare takes the lock and the pipe.
func prepare(config *Config) (*shim, error) {
	s := &shim{config: config, workload: config.Root, drained: make(chan struct{})}
	return s, s.takeDirectory()
}

// takeDirectory makes the instance's directory this shim's.
func (s *shim) takeDirectory() (err error) {
	if s.self, err = procfs.Find(os.Getpid()); err != nil {
		return err
	}
	if s.lock, err = lockFile(s.path(FileLock)); err != nil {
		return err
	}
	if err := s.openPipe(); err != nil {
		return fmt.Errorf("shim: open log pipe: %w", err)
	}
	return record.Keep(s.path(FileShim), processRecord(s.self))
}

// lockFile takes the lock of the instance. The descriptor is closed on exec: only shims hold it.
func lockFile(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(lockPatience); ; time.Sleep(10 * time.Millisecond) {
		if err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			return file, nil
		}
		if time.Now().After(deadline) {
			file.Close()
			return nil, errors.New("shim: another shim still looks after this instance")
		}
	}
}

// Locked reports whether a shim looks after the instance in directory.
func Locked(directory string) bool {
	file, err := os.OpenFile(filepath.Join(directory, FileLock), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false
	}
	defer file.Close()
	return unix.Flock(int(file.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil
}

// openPipe makes the FIFO if it is not there. The workload opens it for reading and writing as well,
// so that the death of the shim is a full pipe for it, never SIGPIPE.
func (s *shim) openPipe() error {
	path := s.path(FilePipe)
	if err := unix.Mkfifo(path, 0o600); err != nil && err != unix.EEXIST {
		return err
	}
	if world := s.config.Sandbox; world != nil { // its init gives the pipe to the workload's user
		if err := os.Lchown(path, int(world.UIDBase), int(world.GIDBase)); err != nil {
			return err
		}
	} else if s.config.Identity { // so that the workload may open /dev/stdout again
		if err := os.Lchown(path, int(s.config.UID), int(s.config.GID)); err != nil {
			return err
		}
	}
	var stat unix.Stat_t
	if err := unix.Lstat(path, &stat); err != nil || stat.Mode&unix.S_IFMT != unix.S_IFIFO {
		return errors.New("not a pipe")
	}
	var err error
	if s.keep, err = os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0); err != nil {
		return err
	}
	if s.reader, err = os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0); err != nil {
		return err
	}
	log, err := openLog(s.config.Directory, s.config.LogRate)
	if err != nil {
		return err
	}
	go func() {
		defer close(s.drained)
		log.drain(s.reader)
	}()
	return nil
}

func processRecord(p procfs.Process) record.Record {
	r := record.Record{}
	r.SetInt("pid", int64(p.PID))
	r.SetUint("ticks", p.StartTicks)
	r.Set("boot", procfs.BootID())
	return r
}

// start writes down who runs and lets it run, in this order.
func (s *shim) start() error {
	if s.config.Watch {
		if !s.workload.Alive() {
			return errors.New("shim: the process to watch has ended")
		}
		return nil
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("shim: become subreaper: %w", err)
	}
	if s.config.Runtime != "" {
		unix.Close(descriptorBinary)
		return s.startExternal()
	}
	stage, err := s.startStage()
	if err != nil {
		return err
	}
	defer stage.close()
	if s.workload, err = procfs.Find(stage.pid); err != nil {
		return fmt.Errorf("shim: the stage ended at once: %w", err)
	}
	if len(s.config.Cgroup) > 0 {
		if err := s.config.Cgroup.Add(stage.pid); err != nil {
			return err
		}
	}
	if err := record.Keep(s.path(FileRun), processRecord(s.workload)); err != nil {
		return err
	}
	s.config.Session = stage.pid
	return stage.release()
}

// stageProcess is a stage that waits for the word to go.
type stageProcess struct {
	pid      int
	goWrite  *os.File
	failures *os.File
}

func (p *stageProcess) close() {
	p.goWrite.Close()
	p.failures.Close()
}

func (s *shim) startStage() (*stageProcess, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	pipe := s.keep.Fd()
	var host *sandbox.Host
	if s.config.Sandbox != nil {
		if host, s.status, err = sandbox.OpenHost(s.config.Sandbox, s.config.Directory); err != nil {
			return nil, err
		}
		defer host.Close()
	}
	stage, err := forkStage(s.config, [3]uintptr{null.Fd(), pipe, pipe}, descriptorBinary, host)
	unix.Close(descriptorBinary)
	s.config.dropExtra()
	return stage, err
}

// forkStage starts a stage with the three standard files and the binary to become, in the namespaces of a
// sandbox if there is one.
func forkStage(c *Config, standard [3]uintptr, binary uintptr, host *sandbox.Host) (*stageProcess, error) {
	var pipes [3][2]*os.File
	closeEnds := func(end int) {
		for _, pipe := range pipes {
			if pipe[end] != nil {
				pipe[end].Close()
			}
		}
	}
	for i := range pipes {
		read, write, err := os.Pipe()
		if err != nil {
			closeEnds(0)
			closeEnds(1)
			return nil, fmt.Errorf("shim: pipe: %w", err)
		}
		pipes[i] = [2]*os.File{read, write}
	}
	config, word, failures := pipes[0], pipes[1], pipes[2]
	files := append(standard[:], config[0].Fd(), binary, word[0].Fd(), failures[1].Fd())
	var pid int
	var err error
	if host != nil {
		files = append(files, host.Descriptors()...)
	}
	files = c.forwardExtra(files)
	if host == nil {
		pid, err = forkSelf(ArgumentStage, files, &syscall.SysProcAttr{Setsid: true, Setctty: c.Terminal})
	} else {
		pid, err = host.Fork(func() (int, error) { return forkSelf(ArgumentStage, files, host.Attributes()) })
	}
	config[0].Close()
	word[0].Close()
	failures[1].Close()
	if err == nil {
		_, err = config[1].Write(c.record().Encode())
	}
	config[1].Close()
	stage := &stageProcess{pid: pid, goWrite: word[1], failures: failures[0]}
	if err != nil {
		stage.close()
		return nil, fmt.Errorf("shim: start the stage: %w", err)
	}
	return stage, nil
}

// release gives the word and waits until the stage has become the workload or says why not.
func (p *stageProcess) release() error {
	if _, err := p.goWrite.Write([]byte{1}); err != nil {
		return fmt.Errorf("shim: the stage ended early: %w", err)
	}
	return p.result()
}

// result is nil once the workload runs.
func (p *stageProcess) result() error {
	failure, _ := io.ReadAll(io.LimitReader(p.failures, 1024))
	if len(failure) > 0 {
		return errors.New(string(failure))
	}
	return nil
}

// wait blocks until the workload's first process has ended and writes its exit status down.
func (s *shim) wait() {
	if s.config.Watch {
		s.workload.Wait(-1, nil)
		s.recordExit(UnknownCode, "its shim was killed, so its exit code is unknown")
		return
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			s.recordExit(UnknownCode, "its exit code could not be read")
			return
		case pid == s.workload.PID:
			s.recordExit(exitCode(s.inner(status)))
			return
		}
	}
}

// inner is how the workload ended where an init stood in front of it; the init was killed with the rest
// where it did not say.
func (s *shim) inner(outer unix.WaitStatus) unix.WaitStatus {
	if s.status == nil {
		return outer
	}
	text, _ := io.ReadAll(io.LimitReader(s.status, 16)) // the other end is closed: the init has ended
	if inner, err := strconv.Atoi(string(text)); err == nil {
		return unix.WaitStatus(inner)
	}
	return outer
}

func exitCode(status unix.WaitStatus) (int, string) {
	if status.Signaled() {
		return 128 + int(status.Signal()), fmt.Sprintf("ended by signal %d (%s)", status.Signal(), status.Signal())
	}
	return status.ExitStatus(), fmt.Sprintf("exited with code %d", status.ExitStatus())
}

func (s *shim) recordExit(code int, reason string) {
	r := processRecord(s.workload)
	r.SetInt("code", int64(code))
	r.Set("reason", reason)
	_ = record.Keep(s.path(FileExit), r) // without it runnerd finds the process gone: code unknown
}

// finish kills what the workload left behind, takes the last output and collects zombies.
func (s *shim) finish() {
	s.config.Cgroup.Kill()
	tree := procfs.Tree{Session: s.config.Session, Root: s.workload, Adopter: s.self, Keep: s.self.PID}
	if s.config.Watch {
		tree.Adopter = procfs.Process{}
	}
	tree.Kill()
	if s.config.Runtime != "" {
		DeleteExternal(s.config.Runtime, s.config.Directory, s.config.Name)
	}
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if pid <= 0 || err != nil {
			break
		}
	}
	s.keep.Close()
	select {
	case <-s.drained:
	case <-time.After(drainPatience):
	}
}
