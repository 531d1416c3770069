package sandbox

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"colloid.net/runnerd/sandbox/seccomp"
)

// rlimitFiles is the number of descriptors of a program whose configuration says nothing.
const rlimitFiles = 65536

const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Program is what runs inside: argv with a name or path first, and all of its environment.
type Program struct {
	Arguments   []string
	Environment []string
	// Descriptor, if above 2, is the file to execute; it is opened close-on-exec.
	Descriptor int
}

// process1 is the init: the only process of the sandbox that is not the image's.
type process1 struct {
	config   *Config
	identity Identity

	mutex    sync.Mutex
	main     int
	children map[int]chan syscall.WaitStatus // started by Exec
	execs    int
	ended    chan syscall.WaitStatus
}

// Run makes this process the program (without Init) or its init. Enter has run, on this locked thread. In
// the first case it returns only an error; in the second started is called as soon as the program runs, and
// Run returns its exit code, which the caller exits with at once: the kernel then ends what is left inside.
func Run(c *Config, program Program, started func()) (int, error) {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return 0, fmt.Errorf("hide from inside: %w", err)
	}
	identity, err := resolveUser(c, func(name string) (*os.File, error) {
		return os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	})
	if err != nil {
		return 0, err
	}
	program.Environment = withHome(program.Environment, identity.Home)
	path, err := program.find(c.WorkingDirectory)
	if err != nil {
		return 0, err
	}
	for fd := 0; fd < 3; fd++ { // so that the program may open /dev/stdout again
		_ = unix.Fchown(fd, int(identity.UID), int(identity.GID))
	}
	if err := limits(c); err != nil {
		return 0, err
	}
	if err := boundCapabilities(c.capabilities()); err != nil {
		return 0, err
	}
	_ = unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
	if !c.Init {
		return 0, become(c, identity, path, program)
	}
	p := &process1{
		config: c, identity: identity, children: map[int]chan syscall.WaitStatus{},
		ended: make(chan syscall.WaitStatus, 1),
	}
	return p.run(path, program, started)
}

// heard are the signals that an init passes on.
var heard = make(chan os.Signal, 64)

// HearSignals makes this process take signals as an init does; Run expects it with Init. It is for the time
// before a thread is locked: each of the 65 handlers takes turns of two goroutines, which are then threads.
func HearSignals() { signal.Notify(heard) }

func withHome(environment []string, home string) []string {
	for _, variable := range environment {
		if strings.HasPrefix(variable, "HOME=") {
			return environment
		}
	}
	return append(slices.Clone(environment), "HOME="+home)
}

// find gives the path to execute, looked up inside.
func (p *Program) find(directory string) (string, error) {
	if p.Descriptor > 2 {
		return "/proc/self/fd/" + strconv.Itoa(p.Descriptor), nil
	}
	if len(p.Arguments) == 0 || p.Arguments[0] == "" {
		return "", errors.New("the image names no program and the specification no command")
	}
	name := p.Arguments[0]
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join("/", directory, name)
		}
		return name, nil
	}
	path := searchPath
	for _, variable := range p.Environment {
		if value, found := strings.CutPrefix(variable, "PATH="); found {
			path = value
		}
	}
	for _, directory := range filepath.SplitList(path) {
		if !filepath.IsAbs(directory) {
			continue
		}
		candidate := filepath.Join(directory, name)
		if info, err := os.Stat(candidate); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return candidate, nil
		}
	}
	return "", fmt.Errorf("the image has no program %.100q in PATH %.100q", name, path)
}

func limits(c *Config) error {
	files := c.RlimitNOFILE
	if files == 0 {
		files = rlimitFiles
	}
	unix.Umask(0o022)
	for resource, value := range map[int]uint64{unix.RLIMIT_NOFILE: files, unix.RLIMIT_CORE: 0} {
		var now unix.Rlimit
		if err := unix.Getrlimit(resource, &now); err != nil {
			return fmt.Errorf("read resource limit %d: %w", resource, err)
		}
		value = min(value, now.Max)
		if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: value, Max: value}); err != nil {
			return fmt.Errorf("set resource limit %d to %d: %w", resource, value, err)
		}
	}
	return nil
}

func workingDirectory(c *Config) string {
	if c.WorkingDirectory == "" {
		return "/"
	}
	return c.WorkingDirectory
}

// become replaces this process by the program.
func become(c *Config, id Identity, path string, program Program) error {
	if err := seccomp.Load(); err != nil {
		return err
	}
	groups := make([]uint32, len(id.Groups)+1) // never empty, for its address
	copy(groups, id.Groups)
	count := uintptr(len(id.Groups))
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, count, uintptr(unsafe.Pointer(&groups[0])), 0); errno != 0 {
		return fmt.Errorf("set groups: %w", errno)
	}
	gid, uid := uintptr(id.GID), uintptr(id.UID)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, gid, gid, gid); errno != 0 {
		return fmt.Errorf("change to gid %d: %w", gid, errno)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uid, uid, uid); errno != 0 {
		return fmt.Errorf("change to uid %d: %w", uid, errno)
	}
	if err := unix.Chdir(workingDirectory(c)); err != nil {
		return fmt.Errorf("enter directory %s: %w", workingDirectory(c), err)
	}
	err := unix.Exec(path, program.Arguments, program.Environment)
	return fmt.Errorf("execute %s: %w", program.Arguments[0], err)
}

func (p *process1) run(path string, program Program, started func()) (int, error) {
	// From here on the init is under the filter as well. It keeps its capabilities, which reach no further
	// than its own user namespace, so that nothing inside may trace it.
	if err := seccomp.Load(); err != nil {
		return 0, err
	}
	// Everything inside is forked from this locked thread: it alone has the bounding set.
	p.mutex.Lock()
	main, err := p.fork(path, program, p.identity, workingDirectory(p.config), [3]int{0, 1, 2}, false)
	p.main = main
	p.mutex.Unlock()
	if err != nil {
		return 0, err
	}
	go p.reap()
	requests := make(chan *request)
	go p.accept(requests)
	started()
	for {
		select {
		case status := <-p.ended:
			return p.leave(status), nil
		case received := <-heard:
			p.forward(received.(syscall.Signal))
		case r := <-requests:
			p.exec(r)
		}
	}
}

// fork starts a process inside; the caller holds the mutex, so that reap knows the process before it can
// end.
func (p *process1) fork(path string, program Program, id Identity, directory string, standard [3]int,
	terminal bool) (int, error) {
	pid, err := syscall.ForkExec(path, program.Arguments, &syscall.ProcAttr{
		Dir: directory, Env: program.Environment,
		Files: []uintptr{uintptr(standard[0]), uintptr(standard[1]), uintptr(standard[2])},
		Sys: &syscall.SysProcAttr{
			Setsid: true, Setctty: terminal,
			Credential: &syscall.Credential{Uid: id.UID, Gid: id.GID, Groups: id.Groups},
		},
	})
	if err != nil {
		return 0, fmt.Errorf("execute %s in %s: %w", path, directory, err)
	}
	return pid, nil
}

// reap collects every process that ends inside: children and orphans.
func (p *process1) reap() {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil { // ECHILD cannot last: the main program is a child until it ended
			return
		}
		p.mutex.Lock()
		if pid == p.main {
			p.ended <- status
		} else if waiting := p.children[pid]; waiting != nil {
			delete(p.children, pid)
			waiting <- status
		}
		p.mutex.Unlock()
	}
}

// forward passes a signal on. What asks the init to end becomes the image's stop signal.
func (p *process1) forward(received syscall.Signal) {
	switch received {
	case syscall.SIGCHLD, syscall.SIGURG, syscall.SIGPIPE:
		return
	case syscall.SIGTERM:
		if p.config.StopSignal > 0 {
			received = syscall.Signal(p.config.StopSignal)
		}
	}
	_ = syscall.Kill(p.main, received)
}

// leave tells the shim how the program ended; the code is what the init exits with.
func (p *process1) leave(status syscall.WaitStatus) int {
	_, _ = unix.Write(descriptorStatus, []byte(strconv.Itoa(int(status))))
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}
