package runnerd

import (
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/ipc/attach"
	"colloid.net/runnerd/shim"
)

// execution is one program with its operator at the other end of a connection. What one of them does not read
// makes the other wait: nothing is kept but the kernel's buffers, and the input of inputQueue.
type execution struct {
	connection *os.File
	frames     *attach.Writer
	inside     *shim.Inside
	terminal   *os.File    // the master; nil without one
	input      *os.File    // nil without one
	queue      *inputQueue // before input; nil for a copy, which no signal goes to
	outputs    []output
	exited     atomic.Bool
	gone       chan struct{} // closed when the program has ended
	quit       chan struct{} // closed when runnerd ends
	tidies     bool          // at the end of its input the program removes what is not complete, and ends
}

// tidyLimit is how long a program that tidies has for it.
const tidyLimit = time.Second

type output struct {
	kind attach.Kind
	file *os.File
}

// start makes the standard files and starts the program.
func (e *execution) start(job *launchJob, r *execRequest) (attach.Exit, error) {
	config, binary, err := r.program(job)
	if err != nil {
		return attach.Exit{}, err
	}
	if binary != nil {
		defer binary.Close()
	}
	var standard [3]*os.File
	if r.terminal {
		err = e.openTerminal(r, &standard)
	} else {
		err = e.openPipes(r, &standard)
	}
	if err == nil {
		e.inside, err = shim.Start(config, binary, standard, r.terminal)
	}
	for i, file := range standard {
		if file != nil && (i == 0 || file != standard[i-1]) {
			file.Close()
		}
	}
	if err != nil {
		e.close()
	}
	return attach.Exit{}, err
}

func (e *execution) openPipes(r *execRequest, standard *[3]*os.File) (err error) {
	if r.input {
		if standard[0], e.input, err = os.Pipe(); err != nil {
			return err
		}
	} else if standard[0], err = os.Open(os.DevNull); err != nil {
		return err
	}
	for i, kind := range []attach.Kind{attach.KindOutput, attach.KindErrors} {
		read, write, err := os.Pipe()
		if err != nil {
			return err
		}
		standard[1+i] = write
		e.outputs = append(e.outputs, output{kind, read})
	}
	return nil
}

// openTerminal makes a pseudo-terminal of the host. Its other end is opened through the first, never by a path.
func (e *execution) openTerminal(r *execRequest, standard *[3]*os.File) error {
	master, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return os.NewSyscallError("open a terminal", err)
	}
	e.terminal = os.NewFile(uintptr(master), "terminal")
	e.input = e.terminal
	e.outputs = []output{{attach.KindOutput, e.terminal}}
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return os.NewSyscallError("unlock the terminal", err)
	}
	peer, err := openPeer(master)
	if err != nil {
		return os.NewSyscallError("open the terminal's other end", err)
	}
	slave := os.NewFile(uintptr(peer), "terminal")
	*standard = [3]*os.File{slave, slave, slave}
	e.resize(r.rows, r.columns)
	return nil
}

func openPeer(master int) (int, error) {
	peer, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER,
		unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		return 0, errno
	}
	return int(peer), nil
}

func (e *execution) resize(rows, columns uint16) {
	if e.terminal == nil || rows == 0 || columns == 0 {
		return
	}
	if raw, err := e.terminal.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns})
		})
	}
}

func (e *execution) close() {
	if e.queue != nil {
		e.queue.close()
	}
	if e.input != nil {
		e.input.Close()
	}
	for _, o := range e.outputs {
		o.file.Close()
	}
}

// run passes everything on until the program has ended and its output is through.
func (e *execution) run() attach.Exit {
	if e.queue != nil && e.input != nil {
		go e.queue.feed(e.input, e.frames, e.endInput)
	}
	go e.receive()
	go e.watch()
	var copies sync.WaitGroup
	for _, o := range e.outputs {
		copies.Go(func() { e.send(o) })
	}
	code, err := e.inside.Wait()
	close(e.gone)
	e.exited.Store(true)
	for _, o := range e.outputs {
		_ = o.file.SetReadDeadline(time.Now().Add(execDrain)) // a child that has left the session may hold it
	}
	copies.Wait()
	e.close()
	exit := attach.Exit{Code: int32(min(max(code, -1), 255))}
	if err != nil {
		exit = attach.Exit{Code: -1, Reason: shorten(err.Error())}
	}
	return exit
}

// send passes one output on.
func (e *execution) send(o output) {
	buffer := make([]byte, 16<<10)
	for {
		if e.exited.Load() {
			_ = o.file.SetReadDeadline(time.Now().Add(execDrain))
		}
		n, err := o.file.Read(buffer)
		if n > 0 && e.frames.Write(o.kind, buffer[:n]) != nil {
			e.inside.Close()
			return
		}
		if err != nil {
			return // io.EOF, EIO of a terminal without users, or the deadline
		}
	}
}

// receive carries out what the operator sends; its end, or anything that is not understood, ends the program.
func (e *execution) receive() {
	defer e.abandon()
	reader := attach.NewReader(e.connection)
	for {
		kind, payload, err := reader.Next()
		if err != nil {
			return
		}
		switch kind {
		case attach.KindInput:
			switch {
			case e.input == nil:
			case e.queue != nil:
				e.queue.put(payload)
			default:
				_, _ = e.input.Write(payload) // a program that does not read it any more may go on without
			}
		case attach.KindInputEnd:
			if e.queue != nil {
				e.queue.end()
			} else {
				e.endInput()
			}
		case attach.KindResize:
			rows, columns, err := attach.ParseSize(payload)
			if err != nil {
				return
			}
			e.resize(rows, columns)
		case attach.KindSignal:
			if len(payload) != 1 || payload[0] == 0 || payload[0] > attach.SignalMax {
				return
			}
			_ = e.inside.Signal(syscall.Signal(payload[0]))
		default:
			return
		}
	}
}

// endInput ends the program's input; on a terminal that is a character.
func (e *execution) endInput() {
	switch {
	case e.input == nil:
	case e.terminal != nil:
		_, _ = e.input.Write([]byte{4})
	default:
		e.input.Close()
	}
}

// watch ends the program when nobody is at the other end any more, also while its input takes nothing.
func (e *execution) watch() {
	tick := time.NewTicker(execLook)
	defer tick.Stop()
	for {
		select {
		case <-e.gone:
			return
		case <-e.quit:
			e.inside.Close()
			return
		case <-tick.C:
		}
		raw, err := e.connection.SyscallConn()
		gone := err != nil
		if err == nil {
			err = raw.Control(func(fd uintptr) {
				poll := []unix.PollFd{{Fd: int32(fd)}}
				n, err := unix.Poll(poll, 0)
				gone = err == nil && n > 0 && poll[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
			})
		}
		if gone || err != nil {
			e.abandon()
			return
		}
	}
}

// abandon ends a program whose operator is gone.
func (e *execution) abandon() {
	if e.tidies {
		e.endInput()
		select {
		case <-e.gone:
		case <-e.quit:
		case <-time.After(tidyLimit):
		}
	}
	e.inside.Close()
}
