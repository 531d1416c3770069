package shim

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"colloid.net/runnerd/record"
	"colloid.net/runnerd/sandbox"
)

// filesMax is the number of descriptors a workload may open.
const filesMax = 65536

// StageMain is the program "runnerd stage": it waits for the word, gives up what the workload must not
// have and becomes the workload. It only returns when that failed.
func StageMain() int {
	closeOnExec()
	code, err := stage()
	if err == nil {
		return code
	}
	failures := os.NewFile(descriptorError, "failures")
	fmt.Fprintf(failures, "%v", err)
	return 127
}

// stage returns an error, or the exit code of a workload in a sandbox with an init.
func stage() (int, error) {
	config, err := readConfig(os.NewFile(descriptorConfig, "config"))
	if err != nil {
		return 0, err
	}
	if config.Sandbox != nil && config.Sandbox.Init {
		sandbox.HearSignals()
	}
	// Identity and no_new_privs belong to the thread; exec makes this thread the process.
	runtime.LockOSThread()
	if err := awaitWord(); err != nil {
		return 0, err
	}
	if config.Spare {
		return becomeSpare(config)
	}
	if err := config.keepExtra(); err != nil {
		return 0, err
	}
	if config.Nice > 0 { // of this thread, which becomes the program: all that it starts inherits it
		if err := unix.Setpriority(unix.PRIO_PROCESS, 0, config.Nice); err != nil {
			return 0, fmt.Errorf("stage: lower the priority: %w", err)
		}
	}
	if config.Sandbox != nil {
		return enterSandbox(config)
	}
	return 0, becomeProcess(config)
}

// readConfig reads the configuration and closes where it came from.
func readConfig(from io.ReadCloser) (*Config, error) {
	fields, err := record.Read(from)
	from.Close()
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	return parseConfig(fields)
}

func awaitWord() error {
	var word [1]byte
	if n, _ := unix.Read(descriptorReady, word[:]); n != 1 {
		return fmt.Errorf("stage: the shim ended first")
	}
	return unix.Close(descriptorReady)
}

// enterSandbox makes the world and runs the workload in it.
func enterSandbox(config *Config) (int, error) {
	program := sandbox.Program{Arguments: config.Arguments, Environment: config.Environment}
	if config.binary {
		program.Descriptor = descriptorBinary
	} else {
		unix.Close(descriptorBinary)
	}
	if err := sandbox.Enter(config.Sandbox); err != nil {
		return 0, fmt.Errorf("make the sandbox: %w", err)
	}
	// The shim takes the end of this descriptor for "it runs".
	return sandbox.Run(config.Sandbox, program, func() { unix.Close(descriptorError) })
}

// becomeProcess replaces this process by the workload, without a sandbox.
func becomeProcess(config *Config) error {
	arguments, err := syscall.SlicePtrFromStrings(config.Arguments)
	if err != nil {
		return fmt.Errorf("stage: arguments: %w", err)
	}
	environment, err := syscall.SlicePtrFromStrings(config.Environment)
	if err != nil {
		return fmt.Errorf("stage: environment: %w", err)
	}
	if err := os.Chdir(filepath.Join(config.Directory, DirScratch)); err != nil {
		return fmt.Errorf("enter scratch directory: %w", err)
	}
	if err := drop(config); err != nil {
		return err
	}
	empty := [1]byte{}
	_, _, errno := unix.RawSyscall6(unix.SYS_EXECVEAT, descriptorBinary, uintptr(unsafe.Pointer(&empty[0])),
		uintptr(unsafe.Pointer(&arguments[0])), uintptr(unsafe.Pointer(&environment[0])), unix.AT_EMPTY_PATH, 0)
	return fmt.Errorf("execute %s: %w", config.Arguments[0], errno)
}

// drop sets limits and identity, the identity last because it takes the right to do the others.
func drop(c *Config) error {
	unix.Umask(0o022)
	if err := limit(unix.RLIMIT_NOFILE, filesMax); err != nil {
		return err
	}
	if err := limit(unix.RLIMIT_CORE, 0); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	_ = unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
	if !c.Identity {
		return nil
	}
	if _, _, errno := unix.RawSyscall(sysSetgroups, 0, 0, 0); errno != 0 {
		return fmt.Errorf("drop supplementary groups: %w", errno)
	}
	gid, uid := uintptr(c.GID), uintptr(c.UID)
	if _, _, errno := unix.RawSyscall(sysSetresgid, gid, gid, gid); errno != 0 {
		return fmt.Errorf("change to gid %d: %w", c.GID, errno)
	}
	if _, _, errno := unix.RawSyscall(sysSetresuid, uid, uid, uid); errno != 0 {
		return fmt.Errorf("change to uid %d: %w", c.UID, errno)
	}
	return nil
}

// System calls of 64-bit architectures, where ids have 32 bits.
const (
	sysSetgroups = unix.SYS_SETGROUPS
	sysSetresgid = unix.SYS_SETRESGID
	sysSetresuid = unix.SYS_SETRESUID
)

func limit(resource int, value uint64) error {
	var now unix.Rlimit
	if err := unix.Getrlimit(resource, &now); err != nil {
		return fmt.Errorf("read resource limit %d: %w", resource, err)
	}
	value = min(value, now.Max)
	if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: value, Max: value}); err != nil {
		return fmt.Errorf("set resource limit %d to %d: %w", resource, value, err)
	}
	return nil
}
