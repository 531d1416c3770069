package seccomp

// Allowed are the system calls that a container may make, by name; a name that one architecture does
// not have is left out there. Everything else is refused with EPERM, a number beyond the table with
// ENOSYS so that C libraries fall back. Left out on purpose, because each is a way to the host or a
// large attack surface that servers do not need: mount and its new forms, pivot_root, chroot, setns,
// unshare, bpf, perf_event_open, userfaultfd, io_uring, keyctl and its kin, ptrace and
// process_vm_*, kcmp, pidfd_getfd, open_by_handle_at, name_to_handle_at, fanotify, module and kexec calls, reboot,
// swap, accounting, quotas, the clock setters, syslog, personality other than reading, iopl, ioperm,
// vhangup, lookup_dcookie, NUMA migration of others, memfd_secret, modify_ldt.
var Allowed = []string{
	// files
	"access", "chdir", "chmod", "chown", "close", "close_range", "copy_file_range", "creat", "dup", "dup2", "dup3",
	"faccessat", "faccessat2", "fadvise64", "fallocate", "fchdir", "fchmod", "fchmodat", "fchmodat2", "fchown",
	"fchownat", "fcntl", "fdatasync", "flock", "fstat", "fstatat", "newfstatat", "fstatfs", "fsync", "ftruncate",
	"futimesat", "getcwd", "getdents", "getdents64", "inotify_add_watch", "inotify_init", "inotify_init1",
	"inotify_rm_watch", "ioctl", "lchown", "link", "linkat", "lseek", "lstat", "mkdir", "mkdirat", "mknod", "mknodat",
	"open", "openat", "openat2", "pread64", "preadv", "preadv2", "pwrite64", "pwritev", "pwritev2", "read",
	"readahead", "readlink", "readlinkat", "readv", "rename", "renameat", "renameat2", "rmdir", "sendfile", "splice",
	"stat", "statfs", "statx", "symlink", "symlinkat", "sync", "sync_file_range", "syncfs", "tee", "truncate",
	"umask", "unlink", "unlinkat", "utime", "utimensat", "utimes", "vmsplice", "write", "writev",
	"getxattr", "lgetxattr", "fgetxattr", "setxattr", "lsetxattr", "fsetxattr", "listxattr", "llistxattr",
	"flistxattr", "removexattr", "lremovexattr", "fremovexattr", "cachestat", "statmount", "listmount",
	// memory
	"brk", "madvise", "membarrier", "memfd_create", "mincore", "mlock", "mlock2", "mlockall", "mmap", "mprotect",
	"mremap", "msync", "munlock", "munlockall", "munmap", "pkey_alloc", "pkey_free", "pkey_mprotect",
	"remap_file_pages", "mseal", "map_shadow_stack", "process_mrelease",
	// processes, threads, signals
	"alarm", "arch_prctl", "capget", "capset", "execve", "execveat", "exit", "exit_group", "fork", "vfork", "futex",
	"futex_waitv", "futex_wait", "futex_wake", "futex_requeue", "get_robust_list", "get_thread_area", "getcpu",
	"getegid", "geteuid", "getgid", "getgroups", "getpgid", "getpgrp", "getpid", "getppid", "getpriority",
	"getresgid", "getresuid", "getrlimit", "getrusage", "getsid", "gettid", "getuid", "ioprio_get", "ioprio_set",
	"kill", "pause", "pidfd_open", "pidfd_send_signal", "prctl", "prlimit64", "restart_syscall", "rseq",
	"rt_sigaction", "rt_sigpending", "rt_sigprocmask", "rt_sigqueueinfo", "rt_sigreturn", "rt_sigsuspend",
	"rt_sigtimedwait", "rt_tgsigqueueinfo", "sched_get_priority_max", "sched_get_priority_min",
	"sched_getaffinity", "sched_getattr", "sched_getparam", "sched_getscheduler", "sched_rr_get_interval",
	"sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler", "sched_yield", "seccomp",
	"set_robust_list", "set_thread_area", "set_tid_address", "setfsgid", "setfsuid", "setgid", "setgroups",
	"setpgid", "setpriority", "setregid", "setresgid", "setresuid", "setreuid", "setrlimit", "setsid", "setuid",
	"sigaltstack", "signalfd", "signalfd4", "sysinfo", "tgkill", "tkill", "uname", "uretprobe", "wait4", "waitid",
	"landlock_add_rule", "landlock_create_ruleset", "landlock_restrict_self", "lsm_get_self_attr",
	"lsm_list_modules",
	// time
	"clock_getres", "clock_gettime", "clock_nanosleep", "getitimer", "gettimeofday", "nanosleep", "setitimer", "time",
	"timer_create", "timer_delete", "timer_getoverrun", "timer_gettime", "timer_settime", "timerfd_create",
	"timerfd_gettime", "timerfd_settime", "times",
	// waiting and communication
	"accept", "accept4", "bind", "connect", "epoll_create", "epoll_create1", "epoll_ctl", "epoll_ctl_old",
	"epoll_pwait", "epoll_pwait2", "epoll_wait", "epoll_wait_old", "eventfd", "eventfd2", "getpeername",
	"getsockname", "getsockopt", "listen", "mq_getsetattr", "mq_notify", "mq_open", "mq_timedreceive",
	"mq_timedsend", "mq_unlink", "msgctl", "msgget", "msgrcv", "msgsnd", "pipe", "pipe2", "poll", "ppoll",
	"pselect6", "recvfrom", "recvmmsg", "recvmsg", "select", "semctl", "semget", "semop", "semtimedop", "sendmmsg",
	"sendmsg", "sendto", "setsockopt", "shmat", "shmctl", "shmdt", "shmget", "shutdown", "socketpair", "getrandom",
	// Linux native asynchronous I/O, which databases use
	"io_cancel", "io_destroy", "io_getevents", "io_pgetevents", "io_setup", "io_submit",
}

// Unavailable are answered with ENOSYS: the C library then uses the older call, whose arguments a
// filter can see.
var Unavailable = []string{"clone3"}

// NamespaceFlags of clone: none of them may be set.
const NamespaceFlags = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000 |
	0x00000080

// SocketFamilies that may be opened: Unix, IPv4, IPv6 and netlink (for reading addresses and routes).
// Not among them: packet, vsock, and the families of rarely tested kernel modules.
var SocketFamilies = []uint64{1, 2, 10, 16}

// Personalities that may be asked for or set: Linux, without randomised addresses, and "tell me".
var Personalities = []uint64{0, 0x0008, 0x20000, 0x20008, 0xffffffff}

// NumberMax is the highest number that the list was made for; beyond it the answer is ENOSYS.
const NumberMax = 467
