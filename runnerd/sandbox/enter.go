package sandbox

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// masked are the parts of /proc, and of a /sys that an external runtime makes, that tell about the host or reach into
// it, readOnly those that configure it; both as the OCI runtime specification lists them, and those added since.
var (
	masked = []string{
		"/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug",
		"/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/sys/firmware", "/sys/devices/virtual/powercap",
	}
	readOnly = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// entry is the work of Enter.
type entry struct {
	view
	config *Config
	nodes  []*os.File // the devices, inherited
	mounts []*os.File // what the configuration lists, in order
	null   *os.File
}

// Enter builds the new root and leaves the old one. It runs in process 1 of the new namespaces, before
// anything of the image is executed.
func Enter(c *Config) error {
	e := &entry{config: c}
	e.inherit()
	if err := e.separate(); err != nil {
		return err
	}
	return run(e.takeRoot, e.mountProc, e.mountSys, e.mountDev, e.mask, e.fill)
}

func run(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// separate leaves what this process shares with the host although its namespaces are new.
func (e *entry) separate() error {
	// A new nameless keyring instead of the one that runnerd was started with.
	_, _, errno := unix.RawSyscall(unix.SYS_KEYCTL, unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0)
	if errno != 0 && errno != unix.ENOSYS {
		return fmt.Errorf("leave the session keyring: %w", errno)
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("make a control group namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	return nil
}

// fill completes a root that has what every sandbox has.
func (e *entry) fill() error {
	if err := run(e.mountExtra, e.writeFiles, e.workingDirectory, e.finishRoot); err != nil {
		return err
	}
	if e.config.Hostname != "" {
		if err := unix.Sethostname([]byte(e.config.Hostname)); err != nil {
			return fmt.Errorf("set the host name: %w", err)
		}
	}
	return e.network()
}

// inherit takes over the descriptors that Host gave.
func (e *entry) inherit() {
	next := descriptorFirst
	take := func(name string) *os.File {
		file := os.NewFile(uintptr(next), name)
		next++
		return file
	}
	for _, name := range devices {
		e.nodes = append(e.nodes, take("/dev/"+name))
	}
	e.null = e.nodes[0]
	if e.config.Rootfs != "" {
		e.root = take(e.config.Rootfs)
	}
	for _, m := range e.config.Mounts {
		if !m.Tmpfs {
			e.mounts = append(e.mounts, take(m.Source))
		}
	}
}

// takeRoot puts the root of the instance over the one of the host.
func (e *entry) takeRoot() error {
	if e.config.Rootfs == "" {
		var err error
		if e.root, err = newMount("tmpfs", attributesBasic, "mode=0755", "size=1m", "nr_inodes=1024"); err != nil {
			return err
		}
	}
	return e.coverRoot()
}

// coverRoot mounts the new root where paths begin.
func (e *entry) coverRoot() error {
	place, err := os.OpenFile("/", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer place.Close()
	return attach(e.root, place)
}

func (e *entry) mountProc() error {
	proc, err := newMount("proc", attributesData)
	if err != nil {
		return fmt.Errorf("%w: does the host hide parts of its own /proc?", err)
	}
	defer proc.Close()
	if e.config.NetworkNamespace == "" { // the network namespace is the instance's own
		for name, value := range map[string]string{
			"sys/net/ipv4/ip_unprivileged_port_start": "0", "sys/net/ipv4/ping_group_range": "0 65535",
		} {
			writeAt(proc, name, value)
		}
	}
	return e.attachDirectory(proc, "/proc")
}

// writeAt is for settings that make life easier: without them the sandbox is as safe.
func writeAt(directory *os.File, name, value string) {
	fd, err := unix.Openat(int(directory.Fd()), name, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	_, _ = unix.Write(fd, []byte(value))
	unix.Close(fd)
}

// mountSys gives a read-only /sys with nothing in it but the control group of the instance, where runtimes look for their
// limits. A sysfs belongs to a network namespace, and the kernel shows it only to who owns that: in most sandboxes runnerd
// has made it. So that all are alike, none has one.
func (e *entry) mountSys() error {
	sys, err := newMount("tmpfs", attributesData, "mode=0755", "size=4k", "nr_inodes=4")
	if err != nil {
		return err
	}
	defer sys.Close()
	for _, name := range []string{"fs", "fs/cgroup"} {
		if err := unix.Mkdirat(int(sys.Fd()), name, 0o755); err != nil {
			return fmt.Errorf("make /sys/%s: %w", name, err)
		}
	}
	if err := e.attachDirectory(sys, "/sys"); err != nil {
		return err
	}
	if groups, err := newMount("cgroup2", attributesData|unix.MOUNT_ATTR_RDONLY); err == nil { // else the host has no version 2
		err = e.attachDirectory(groups, "/sys/fs/cgroup")
		groups.Close()
		if err != nil {
			return err
		}
	}
	return setAttributes(sys, unix.MOUNT_ATTR_RDONLY)
}

func (e *entry) mountDev() error {
	dev, err := newMount("tmpfs", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC, "mode=0755", "size=64k",
		"nr_inodes=64")
	if err != nil {
		return err
	}
	defer dev.Close()
	if err := e.attachDirectory(dev, "/dev"); err != nil {
		return err
	}
	for n, name := range devices {
		if err := e.attachFile(e.nodes[n], "/dev/"+name); err != nil {
			return err
		}
	}
	for link, target := range map[string]string{
		"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
		"ptmx": "pts/ptmx",
	} {
		if err := unix.Symlinkat(target, int(dev.Fd()), link); err != nil {
			return fmt.Errorf("make /dev/%s: %w", link, err)
		}
	}
	for _, m := range []struct {
		kind, at   string
		attributes int
		options    []string
	}{
		{"devpts", "/dev/pts", unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC, []string{"ptmxmode=0666", "mode=0620",
			"max=64"}},
		{"tmpfs", "/dev/shm", attributesData, []string{"mode=1777", "size=64m", "nr_inodes=4096"}},
		{"mqueue", "/dev/mqueue", attributesData, nil},
	} {
		mount, err := newMount(m.kind, m.attributes, m.options...)
		if err != nil {
			return err
		}
		err = e.attachDirectory(mount, m.at)
		mount.Close()
		if err != nil {
			return err
		}
	}
	return setAttributes(dev, unix.MOUNT_ATTR_RDONLY)
}

// mountExtra mounts what the configuration lists, in its order.
func (e *entry) mountExtra() error {
	inherited := e.mounts
	for _, m := range e.config.Mounts {
		if m.Tmpfs {
			size := m.SizeMiB
			if size == 0 {
				size = 64
			}
			mount, err := newMount("tmpfs", attributesBasic, "mode=1777", "size="+strconv.Itoa(int(size))+"m")
			if err != nil {
				return err
			}
			err = e.attachDirectory(mount, m.Target)
			mount.Close()
			if err != nil {
				return err
			}
			continue
		}
		mount := inherited[0]
		inherited = inherited[1:]
		var stat unix.Stat_t
		if err := unix.Fstat(int(mount.Fd()), &stat); err != nil {
			return fmt.Errorf("look at %s: %w", m.Source, err)
		}
		put := e.attachFile
		if stat.Mode&unix.S_IFMT == unix.S_IFDIR {
			put = e.attachDirectory
		}
		if err := put(mount, m.Target); err != nil {
			return err
		}
	}
	return nil
}

// writeFiles keeps runnerd's files in memory that belongs to the instance, never on a disk.
func (e *entry) writeFiles() error {
	if len(e.config.Files) == 0 {
		return nil
	}
	store, err := newMount("tmpfs", attributesBasic, "mode=0700", "size=1m", "nr_inodes=256")
	if err != nil {
		return err
	}
	defer store.Close()
	// Kernels before 6.15 copy no part of a mount that is attached nowhere.
	if err := e.attachDirectory(store, "/dev/shm"); err != nil {
		return err
	}
	uid, gid := e.owner()
	for n, f := range e.config.Files {
		if err := e.writeFile(store, strconv.Itoa(n), f, uid, gid); err != nil {
			return fmt.Errorf("write %s: %w", f.Path, err)
		}
	}
	return detach(store)
}

func (e *entry) writeFile(store *os.File, name string, f File, uid, gid int) error {
	fd, err := unix.Openat(int(store.Fd()), name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), name)
	_, err = file.Write(f.Content)
	if err == nil && f.Owned {
		err = file.Chown(uid, gid)
	}
	if err == nil {
		err = unix.Fchmod(fd, f.Mode&0o777)
	}
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	attributes := uint64(attributesData)
	if f.ReadOnly {
		attributes |= unix.MOUNT_ATTR_RDONLY
	}
	mount, err := copyMount(int(store.Fd()), name, attributes)
	if err != nil {
		return err
	}
	defer mount.Close()
	return e.attachFile(mount, f.Path)
}

// owner is the user of the program as the image's files name it, root if they do not: starting then
// fails with the reason.
func (e *entry) owner() (uid, gid int) {
	identity, err := resolveUser(e.config, openIn(int(e.root.Fd())))
	if err != nil {
		return 0, 0
	}
	return int(identity.UID), int(identity.GID)
}

// workingDirectory makes the directory that an image names and does not have, as engines do.
func (e *entry) workingDirectory() error {
	if e.config.WorkingDirectory == "" {
		return nil
	}
	directory, err := e.directory(e.config.WorkingDirectory)
	if err != nil {
		return err
	}
	return directory.Close()
}

func (e *entry) mask() error {
	for _, at := range masked {
		place, err := e.open(at, 0)
		if err != nil {
			continue // this kernel does not have it
		}
		err = e.maskOne(place)
		place.Close()
		if err != nil {
			return err
		}
	}
	for _, at := range readOnly {
		place, err := e.open(at, 0)
		if err != nil {
			continue
		}
		mount, err := copyMount(int(place.Fd()), "", attributesData|unix.MOUNT_ATTR_RDONLY)
		if err == nil {
			err = attach(mount, place)
			mount.Close()
		}
		place.Close()
		if err != nil {
			return fmt.Errorf("make %s read-only: %w", at, err)
		}
	}
	return nil
}

func (e *entry) maskOne(place *os.File) error {
	var stat unix.Stat_t
	if err := unix.Fstat(int(place.Fd()), &stat); err != nil {
		return err
	}
	var mount *os.File
	var err error
	if stat.Mode&unix.S_IFMT == unix.S_IFDIR {
		mount, err = newMount("tmpfs", attributesData|unix.MOUNT_ATTR_RDONLY, "mode=0755", "size=4k")
	} else {
		mount, err = e.copyNull()
	}
	if err != nil {
		return err
	}
	defer mount.Close()
	return attach(mount, place)
}

// copyNull copies the null device for one more place.
func (e *entry) copyNull() (*os.File, error) {
	return copyMount(int(e.null.Fd()), "", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC)
}

// finishRoot makes the new root as writable as it should be, and the only one.
func (e *entry) finishRoot() error {
	if e.config.ReadOnlyRoot || e.config.Rootfs == "" {
		if err := setAttributes(e.root, unix.MOUNT_ATTR_RDONLY); err != nil {
			return err
		}
	}
	if err := e.leaveOldRoot(); err != nil {
		return err
	}
	for _, file := range append(e.nodes, e.mounts...) {
		file.Close()
	}
	return nil
}

// leaveOldRoot makes the new root the only one.
func (e *entry) leaveOldRoot() error {
	if err := unix.Fchdir(int(e.root.Fd())); err != nil {
		return fmt.Errorf("enter the new root: %w", err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("change to the new root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the old root: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return fmt.Errorf("enter the new root: %w", err)
	}
	return e.root.Close()
}

// network brings lo up where the namespace is new.
func (e *entry) network() error {
	if e.config.NetworkNamespace != "" {
		return nil
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request); err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	return nil
}
