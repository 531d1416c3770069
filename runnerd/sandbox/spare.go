package sandbox

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// A spare is a sandbox without a workload, made ahead because most of a start is the same for every container:
// the namespaces with their ids and their network, /proc, /sys and /dev with all that is masked, and the init.
// They stand on an empty read-only root, and the host's is gone already. Of an image, an instance or a secret
// there is nothing in it; what makes it somebody's arrives with Receive, once, and nobody ever leaves it for
// another: when the workload ends the sandbox ends.

// OpenSpare is OpenHost for a spare: of the configuration ids and network count.
func OpenSpare(c *Config) (host *Host, status *os.File, err error) {
	if err := c.Validate(); err != nil {
		return nil, nil, err
	}
	h := &Host{config: c}
	status, statusWrite, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	h.files = append(h.files, statusWrite)
	null, err := os.Open(os.DevNull) // the place of the control socket
	if err == nil {
		h.files = append(h.files, null)
		err = h.openDevices()
	}
	if err != nil {
		h.Close()
		status.Close()
		return nil, nil, err
	}
	return h, status, nil
}

// OpenOwn opens what makes a spare an instance's, in the order in which Complete takes it: the control socket in
// the instance's directory, the root, the mounts. It runs outside, with CAP_SYS_ADMIN. The caller closes them.
func OpenOwn(c *Config, directory string) ([]*os.File, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	control, err := listen(directory)
	if err != nil {
		return nil, err
	}
	own, err := openOwn(c)
	list := append([]*os.File{control}, own...)
	if err != nil {
		for _, file := range list {
			file.Close()
		}
		return nil, err
	}
	return list, nil
}

// Spare is a furnished sandbox, from within.
type Spare struct{ entry *entry }

// Furnish makes all of a sandbox that does not depend on who will use it, and leaves the host's root. It runs
// in process 1, as Enter does, and is its first half.
func Furnish(c *Config) (*Spare, error) {
	e := &entry{config: &Config{NetworkNamespace: c.NetworkNamespace}}
	e.inherit()
	var err error
	if e.root, err = newMount("tmpfs", attributesBasic, "mode=0755", "size=64k", "nr_inodes=16"); err != nil {
		return nil, err
	}
	err = run(e.separate, e.coverRoot, e.mountProc, e.mountSys, e.mountDev, e.mask, func() error {
		return setAttributes(e.root, unix.MOUNT_ATTR_RDONLY)
	}, e.leaveOldRoot)
	if err != nil {
		return nil, err
	}
	// Until it is somebody's, nobody inside can look at it; later Run says so again.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("hide from inside: %w", err)
	}
	return &Spare{e}, nil
}

// furnished are the places of what Furnish made.
var furnished = [...]string{"/proc", "/sys", "/dev"}

// Complete is the second half of Enter: own are the descriptors of OpenOwn, which it takes over.
func (s *Spare) Complete(c *Config, own []*os.File) error {
	expected := 1 // the control socket
	if c.Rootfs != "" {
		expected++
	}
	for _, m := range c.Mounts {
		if !m.Tmpfs {
			expected++
		}
	}
	if len(own) != expected || c.Rootfs == "" {
		return fmt.Errorf("%d descriptors came for the sandbox, expected %d with a root", len(own), expected)
	}
	if err := unix.Dup3(int(own[0].Fd()), descriptorControl, unix.O_CLOEXEC); err != nil {
		return fmt.Errorf("take the control socket: %w", err)
	}
	own[0].Close()
	e := s.entry
	e.config, e.root, e.mounts = c, own[1], own[2:]
	var made [len(furnished)]*os.File
	for n, at := range furnished {
		var err error
		if made[n], err = os.OpenFile(at, unix.O_PATH|unix.O_DIRECTORY, 0); err != nil {
			return err
		}
		defer made[n].Close()
	}
	if err := e.coverRoot(); err != nil {
		return err
	}
	for n, at := range furnished {
		if err := e.attachDirectory(made[n], at); err != nil {
			return err
		}
	}
	return e.fill()
}
