package daemon

import (
	"bytes"
	"context"
	"errors"
	"os"
	"time"

	"colloid.net/ipc/invoke"
)

// A request to invoke something comes over the command socket to a goroutine of its client's. By the connection to
// the worker (see worker) it wakes three sleeping threads from there to the result: one that takes it in the worker,
// one that runs it, and the one that hands meshd's goroutine what came. A shortcut, which is a channel of meshd's own,
// leaves one: the worker runs what it receives on the same thread, and the client's goroutine waits in the kernel for
// the answer. It changes nothing else. Who may invoke is looked at before, the worker is chosen as always, and the
// shortcut is that worker's: it ends with its connection, so with the instance, and then never carries anything again.
const (
	// shortcutsMax bounds the shortcuts of a cell. A worker has one, for it does one invocation at a time.
	shortcutsMax = 32
	// shortcutWarm is how soon a worker must be called again to have one: it costs the worker a thread.
	shortcutWarm = time.Second
	// shortcutIdle is how long one is kept that nobody uses.
	shortcutIdle = 5 * time.Second
	// shortcutRetry is how long after one has failed the next is made.
	shortcutRetry = time.Second
)

// shortcut is meshd's end of such a channel. Whoever has set busy owns line, buffer and lastID.
type shortcut struct {
	worker *worker
	id     uint64 // as a channel of the worker
	line   *invoke.Channel
	buffer []byte
	lastID uint64      // of invocations
	stop   func() bool // forgets about the end of the command socket

	// The lock of workers guards what follows.
	ready bool // the worker has taken it
	busy  bool
	ended bool // it is no shortcut of the worker any more; who uses it closes it
	used  time.Time
}

// offer gives the caller a shortcut to a worker that has nothing else to do, or has one made if that one is called
// again and again. The caller holds the lock.
func (w *workers) offer(to *worker, now time.Time) (s *shortcut, wanted bool) {
	last := to.called
	to.called = now
	switch s := to.shortcut; {
	case s != nil:
		if !s.ready || s.busy || len(to.pending) > 0 {
			return nil, false
		}
		s.busy, s.used = true, now
		w.guard()
		return s, false
	case !to.takesChannels || now.Sub(last) >= shortcutWarm || now.Sub(to.shortcutFailed) < shortcutRetry:
		return nil, false
	}
	return nil, w.shortcuts < shortcutsMax
}

// openShortcut asks a worker for one ahead of an invocation over the same connection. When that has its result, a
// worker that did not want it has said so. A failure costs nothing but the shortcut.
func (w *workers) openShortcut(ctx context.Context, to *worker, conn *invoke.Conn) *shortcut {
	mine, theirs, err := invoke.ChannelPair()
	if err != nil {
		return nil
	}
	defer theirs.Close()
	line, err := invoke.OpenChannel(mine)
	if err != nil {
		return nil
	}
	s := &shortcut{worker: to, line: line, buffer: make([]byte, invoke.FrameMax+1), used: time.Now()}
	w.mutex.Lock()
	if to.conn != conn || to.shortcut != nil || w.shortcuts >= shortcutsMax {
		w.mutex.Unlock()
		line.Close()
		return nil
	}
	to.nextID++
	s.id, to.shortcut = to.nextID, s
	w.shortcuts++
	s.stop = context.AfterFunc(ctx, func() { w.endShortcut(s) })
	w.guard()
	w.mutex.Unlock()
	if conn.SendFile(&invoke.ChannelOpen{ID: s.id}, theirs) != nil {
		w.endShortcut(s)
		return nil
	}
	return s
}

// proveShortcut lets one be used that its worker has not refused.
func (w *workers) proveShortcut(s *shortcut) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	s.ready = true
}

// leaveShortcut gives one back. What failed on it ends it.
func (w *workers) leaveShortcut(s *shortcut, failed bool) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if failed {
		w.cutShort(s)
	}
	if s.busy = false; s.ended {
		s.line.Close()
	}
}

func (w *workers) endShortcut(s *shortcut) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.cutShort(s)
}

// cutShort ends a shortcut, and the call that is under way on it. The caller holds the lock.
func (w *workers) cutShort(s *shortcut) {
	if s.ended {
		return
	}
	s.ended = true
	s.worker.shortcut, s.worker.shortcutFailed = nil, time.Now()
	w.shortcuts--
	s.stop()
	s.line.Interrupt()
	if !s.busy {
		s.line.Close()
	}
}

// retireShortcut is cutShort for a worker that is being stopped: a call that is under way goes on. The caller holds the lock.
func (w *workers) retireShortcut(s *shortcut) {
	if !s.busy {
		w.cutShort(s)
		return
	}
	s.ended = true // leaveShortcut closes it
	s.worker.shortcut, s.worker.shortcutFailed = nil, time.Now()
	w.shortcuts--
}

// callByShortcut makes an invocation. nil: the worker has not got it and never will.
func (w *workers) callByShortcut(ctx context.Context, s *shortcut, conn *invoke.Conn, v *invoke.Invocation) *invoke.Result {
	s.lastID++
	sent := *v
	sent.ID = s.lastID
	err := s.line.SetPatience(sent.Patience())
	if err == nil {
		err = s.line.Send(&sent)
	}
	if err != nil {
		w.leaveShortcut(s, true)
		return nil
	}
	body, err := s.line.Receive(s.buffer)
	result, is := body.(*invoke.Result)
	is = is && err == nil && result.ID == sent.ID
	if is {
		result.Output = bytes.Clone(result.Output)
	}
	w.leaveShortcut(s, !is)
	switch {
	case is:
		return result
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &invoke.Result{Errno: invoke.ErrorTimeout, Output: []byte(textSilent)}
	case ctx.Err() != nil:
		return &invoke.Result{Errno: invoke.ErrorTimeout, Output: []byte(textStopping)}
	case err == nil || errors.Is(err, invoke.ErrFrame): // no worker of ours sends that
		conn.Close()
	}
	return &invoke.Result{Errno: invoke.ErrorGone, Output: []byte(textGone)}
}

// sweepShortcuts ends those that nobody uses and returns how many are left. The caller holds the lock.
func (w *workers) sweepShortcuts(now time.Time) (left int) {
	for _, one := range w.byInstance {
		s := one.shortcut
		if s == nil {
			continue
		}
		if !s.busy && now.Sub(s.used) >= shortcutIdle {
			w.cutShort(s)
			one.shortcutFailed = time.Time{}
			continue
		}
		left++
	}
	return left
}
