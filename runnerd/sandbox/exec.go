package sandbox

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/ipc/passed"
	"colloid.net/runnerd/record"
)

// ExecsMax bounds the processes that Exec started and that have not ended.
const ExecsMax = 32

const (
	requestMax = 64 << 10 // must fit the socket's buffer in one piece
	// requestPatience is how long the init waits for the request on a new connection.
	requestPatience = 5 * time.Second
)

// Exec is a further process inside a running instance.
type Exec struct {
	Arguments   []string
	Environment []string
	User        string // as Config.User, "" = as the instance's program
	Directory   string // "" = as the instance's program
	// Terminal makes the first standard file the controlling terminal.
	Terminal bool
}

func (x *Exec) record() record.Record {
	r := record.Record{}
	r["argument"] = x.Arguments
	r["variable"] = x.Environment
	r.Set("user", x.User)
	r.Set("directory", x.Directory)
	r.Set("terminal", strconv.FormatBool(x.Terminal))
	return r
}

// Process is a process that Exec started.
type Process struct{ conn *net.UnixConn }

// Start asks the init of the instance in directory to start a process with three standard files. The
// process is killed with its session when the Process is closed.
func (x *Exec) Start(directory string, standard [3]*os.File) (*Process, error) {
	conn, err := dial(directory)
	if err != nil {
		return nil, err
	}
	rights := unix.UnixRights(int(standard[0].Fd()), int(standard[1].Fd()), int(standard[2].Fd()))
	_ = conn.SetDeadline(time.Now().Add(requestPatience))
	if _, _, err = conn.WriteMsgUnix(x.record().Encode(), rights, nil); err == nil {
		err = readAnswer(conn)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	_ = conn.SetDeadline(time.Time{})
	return &Process{conn}, nil
}

func readAnswer(conn *net.UnixConn) error {
	answer := make([]byte, 1024)
	n, err := conn.Read(answer)
	if err != nil {
		return fmt.Errorf("the init of the instance does not answer: %w", err)
	}
	if text := string(answer[:n]); text != "ok" {
		return errors.New(strings.TrimPrefix(text, "error "))
	}
	return nil
}

// dial connects by way of a descriptor: the path may be longer than an address of a Unix socket.
func dial(directory string) (*net.UnixConn, error) {
	parent, err := unix.Open(directory, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", directory, err)
	}
	defer unix.Close(parent)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), FileControl)
	defer file.Close()
	name := filepath.Join("/proc/self/fd", strconv.Itoa(parent), FileControl)
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: name}); err != nil {
		return nil, fmt.Errorf("the instance has no init to ask: %w", err)
	}
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, err
	}
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		conn.Close()
		return nil, errors.New("the control socket is no unix socket")
	}
	return unixConn, nil
}

// Wait waits for the end and gives the exit code, 128+n for signal n; after the timeout (0 = none) the
// process is killed.
func (p *Process) Wait(timeout time.Duration) (int, error) {
	if timeout > 0 {
		_ = p.conn.SetReadDeadline(time.Now().Add(timeout))
	}
	buffer := make([]byte, 64)
	n, err := p.conn.Read(buffer)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return -1, fmt.Errorf("took longer than %v: %w", timeout, os.ErrDeadlineExceeded)
	}
	if err != nil || n == 0 {
		return -1, errors.New("the instance ended first")
	}
	return parseExit(string(buffer[:n]))
}

// parseExit reads "exit N", the exit code of a process inside.
func parseExit(word string) (int, error) {
	number, found := strings.CutPrefix(word, "exit ")
	code, err := strconv.ParseUint(number, 10, 8)
	if !found || err != nil {
		return -1, fmt.Errorf("the init of the instance answers %.50q", word)
	}
	return int(code), nil
}

// parseSignal reads "signal N", 0 if it is none.
func parseSignal(word string) syscall.Signal {
	number, found := strings.CutPrefix(word, "signal ")
	n, err := strconv.ParseUint(number, 10, 7)
	if !found || err != nil || n > signalMax {
		return 0
	}
	return syscall.Signal(n)
}

// Signal sends a signal to the process.
func (p *Process) Signal(number syscall.Signal) error {
	_, err := fmt.Fprintf(p.conn, "signal %d", int(number))
	return err
}

// Close ends the process if it still runs.
func (p *Process) Close() error { return p.conn.Close() }

// request is an Exec as the init received it.
type request struct {
	exec     Exec
	conn     *net.UnixConn
	standard [3]int
}

func (r *request) close() {
	for _, fd := range r.standard {
		if fd > 0 {
			unix.Close(fd)
		}
	}
	r.standard = [3]int{}
}

func (r *request) refuse(err error) {
	r.close()
	_, _ = fmt.Fprintf(r.conn, "error %.900s", err)
	r.conn.Close()
}

// accept takes connections until the socket fails. Whoever can connect is root outside: the socket is in a
// directory that the instance does not see.
func (p *process1) accept(requests chan<- *request) {
	file := os.NewFile(descriptorControl, FileControl)
	listener, err := net.FileListener(file)
	file.Close()
	if err != nil {
		return
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		stream, ok := conn.(*net.UnixConn)
		if !ok {
			conn.Close()
			continue
		}
		go func() {
			if r, err := receive(stream); err != nil {
				_, _ = fmt.Fprintf(stream, "error %.900s", err)
				stream.Close()
			} else {
				requests <- r
			}
		}()
	}
}

func receive(conn *net.UnixConn) (*request, error) {
	_ = conn.SetDeadline(time.Now().Add(requestPatience))
	buffer, control := make([]byte, requestMax), make([]byte, unix.CmsgSpace(4*4))
	n, controlLength, flags, _, err := conn.ReadMsgUnix(buffer, control)
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Time{})
	descriptors, err := passed.Descriptors(control[:controlLength])
	for _, fd := range descriptors {
		unix.CloseOnExec(fd)
	}
	fields, parseErr := record.Parse(buffer[:n])
	if err != nil || parseErr != nil || len(descriptors) != 3 || flags&(unix.MSG_CTRUNC|unix.MSG_TRUNC) != 0 {
		passed.Close(descriptors)
		return nil, errors.New("the request is not one record with three descriptors")
	}
	return &request{
		exec: Exec{Arguments: fields["argument"], Environment: fields["variable"], User: fields.Get("user"),
			Directory: fields.Get("directory"), Terminal: fields.Get("terminal") == "true"},
		conn: conn, standard: [3]int(descriptors),
	}, nil
}

// exec starts the process of a request. It runs on the init's confined thread.
func (p *process1) exec(r *request) {
	p.mutex.Lock()
	running := p.execs
	p.mutex.Unlock()
	if running >= ExecsMax {
		r.refuse(fmt.Errorf("%d processes that were executed inside still run, expected fewer than %d", running, ExecsMax))
		return
	}
	config := *p.config
	id := p.identity
	if r.exec.User != "" {
		config.User = r.exec.User
		var err error
		if id, err = resolveUser(&config, func(name string) (*os.File, error) {
			return os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
		}); err != nil {
			r.refuse(err)
			return
		}
	}
	if r.exec.Directory != "" {
		config.WorkingDirectory = r.exec.Directory
	}
	program := Program{Arguments: r.exec.Arguments, Environment: withHome(r.exec.Environment, id.Home)}
	path, err := program.find(config.WorkingDirectory)
	if err != nil {
		r.refuse(err)
		return
	}
	ended := make(chan syscall.WaitStatus, 1)
	p.mutex.Lock()
	pid, err := p.fork(path, program, id, workingDirectory(&config), r.standard, r.exec.Terminal)
	if err == nil {
		p.children[pid] = ended
		p.execs++
	}
	p.mutex.Unlock()
	if err != nil {
		r.refuse(err)
		return
	}
	r.close()
	_, _ = r.conn.Write([]byte("ok"))
	go p.attend(r.conn, pid, ended)
	go p.converse(r.conn, pid)
}

// attend reports the end of a process to whoever asked for it.
func (p *process1) attend(conn *net.UnixConn, pid int, ended chan syscall.WaitStatus) {
	status := <-ended
	_ = syscall.Kill(-pid, syscall.SIGKILL) // what is left of its session
	p.mutex.Lock()
	p.execs--
	p.mutex.Unlock()
	code := status.ExitStatus()
	if status.Signaled() {
		code = 128 + int(status.Signal())
	}
	_, _ = fmt.Fprintf(conn, "exit %d", code)
	conn.Close()
}

// converse takes signals for a process, and ends it when its connection ends.
func (p *process1) converse(conn *net.UnixConn, pid int) {
	buffer := make([]byte, 64)
	for {
		n, err := conn.Read(buffer)
		p.mutex.Lock()
		_, runs := p.children[pid]
		if !runs { // the number may belong to somebody else by now
			p.mutex.Unlock()
			return
		}
		if err != nil || n == 0 {
			_ = syscall.Kill(-pid, syscall.SIGKILL)
			_ = syscall.Kill(pid, syscall.SIGKILL)
			p.mutex.Unlock()
			return
		}
		if signal := parseSignal(string(buffer[:n])); signal != 0 {
			_ = syscall.Kill(pid, signal)
		}
		p.mutex.Unlock()
	}
}
