package shim

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"colloid.net/ipc/attach/tree"
	"colloid.net/runnerd/procfs"
	"colloid.net/runnerd/record"
	"colloid.net/runnerd/sandbox"
)

// filesInside is the pattern of the files that name further processes, so that a later runnerd ends those
// whose runnerd was killed.
const filesInside = "inside.*"

// Inside is a further process in a running instance. It has the user, the control group and the world of the
// instance, and a session of its own.
type Inside struct {
	directory string
	process   procfs.Process   // of the host
	sandbox   *sandbox.Process // in a sandbox, nil otherwise
}

// Start starts a further process with three standard files, which the caller closes. Terminal makes the first
// one its controlling terminal. binary is the checked file, nil in a sandbox, which looks it up itself.
func Start(c *Config, binary *os.File, standard [3]*os.File, terminal bool) (*Inside, error) {
	if c.Runtime != "" {
		return nil, errors.New("programs and files are not reachable in containers of an external runtime")
	}
	if c.Sandbox != nil {
		exec := sandbox.Exec{Arguments: c.Arguments, Environment: c.Environment, Terminal: terminal}
		process, err := exec.Start(c.Directory, standard)
		if err != nil {
			return nil, err
		}
		return &Inside{sandbox: process}, nil
	}
	c.binary, c.Terminal = true, terminal
	descriptors := [3]uintptr{standard[0].Fd(), standard[1].Fd(), standard[2].Fd()}
	stage, err := forkStage(c, descriptors, binary.Fd(), nil)
	if err != nil {
		return nil, err
	}
	defer stage.close()
	p := &Inside{directory: c.Directory}
	p.process, err = procfs.Find(stage.pid)
	if err == nil && len(c.Cgroup) > 0 {
		err = c.Cgroup.Add(stage.pid)
	}
	if err == nil {
		err = record.Keep(p.file(), processRecord(p.process))
	}
	if err == nil {
		err = stage.release()
	}
	if err != nil {
		p.process = procfs.Process{PID: stage.pid, StartTicks: p.process.StartTicks}
		p.Close()
		_, _ = p.Wait()
		return nil, err
	}
	return p, nil
}

func (p *Inside) file() string {
	return filepath.Join(p.directory, "inside."+strconv.Itoa(p.process.PID))
}

// Wait waits for the end, ends what is left of the session, and gives the exit code. It must be called once.
func (p *Inside) Wait() (code int, err error) {
	if p.sandbox != nil {
		return p.sandbox.Wait(0)
	}
	p.process.Wait(-1, nil)
	p.end() // before its number can be somebody else's
	var status unix.WaitStatus
	for {
		if _, err = unix.Wait4(p.process.PID, &status, 0, nil); err != unix.EINTR {
			break
		}
	}
	_ = os.Remove(p.file())
	if err != nil {
		return UnknownCode, fmt.Errorf("its exit code could not be read: %w", err)
	}
	code, _ = exitCode(status)
	return code, nil
}

// Signal sends a signal to the process.
func (p *Inside) Signal(number syscall.Signal) error {
	if p.sandbox != nil {
		return p.sandbox.Signal(number)
	}
	return p.process.Signal(number)
}

// Close ends the process if it still runs. Wait says how that went.
func (p *Inside) Close() {
	if p.sandbox != nil {
		p.sandbox.Close()
		return
	}
	if p.process.Signal(unix.SIGKILL) == nil {
		p.end()
	}
}

func (p *Inside) end() {
	procfs.Tree{Session: p.process.PID, Root: p.process, Keep: os.Getpid()}.Kill()
}

// EndInside ends what runs further in an instance and belongs to a runnerd that is no more. Processes in a
// sandbox have ended by themselves.
func EndInside(directory string) {
	names, _ := filepath.Glob(filepath.Join(directory, filesInside))
	for _, name := range names {
		r, err := record.Load(name)
		p := procfs.Process{PID: int(r.Int("pid")), StartTicks: r.Uint("ticks")}
		if err == nil && r.Get("boot") == procfs.BootID() && p.PID > 1 {
			session := 0
			if p.Alive() { // its number cannot be somebody else's
				session = p.PID
			}
			procfs.Tree{Session: session, Root: p, Keep: os.Getpid()}.Kill()
		}
		_ = os.Remove(name)
	}
}

// CopyProgram is the first argument of the program that copies files, and CopyArguments its arguments in an
// instance: from or into a path below root.
const (
	ArgumentCopy = "copy"
	copyFrom     = "from"
	copyInto     = "into"
)

// CopyArguments are the arguments of the copy program, name first.
func CopyArguments(into bool, root, path string) []string {
	direction := copyFrom
	if into {
		direction = copyInto
	}
	return []string{"runnerd", ArgumentCopy, direction, root, path}
}

// OpenProgram opens the program that shims, stages and copies are.
func OpenProgram() (*os.File, error) { return os.Open(program) }

// CopyMain is the program that copies: an archive of package tree on its standard output or input. It runs in
// the instance as the workload's user, so it can do nothing that the workload could not.
func CopyMain(arguments []string) int {
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT) // it ends with its input, and tidies up
	err := errors.New("expected from or into, a root and a path")
	if len(arguments) == 3 {
		err = copyFiles(arguments[0], arguments[1], arguments[2])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func copyFiles(direction, rootPath, path string) error {
	asked, base := path, filepath.Base(filepath.Clean(path)) // by the name that was asked for, also of a link
	if rootPath == "/" {
		// A container is its own bound: its links may lead anywhere in it.
		path = filepath.Join("/", path)
		if parent, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
			path = filepath.Join(parent, filepath.Base(path))
		}
		if resolved, err := filepath.EvalSymlinks(path); err == nil {
			path = resolved
		}
	} else if filepath.IsAbs(path) {
		return fmt.Errorf("%s: name files by their path below the scratch directory of the instance", path)
	}
	name := filepath.Clean(path)
	if name = trimRoot(name); !filepath.IsLocal(name) {
		return fmt.Errorf("%s leads out of the instance", path)
	}
	root, err := os.OpenRoot(rootPath)
	if err != nil {
		return err
	}
	defer root.Close()
	if direction == copyInto {
		if info, err := root.Stat(name); strings.HasSuffix(asked, "/") && (err != nil || !info.IsDir()) {
			return fmt.Errorf("%s is no directory of the instance: leave out the slash to name a file so", asked)
		}
		_, err = tree.Receive(os.Stdin, root, name)
		return err
	}
	if base == "." || base == "/" {
		base = "root"
	}
	left, err := tree.Send(os.Stdout, root, name, base)
	if text := left.String(); text != "" && err == nil {
		fmt.Fprintln(os.Stderr, text) // the operator is told
	}
	return err
}

func trimRoot(name string) string {
	if name == "/" {
		return "."
	}
	if filepath.IsAbs(name) {
		return name[1:]
	}
	return name
}
