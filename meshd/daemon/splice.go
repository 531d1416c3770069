package daemon

import (
	"os"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/ipc/attach"
	"colloid.net/meshd/stream"
)

// connect joins the descriptor that came with the stream.
func (t *attachment) connect(file *os.File) {
	if t.channel == 0 || t.over {
		file.Close()
		return
	}
	delete(t.owner.waiting, t.channel)
	t.channel = 0
	t.timer.Stop()
	raw, err := file.SyscallConn()
	nonblocking := err == nil
	if err == nil {
		err = raw.Control(func(fd uintptr) { nonblocking = unix.SetNonblock(int(fd), true) == nil })
	}
	if err != nil || !nonblocking {
		file.Close()
		t.fail("runnerd passed something that cannot be read")
		return
	}
	t.file = pollable(file)
	if _, err := t.stream.Write(attach.Append(nil, attach.KindAccepted, nil)); err != nil {
		t.stream.Reset(stream.ReasonFailed)
		return
	}
	t.up = make(chan []byte, 1)
	go t.readFile(t.file)
	go t.writeFile(t.file)
	t.pump()
}

// pollable wraps a descriptor again, now that it does not block, so that reads of it can be ended.
func pollable(file *os.File) *os.File {
	fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return file
	}
	file.Close()
	_ = unix.SetNonblock(fd, true) // Fd made it blocking
	return os.NewFile(uintptr(fd), "attached")
}

// readFile reads the descriptor, one block at a time.
func (t *attachment) readFile(file *os.File) {
	block := make([]byte, attachBlock)
	for {
		n, err := file.Read(block)
		end := err != nil || n == 0
		t.owner.daemon.inbox.post(func() {
			t.down, t.ended = block[:n], end
			t.drain()
		})
		if end {
			return
		}
		select {
		case <-t.taken:
		case <-t.finished:
			return
		case <-t.owner.daemon.stopped:
			return
		}
	}
}

// drain writes what was read as far as the stream takes it.
func (t *attachment) drain() {
	if t.over {
		return
	}
	if len(t.down) > 0 {
		n, err := t.stream.Write(t.down)
		t.down = t.down[n:]
		if err != nil || len(t.down) > 0 {
			return // the rest in Writable, an end in Closed
		}
	}
	if t.ended {
		t.stream.CloseWrite()
		t.linger()
		return
	}
	select {
	case t.taken <- struct{}{}:
	default:
	}
}

// Writable implements stream.Endpoint.
func (t *attachment) Writable(*stream.Stream) {
	if t.file != nil && (len(t.down) > 0) {
		t.drain()
	}
}

// pump gives the writing goroutine what the opener sent.
func (t *attachment) pump() {
	if t.writing || t.upEnded || t.over {
		return
	}
	var block []byte
	for piece := t.stream.Peek(); piece != nil && len(block)+len(piece) <= attachBlock; piece = t.stream.Peek() {
		block = append(block, piece...)
		t.stream.Discard(len(piece))
	}
	if len(block) > 0 {
		t.writing = true
		t.up <- block // has room: one at a time
		return
	}
	if t.stream.End() {
		t.upEnded = true
		close(t.up)
	}
}

// writeFile writes to the descriptor. If that fails, the other direction says why.
func (t *attachment) writeFile(file *os.File) {
	for block := range t.up {
		_, _ = file.Write(block)
		t.owner.daemon.inbox.post(func() {
			t.writing = false
			t.pump()
		})
	}
	shutdownWrite(file)
}

// shutdownWrite tells runnerd that the opener sends no more. A pipe has no such direction.
func shutdownWrite(file *os.File) {
	if raw, err := file.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_WR) })
	}
}

// closeFile ends both goroutines.
func (t *attachment) closeFile() {
	t.closing.Do(func() {
		if t.file != nil {
			_ = t.file.SetDeadline(time.Unix(1, 0))
			t.file.Close()
		}
	})
}
