// Command escape runs inside a container and tries to get out of it: "escape try" prints what the kernel
// answers to each attempt, one a line, "refused: NAME: WHY" or "ESCAPED: NAME". Other words behave badly in
// one way each. The tests of packages shim and runnerd run it; so may whoever wants to see for himself.
package main

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"sort"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: escape try|zombies|signals|fork|eat")
		os.Exit(2)
	}
	os.Exit(run(os.Args[1]))
}

func run(word string) int {
	switch word {
	case "try":
		tryEscapes()
	case "zombies": // leaves 20 orphans that end at once
		for range 20 {
			_ = exec.Command("/bin/sh", "-c", "(sleep 0.01 &) ; exit 0").Run()
		}
		time.Sleep(300 * time.Millisecond)
		links, _ := filepath.Glob("/proc/[0-9]*/stat")
		zombies := 0
		for _, link := range links {
			if text, _ := os.ReadFile(link); strings.Contains(string(text), ") Z ") {
				zombies++
			}
		}
		fmt.Printf("%d processes, %d zombies\n", len(links), zombies)
	case "signals": // prints the first signal and ends with its number
		signals := make(chan os.Signal, 1)
		signal.Notify(signals)
		fmt.Println("waiting")
		for received := range signals {
			if number := received.(syscall.Signal); number != syscall.SIGURG {
				fmt.Println("got", int(number))
				return int(number)
			}
		}
	case "fork": // as many processes as it gets
		started := 0
		for ; started < 2000; started++ {
			if err := exec.Command("/bin/sleep", "30").Start(); err != nil {
				break
			}
		}
		fmt.Printf("forked %d\n", started)
	case "eat": // all memory that it gets
		var kept [][]byte
		for {
			block := make([]byte, 1<<20)
			for n := 0; n < len(block); n += 4096 {
				block[n] = 1
			}
			kept = append(kept, block)
			runtime.KeepAlive(kept)
		}
	}
	return 0
}

// attempt is one way out; it gives what the kernel answered.
type attempt func() error

func call(number uintptr, arguments ...uintptr) error {
	var a [6]uintptr
	copy(a[:], arguments)
	if _, _, errno := unix.Syscall6(number, a[0], a[1], a[2], a[3], a[4], a[5]); errno != 0 {
		return errno
	}
	return nil
}

func open(name string, flags int) error {
	fd, err := unix.Open(name, flags, 0)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

func write(name, text string) error {
	fd, err := unix.Open(name, unix.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte(text))
	return err
}

// attempts are the ways out: by system calls, by files, by what is left.
func attempts() map[string]attempt {
	all := callAttempts()
	maps.Copy(all, fileAttempts())
	return all
}

func callAttempts() map[string]attempt {
	empty := &[256]byte{}
	at := uintptr(unsafe.Pointer(empty))
	root := []byte("/\x00")
	slash := uintptr(unsafe.Pointer(&root[0]))
	return map[string]attempt{
		"mount":        func() error { return unix.Mount("none", "/tmp", "tmpfs", 0, "") },
		"mount proc":   func() error { return unix.Mount("proc", "/tmp", "proc", 0, "") },
		"remount":      func() error { return unix.Mount("", "/proc/sys", "", unix.MS_REMOUNT|unix.MS_BIND, "") },
		"umount":       func() error { return unix.Unmount("/proc/sys", 0) },
		"fsopen":       func() error { return call(unix.SYS_FSOPEN, slash, 0) },
		"open_tree":    func() error { return call(unix.SYS_OPEN_TREE, 0, slash, 1) },
		"move_mount":   func() error { return call(unix.SYS_MOVE_MOUNT, 0, slash, 0, slash, 0) },
		"pivot_root":   func() error { return unix.PivotRoot("/", "/tmp") },
		"chroot":       func() error { return unix.Chroot("/tmp") },
		"ptrace init":  func() error { return unix.PtraceSeize(1) },
		"ptrace self":  func() error { return call(unix.SYS_PTRACE, unix.PTRACE_TRACEME) },
		"vm_readv":     func() error { return call(unix.SYS_PROCESS_VM_READV, 1, at, 1, at, 1, 0) },
		"pidfd_getfd":  func() error { return call(unix.SYS_PIDFD_GETFD, 0, 0, 0) },
		"kcmp":         func() error { return call(unix.SYS_KCMP, 1, 1, 0, 0, 0) },
		"bpf":          func() error { return call(unix.SYS_BPF, 0, at, 128) },
		"perf":         func() error { return call(unix.SYS_PERF_EVENT_OPEN, at, 0, ^uintptr(0), ^uintptr(0), 0) },
		"keyctl":       func() error { return call(unix.SYS_KEYCTL, 0, 0) },
		"add_key":      func() error { return call(unix.SYS_ADD_KEY, slash, slash, 0, 0, 0) },
		"request_key":  func() error { return call(unix.SYS_REQUEST_KEY, slash, slash, 0, 0) },
		"io_uring":     func() error { return call(unix.SYS_IO_URING_SETUP, 8, at) },
		"userfaultfd":  func() error { return call(unix.SYS_USERFAULTFD, 0) },
		"setns":        func() error { return call(unix.SYS_SETNS, 0, 0) },
		"unshare user": func() error { return unix.Unshare(unix.CLONE_NEWUSER) },
		"unshare net":  func() error { return unix.Unshare(unix.CLONE_NEWNET) },
		"clone user":   func() error { return call(unix.SYS_CLONE, unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD), 0, 0, 0, 0) },
		"clone3":       func() error { return call(unix.SYS_CLONE3, at, 88) },
		"by handle":    func() error { return call(unix.SYS_OPEN_BY_HANDLE_AT, 0, at, 0) },
		"name handle":  func() error { return call(unix.SYS_NAME_TO_HANDLE_AT, 0, slash, at, at, 0) },
		"raw socket":   func() error { return socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP) },
		"raw socket 6": func() error { return socket(unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6) },
		"packet":       func() error { return socket(unix.AF_PACKET, unix.SOCK_RAW, 0) },
		"vsock":        func() error { return socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0) },
		"alg":          func() error { return socket(unix.AF_ALG, unix.SOCK_SEQPACKET, 0) },
		"module":       func() error { return call(unix.SYS_INIT_MODULE, at, 16, slash) },
		"module file":  func() error { return call(unix.SYS_FINIT_MODULE, 0, slash, 0) },
		"kexec":        func() error { return call(unix.SYS_KEXEC_LOAD, 0, 0, 0, 0) },
		"reboot":       func() error { return call(unix.SYS_REBOOT, 0xfee1dead, 672274793, 0, 0) },
		"swapon":       func() error { return call(unix.SYS_SWAPON, slash, 0) },
		"acct":         func() error { return call(unix.SYS_ACCT, 0) },
		"quotactl":     func() error { return call(unix.SYS_QUOTACTL, 0, 0, 0, 0) },
		"settime":      func() error { return call(unix.SYS_CLOCK_SETTIME, 0, at) },
		"syslog":       func() error { return call(unix.SYS_SYSLOG, 3, at, 100) },
		"fanotify":     func() error { return call(unix.SYS_FANOTIFY_INIT, 0, 0) },
		"personality":  func() error { return call(unix.SYS_PERSONALITY, 0x0400000) },
		"sethostname":  func() error { return unix.Sethostname([]byte("x")) },
		"new number":   func() error { return call(5000) },
	}
}

func fileAttempts() map[string]attempt {
	return map[string]attempt{
		"read memory": func() error { return open("/proc/1/mem", unix.O_RDONLY) },
		"init binary": func() error { return open("/proc/1/exe", unix.O_RDONLY) },
		"init root":   func() error { return open("/proc/1/root/etc", unix.O_RDONLY) },
		"init fd":     func() error { _, err := os.Readlink("/proc/1/fd/0"); return unwrap(err) },
		"init output": func() error { return open("/proc/1/fd/1", unix.O_WRONLY) },
		"mknod block": func() error { return unix.Mknod("/tmp/disk", unix.S_IFBLK|0o666, int(unix.Mkdev(254, 0))) },
		"mknod char":  func() error { return unix.Mknod("/tmp/mem", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 1))) },
		"mknod dev":   func() error { return unix.Mknod("/dev/kmsg", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 11))) },
		// A host puts such nodes there for a test: an image or a volume that holds some must not matter.
		"device open":  func() error { return open("/node", unix.O_RDONLY) },
		"device write": func() error { return open("/node", unix.O_WRONLY) },
		"device mount": func() error { return open("/volume/node", unix.O_RDONLY) },
		"device disk":  func() error { return open("/disk", unix.O_RDONLY) },
		"device kmsg":  func() error { return open("/dev/kmsg", unix.O_RDONLY) },
		"device mem":   func() error { return open("/dev/mem", unix.O_RDONLY) },
		"device kvm":   func() error { return open("/dev/kvm", unix.O_RDWR) },
		"device tun":   func() error { return open("/dev/net/tun", unix.O_RDWR) },
		"device fuse":  func() error { return open("/dev/fuse", unix.O_RDWR) },
		"sysctl":       func() error { return write("/proc/sys/kernel/core_pattern", "|/tmp/x") },
		"sysctl net":   func() error { return write("/proc/sys/net/ipv4/ip_forward", "1") },
		"modprobe":     func() error { return write("/proc/sys/kernel/modprobe", "/tmp/x") },
		"sysrq":        func() error { return write("/proc/sysrq-trigger", "h") },
		"kcore":        func() error { return readSome("/proc/kcore") },
		"kmsg":         func() error { return readSome("/proc/kmsg") },
		"keys":         func() error { return readSome("/proc/keys") },
		"uevent":       func() error { return write("/sys/kernel/uevent_helper", "/tmp/x") },
		"sys write":    func() error { return write("/sys/kernel/mm/transparent_hugepage/enabled", "never") },
		"groups write": func() error { return write("/sys/fs/cgroup/cgroup.procs", "1") },
		"groups mkdir": func() error { return unix.Mkdir("/sys/fs/cgroup/out", 0o755) },
		"uid_map":      func() error { return write("/proc/self/uid_map", "0 0 1") },
		"oom score":    func() error { return write("/proc/self/oom_score_adj", "-1000") },
		"dot dot":      func() error { return outside("../../../../../../../../etc/shadow") },
		"chroot by fd": chrootByDescriptor,
		"capset":       gainCapabilities,
		"rlimit":       func() error { return unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1 << 20, Max: 1 << 20}) },
	}
}

func unwrap(err error) error {
	if path, ok := err.(*os.PathError); ok {
		return path.Err
	}
	return err
}

func socket(family, kind, protocol int) error {
	fd, err := unix.Socket(family, kind, protocol)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// readSome fails when there is nothing to read, as in a masked file.
func readSome(name string) error {
	text, err := os.ReadFile(name)
	if err == nil && len(text) == 0 {
		return unix.ENODATA
	}
	return unwrap(err)
}

// outside opens a file that only exists outside.
func outside(name string) error { return open(name, unix.O_RDONLY) }

// chrootByDescriptor keeps the root open, changes root and walks up by the descriptor.
func chrootByDescriptor() error {
	fd, err := unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	if err := unix.Chroot("/tmp"); err != nil {
		return err
	}
	_ = unix.Fchdir(fd)
	for range 32 {
		_ = unix.Chdir("..")
	}
	return outside("etc/shadow")
}

// gainCapabilities asks for everything.
func gainCapabilities() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := [2]unix.CapUserData{{Effective: ^uint32(0), Permitted: ^uint32(0)}, {}}
	return unix.Capset(&header, &data[0])
}

func tryEscapes() {
	all := attempts()
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		if err := all[name](); err != nil {
			fmt.Printf("refused: %s: %v\n", name, err)
		} else {
			fmt.Printf("ESCAPED: %s\n", name)
		}
	}
}
