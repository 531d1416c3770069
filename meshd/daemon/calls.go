package daemon

import (
	"context"
	"fmt"
	"time"

	"colloid.net/ipc/invoke"
)

// guardInterval is how often invocations are looked at that may have waited too long.
const guardInterval = time.Second

// Why an invocation that a worker may have begun has no result.
const (
	textGone     = "the worker ended while the function ran"
	textSilent   = "the worker does not answer"
	textStopping = "the daemon is stopping"
)

// absence is why no worker of this cell took an invocation.
type absence uint8

const (
	absenceNone     absence = iota // one did
	absenceMissing                 // there is no instance that runs
	absenceStarting                // there is one that is not connected yet
	absenceBusy                    // all have as much to do as they take
)

// refusal is the sentence for an absence that passes, "" for absenceMissing.
func (a absence) refusal(name, where string) string {
	switch a {
	case absenceStarting:
		return fmt.Sprintf("the instance of %s on %s is starting: try again", name, where)
	case absenceBusy:
		return fmt.Sprintf("the instance of %s on %s has %d invocations to do already: try again", name, where,
			invoke.InvocationsMax)
	}
	return ""
}

// chosen is where an invocation goes.
type chosen struct {
	worker   *worker
	conn     *invoke.Conn
	result   chan *invoke.Result // comes here, unless by the shortcut
	shortcut *shortcut           // the caller's until leaveShortcut
	// warm: a shortcut is to be made, for later ones.
	warm bool
}

// load is how many invocations wait at a worker. The caller holds the lock.
func (w *worker) load() int {
	if w.shortcut != nil && w.shortcut.busy {
		return len(w.pending) + 1
	}
	return len(w.pending)
}

// choose picks a connected worker of a workload and enters the invocation in it. direct: the caller can use a shortcut.
func (w *workers) choose(name string, v *invoke.Invocation, direct bool) (to chosen, why absence) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	why = absenceMissing
	var best *worker
	for _, candidate := range w.byInstance {
		if candidate.name != name || candidate.retiring {
			continue
		}
		switch {
		case !candidate.connected:
			why = max(why, absenceStarting)
		case candidate.load() >= invoke.InvocationsMax:
			why = absenceBusy
		case best == nil || candidate.load() < best.load() ||
			candidate.load() == best.load() && candidate.id.Slot < best.id.Slot:
			best = candidate
		}
	}
	if best == nil {
		return chosen{}, why
	}
	now := time.Now()
	to = chosen{worker: best, conn: best.conn}
	if direct {
		if to.shortcut, to.warm = w.offer(best, now); to.shortcut != nil {
			return to, absenceNone
		}
	}
	best.nextID++
	v.ID = best.nextID
	to.result = make(chan *invoke.Result, 1)
	best.pending[v.ID] = waiter{to.result, now.Add(v.Patience())}
	w.guard()
	return to, absenceNone
}

func (w *workers) giveUp(from *worker, id uint64) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	delete(from.pending, id)
}

// call runs one invocation on a worker of this cell. The result is nil where why says that none was reached. direct: it
// is a client's, and ctx that of the command socket.
func (w *workers) call(ctx context.Context, name string, v *invoke.Invocation, direct bool) (
	_ *invoke.Result, why absence,
) {
	if v.Milliseconds == 0 {
		v.Milliseconds = invoke.DeadlineDefaultMilliseconds
	}
	to, why := w.choose(name, v, direct)
	if why == absenceNone && to.shortcut != nil {
		if result := w.callByShortcut(ctx, to.shortcut, to.conn, v); result != nil {
			return result, absenceNone
		}
		to, why = w.choose(name, v, false) // the instance may be another one by now, or none
	}
	if why != absenceNone {
		return nil, why
	}
	return w.callByConnection(ctx, to, v)
}

func (w *workers) callByConnection(ctx context.Context, to chosen, v *invoke.Invocation) (*invoke.Result, absence) {
	var fresh *shortcut
	if to.warm {
		fresh = w.openShortcut(ctx, to.worker, to.conn)
	}
	if to.conn.Send(v) != nil {
		w.giveUp(to.worker, v.ID)
		return nil, absenceStarting
	}
	select {
	case r, open := <-to.result:
		if !open {
			return &invoke.Result{Errno: invoke.ErrorGone, Output: []byte(textGone)}, absenceNone
		}
		if fresh != nil {
			w.proveShortcut(fresh)
		}
		return r, absenceNone
	case <-ctx.Done():
	}
	w.giveUp(to.worker, v.ID)
	return &invoke.Result{Errno: invoke.ErrorTimeout, Output: []byte(textStopping)}, absenceNone
}

// guard looks after invocations that no worker answers and shortcuts that nobody uses, as long as there are any. A timer for each would wake
// a second thread for each. The caller holds the lock.
func (w *workers) guard() {
	if !w.guarded {
		w.guarded = true
		time.AfterFunc(guardInterval, w.expire)
	}
}

// expire answers the invocations that have waited too long.
func (w *workers) expire() {
	now := time.Now()
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.guarded = false
	left := 0
	for _, one := range w.byInstance {
		for id, waiting := range one.pending {
			if now.Before(waiting.until) {
				left++
				continue
			}
			delete(one.pending, id)
			waiting.result <- &invoke.Result{Errno: invoke.ErrorTimeout, Output: []byte(textSilent)}
		}
	}
	if left += w.sweepShortcuts(now); left > 0 {
		w.guard()
	}
}
