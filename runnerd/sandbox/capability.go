package sandbox

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// DefaultCapabilities are what root inside has without a word of the policy: what package managers and
// servers that start as root and drop it need. Against the 14 of other engines there is no NET_RAW
// (raw sockets), MKNOD, SYS_CHROOT, SETPCAP, SETFCAP and AUDIT_WRITE.
var DefaultCapabilities = []string{
	"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETGID", "SETUID",
}

// names are in the order of the kernel's numbers.
var names = []string{
	"CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
	"LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER",
	"SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE",
	"SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP",
	"MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF",
	"CHECKPOINT_RESTORE",
}

// never are not for sale: each is a way to undo the sandbox from inside.
var never = []string{"SYS_ADMIN", "SYS_MODULE", "SYS_RAWIO", "SYS_BOOT", "SYS_PTRACE", "BPF", "PERFMON",
	"CHECKPOINT_RESTORE", "MAC_ADMIN", "MAC_OVERRIDE", "DAC_READ_SEARCH"}

// CheckCapability reports whether a policy may list a capability.
func CheckCapability(name string) error {
	if !slices.Contains(names, name) {
		return fmt.Errorf("capability %q is unknown, expected a name as NET_RAW", name)
	}
	if slices.Contains(never, name) {
		return fmt.Errorf("capability %s is never given: it undoes the sandbox", name)
	}
	return nil
}

func (c *Config) capabilities() []string {
	if c.Capabilities == nil {
		return DefaultCapabilities
	}
	return c.Capabilities
}

func capabilityNumbers(list []string) ([]uintptr, error) {
	var numbers []uintptr
	for _, name := range list {
		if err := CheckCapability(name); err != nil {
			return nil, fmt.Errorf("sandbox: %w", err)
		}
		numbers = append(numbers, uintptr(slices.Index(names, name)))
	}
	return numbers, nil
}

// boundCapabilities empties the bounding set of this thread but for the listed ones. What it executes
// as root inside then has exactly those.
func boundCapabilities(list []string) error {
	keep, err := capabilityNumbers(list)
	if err != nil {
		return err
	}
	for number := uintptr(0); number < 64; number++ {
		if slices.Contains(keep, number) {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, number, 0, 0, 0); err == unix.EINVAL {
			break // one past the last capability of this kernel
		} else if err != nil {
			return fmt.Errorf("drop capability %d: %w", number, err)
		}
	}
	return nil
}

// The greatest number of a signal, and the first real-time one that the C library leaves to programs.
const (
	signalMax      = 64
	signalRealTime = 34
)

// SignalNumber reads an image's stop signal: "SIGTERM", "TERM" or a number; 0 for anything else.
func SignalNumber(text string) int {
	name := strings.ToUpper(text)
	if !strings.HasPrefix(name, "SIG") {
		if number, err := strconv.ParseUint(text, 10, 7); err == nil && number > 0 && number <= signalMax {
			return int(number)
		}
		name = "SIG" + name
	}
	if strings.HasPrefix(name, "SIGRTMIN") { // systemd's images stop on SIGRTMIN+3
		rest, plus := strings.CutPrefix(name[len("SIGRTMIN"):], "+")
		offset, err := strconv.ParseUint(rest, 10, 7)
		if rest == "" && !plus {
			return signalRealTime
		}
		if !plus || err != nil || offset > signalMax-signalRealTime {
			return 0
		}
		return signalRealTime + int(offset)
	}
	return int(unix.SignalNum(name))
}
