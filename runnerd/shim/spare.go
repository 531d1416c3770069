package shim

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"colloid.net/ipc/passed"
	"colloid.net/runnerd/procfs"
	"colloid.net/runnerd/record"
	"colloid.net/runnerd/sandbox"
)

// Spare is a shim with a furnished sandbox (see package sandbox) that waits to become an instance's. The
// configuration goes to the shim by a socket, from there with the instance's mounts to the init. Whoever closes
// that socket without a word ends it: also a runnerd that dies.
type Spare struct {
	shim  procfs.Process
	conn  *os.File // its socket
	ready *os.File
	lines *bufio.Reader
}

// nameSpace is the room that a spare keeps in its environment for the name of its instance, see mark.
const nameSpace = 64

// Prepare starts a spare: of the configuration the ids and the network of the sandbox count, the control group
// and the directory in which the directory of its instance will be.
func Prepare(c *Config) (*Spare, error) {
	c.Spare = true
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot prepare a shim: %w", err)
	}
	conn, theirs := os.NewFile(uintptr(pair[0]), "spare"), os.NewFile(uintptr(pair[1]), "spare")
	defer theirs.Close()
	s := &Spare{conn: conn}
	if s.shim, s.ready, err = fork(c, theirs); err == nil {
		s.lines = bufio.NewReaderSize(s.ready, 4096)
		_, err = s.word()
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Spare) word() (procfs.Process, error) {
	_ = s.ready.SetReadDeadline(time.Now().Add(launchTimeout))
	return readWord(s.lines)
}

// Alive reports whether the shim runs.
func (s *Spare) Alive() bool { return s.shim.Alive() }

// Launch is the function Launch with what is prepared: directory, arguments, environment, log rate and sandbox
// are those of c. The ids and the network must be those that the spare was prepared with. It can be called once.
func (s *Spare) Launch(c *Config) (Started, error) {
	defer s.conn.Close()
	defer s.ready.Close()
	started := Started{Shim: s.shim}
	for text := c.record().Encode(); len(text) > 0; {
		n, err := unix.Write(int(s.conn.Fd()), text)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return started, fmt.Errorf("the prepared shim ended: %w", err)
		}
		text = text[n:]
	}
	if err := unix.Shutdown(int(s.conn.Fd()), unix.SHUT_WR); err != nil {
		return started, fmt.Errorf("the prepared shim ended: %w", err)
	}
	var err error
	started.Workload, err = s.word()
	return started, err
}

// Close ends a spare that nobody needs and collects it.
func (s *Spare) Close() {
	s.conn.Close()
	if s.ready != nil {
		s.ready.Close()
	}
	if s.shim.PID == 0 {
		return // none was started
	}
	if !s.shim.Wait(time.Second, nil) {
		_ = s.shim.Signal(unix.SIGKILL) // its init sees the end of its socket
	}
	for {
		if _, err := unix.Wait4(s.shim.PID, nil, 0, nil); err != unix.EINTR {
			return
		}
	}
}

// startSpare is the program "runnerd shim" for a spare. Without an error and without a shim nobody needed it.
func startSpare(c *Config, ready io.Writer) (*shim, error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("shim: become subreaper: %w", err)
	}
	s := &shim{config: c, drained: make(chan struct{})}
	stage, conn, err := s.forkSpare()
	if err != nil {
		return nil, err
	}
	defer stage.close()
	defer conn.Close()
	if err = stage.furnish(conn); err == nil {
		s.tell(ready)
		s.config, err = awaitConfig(c)
	}
	if s.config == nil || err != nil {
		conn.Close() // the init ends with it
		_, _ = unix.Wait4(stage.pid, nil, 0, nil)
		return nil, err
	}
	if err := s.takeDirectory(); err != nil {
		return nil, err
	}
	own, err := sandbox.OpenOwn(s.config.Sandbox, s.config.Directory)
	if err != nil {
		return nil, err
	}
	own = append([]*os.File{s.keep}, own...)
	err = record.Keep(s.path(FileRun), processRecord(s.workload))
	s.config.Session = stage.pid
	if err == nil {
		err = sendConfig(conn, s.config, own)
	}
	for _, file := range own[1:] {
		file.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("shim: give the sandbox to its instance: %w", err)
	}
	return s, stage.result()
}

// forkSpare starts the init of a spare in its control group, and gives the socket to it.
func (s *shim) forkSpare() (*stageProcess, *os.File, error) {
	c := s.config
	host, status, err := sandbox.OpenSpare(c.Sandbox)
	if err != nil {
		return nil, nil, err
	}
	defer host.Close()
	s.status = status
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("shim: socket pair: %w", err)
	}
	conn, theirs := os.NewFile(uintptr(pair[0]), "init"), os.NewFile(uintptr(pair[1]), "init")
	defer theirs.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	defer null.Close()
	stage, err := forkStage(c, [3]uintptr{null.Fd(), null.Fd(), null.Fd()}, theirs.Fd(), host)
	if err == nil {
		if s.workload, err = procfs.Find(stage.pid); err == nil && len(c.Cgroup) > 0 {
			err = c.Cgroup.Add(stage.pid)
		}
		if err != nil {
			stage.close()
		}
	}
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return stage, conn, nil
}

// furnish lets the stage begin and waits until it has done its half.
func (p *stageProcess) furnish(conn *os.File) error {
	if _, err := p.goWrite.Write([]byte{1}); err != nil {
		return fmt.Errorf("shim: the stage ended early: %w", err)
	}
	var word [1]byte
	if n, _ := unix.Read(int(conn.Fd()), word[:]); n != 1 {
		if err := p.result(); err != nil {
			return err
		}
		return errors.New("shim: the stage ended without a word")
	}
	return nil
}

// awaitConfig waits for the configuration of the instance; nil = nobody needs this spare.
func awaitConfig(prepared *Config) (*Config, error) {
	from := os.NewFile(descriptorBinary, "runnerd")
	defer from.Close()
	text, err := io.ReadAll(io.LimitReader(from, record.SizeMax+1))
	if err != nil || len(text) == 0 {
		return nil, err
	}
	fields, err := record.Parse(text)
	if err != nil { // also when runnerd died in the middle of it
		return nil, fmt.Errorf("shim: read configuration: %w", err)
	}
	c, err := parseConfig(fields)
	if err != nil {
		return nil, err
	}
	if c.Spare || c.Watch || c.Sandbox == nil || c.binary || c.extra > 0 || !c.Sandbox.Init || c.Runtime != "" {
		return nil, errors.New("shim: no configuration for a prepared sandbox")
	}
	old, now := prepared.Sandbox, c.Sandbox
	if old.UIDBase != now.UIDBase || old.GIDBase != now.GIDBase || old.Count != now.Count ||
		old.NetworkNamespace != now.NetworkNamespace {
		return nil, errors.New("shim: the sandbox was prepared with other ids or another network")
	}
	c.Cgroup = prepared.Cgroup
	remark(c.mark())
	return c, nil
}

// remark writes the mark of an instance over the one that this process was started with. What others read of a
// process's environment is the memory that it began with: the variables stand behind the arguments, the mark is
// the first of them and has room for a name. Where that is not so, nothing is written: the mark is only for an
// exchanged state directory.
func remark(mark string) {
	old := markVariable + "=" + os.Getenv(markVariable) + "\x00"
	last := os.Args[len(os.Args)-1] // not a copy, unlike what os.Getenv gives
	room := unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(unsafe.StringData(last)), len(last)+1)), len(old))
	if os.Getenv(markVariable) == "" || string(room) != old || len(mark) >= len(old) {
		return
	}
	clear(room[copy(room, mark):])
}

// sendConfig passes the standard output, what the instance has for itself, and the configuration.
func sendConfig(conn *os.File, c *Config, files []*os.File) error {
	list := make([]int, 0, len(files))
	for _, file := range files {
		list = append(list, int(file.Fd()))
	}
	if err := unix.Sendmsg(int(conn.Fd()), []byte{1}, unix.UnixRights(list...), nil, 0); err != nil {
		return err
	}
	if _, err := conn.Write(c.record().Encode()); err != nil {
		return err
	}
	return unix.Shutdown(int(conn.Fd()), unix.SHUT_WR)
}

// becomeSpare is the program "runnerd stage" for a spare.
func becomeSpare(c *Config) (int, error) {
	spare, err := sandbox.Furnish(c.Sandbox)
	if err != nil {
		return 0, fmt.Errorf("prepare a sandbox: %w", err)
	}
	conn := os.NewFile(descriptorBinary, "shim")
	if _, err := conn.Write([]byte{1}); err != nil {
		return 0, err
	}
	config, files, err := receiveConfig(conn)
	conn.Close()
	if err != nil {
		return 0, err
	}
	for standard := 1; standard <= 2; standard++ {
		if err := unix.Dup3(int(files[0].Fd()), standard, 0); err != nil {
			return 0, fmt.Errorf("take the output: %w", err)
		}
	}
	files[0].Close()
	if err := spare.Complete(config.Sandbox, files[1:]); err != nil {
		return 0, fmt.Errorf("make the sandbox: %w", err)
	}
	program := sandbox.Program{Arguments: config.Arguments, Environment: config.Environment}
	return sandbox.Run(config.Sandbox, program, func() { unix.Close(descriptorError) })
}

// receiveConfig is the other side of sendConfig. The end of the socket without a word ends the process.
func receiveConfig(conn *os.File) (*Config, []*os.File, error) {
	control := make([]byte, unix.CmsgSpace(4*(sandbox.MountsMax+3)))
	var word [1]byte
	var n, length, flags int
	var err error
	for {
		if n, length, flags, _, err = unix.Recvmsg(int(conn.Fd()), word[:], control, unix.MSG_CMSG_CLOEXEC); err != unix.EINTR {
			break
		}
	}
	if err != nil || n != 1 {
		return nil, nil, errors.New("stage: the shim ended first")
	}
	var files []*os.File
	list, err := passed.Descriptors(control[:length])
	for _, fd := range list {
		files = append(files, os.NewFile(uintptr(fd), "inherited"))
	}
	if err != nil || flags&unix.MSG_CTRUNC != 0 || len(files) < 2 {
		return nil, nil, errors.New("stage: the descriptors of the instance did not come")
	}
	config, err := readConfig(io.NopCloser(conn))
	if err == nil && config.Sandbox == nil {
		err = errConfig
	}
	return config, files, err
}
