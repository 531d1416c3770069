package shim

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/runnerd/procfs"
	"colloid.net/runnerd/sandbox"
)

// launchTimeout bounds how long a shim may take to say that the workload runs.
const launchTimeout = 20 * time.Second

// lean is the environment of shims and stages: one processor, a small heap.
var lean = []string{"GOMAXPROCS=1", "GOGC=25", "GOMEMLIMIT=8MiB", "GOTRACEBACK=none"}

// Started is what a shim reports once the workload runs, or, in watch mode, once it watches.
type Started struct {
	Shim     procfs.Process
	Workload procfs.Process
}

// Launch starts a shim and waits for its word; binary is the checked file to run (nil in watch mode).
// An error is one sentence; the shim has then ended or is about to. The shim is a child of the caller,
// who collects it (Started.Shim is set unless none could be started).
func Launch(c *Config, binary *os.File) (Started, error) {
	c.binary, c.extra = binary != nil, len(c.Extra)
	if c.extra > extraMax {
		return Started{}, fmt.Errorf("cannot start a shim: %d extra descriptors, expected at most %d", c.extra, extraMax)
	}
	launched, ready, err := fork(c, binary)
	started := Started{Shim: launched}
	if err != nil {
		return started, err
	}
	defer ready.Close()
	_ = ready.SetReadDeadline(time.Now().Add(launchTimeout))
	started.Workload, err = readWord(bufio.NewReaderSize(ready, 4096))
	return started, err
}

// fork starts a shim, gives it its configuration and returns where it will answer. The shim is set if it was
// started, also with an error.
func fork(c *Config, binary *os.File) (launched procfs.Process, ready *os.File, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("cannot start a shim: %w", err)
		}
	}()
	configRead, configWrite, err := os.Pipe()
	if err != nil {
		return launched, nil, err
	}
	defer configWrite.Close()
	readyRead, readyWrite, err := os.Pipe()
	if err != nil {
		configRead.Close()
		return launched, nil, err
	}
	defer readyWrite.Close()
	defer func() {
		if err != nil {
			readyRead.Close()
			ready = nil
		}
	}()
	if binary == nil {
		binary = configRead // any descriptor: the places are fixed
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		configRead.Close()
		return launched, nil, err
	}
	files := []uintptr{null.Fd(), null.Fd(), null.Fd(), configRead.Fd(), binary.Fd(), readyWrite.Fd()}
	for i, extra := range c.Extra {
		files = placeExtra(files, i, extra.Fd())
	}
	pid, err := forkSelf(ArgumentShim, files, &syscall.SysProcAttr{Setsid: true}, c.mark())
	null.Close()
	configRead.Close()
	if err != nil {
		return launched, nil, err
	}
	launched, err = procfs.Find(pid)
	_ = configWrite.SetWriteDeadline(time.Now().Add(launchTimeout))
	_, writeErr := configWrite.Write(c.record().Encode())
	return launched, readyRead, errors.Join(err, writeErr)
}

// readWord reads the one line that a shim says.
func readWord(from *bufio.Reader) (procfs.Process, error) {
	line, err := from.ReadSlice('\n')
	if err != nil && !errors.Is(err, bufio.ErrBufferFull) { // of more than the buffer holds, the beginning is said
		return procfs.Process{}, errors.New("the shim ended without a word")
	}
	return parseWord(strings.TrimSuffix(string(line), "\n"))
}

// parseWord reads "ok PID TICKS"; everything else is why there is no workload.
func parseWord(word string) (procfs.Process, error) {
	var p procfs.Process
	numbers, found := strings.CutPrefix(word, "ok ")
	pid, ticks, both := strings.Cut(numbers, " ")
	n, err1 := strconv.ParseUint(pid, 10, 31)
	p.PID = int(n)
	var err2 error
	p.StartTicks, err2 = strconv.ParseUint(ticks, 10, 64)
	if !found || !both || err1 != nil || err2 != nil || p.PID == 0 {
		return procfs.Process{}, fmt.Errorf("%s", cmp.Or(strings.TrimPrefix(word, "error "), "the shim says nothing"))
	}
	return p, nil
}

// program is what is started as shim and stage: this binary, unless UseProgram said otherwise.
var program = "/proc/self/exe"

// programDescriptor is the lowest number of the kept descriptor. What a workload inherits has lower ones.
const programDescriptor = 500

// UseProgram makes shims and stages of this process run the small binary at path (runnerd-shim). It is opened
// once, so that an upgrade that replaces the file changes nothing for a runnerd that is running, and the
// descriptor is kept for good. Call it before the first Launch.
func UseProgram(path string) error {
	low, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	defer unix.Close(low)
	// Far above the numbers that a child's own descriptors take before it executes this one.
	fd, err := unix.FcntlInt(uintptr(low), unix.F_DUPFD_CLOEXEC, programDescriptor)
	if err != nil {
		return fmt.Errorf("keep %s open: %w", path, err)
	}
	program = fmt.Sprintf("/proc/self/fd/%d", fd)
	return nil
}

// forkSelf starts this binary again with files as descriptors 0, 1, 2, ...
// The kernel resolves the path to the very file that runs, also after an upgrade replaced it.
func forkSelf(argument string, files []uintptr, attributes *syscall.SysProcAttr, variables ...string) (int, error) {
	return syscall.ForkExec(program, []string{"runnerd", argument}, &syscall.ProcAttr{
		Dir:   "/",
		Env:   append(variables, lean...),
		Files: files,
		Sys:   attributes,
	})
}

// closeOnExec marks every descriptor from 3 on, whoever left it open to us.
func closeOnExec() {
	if unix.CloseRange(3, ^uint(0)>>33, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return
	}
	for fd := 3; fd < 4096; fd++ { // before Linux 5.11
		unix.CloseOnExec(fd)
	}
}

// IsolateDescriptors keeps what runnerd itself inherited from reaching any child.
func IsolateDescriptors() { closeOnExec() }

// Run executes a checked file once as the workload's user, for an exec health check. Output goes
// nowhere; the process is killed after the timeout. It returns the exit code.
func Run(c *Config, binary *os.File, timeout time.Duration) (int, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return UnknownCode, err
	}
	defer null.Close()
	if c.Runtime != "" {
		return runExternal(c, timeout)
	}
	if c.Sandbox != nil {
		return runInside(c, null, timeout)
	}
	c.binary = true
	stage, err := forkStage(c, [3]uintptr{null.Fd(), null.Fd(), null.Fd()}, binary.Fd(), nil)
	if err != nil {
		return UnknownCode, err
	}
	defer stage.close()
	process, err := procfs.Find(stage.pid)
	if err == nil && len(c.Cgroup) > 0 {
		err = c.Cgroup.Add(stage.pid)
	}
	if err == nil {
		err = stage.release()
	}
	if err == nil && !process.Wait(timeout, nil) {
		err = fmt.Errorf("took longer than %v: %w", timeout, os.ErrDeadlineExceeded)
	}
	procfs.Tree{Session: stage.pid, Root: process, Keep: os.Getpid()}.Kill()
	var status unix.WaitStatus
	for {
		if _, waitErr := unix.Wait4(stage.pid, &status, 0, nil); waitErr != unix.EINTR {
			break
		}
	}
	if err != nil {
		return UnknownCode, err
	}
	code, _ := exitCode(status)
	return code, nil
}

// runInside is Run in a sandbox: its init starts the process.
func runInside(c *Config, null *os.File, timeout time.Duration) (int, error) {
	exec := sandbox.Exec{Arguments: c.Arguments, Environment: c.Environment}
	process, err := exec.Start(c.Directory, [3]*os.File{null, null, null})
	if err != nil {
		return UnknownCode, err
	}
	defer process.Close()
	return process.Wait(timeout)
}
