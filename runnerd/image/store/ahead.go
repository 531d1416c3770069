package store

import (
	"errors"
	"runtime"

	"golang.org/x/sys/unix"

	"colloid.net/runnerd/image/manifest"
)

// An import ahead of any need (Wanted.Ahead) must not be felt: its threads have the lowest priority, and it is given up
// as soon as another import waits. Who asked for it asks again then.

// errGaveWay means that an import was given up for another one.
var errGaveWay = errors.New("another image is needed first")

// niceLeast is the lowest priority of a thread.
const niceLeast = 19

// unpacking is how a layer is unpacked.
type unpacking struct {
	progress func(int64)
	ahead    bool
}

// beginImport takes the right to change what images there are; end gives it back. What is made ahead gives way.
func (s *Store) beginImport() (end func()) {
	s.waiting.Add(1)
	s.imports.Lock()
	s.waiting.Add(-1)
	return s.imports.Unlock
}

// giveWay is an error while another import waits for one that is made ahead.
func (s *Store) giveWay(ahead bool) error {
	if ahead && s.waiting.Load() > 0 {
		return errGaveWay
	}
	return nil
}

// importAhead is Import on a thread of the lowest priority; what unpacks is started from it.
func (s *Store) importAhead(from Source, wanted Wanted, progress Progress) (image Image, config manifest.Config, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		lowerThread(niceLeast)
		s.imports.Lock()
		defer s.imports.Unlock()
		image, config, err = s.importHeld(from, wanted, progress)
	}()
	<-done
	return image, config, err
}

// lowerThread gives the goroutine a thread of its own with a low priority, which ends with it.
func lowerThread(nice int) {
	runtime.LockOSThread()
	_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), nice)
}

// threadNice is the priority of the calling thread: the lowest one for an import ahead, until it is raised because somebody
// wants the image.
func threadNice() int {
	have, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		return niceLeast
	}
	return 20 - have // the call counts the other way round
}
