package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// output is standard output of one run. It remembers the first error, and nothing is written after it: what
// prints need not look, because every command ends in check.
type output struct {
	to     io.Writer
	failed chan struct{} // closed at the first error

	mutex sync.Mutex
	err   error
}

func newOutput(to io.Writer) *output { return &output{to: to, failed: make(chan struct{})} }

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	if o.err != nil {
		return 0, o.err
	}
	n, err := o.to.Write(p)
	if err != nil {
		o.err = err
		close(o.failed)
	}
	return n, err
}

// while gives a context that also ends when nothing can be written any more, for commands that only look.
func (o *output) while(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		tick := time.NewTicker(readerLook)
		defer tick.Stop()
		for {
			select {
			case <-o.failed:
				cancel()
				return
			case <-ctx.Done():
				return
			case <-tick.C:
				if o.readerLeft() {
					o.fail(unix.EPIPE)
				}
			}
		}
	}()
	return ctx, cancel
}

// readerLook is how often a command that has nothing to write looks whether anybody would read it.
const readerLook = time.Second

// readerLeft reports that a pipe, socket or terminal is closed at its other end.
func (o *output) readerLeft() (left bool) {
	file, ok := o.to.(*os.File)
	if !ok {
		return false
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return false
	}
	_ = raw.Control(func(fd uintptr) {
		poll := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(poll, 0)
		left = err == nil && n > 0 && poll[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0
	})
	return left
}

// fail notes an error as Write does.
func (o *output) fail(err error) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	if o.err == nil {
		o.err = err
		close(o.failed)
	}
}

// flush hears what some file systems say of what was written only when a descriptor is closed.
func (o *output) flush() {
	file, ok := o.to.(*os.File)
	if !ok || o.err != nil {
		return
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		if again, err := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0); err == nil {
			o.err = unix.Close(again)
		}
	})
}

// check makes of what a command returned, and of what became of its output, the result. What cannot be
// written is a failure of any command; a reader that left is none to talk about.
func (o *output) check(err error) error {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	o.flush()
	if o.err == nil {
		return err
	}
	var f *failure
	lines := []string(nil)
	if errors.As(err, &f) && !errors.Is(err, o.err) {
		lines = f.lines
	}
	if !errors.Is(o.err, unix.EPIPE) {
		lines = append(lines, "standard output: "+withoutPath(o.err))
	}
	return &failure{exit: ExitError, lines: lines, cause: o.err}
}
