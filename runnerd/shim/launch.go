package shim

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
	configRead, configWrite, err := os.Pipe()
	if err != nil {
		return Started{}, fmt.Errorf("cannot start a shim: %w", err)
	}
	defer configWrite.Close()
	readyRead, readyWrite, err := os.Pipe()
	if err != nil {
		configRead.Close()
		return Started{}, fmt.Errorf("cannot start a shim: %w", err)
	}
	defer readyRead.Close()
	c.binary, c.extra = binary != nil, len(c.Extra)
	if c.extra > extraMax {
		configRead.Close()
		readyWrite.Close()
		return Started{}, fmt.Errorf("cannot start a shim: %d extra descriptors, expected at most %d", c.extra, extraMax)
	}
	if binary == nil {
		binary = configRead // any descriptor: the places are fixed
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		configRead.Close()
		readyWrite.Close()
		return Started{}, fmt.Errorf("cannot start a shim: %w", err)
	}
	files := []uintptr{null.Fd(), null.Fd(), null.Fd(), configRead.Fd(), binary.Fd(), readyWrite.Fd()}
	for i, extra := range c.Extra {
		files = placeExtra(files, i, extra.Fd())
	}
	pid, err := fork(program(), ArgumentShim, files, &syscall.SysProcAttr{Setsid: true}, c.mark())
	null.Close()
	configRead.Close()
	readyWrite.Close()
	if err != nil {
		return Started{}, fmt.Errorf("cannot start a shim: %w", err)
	}
	shim, findErr := procfs.Find(pid)
	_ = configWrite.SetWriteDeadline(time.Now().Add(launchTimeout))
	_, err = configWrite.Write(c.record().Encode())
	configWrite.Close()
	started := Started{Shim: shim}
	if err == nil && findErr == nil {
		_ = readyRead.SetReadDeadline(time.Now().Add(launchTimeout))
		started.Workload, err = readReady(readyRead)
	}
	return started, errors.Join(err, findErr)
}

func readReady(from *os.File) (procfs.Process, error) {
	line, err := bufio.NewReaderSize(from, 4096).ReadString('\n')
	if err != nil {
		return procfs.Process{}, errors.New("the shim ended without a word")
	}
	line = strings.TrimSuffix(line, "\n")
	fields := strings.Fields(line)
	if len(fields) != 3 || fields[0] != "ok" {
		return procfs.Process{}, errors.New(strings.TrimPrefix(line, "error "))
	}
	pid, err1 := strconv.Atoi(fields[1])
	ticks, err2 := strconv.ParseUint(fields[2], 10, 64)
	return procfs.Process{PID: pid, StartTicks: ticks}, errors.Join(err1, err2)
}

// self is this very program, also after an upgrade replaced its file.
const self = "/proc/self/exe"

// Program is the file name of the small program that holds only this package (cmd/runnerd-shim).
const Program = "runnerd-shim"

// program is what a shim is started from: the small program beside this one, or this one. After an
// upgrade replaced this file it is this one, so that both sides are of one version.
func program() string { return Beside(Program) }

// Beside gives the path of a small program beside this one, or this one's if it is not there or not to be
// trusted as this one is.
func Beside(name string) string {
	path, err := os.Readlink(self)
	if err != nil || strings.HasSuffix(path, " (deleted)") {
		return self
	}
	own, err1 := os.Stat(path)
	beside := filepath.Join(filepath.Dir(path), name)
	other, err2 := os.Lstat(beside)
	if err1 != nil || err2 != nil || !other.Mode().IsRegular() || other.Mode()&0o111 == 0 {
		return self
	}
	a, ok1 := own.Sys().(*syscall.Stat_t)
	b, ok2 := other.Sys().(*syscall.Stat_t)
	if !ok1 || !ok2 || a.Uid != b.Uid || other.Mode().Perm()&0o022&^own.Mode().Perm() != 0 {
		return self // whoever could write it need not be who could write this one
	}
	return beside
}

// fork starts a program of this package with files as descriptors 0, 1, 2, ...
func fork(path, argument string, files []uintptr, attributes *syscall.SysProcAttr,
	variables ...string) (int, error) {
	return syscall.ForkExec(path, []string{"runnerd", argument}, &syscall.ProcAttr{
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
		err = fmt.Errorf("took longer than %v", timeout)
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
