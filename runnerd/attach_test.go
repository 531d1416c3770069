package runnerd_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"colloid.net/ipc/attach"
	"colloid.net/ipc/attach/tree"
	"colloid.net/ipc/grant"
	"colloid.net/ipc/message"
	"colloid.net/runnerd"
	"colloid.net/runnerd/runnerdtest"
)

var testOperator = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, ed25519.SeedSize))

// operatorPolicy allows everything that these tests do.
func operatorPolicy() string {
	return fmt.Sprintf("exec *\noperator anna %x\n", testOperator.Public())
}

func oneGrant(t *testing.T, key string) []byte {
	t.Helper()
	g := grant.Grant{Workload: key, Expiry: time.Now().Add(time.Minute)}
	rand.Read(g.Nonce[:])
	raw, err := grant.Sign(g, testOperator)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// operatorSession is one program in an instance, seen from meshd.
type operatorSession struct {
	t      *testing.T
	file   *os.File
	frames *attach.Writer
	output bytes.Buffer
	errors bytes.Buffer
	reader *attach.Reader
}

func openSession(t *testing.T, c *runnerdtest.Client, id runnerd.InstanceID, x *message.Exec) *operatorSession {
	t.Helper()
	x.Grant = oneGrant(t, "spread.box")
	file, err := c.Attach(id, &message.Attach{What: &message.Attach_Exec{Exec: x}})
	if err != nil {
		t.Fatal(err)
	}
	return newSession(t, file)
}

func newSession(t *testing.T, file *os.File) *operatorSession {
	t.Cleanup(func() { file.Close() })
	return &operatorSession{t: t, file: file, frames: attach.NewWriter(file), reader: attach.NewReader(file)}
}

// step takes one frame; it returns the exit at the end.
func (s *operatorSession) step() *attach.Exit {
	s.t.Helper()
	_ = s.file.SetReadDeadline(time.Now().Add(runnerdtest.Patience))
	kind, payload, err := s.reader.Next()
	if err != nil {
		s.t.Fatalf("%v after %q %q", err, s.output.String(), s.errors.String())
	}
	switch kind {
	case attach.KindAccepted:
		if _, ok := attach.ParseLimit(payload); !ok {
			s.t.Fatalf("limit %x", payload)
		}
	case attach.KindOutput:
		s.output.Write(payload)
	case attach.KindErrors:
		s.errors.Write(payload)
	case attach.KindExit:
		exit, err := attach.ParseExit(payload)
		if err != nil {
			s.t.Fatal(err)
		}
		return &exit
	default:
		s.t.Fatalf("frame %d", kind)
	}
	return nil
}

func (s *operatorSession) exit() attach.Exit {
	s.t.Helper()
	for {
		if exit := s.step(); exit != nil {
			return *exit
		}
	}
}

func (s *operatorSession) until(text string) {
	s.t.Helper()
	for !strings.Contains(s.output.String(), text) {
		if exit := s.step(); exit != nil {
			s.t.Fatalf("%+v before %q: %q", exit, text, s.output.String())
		}
	}
}

// checkPrograms is what holds for every runtime with programs.
func checkPrograms(t *testing.T, c *runnerdtest.Client, id runnerd.InstanceID) {
	shell := func(script string) *message.Exec { return &message.Exec{Arguments: []string{"sh", "-c", script}} }
	s := openSession(t, c, id, shell("echo out; echo err >&2; exit 3"))
	if exit := s.exit(); exit.Code != 3 || s.output.String() != "out\n" || s.errors.String() != "err\n" {
		t.Fatalf("%+v %q %q", exit, s.output.String(), s.errors.String())
	}
	if exit := openSession(t, c, id, shell("kill -9 $$")).exit(); exit.Code != 137 {
		t.Fatalf("%+v", exit)
	}
	if exit := openSession(t, c, id, &message.Exec{Arguments: []string{"no-such-program"}}).exit(); exit.Code != 127 || exit.Reason == "" {
		t.Fatalf("%+v", exit)
	}
	s = openSession(t, c, id, shell("cat /proc/self/status"))
	if s.exit(); !strings.Contains(s.output.String(), "NoNewPrivs:\t1") {
		t.Fatal(s.output.String())
	}

	// Input to its end, through a program that reads slowly.
	data := make([]byte, 2<<20)
	rand.Read(data)
	in := shell("sleep 0.2; cat")
	in.Input = true
	s = openSession(t, c, id, in)
	go func() {
		s.frames.Write(attach.KindInput, data)
		s.frames.Write(attach.KindInputEnd, nil)
	}()
	if exit := s.exit(); exit.Code != 0 || sha256.Sum256(s.output.Bytes()) != sha256.Sum256(data) {
		t.Fatalf("%+v, %d of %d bytes", exit, s.output.Len(), len(data))
	}

	// A terminal: its size, a change of it, the interrupt character, the end of input.
	in = shell("stty size; trap 'stty size; exit 5' WINCH; trap 'exit 9' INT; while sleep 0.05; do :; done")
	in.Terminal, in.Input, in.Rows, in.Columns = true, true, 24, 81
	s = openSession(t, c, id, in)
	s.until("24 81")
	time.Sleep(100 * time.Millisecond) // until the traps are set
	s.frames.Write(attach.KindResize, attach.AppendSize(nil, 50, 132))
	if exit := s.exit(); exit.Code != 5 || !strings.Contains(s.output.String(), "50 132") {
		t.Fatalf("%+v %q", exit, s.output.String())
	}
	s = openSession(t, c, id, in)
	s.until("24 81")
	time.Sleep(100 * time.Millisecond)
	s.frames.Write(attach.KindInput, []byte{3})
	if exit := s.exit(); exit.Code != 9 && exit.Code != 130 {
		t.Fatalf("interrupt: %+v %q", exit, s.output.String())
	}
	in = &message.Exec{Arguments: []string{"cat"}, Terminal: true, Input: true}
	s = openSession(t, c, id, in)
	s.frames.Write(attach.KindInput, []byte("typed\n"))
	s.until("typed\r\ntyped\r\n")
	s.frames.Write(attach.KindInputEnd, nil)
	if exit := s.exit(); exit.Code != 0 {
		t.Fatalf("%+v", exit)
	}

	// A signal, and an operator who leaves: both end it. A child that stays does not hold the end up.
	s = openSession(t, c, id, shell("echo up; exec sleep 1000"))
	s.until("up")
	s.frames.Write(attach.KindSignal, []byte{byte(unix.SIGTERM)})
	if exit := s.exit(); exit.Code != 143 {
		t.Fatalf("%+v", exit)
	}
	// The same while it reads nothing of what was sent before, as much as an operator may.
	in = shell("echo up; exec sleep 1000")
	in.Input = true
	s = openSession(t, c, id, in)
	s.until("up")
	_ = s.file.SetWriteDeadline(time.Now().Add(runnerdtest.Patience))
	if err := s.frames.Write(attach.KindInput, make([]byte, attach.InputAhead)); err != nil {
		t.Fatalf("input that nobody reads: %v", err)
	}
	s.frames.Write(attach.KindSignal, []byte{byte(unix.SIGUSR1)})
	if exit := s.exit(); exit.Code != 128+int32(unix.SIGUSR1) {
		t.Fatalf("%+v", exit)
	}
	s = openSession(t, c, id, shell("sleep 1000 & echo left"))
	if exit := s.exit(); exit.Code != 0 {
		t.Fatalf("%+v", exit)
	}
	in = shell("echo up $$ end; exec sleep 1000")
	in.Input = true
	s = openSession(t, c, id, in)
	s.until("end")
	var pid int
	fmt.Sscanf(s.output.String(), "up %d", &pid)
	s.file.Close()
	eventually(t, "the end of a program whose operator left", func() bool {
		return openSession(t, c, id, shell(fmt.Sprintf("kill -0 %d", pid))).exit().Code != 0
	})
}

// checkCopies moves a directory in and out; place is where the workload may write.
func checkCopies(t *testing.T, c *runnerdtest.Client, id runnerd.InstanceID, place string) {
	from, to := t.TempDir(), t.TempDir()
	os.MkdirAll(filepath.Join(from, "d", "e"), 0o755)
	os.WriteFile(filepath.Join(from, "d", "e", "file"), []byte("content"), 0o640)
	copyOf := func(path string, into bool) *operatorSession {
		file, err := c.Attach(id, &message.Attach{What: &message.Attach_Copy{Copy: &message.Copy{
			Path: path, Into: into, Grant: oneGrant(t, "spread.box"),
		}}})
		if err != nil {
			t.Fatal(err)
		}
		return newSession(t, file)
	}
	root, err := os.OpenRoot(from)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	s := copyOf(place+"x", true)
	var archive bytes.Buffer
	if _, err := tree.Send(&archive, root, "d", "d"); err != nil {
		t.Fatal(err)
	}
	s.frames.Write(attach.KindInput, archive.Bytes())
	s.frames.Write(attach.KindInputEnd, nil)
	if exit := s.exit(); exit.Code != 0 {
		t.Fatalf("%+v %s", exit, s.errors.String())
	}
	s = copyOf(place+"x/e/file", false)
	if exit := s.exit(); exit.Code != 0 {
		t.Fatalf("%+v %s", exit, s.errors.String())
	}
	target, err := os.OpenRoot(to)
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()
	if _, err := tree.Receive(&s.output, target, "file"); err != nil {
		t.Fatal(err)
	}
	if text, _ := os.ReadFile(filepath.Join(to, "file")); string(text) != "content" {
		t.Fatalf("%q", text)
	}
	s = copyOf(place+"absent", false)
	if exit := s.exit(); exit.Code != 1 || !strings.Contains(s.errors.String(), "no such file") {
		t.Fatalf("%+v %q", exit, s.errors.String())
	}
	s = copyOf(place+"y", true)
	s.frames.Write(attach.KindInput, []byte(strings.Repeat("no archive", 200)))
	s.frames.Write(attach.KindInputEnd, nil)
	if exit := s.exit(); exit.Code != 1 {
		t.Fatalf("%+v", exit)
	}
}

func TestF137_ExecInAProcess(t *testing.T) {
	h := newHost(t)
	h.writePolicy(operatorPolicy())
	s := h.open()
	defer s.Close()
	c := runnerdtest.Attach(t, s)
	id := c.Start("spread.box", 0, runnerdtest.Spec(h.binary, "sleep"))
	c.Await(id, ready)
	checkPrograms(t, c, id)
	checkCopies(t, c, id, "")
	audit, _ := os.ReadFile(filepath.Join(h.directory, "audit.log"))
	for _, line := range []string{`allowed: grant of operator anna`, `ended: exit 3`, `copy into "x"`} {
		if !strings.Contains(string(audit), line) {
			t.Errorf("the audit log does not say %q", line)
		}
	}
}

// A runnerd that is killed takes the programs of operators with it, at the latest when the next begins; the
// workload stays.
func TestF137_ExecEndsWithRunnerd(t *testing.T) {
	h := newHost(t)
	h.writePolicy(operatorPolicy())
	d := h.daemon(0)
	d.Run(t)
	c := d.Connect()
	id := c.Start("spread.box", 0, runnerdtest.Spec(h.binary, "sleep"))
	before := c.Await(id, ready).Pid
	s := openSession(t, c, id, &message.Exec{Arguments: []string{"sh", "-c", "echo pid $$ end; exec sleep 7654"}})
	s.until("end")
	var pid int
	fmt.Sscanf(s.output.String(), "pid %d", &pid)
	d.Kill()
	_ = s.file.SetReadDeadline(time.Now().Add(runnerdtest.Patience))
	if _, _, err := s.reader.Next(); err == nil {
		t.Fatal("a frame of a dead runnerd")
	}
	d.Run(t)
	c = d.Connect()
	if after := c.Await(id, ready).Pid; after != before {
		t.Fatal("the workload was started again")
	}
	eventually(t, "the end of the program", func() bool { return unix.Kill(pid, 0) == unix.ESRCH })
}

func TestF137_ExecInAContainer(t *testing.T) {
	c := newContainers(t, "allow_unlimited\n"+operatorPolicy())
	client := c.connect()
	id := client.Start("spread.box", 0, c.spec(v1.Config{Cmd: []string{"sh", "-c", "echo hello; sleep 1000000"}, User: "1234:1234", WorkingDir: "/tmp"}))
	client.Await(id, ready)
	checkPrograms(t, client, id)
	s := openSession(t, client, id, &message.Exec{Arguments: []string{"sh", "-c", "id -u; pwd; hostname; grep Seccomp: /proc/self/status"}})
	if s.exit(); !strings.HasPrefix(s.output.String(), "1234\n/tmp\n") || !strings.Contains(s.output.String(), "\t2") {
		t.Fatal(s.output.String())
	}
	checkCopies(t, client, id, "/tmp/")
}

// The policy closes programs again for what runs already, and says what to add.
func TestF137_ExecIsOffByDefault(t *testing.T) {
	h := newHost(t)
	s := h.open()
	defer s.Close()
	c := runnerdtest.Attach(t, s)
	id := c.Start("spread.box", 0, runnerdtest.Spec(h.binary, "sleep"))
	c.Await(id, ready)
	for _, what := range []*message.Attach{
		{What: &message.Attach_Exec{Exec: &message.Exec{Arguments: []string{"true"}, Grant: oneGrant(t, "spread.box")}}},
		{What: &message.Attach_Copy{Copy: &message.Copy{Path: "x", Grant: oneGrant(t, "spread.box")}}},
	} {
		if _, err := c.Attach(id, what); err == nil || !strings.Contains(err.Error(), `add the line "exec spread.box" to its `+h.policy) {
			t.Fatal(err)
		}
	}
}

// Logs are served in every phase; readers beyond the bound are refused with the reason, and those that leave
// make room.
func TestF147_LogsAreServedAndBounded(t *testing.T) {
	h := newHost(t)
	s := h.open()
	defer s.Close()
	c := runnerdtest.Attach(t, s)
	id := c.Start("spread.box", 0, runnerdtest.Spec(h.binary, "sleep"))
	c.Await(id, ready)
	logs := func(follow bool) (*os.File, error) {
		return c.Attach(id, &message.Attach{What: &message.Attach_Logs{Logs: &message.Logs{Follow: follow}}})
	}
	file, err := logs(false)
	if err != nil {
		t.Fatal(err)
	}
	reader := attach.NewReader(file)
	kind, payload, err := reader.Next()
	line, _ := attach.ParseLine(payload)
	if kind != attach.KindLine || string(line.Text) != "sleeping" || time.Since(time.UnixMilli(line.UnixMilliseconds)) > time.Minute {
		t.Fatalf("%v %q %v", kind, line.Text, err)
	}
	if _, _, err := reader.Next(); err != io.EOF {
		t.Fatal(err)
	}
	file.Close()
	var open []*os.File
	refused := error(nil)
	for range 1000 {
		file, err := logs(true)
		if err != nil {
			refused = err
			break
		}
		open = append(open, file)
	}
	if refused == nil || !strings.Contains(refused.Error(), "logs are being read") || len(open) < 200 {
		t.Fatalf("%d are open, %v", len(open), refused)
	}
	for _, file := range open {
		file.Close()
	}
	eventually(t, "room for readers", func() bool {
		file, err := logs(true)
		if err == nil {
			file.Close()
		}
		return err == nil
	})
	if _, err := c.Attach(runnerd.InstanceID{KeyHash: 1}, &message.Attach{What: &message.Attach_Logs{Logs: &message.Logs{}}}); err == nil {
		t.Fatal("logs of nothing")
	}
}

func TestUsageIsMeasuredOnDemand(t *testing.T) {
	h := newHost(t)
	s := h.open()
	defer s.Close()
	c := runnerdtest.Attach(t, s)
	id := c.Start("spread.box", 0, runnerdtest.Spec(h.binary, "sleep"))
	c.Await(id, ready)
	file, err := c.Attach(id, &message.Attach{What: &message.Attach_Usage{Usage: &message.Usage{IntervalMilliseconds: 1000}}})
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	reader := attach.NewReader(file)
	for range 2 {
		kind, payload, err := reader.Next()
		if err != nil || kind != attach.KindUsage {
			t.Fatal(kind, err)
		}
		u, err := attach.ParseUsage(payload)
		if err != nil || len(u.Instances) != 1 || u.Instances[0].Key != "spread.box" || u.Instances[0].MemoryBytes == nil ||
			*u.Instances[0].MemoryBytes < 1<<20 || u.Instances[0].CPUMicroseconds == nil {
			t.Fatalf("%+v %v", u, err)
		}
	}
}
