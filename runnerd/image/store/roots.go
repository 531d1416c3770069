package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"colloid.net/runnerd/image/manifest"
)

// RootsMax bounds the mounted roots; it is above the bound on instances (policy.InstancesMax).
const RootsMax = 2048

// Names in the directory of a root.
const (
	rootfsName = "rootfs" // where it is mounted
	upperName  = "upper"
	workName   = "work"
	mappedName = "mapped" // lower layers with the ids of the container
	spaceName  = "space"  // where the file system of limited size is mounted that holds upper and work
	rootRecord = "root"
)

// roots are the root file systems of instances, each with a writable layer of its own.
type roots struct {
	directory string
	// One mount or unmount of a name at a time; two names that share a lock wait for each other.
	locks [64]sync.Mutex
	seed  maphash.Seed
}

// rootDescription is the record of a root.
type rootDescription struct {
	Digest  manifest.Digest `json:"digest"`
	IDs     IDRange         `json:"ids"`
	DiskMiB uint32          `json:"disk_mib"`
}

func (r *roots) init(directory string) { r.directory, r.seed = directory, maphash.MakeSeed() }

// hold locks a name.
func (r *roots) hold(name string) (release func()) {
	lock := &r.locks[maphash.String(r.seed, name)%uint64(len(r.locks))]
	lock.Lock()
	return lock.Unlock
}

const rootNameMax = 128

// validRoot accepts the names of instances: nothing that could be a path. A regular expression would cost
// every start of this program a tenth of a megabyte.
func validRoot(name string) bool {
	if name == "" || len(name) > rootNameMax || name[0] == '-' {
		return false
	}
	for _, r := range []byte(name) {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' {
			return false
		}
	}
	return true
}

// users counts the roots that stand on each image.
func (r *roots) users() map[manifest.Digest]int {
	users := map[manifest.Digest]int{}
	entries, _ := os.ReadDir(r.directory)
	for _, entry := range entries {
		if d, err := r.describe(entry.Name()); err == nil {
			users[d.Digest]++
		}
	}
	return users
}

func (r *roots) describe(name string) (d rootDescription, err error) {
	text, err := os.ReadFile(filepath.Join(r.directory, name, rootRecord))
	if err != nil {
		return d, err
	}
	return parseRoot(text)
}

// parseRoot reads the record of a root.
func parseRoot(text []byte) (d rootDescription, err error) {
	if err := json.Unmarshal(text, &d); err != nil {
		return rootDescription{}, fmt.Errorf("the record of a root is damaged: %w", err)
	}
	return d, nil
}

// Mount gives a writable root file system of an image to an instance: the path of its root directory.
// Asking again gives the same path. A root that is not mounted any more, after a reboot, begins empty.
func (s *Store) Mount(name string, digest manifest.Digest, ids IDRange, diskMiB uint32) (string, error) {
	if !validRoot(name) {
		return "", refuse("%.100q is no name of a root", name)
	}
	if ids.Count > 0 && (ids.Base == 0 || uint64(ids.Base)+uint64(ids.Count) > 1<<32-1) {
		return "", refuse("ids from %d, %d of them, are no range of a container", ids.Base, ids.Count)
	}
	release := s.roots.hold(name)
	defer func() { release() }()
	s.records.RLock()
	defer s.records.RUnlock()
	directory := filepath.Join(s.roots.directory, name)
	wanted := rootDescription{digest, ids, diskMiB}
	rootfs := filepath.Join(directory, rootfsName)
	if have, err := s.roots.describe(name); err == nil && mounted(rootfs) {
		if have != wanted {
			return "", refuse("root %s is mounted for image %s already", name, have.Digest)
		}
		return rootfs, nil
	}
	r, err := s.load(digest)
	if err != nil {
		return "", err
	}
	// What stays free of the disk for others is not asked about: what ran goes on, and starts again, on a full one too.
	if err := removeRoot(directory); err != nil {
		return "", err
	}
	after, err := s.mount(directory, r, wanted)
	if err != nil {
		return "", errors.Join(err, removeRoot(directory))
	}
	held := release
	release = func() { s.afters.Go(func() { after(); held() }) }
	return rootfs, nil
}

// Unmount takes a root away with all that was written to it. One that does not exist is no error.
func (s *Store) Unmount(name string) error {
	if !validRoot(name) {
		return refuse("%.100q is no name of a root", name)
	}
	release := s.roots.hold(name)
	defer release()
	return removeRoot(filepath.Join(s.roots.directory, name))
}

// mounted reports whether something is mounted at a directory.
func mounted(path string) bool {
	var stat unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS, &stat)
	return err == nil && stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

// removeRoot unmounts whatever is mounted below a root's directory, then removes it.
func removeRoot(directory string) error {
	if _, err := os.Lstat(directory); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := unmountBelow(directory); err != nil {
		return err
	}
	text, _ := os.ReadFile(filepath.Join(directory, rootRecord))
	if err := os.RemoveAll(directory); err != nil {
		return err
	}
	if was, err := parseRoot(text); err == nil && was.DiskMiB > 0 {
		forgetProject(filepath.Dir(directory), was.IDs.Base)
	}
	return nil
}

// unmountBelow detaches every mount below a directory, the latest first: what stands on others goes
// before them. Were one left, removing the tree would empty what is mounted there.
func unmountBelow(directory string) error {
	for range mountsMax {
		points, err := mountPoints(directory)
		if err != nil || len(points) == 0 {
			return err
		}
		for i := len(points) - 1; i >= 0; i-- {
			if err := unix.Unmount(points[i], unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
				return fmt.Errorf("unmount %s: %w", points[i], err)
			}
		}
	}
	return fmt.Errorf("mounts below %s do not go away", directory)
}

const mountsMax = 16 // rounds

// mountPoints lists what is mounted below a directory, in the order of mounting.
func mountPoints(directory string) (points []string, err error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return parseMounts(string(text), directory), nil
}

func parseMounts(text, directory string) (points []string) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		point := unescape.Replace(fields[4])
		if strings.HasPrefix(point, directory+"/") {
			points = append(points, point)
		}
	}
	return points
}

// unescape undoes what the kernel does to blanks in paths.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
