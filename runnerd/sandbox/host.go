package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// devices are the nodes of the host that every sandbox has; any of them is harmless to share.
var devices = []string{"null", "zero", "full", "random", "urandom", "tty"}

// FileControl is the socket in the instance's directory on which its init takes Exec requests.
const FileControl = "control"

// Host is what the shim holds for the stage: descriptors in a fixed order, and how to fork it.
type Host struct {
	config *Config
	files  []*os.File
}

// Descriptors of the stage, after those of package shim.
const (
	descriptorStatus  = 7 // the init writes its child's wait status here
	descriptorControl = 8 // the listening socket for Exec
	descriptorFirst   = 9 // the devices, the root, the mounts
)

// OpenHost opens everything of the host that the sandbox will contain. It needs CAP_SYS_ADMIN.
func OpenHost(c *Config, directory string) (host *Host, status *os.File, err error) {
	if err := c.Validate(); err != nil {
		return nil, nil, err
	}
	h := &Host{config: c}
	defer func() {
		if err != nil {
			h.Close()
		}
	}()
	status, statusWrite, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	h.files = append(h.files, statusWrite)
	control, err := listen(directory)
	if err != nil {
		status.Close()
		return nil, nil, err
	}
	h.files = append(h.files, control)
	if err := h.openMounts(); err != nil {
		status.Close()
		return nil, nil, err
	}
	return h, status, nil
}

func (h *Host) openMounts() error {
	if err := h.openDevices(); err != nil {
		return err
	}
	own, err := openOwn(h.config)
	h.files = append(h.files, own...)
	return err
}

func (h *Host) openDevices() error {
	for _, name := range devices {
		node, err := copyMount(unix.AT_FDCWD, "/dev/"+name, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC)
		if err != nil {
			return err
		}
		h.files = append(h.files, node)
	}
	return nil
}

// openOwn copies the mounts that an instance has for itself: its root, and what its configuration lists. What
// was opened before an error is returned as well.
func openOwn(c *Config) (list []*os.File, err error) {
	take := func(path string, attributes uint64) error {
		mount, err := copyMount(unix.AT_FDCWD, path, attributes)
		if err == nil {
			list = append(list, mount)
		}
		return err
	}
	if c.Rootfs != "" {
		if err := take(c.Rootfs, attributesBasic); err != nil {
			return list, err
		}
	}
	for _, m := range c.Mounts {
		if m.Tmpfs {
			continue
		}
		attributes := uint64(attributesBasic)
		if m.ReadOnly {
			attributes |= unix.MOUNT_ATTR_RDONLY
		}
		if err := take(m.Source, attributes); err != nil {
			return list, err
		}
	}
	return list, nil
}

// listen binds the control socket. The path is reached through a descriptor: it may be longer than an
// address of a Unix socket.
func listen(directory string) (*os.File, error) {
	parent, err := unix.Open(directory, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", directory, err)
	}
	defer unix.Close(parent)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("make the control socket: %w", err)
	}
	_ = unix.Unlinkat(parent, FileControl, 0)
	name := filepath.Join("/proc/self/fd", fmt.Sprint(parent), FileControl)
	if err = unix.Bind(fd, &unix.SockaddrUnix{Name: name}); err == nil {
		err = unix.Fchmodat(parent, FileControl, 0o600, 0)
	}
	if err == nil {
		err = unix.Listen(fd, 16)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("bind the control socket: %w", err)
	}
	return os.NewFile(uintptr(fd), FileControl), nil
}

// Descriptors are what the stage inherits after descriptor 6, in order.
func (h *Host) Descriptors() []uintptr {
	list := make([]uintptr, 0, len(h.files))
	for _, file := range h.files {
		list = append(list, file.Fd())
	}
	return list
}

// Attributes are the namespaces and ids of the fork. The cgroup namespace comes later, when the stage is
// in its group.
func (h *Host) Attributes() *syscall.SysProcAttr {
	c := h.config
	flags := uintptr(unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWUTS |
		unix.CLONE_NEWIPC)
	if c.NetworkNamespace == "" {
		flags |= unix.CLONE_NEWNET
	}
	return &syscall.SysProcAttr{
		Setsid:      true,
		Cloneflags:  flags,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(c.UIDBase), Size: int(c.Count)}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(c.GIDBase), Size: int(c.Count)}},
		// Without these ids the stage would be nobody inside and lose its capabilities with exec.
		GidMappingsEnableSetgroups: true,
		Credential:                 &syscall.Credential{Uid: 0, Gid: 0},
	}
}

// Fork runs a fork of the stage in the network namespace that was prepared, if one was.
func (h *Host) Fork(fork func() (int, error)) (int, error) {
	if h.config.NetworkNamespace == "" {
		return fork()
	}
	target, err := unix.Open(h.config.NetworkNamespace, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open network namespace %s: %w", h.config.NetworkNamespace, err)
	}
	defer unix.Close(target)
	runtime.LockOSThread()
	own, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		runtime.UnlockOSThread()
		return 0, fmt.Errorf("open the own network namespace: %w", err)
	}
	defer unix.Close(own)
	if err := unix.Setns(target, unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return 0, fmt.Errorf("enter network namespace %s: %w", h.config.NetworkNamespace, err)
	}
	pid, err := fork()
	if unix.Setns(own, unix.CLONE_NEWNET) == nil {
		runtime.UnlockOSThread() // else the thread ends with its goroutine and nobody uses it again
	}
	return pid, err
}

// Close closes the shim's copies.
func (h *Host) Close() {
	for _, file := range h.files {
		file.Close()
	}
	h.files = nil
}
