package ring

import (
	"encoding/binary"
	"errors"
	"sync"

	"golang.org/x/sys/unix"
)

// stuckMax bounds the notifiers of closed links whose last write is held up by a hostile peer.
const stuckMax = 16

var errStuck = errors.New("ring: 16 former peers hold up their wake-ups, expected them to end: stop that program")

// notifier writes the peer's eventfd from a goroutine of its own. O_NONBLOCK belongs to the open
// file description, which the peer shares: it can clear the flag and fill the counter, and the next
// write would then block. A helper must not stop for that, so only this goroutine may.
type notifier struct {
	fd     int
	signal chan struct{}
	done   chan struct{}
}

// stuck holds the notifiers of closed links that have not ended yet.
var stuck struct {
	sync.Mutex
	list []*notifier
}

func newNotifier(fd int) *notifier {
	n := &notifier{fd: fd, signal: make(chan struct{}, 1), done: make(chan struct{})}
	go func() {
		defer close(n.done)
		for range n.signal {
			writeEventfd(n.fd)
		}
	}()
	return n
}

// wake asks for one write; a second one before the first is done is the same wake-up.
func (n *notifier) wake() {
	select {
	case n.signal <- struct{}{}:
	default:
	}
}

// stop ends the goroutine, or files it as stuck.
func (n *notifier) stop() {
	close(n.signal)
	stuck.Lock()
	defer stuck.Unlock()
	stuck.list = append(stuck.list, n)
	sweepStuck()
}

// sweepStuck empties the counters of stuck eventfds, which lets their writers go, and closes those
// that have ended. The caller holds the lock.
func sweepStuck() {
	kept := stuck.list[:0]
	for _, n := range stuck.list {
		select {
		case <-n.done:
			unix.Close(n.fd)
			continue
		default:
			drainEventfd(n.fd)
			kept = append(kept, n)
		}
	}
	clear(stuck.list[len(kept):])
	stuck.list = kept
}

// admit refuses a new link while too many old ones are stuck.
func admit() error {
	stuck.Lock()
	defer stuck.Unlock()
	sweepStuck()
	if len(stuck.list) >= stuckMax {
		return errStuck
	}
	return nil
}

var eventfdOne = func() (one [8]byte) {
	binary.NativeEndian.PutUint64(one[:], 1)
	return one
}()

func writeEventfd(fd int) {
	for {
		if _, err := unix.Write(fd, eventfdOne[:]); err != unix.EINTR {
			return // EAGAIN: the counter is full, so the peer is awake
		}
	}
}

// drainEventfd resets the counter without ever blocking, whatever the peer did to the file flags.
func drainEventfd(fd int) {
	var value [8]byte
	vector := [][]byte{value[:]}
	_, err := unix.Preadv2(fd, vector, -1, unix.RWF_NOWAIT)
	if err == unix.EOPNOTSUPP || err == unix.ENOSYS { // before Linux 5.7
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if n, err := unix.Poll(poll, 0); n == 1 && err == nil {
			_, _ = unix.Read(fd, value[:])
		}
	}
}
