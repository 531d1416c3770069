package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// All mounting goes through descriptors: a mount is made or copied detached, gets its attributes, and is
// attached at a place that was opened inside the new root with RESOLVE_IN_ROOT. A symbolic link in an
// image can therefore lead nowhere but into that image.

const (
	attributesBasic = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	attributesData  = attributesBasic | unix.MOUNT_ATTR_NOEXEC
)

// newMount makes a file system with its options ("size=64k") and leaves it detached.
func newMount(kind string, attributes int, options ...string) (*os.File, error) {
	context, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a %s: %w", kind, err)
	}
	defer unix.Close(context)
	for _, option := range options {
		name, value, found := strings.Cut(option, "=")
		if found {
			err = unix.FsconfigSetString(context, name, value)
		} else {
			err = unix.FsconfigSetFlag(context, name)
		}
		if err != nil {
			return nil, fmt.Errorf("set %s of a %s: %w", option, kind, err)
		}
	}
	if err := unix.FsconfigCreate(context); err != nil {
		return nil, fmt.Errorf("make a %s: %w", kind, err)
	}
	fd, err := unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, attributes)
	if err != nil {
		return nil, fmt.Errorf("make a %s: %w", kind, err)
	}
	return os.NewFile(uintptr(fd), kind), nil
}

// copyMount copies what is at a path, detached and private, with more attributes.
func copyMount(directory int, at string, attributes uint64) (*os.File, error) {
	flags := uint(unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC)
	if at == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	fd, err := unix.OpenTree(directory, at, flags)
	if err != nil {
		return nil, fmt.Errorf("copy the mount of %s: %w", at, err)
	}
	file := os.NewFile(uintptr(fd), at)
	if err := setAttributes(file, attributes); err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

func setAttributes(mount *os.File, attributes uint64) error {
	change := unix.MountAttr{Attr_set: attributes, Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(int(mount.Fd()), "", unix.AT_EMPTY_PATH, &change); err != nil {
		return fmt.Errorf("set attributes of the mount of %s: %w", mount.Name(), err)
	}
	return nil
}

// view is the new root while it is put together.
type view struct{ root *os.File }

// open opens a path inside without its content.
func (v view) open(at string, flags uint64) (*os.File, error) {
	how := unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC | flags, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	}
	at = strings.TrimPrefix(at, "/")
	if at == "" {
		at = "."
	}
	fd, err := unix.Openat2(int(v.root.Fd()), at, &how)
	if err != nil {
		return nil, fmt.Errorf("open %s inside: %w", at, err)
	}
	return os.NewFile(uintptr(fd), "/"+at), nil
}

// directory opens a directory and makes what is missing of its path.
func (v view) directory(at string) (*os.File, error) {
	found, err := v.open(at, unix.O_DIRECTORY)
	if err == nil {
		return found, nil
	}
	if at == "/" || at == "." {
		return nil, err
	}
	parent, err := v.directory(path.Dir(at))
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	if err := unix.Mkdirat(int(parent.Fd()), path.Base(at), 0o755); err != nil && err != unix.EEXIST {
		return nil, fmt.Errorf("make directory %s inside: %w", at, err)
	}
	found, err = v.open(at, unix.O_DIRECTORY)
	switch {
	case errors.Is(err, unix.ENOTDIR):
		return nil, fmt.Errorf("%s is a file in the image, and has to be a directory: take another path, or another image", at)
	case errors.Is(err, unix.ENOENT):
		return nil, fmt.Errorf("%s is a link in the image that leads to nothing, and has to be a directory: take another "+
			"path, or another image", at)
	}
	return found, err
}

// file opens a file, or makes an empty one.
func (v view) file(at string) (*os.File, error) {
	found, err := v.open(at, 0)
	if err == nil {
		return found, nil
	}
	parent, err := v.directory(path.Dir(at))
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	fd, err := unix.Openat(int(parent.Fd()), path.Base(at),
		unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
	if err == unix.EEXIST { // a link that leads nowhere: replaced, it is the image's own
		_ = unix.Unlinkat(int(parent.Fd()), path.Base(at), 0)
		fd, err = unix.Openat(int(parent.Fd()), path.Base(at),
			unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
	}
	if err != nil {
		return nil, fmt.Errorf("make %s inside: %w", at, err)
	}
	unix.Close(fd)
	return v.open(at, 0)
}

// attach puts a detached mount on an opened place.
func attach(mount, place *os.File) error {
	flags := unix.MOVE_MOUNT_F_EMPTY_PATH | unix.MOVE_MOUNT_T_EMPTY_PATH
	if err := unix.MoveMount(int(mount.Fd()), "", int(place.Fd()), "", flags); err != nil {
		return fmt.Errorf("mount %s at %s: %w", mount.Name(), place.Name(), err)
	}
	return nil
}

// detach takes an attached mount away; what was copied of it stays. It names the mount by the working directory,
// since no path leads to /proc while a prepared sandbox gets its root. The working directory is the root's afterwards.
func detach(mount *os.File) error {
	err := unix.Fchdir(int(mount.Fd()))
	if err == nil {
		err = unix.Unmount(".", unix.MNT_DETACH)
	}
	if err == nil {
		err = unix.Chdir("/")
	}
	if err != nil {
		return fmt.Errorf("unmount %s: %w", mount.Name(), err)
	}
	return nil
}

// attachDirectory puts a mount on a directory, attachFile on a file; both make the place if needed and
// close neither.
func (v view) attachDirectory(mount *os.File, at string) error {
	place, err := v.directory(at)
	if err != nil {
		return err
	}
	defer place.Close()
	return attach(mount, place)
}

func (v view) attachFile(mount *os.File, at string) error {
	place, err := v.file(at)
	if err != nil {
		return err
	}
	defer place.Close()
	var stat unix.Stat_t
	if err := unix.Fstat(int(place.Fd()), &stat); err == nil && stat.Mode&unix.S_IFMT == unix.S_IFDIR {
		return fmt.Errorf("%s is a directory in the image, and has to be a file: take another path, or another image", at)
	}
	return attach(mount, place)
}
