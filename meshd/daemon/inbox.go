package daemon

import "sync"

// inbox holds closures for the reactor's goroutine, in order. Its length is bounded by its sources:
// 160 clients of the command socket with one request each, at most forwardsMax invocations of other cells, the
// storage calls of the cell (at most 256 writes of people, plus its own facts), one event per helper connection, at
// most invoke.RequestsMax requests of each worker, and for each of at most 96 times 64 streams of clients one of
// each kind: opening, written data, resumption, end.
type inbox struct {
	wake func()

	mutex   sync.Mutex
	waiting []func()
	spare   []func() // used by run only
}

// attach says how the reactor is woken. What was posted before waits for it.
func (b *inbox) attach(wake func()) {
	b.mutex.Lock()
	b.wake = wake
	waits := len(b.waiting) > 0
	b.mutex.Unlock()
	if waits {
		wake()
	}
}

func (b *inbox) post(f func()) {
	b.mutex.Lock()
	b.waiting = append(b.waiting, f)
	wake := b.wake
	first := len(b.waiting) == 1
	b.mutex.Unlock()
	if first && wake != nil {
		wake()
	}
}

// run calls what was posted. Closures posted meanwhile run at the next wake.
func (b *inbox) run() {
	b.mutex.Lock()
	b.waiting, b.spare = b.spare[:0], b.waiting
	b.mutex.Unlock()
	for i, f := range b.spare {
		b.spare[i] = nil
		f()
	}
}
