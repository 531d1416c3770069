package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/runnerd/image/archive"
	"colloid.net/runnerd/image/manifest"
)

// Bounds.
const (
	ImagesMax     = 4096
	referencesMax = archive.NamesMax // of one image
	floorMax      = 1 << 30
	lockPatience  = 10 * time.Second
)

// Names below the directory of a Store.
const (
	blobsName  = "blobs"
	layersName = "layers"
	imagesName = "images"
	rootsName  = "roots"
	KeptName   = "kept" // blobs that runnerd gives to other cells (F76)
)

// Store is one directory of images. Its methods may be called from any goroutine.
type Store struct {
	directory string
	lock      *os.File
	floor     uint64 // bytes of the file system that images leave free

	imports sync.Mutex   // one import at a time: they are bound by the disk
	waiting atomic.Int32 // imports, loads and removals that want to have the mutex and are not ahead
	records sync.RWMutex // of images/, and mounting against removing
	roots   roots

	namespaces namespaces
	afters     sync.WaitGroup // what mounts leave to be done behind the reply
}

// ErrAbsent means that there is no such image.
var ErrAbsent = errors.New("there is no such image here")

// refusal is an error that trying again cannot mend.
type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }

func refuse(format string, arguments ...any) error { return refusal{fmt.Errorf(format, arguments...)} }

// Prepare makes the directories of a store. runnerd does it too, since it fills blobs/ first.
func Prepare(directory string) error {
	// 0711: what runs in a container must reach its own root below. Layers are nobody's business: a
	// set-user-id program in one belongs to the root of a container, not of the host.
	for _, d := range []struct {
		name string
		mode os.FileMode
	}{{"", 0o711}, {blobsName, 0o700}, {layersName, 0o700}, {KeptName, 0o700}, {imagesName, 0o700}, {rootsName, 0o711}} {
		path := filepath.Join(directory, d.name)
		if err := os.MkdirAll(path, d.mode); err != nil {
			return err
		}
		if err := os.Chmod(path, d.mode); err != nil {
			return err
		}
	}
	return nil
}

// Open opens a directory, waits for a process that still uses it, and clears up behind one that died.
func Open(directory string) (*Store, error) {
	if err := Prepare(directory); err != nil {
		return nil, err
	}
	lock, err := lockFile(filepath.Join(directory, "lock"))
	if err != nil {
		return nil, err
	}
	s := &Store{directory: directory, lock: lock}
	s.roots.init(filepath.Join(directory, rootsName))
	s.floor = Floor(directory)
	// The child that unpacked for a process which was killed ends a moment later, when its input does.
	for deadline := time.Now().Add(lockPatience); ; time.Sleep(20 * time.Millisecond) {
		if err = s.pruneLayers(); err == nil || time.Now().After(deadline) {
			break
		}
	}
	if err != nil {
		lock.Close()
		return nil, err
	}
	return s, nil
}

// Close lets the directory go.
func (s *Store) Close() {
	s.afters.Wait()
	s.namespaces.close()
	s.lock.Close()
}

func lockFile(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(lockPatience); ; time.Sleep(20 * time.Millisecond) {
		if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			return file, nil
		}
		if time.Now().After(deadline) {
			file.Close()
			return nil, fmt.Errorf("another process uses %s", path)
		}
	}
}

// room reports whether the disk still has what others need: identity, volumes, logs.
func (s *Store) room() error { return CheckRoom(s.directory, s.floor, 0) }

// Floor is how many bytes of a file system images leave free: 1 GiB, or 5 % of a small one.
func Floor(directory string) uint64 {
	var stat unix.Statfs_t
	if unix.Statfs(directory, &stat) != nil {
		return floorMax
	}
	return min(floorMax, stat.Blocks*uint64(stat.Bsize)/20)
}

// CheckRoom is an error when less than floor bytes would be free once wanted are taken.
func CheckRoom(directory string, floor, wanted uint64) error {
	var stat unix.Statfs_t
	if err := unix.Statfs(directory, &stat); err != nil {
		return err
	}
	if free := stat.Bavail * uint64(stat.Bsize); free < floor+wanted {
		return fmt.Errorf("the disk of %s has %d MiB left; %d MiB are needed and %d MiB stay free for others: make "+
			"room, for instance with `colloid image prune`", directory, free>>20, wanted>>20, floor>>20)
	}
	return nil
}

// Find gives an image and its configuration, or ErrAbsent.
func (s *Store) Find(digest manifest.Digest) (Image, manifest.Config, error) {
	r, err := s.load(digest)
	if err != nil {
		return Image{}, manifest.Config{}, err
	}
	config, _, _, err := manifest.ParseConfig(r.Config, len(r.Chain))
	return r.image(digest), config, err
}

// List gives all images, sorted by digest, with how many roots stand on each.
func (s *Store) List() ([]Image, error) {
	entries, err := os.ReadDir(filepath.Join(s.directory, imagesName))
	if err != nil {
		return nil, err
	}
	users := s.roots.users()
	var images []Image
	for _, entry := range entries {
		digest, err := manifest.ParseHex(entry.Name())
		if err != nil {
			continue // a record that was being written when somebody died
		}
		r, err := s.load(digest)
		if err != nil {
			continue
		}
		image := r.image(digest)
		image.Users = users[digest]
		images = append(images, image)
	}
	return images, nil
}

// Remove deletes an image and the layers that no other image needs. One that a root stands on stays.
func (s *Store) Remove(digest manifest.Digest) error {
	defer s.beginImport()()
	if err := s.remove(digest); err != nil {
		return err
	}
	return s.pruneLayers()
}

func (s *Store) remove(digest manifest.Digest) error {
	s.records.Lock()
	defer s.records.Unlock()
	if n := s.roots.users()[digest]; n > 0 {
		return refuse("image %s is in use here, instances: %d", digest, n)
	}
	err := os.Remove(s.recordPath(digest))
	if errors.Is(err, fs.ErrNotExist) {
		return ErrAbsent
	}
	return err
}

// pruneLayers removes layers of no image, and what an import left that never came to its end. Nobody
// else may import meanwhile. A layer that a mounted root stands on stays until the root goes.
func (s *Store) pruneLayers() error {
	needed, kept := map[string]bool{}, map[manifest.Digest]bool{}
	entries, err := os.ReadDir(filepath.Join(s.directory, imagesName))
	if err != nil {
		return err
	}
	for _, entry := range entries {
		path := filepath.Join(s.directory, imagesName, entry.Name())
		digest, err := manifest.ParseHex(entry.Name())
		if err != nil {
			_ = os.Remove(path)
			continue
		}
		r, err := s.load(digest)
		if err != nil {
			continue
		}
		for _, id := range r.Chain {
			needed[id] = true
		}
		r.blobs(digest, kept)
	}
	s.pruneKept(kept)
	layers := filepath.Join(s.directory, layersName)
	entries, err = os.ReadDir(layers)
	for _, entry := range entries {
		if needed[entry.Name()] {
			continue
		}
		// Not in place: a layer that is half removed must not look like a whole one.
		doomed := filepath.Join(layers, entry.Name())
		if !strings.HasPrefix(entry.Name(), stagePrefix) {
			next := filepath.Join(layers, stagePrefix+entry.Name())
			if os.Rename(doomed, next) != nil {
				continue
			}
			doomed = next
		}
		err = errors.Join(err, os.RemoveAll(doomed))
	}
	return err
}

// without gives what is in a list and not in another.
func without(list, names []string) (left []string) {
	for _, name := range list {
		if !slices.Contains(names, name) {
			left = append(left, name)
		}
	}
	return left
}

// appendReference adds a name, for which the oldest gives way.
func appendReference(list []string, reference string) []string {
	if reference == "" || slices.Contains(list, reference) {
		return list
	}
	list = append(list, reference)
	return list[max(0, len(list)-referencesMax):]
}
