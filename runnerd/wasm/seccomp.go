package wasm

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// callsRun are the system calls of the Go runtime, the engine and the connection. Programs cannot be
// executed and sockets not be made; threads can. For channels: RECVMSG brings the worker's end, SETSOCKOPT bounds
// how long it may stay full, SHUTDOWN ends one in whose READ a thread waits.
var callsRun = []uint32{
	unix.SYS_ACCEPT4, unix.SYS_BRK, unix.SYS_CLOCK_GETTIME, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_CLONE,
	unix.SYS_CLOSE, unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL, unix.SYS_EPOLL_PWAIT, unix.SYS_EVENTFD2,
	unix.SYS_EXIT, unix.SYS_EXIT_GROUP, unix.SYS_FCNTL, unix.SYS_FSTAT, unix.SYS_FUTEX, unix.SYS_GETPEERNAME,
	unix.SYS_GETPID, unix.SYS_GETRANDOM, unix.SYS_GETSOCKNAME, unix.SYS_GETSOCKOPT, unix.SYS_GETTID,
	unix.SYS_GETUID, unix.SYS_LSEEK, unix.SYS_MADVISE, unix.SYS_MMAP, unix.SYS_MPROTECT, unix.SYS_MREMAP,
	unix.SYS_MUNMAP, unix.SYS_NANOSLEEP, unix.SYS_PIPE2, unix.SYS_PPOLL, unix.SYS_PREAD64, unix.SYS_PRLIMIT64,
	unix.SYS_READ, unix.SYS_READV, unix.SYS_RECVFROM, unix.SYS_RECVMSG, unix.SYS_RESTART_SYSCALL,
	unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGRETURN, unix.SYS_SCHED_GETAFFINITY,
	unix.SYS_SCHED_YIELD, unix.SYS_SECCOMP, unix.SYS_SENDMSG, unix.SYS_SENDTO, unix.SYS_SETSOCKOPT,
	unix.SYS_SHUTDOWN, unix.SYS_SIGALTSTACK, unix.SYS_TGKILL, unix.SYS_WRITE, unix.SYS_WRITEV,
}

// callsFiles are those of the cache, and of volumes where the module has some.
var callsFiles = []uint32{
	unix.SYS_FALLOCATE, unix.SYS_FCHMOD, unix.SYS_FCHMODAT, unix.SYS_FCHMODAT2, unix.SYS_FDATASYNC,
	unix.SYS_FSYNC, unix.SYS_FTRUNCATE, unix.SYS_GETDENTS64, unix.SYS_LINKAT, unix.SYS_MKDIRAT,
	sysFstatat, unix.SYS_OPENAT, unix.SYS_PWRITE64, unix.SYS_PWRITEV, unix.SYS_PREADV, unix.SYS_READLINKAT,
	unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2, unix.SYS_STATX, unix.SYS_SYMLINKAT, unix.SYS_UNLINKAT,
	unix.SYS_UTIMENSAT, unix.SYS_FACCESSAT, unix.SYS_FACCESSAT2,
}

// Offsets in struct seccomp_data.
const (
	seccompNumber       = 0
	seccompArchitecture = 4
)

// filterOf assembles a filter that allows the calls and lets all others fail with EPERM.
func filterOf(calls []uint32) []unix.SockFilter {
	const refuse = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	equal := func(value uint32, yes, no uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: yes, Jf: no, K: value}
	}
	answer := func(value uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: value}
	}
	filter := []unix.SockFilter{
		load(seccompArchitecture), equal(auditArchitecture, 1, 0), answer(unix.SECCOMP_RET_KILL_PROCESS),
		load(seccompNumber),
	}
	if len(calls) > 250 {
		panic("wasm: more system calls than one jump spans")
	}
	for i, call := range calls {
		filter = append(filter, equal(call, uint8(len(calls)-i), 0))
	}
	return append(filter, answer(refuse), answer(unix.SECCOMP_RET_ALLOW))
}

// confine gives up all other system calls, for every thread of the process and for good. A second call
// narrows what the first left.
func confine(files bool) error {
	calls := callsRun
	if files {
		calls = append(calls[:len(calls):len(calls)], callsFiles...)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil && err != unix.EPERM {
		return fmt.Errorf("set no_new_privs: %w", err) // EPERM: the first filter stands already
	}
	filter := filterOf(calls)
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program))); errno != 0 {
		return fmt.Errorf("filter system calls: %w", errno)
	}
	return nil
}
