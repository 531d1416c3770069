package runnerdtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// EnvironmentPrograms names the directory with the programs as they are shipped, where there is no Go to build
// them: the machine of make vm.
const EnvironmentPrograms = "COLLOID_TEST_PROGRAMS"

// build builds cmd/runnerd once per test binary, unless it is there already.
var build = sync.OnceValues(func() (string, error) {
	if directory := os.Getenv(EnvironmentPrograms); directory != "" {
		return filepath.Join(directory, "runnerd"), nil
	}
	directory, err := os.MkdirTemp("", "runnerd-build-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(directory, "runnerd")
	command := exec.Command("go", "build", "-o", directory, "colloid.net/cmd/runnerd", "colloid.net/cmd/runnerd-shim")
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	command.Stderr = os.Stderr
	if err := command.Run(); err != nil {
		return "", err
	}
	built = directory
	return path, os.Chmod(directory, 0o755)
})

// Static is the path of the command runnerd, built without cgo as it is shipped. A test binary may be
// linked dynamically and cannot run where there are no libraries.
func Static(t testing.TB) string {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// built is what Cleanup removes.
var built string

// Cleanup removes what Daemon built; TestMain calls it.
func Cleanup() {
	if built != "" {
		os.RemoveAll(built)
	}
}

// Daemon is the command runnerd as a process.
type Daemon struct {
	t         testing.TB
	Directory string
	Policy    string
	UID       int      // 0 = as the test
	Arguments []string // beside those that every one needs
	// ControlGroup is the directory that the daemon is started in, "" = that of the test. A unit of systemd is one.
	ControlGroup string
	Log          string
	command      *exec.Cmd
	supply       int
}

// Run starts the daemon.
func (d *Daemon) Run(t testing.TB) {
	t.Helper()
	d.t = t
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	child := os.NewFile(uintptr(pair[1]), "supply")
	defer child.Close()
	d.supply = pair[0]
	d.command = exec.Command(path, "--supply-fd", "3", "--directory", d.Directory, "--policy", d.Policy)
	d.command.Args = append(d.command.Args, d.Arguments...)
	d.command.ExtraFiles = []*os.File{child}
	d.Log = d.Directory + ".log"
	log, err := os.OpenFile(d.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	d.command.Stderr = log
	d.command.SysProcAttr = &syscall.SysProcAttr{}
	if d.UID != 0 {
		d.command.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(d.UID), Gid: uint32(d.UID)}
	}
	if d.ControlGroup != "" {
		group, err := os.Open(d.ControlGroup)
		if err != nil {
			t.Fatal(err)
		}
		defer group.Close()
		d.command.SysProcAttr.UseCgroupFD, d.command.SysProcAttr.CgroupFD = true, int(group.Fd())
	}
	if err := d.command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Kill)
}

// PID is the process of the daemon.
func (d *Daemon) PID() int { return d.command.Process.Pid }

// Kill ends the daemon at once, as kill -9 does.
func (d *Daemon) Kill() {
	if d.command == nil {
		return
	}
	_ = d.command.Process.Kill()
	_ = d.command.Wait()
	unix.Close(d.supply)
	d.command = nil
}

// LeaveLauncher closes the launcher's end and waits for the daemon to end by itself.
func (d *Daemon) LeaveLauncher() error {
	unix.Close(d.supply)
	defer func() { d.command = nil }()
	done := make(chan error, 1)
	go func() { done <- d.command.Wait() }()
	select {
	case err := <-done:
		return err
	case <-time.After(Patience):
		_ = d.command.Process.Kill()
		return <-done
	}
}

// Supply passes any descriptors as the launcher does.
func (d *Daemon) Supply(descriptors ...int) error {
	return unix.Sendmsg(d.supply, []byte{1}, unix.UnixRights(descriptors...), nil, 0)
}

// Connect starts a "meshd": a new connection by way of the supply socket.
func (d *Daemon) Connect() *Client {
	d.t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		d.t.Fatal(err)
	}
	err = d.Supply(pair[1])
	unix.Close(pair[1])
	if err != nil {
		d.t.Fatal(err)
	}
	return Accept(d.t, FileConn(d.t, pair[0]))
}

// ResidentKiB is the resident memory of a process.
func ResidentKiB(pid int) int {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0
	}
	for line := range strings.SplitSeq(string(text), "\n") {
		if value, found := strings.CutPrefix(line, "VmRSS:"); found {
			kib, _ := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(value), " kB"))
			return kib
		}
	}
	return 0
}

// module builds a module of 2 MB once per test binary, in the directory of the programs.
var module = sync.OnceValues(func() (string, error) {
	program, err := build()
	if err != nil {
		return "", err
	}
	if directory := os.Getenv(EnvironmentPrograms); directory != "" {
		return filepath.Join(directory, "hello.wasm"), nil
	}
	path := filepath.Join(filepath.Dir(program), "hello.wasm")
	command := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-buildmode=c-shared", "-o", path,
		"colloid.net/examples/hello-wasm")
	command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=wasip1", "GOARCH=wasm")
	command.Stderr = os.Stderr
	return path, command.Run()
})

// LargeModule is the path of examples/hello-wasm, which takes a second or so to compile.
func LargeModule(t testing.TB) string {
	t.Helper()
	path, err := module()
	if err == nil {
		_, err = os.Stat(path)
	}
	if os.IsNotExist(err) {
		t.Skip("there is no hello.wasm, and no Go to build it")
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}
