package store

import (
	"fmt"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"go.podman.io/storage/pkg/idmap"
	"go.podman.io/storage/pkg/idtools"
)

// namespaces are user namespaces for mapping the ids of mounts. Making one takes a process, so the next one can
// be made ahead. One is kept, for ids that nobody has used yet.
type namespaces struct {
	mutex sync.Mutex
	ids   IDRange
	file  *os.File
}

// expect makes the namespace for ids that will soon be asked for, in place of the one before.
func (n *namespaces) expect(ids IDRange) error {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if n.file != nil && n.ids == ids {
		return nil
	}
	file, err := makeNamespace(ids)
	if err != nil {
		return err
	}
	if n.file != nil {
		n.file.Close()
	}
	n.ids, n.file = ids, file
	return nil
}

// take gives the namespace for ids to the caller, who closes it.
func (n *namespaces) take(ids IDRange) (*os.File, error) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if n.file != nil && n.ids == ids {
		file := n.file
		n.file = nil
		return file, nil
	}
	return makeNamespace(ids)
}

func (n *namespaces) close() {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if n.file != nil {
		n.file.Close()
		n.file = nil
	}
}

func makeNamespace(ids IDRange) (*os.File, error) {
	if ids.Count == 0 || ids.Base == 0 || uint64(ids.Base)+uint64(ids.Count) > 1<<32-1 {
		return nil, refuse("ids from %d, %d of them, are no range of a container", ids.Base, ids.Count)
	}
	mapping := []idtools.IDMap{{ContainerID: 0, HostID: int(ids.Base), Size: int(ids.Count)}}
	pid, end, err := idmap.CreateUsernsProcess(mapping, mapping)
	if err != nil {
		return nil, fmt.Errorf("make a user namespace for ids from %d: %w", ids.Base, err)
	}
	defer end()
	return os.Open("/proc/" + strconv.Itoa(pid) + "/ns/user")
}

// mapMount mounts a directory once more at target, which it makes, with the ids of a user namespace.
func mapMount(source, target string, namespace *os.File) error {
	tree, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return &os.PathError{Op: "open_tree", Path: source, Err: err}
	}
	defer unix.Close(tree)
	change := unix.MountAttr{
		Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(namespace.Fd()), Propagation: unix.MS_PRIVATE,
	}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &change); err != nil {
		return &os.PathError{Op: "mount_setattr", Path: source, Err: err}
	}
	if err := os.Mkdir(target, 0o700); err != nil {
		return err
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return &os.PathError{Op: "move_mount", Path: target, Err: err}
	}
	return nil
}
