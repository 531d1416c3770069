package store

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// mountJob is the making of one root.
type mountJob struct {
	directory string
	wanted    rootDescription
	lowers    []string // directories, highest first
	closers   []*os.File
	// withoutMapping forces the way of kernels that cannot map ids of a mount; tests do.
	withoutMapping bool
}

// withoutMapping makes every Store behave as on a kernel before 5.19, for tests.
var withoutMapping bool

// mount mounts a root. After is called when nobody waits any more: what only served to make it goes.
func (s *Store) mount(directory string, r *record, wanted rootDescription) (after func(), err error) {
	entries, err := os.ReadDir(s.roots.directory)
	if err != nil {
		return nil, err
	}
	if len(entries) >= RootsMax {
		return nil, fmt.Errorf("there are %d mounted roots here, which is the most", len(entries))
	}
	j := mountJob{directory: directory, wanted: wanted, withoutMapping: withoutMapping}
	for i := len(r.Chain) - 1; i >= 0; i-- {
		j.lowers = append(j.lowers, filepath.Join(s.directory, layersName, r.Chain[i], diffName))
	}
	defer func() {
		for _, file := range j.closers {
			file.Close()
		}
	}()
	if err := j.prepare(); err != nil {
		return nil, err
	}
	mapped, err := j.mapLowers(&s.namespaces)
	if err != nil {
		return nil, err
	}
	if err := j.overlay(!mapped); err != nil {
		return nil, err
	}
	if !mapped {
		return func() {}, chownTree(filepath.Join(directory, rootfsName), wanted.IDs)
	}
	if wanted.IDs.Count == 0 {
		return func() {}, nil
	}
	return func() { // the overlay keeps what it needs
		for _, target := range j.lowers {
			_ = unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) // removeRoot finds what is left
		}
	}, nil
}

// prepare makes the directories and the writable layer.
func (j *mountJob) prepare() error {
	// Only root of the host and root of this container may pass: names of roots can be guessed.
	if err := os.Mkdir(j.directory, 0o700); err != nil {
		return err
	}
	if err := os.Lchown(j.directory, int(j.wanted.IDs.Base), int(j.wanted.IDs.Base)); err != nil {
		return err
	}
	for _, name := range []string{rootfsName, mappedName, spaceName} {
		if err := os.Mkdir(filepath.Join(j.directory, name), 0o700); err != nil {
			return err
		}
	}
	text, err := json.Marshal(j.wanted)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(j.directory, rootRecord), text, 0o600); err != nil {
		return err
	}
	space := filepath.Join(j.directory, spaceName)
	if j.wanted.DiskMiB > 0 {
		if err := j.limit(space); err != nil {
			return err
		}
	}
	for _, name := range []string{upperName, workName} {
		if err := os.Mkdir(filepath.Join(space, name), 0o755); err != nil {
			return err
		}
	}
	return j.likeLower(filepath.Join(space, upperName))
}

// limit bounds what the writable layer may hold (F147): as a project on disk where the file system can do that, else as a
// file system in memory, which counts as memory of the instance.
func (j *mountJob) limit(space string) error {
	err := limitProject(space, j.wanted.IDs.Base, j.wanted.DiskMiB)
	if !errors.Is(err, errNoQuota) {
		return err
	}
	size := fmt.Sprintf("mode=0700,size=%dm,nr_inodes=%d", j.wanted.DiskMiB, inodes(j.wanted.DiskMiB))
	if err := unix.Mount("colloid", space, "tmpfs", unix.MS_NODEV, size); err != nil {
		return fmt.Errorf("mount %d MiB of scratch space: %w", j.wanted.DiskMiB, err)
	}
	return nil
}

// inodes allows one file per 4 KiB, and a few for an image that is changed everywhere.
func inodes(mebibytes uint32) uint64 { return uint64(mebibytes)*256 + 4096 }

// likeLower gives the upper directory, which becomes the root directory, the owner and mode that the
// highest layer says.
func (j *mountJob) likeLower(upper string) error {
	var stat unix.Stat_t
	if err := unix.Lstat(j.lowers[0], &stat); err != nil {
		return err
	}
	uid, gid := j.wanted.IDs.host(stat.Uid), j.wanted.IDs.host(stat.Gid)
	if err := os.Lchown(upper, int(uid), int(gid)); err != nil {
		return err
	}
	return os.Chmod(upper, fs.FileMode(stat.Mode&0o7777))
}

// overflow is what an id becomes that a container does not have.
const overflow = 65534

// host gives the id on the host for one in an image.
func (r IDRange) host(id uint32) uint32 {
	switch {
	case r.Count == 0:
		return id
	case id < r.Count:
		return r.Base + id
	case overflow < r.Count:
		return r.Base + overflow
	}
	return r.Base
}

// mapLowers shows the layers with the ids of the container (F139), one mount each. On a kernel or file
// system that cannot, it reports false.
func (j *mountJob) mapLowers(namespaces *namespaces) (bool, error) {
	if j.wanted.IDs.Count == 0 {
		return true, nil
	}
	if j.withoutMapping {
		return false, nil
	}
	namespace, err := namespaces.take(j.wanted.IDs)
	if err != nil {
		return false, err
	}
	defer namespace.Close()
	targets := make([]string, len(j.lowers))
	for i, lower := range j.lowers {
		targets[i] = filepath.Join(j.directory, mappedName, strconv.Itoa(i))
		err := mapMount(lower, targets[i], namespace)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP) {
			return false, unmountBelow(filepath.Join(j.directory, mappedName))
		}
		if err != nil {
			return false, fmt.Errorf("map the ids of layer %d: %w", len(j.lowers)-i, err)
		}
	}
	j.lowers = targets
	return true, nil
}

// overlay mounts the root. Directories are named by descriptors, since mount data has room for a page
// and paths of many layers would not fit. The upper layer is lost with the host's memory anyway, so it
// is not synced (volatile).
func (j *mountJob) overlay(metadataOnly bool) error {
	lowers := make([]string, len(j.lowers))
	for i, lower := range j.lowers {
		path, err := j.open(lower)
		if err != nil {
			return err
		}
		lowers[i] = path
	}
	upper, err := j.open(filepath.Join(j.directory, spaceName, upperName))
	if err != nil {
		return err
	}
	work, err := j.open(filepath.Join(j.directory, spaceName, workName))
	if err != nil {
		return err
	}
	data := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s,volatile", strings.Join(lowers, ":"), upper, work)
	if metadataOnly {
		data += ",metacopy=on" // a change of owner copies no content
	}
	err = unix.Mount("colloid", filepath.Join(j.directory, rootfsName), "overlay", unix.MS_NODEV, data)
	if err != nil {
		return j.explainOverlay(len(lowers), err)
	}
	return nil
}

// unfit are file systems that the kernel takes no writable layer on. Their names are those of mount(8).
var unfit = map[int64]string{
	unix.OVERLAYFS_SUPER_MAGIC: "overlay", unix.NFS_SUPER_MAGIC: "nfs", unix.FUSE_SUPER_MAGIC: "fuse",
	unix.SMB_SUPER_MAGIC: "smb", unix.SMB2_SUPER_MAGIC: "smb", unix.CIFS_SUPER_MAGIC: "cifs",
	unix.V9FS_MAGIC: "9p", unix.MSDOS_SUPER_MAGIC: "vfat", unix.ECRYPTFS_SUPER_MAGIC: "ecryptfs",
}

// explainOverlay names the file system that an overlay cannot be made on: the kernel says only that something
// is invalid.
func (j *mountJob) explainOverlay(layers int, err error) error {
	var stat unix.Statfs_t
	if errors.Is(err, unix.EINVAL) && unix.Statfs(j.directory, &stat) == nil {
		if name := unfit[int64(stat.Type)]; name != "" {
			return fmt.Errorf("the state directory lies on a file system of type %s, on which the root of a container cannot "+
				"be mounted: start colloid with another --directory, on ext4, xfs, btrfs or tmpfs", name)
		}
	}
	return fmt.Errorf("mount an overlay of %d layers: %w", layers, err)
}

func (j *mountJob) open(directory string) (string, error) {
	fd, err := unix.Open(directory, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &os.PathError{Op: "open", Path: directory, Err: err}
	}
	j.closers = append(j.closers, os.NewFile(uintptr(fd), directory))
	return "/proc/self/fd/" + strconv.Itoa(fd), nil
}

// chownTree gives a mounted tree to the container: the way of kernels that cannot map ids (F139). The
// kernel takes set-user-id bits and file capabilities away when an owner changes, so both are put back.
func chownTree(root string, ids IDRange) error {
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if path == root {
			return nil // the upper directory has its owner already
		}
		stat := info.Sys().(*syscall.Stat_t)
		capability := make([]byte, capabilityMax)
		n := 0
		if info.Mode().IsRegular() {
			if n, err = unix.Lgetxattr(path, capabilityName, capability); err != nil {
				n = 0
			}
		}
		if err := os.Lchown(path, int(ids.host(stat.Uid)), int(ids.host(stat.Gid))); err != nil {
			return err
		}
		if stat.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 && info.Mode()&fs.ModeSymlink == 0 {
			if err := unix.Chmod(path, stat.Mode&0o7777); err != nil {
				return err
			}
		}
		if n > 0 {
			return unix.Lsetxattr(path, capabilityName, ids.capability(capability[:n]), 0)
		}
		return nil
	})
}

const (
	capabilityName = "security.capability"
	capabilityMax  = 64
	// The second revision belongs to root of the host, the third names the root that it belongs to.
	capabilitySecond     = 0x02000000
	capabilityThird      = 0x03000000
	capabilitySecondSize = 20
)

// capability makes capabilities of a file those of the container's root.
func (r IDRange) capability(value []byte) []byte {
	if len(value) != capabilitySecondSize || binary.LittleEndian.Uint32(value)&0xff000000 != capabilitySecond {
		return value
	}
	flags := binary.LittleEndian.Uint32(value) & 0x00ffffff
	third := binary.LittleEndian.AppendUint32(nil, capabilityThird|flags)
	return binary.LittleEndian.AppendUint32(append(third, value[4:]...), r.Base)
}
