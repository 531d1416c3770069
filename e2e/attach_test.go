package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/ipc/attach"
	"colloid.net/ipc/grant"
	"colloid.net/ipc/uds"

	"colloid.net/e2e/cluster"
)

// command is a colloid command that runs beside the test.
type command struct {
	*exec.Cmd
	mutex sync.Mutex
	text  strings.Builder
	done  chan error
	input io.WriteCloser
}

// background starts a command on a cell; what it prints and says is kept together.
func (f *fixture) background(cell *cluster.Cell, arguments ...string) *command {
	f.t.Helper()
	return f.backgroundAs(nil, cell, arguments...)
}

// backgroundAs is background by another user.
func (f *fixture) backgroundAs(user *syscall.Credential, cell *cluster.Cell, arguments ...string) *command {
	f.t.Helper()
	c := &command{done: make(chan error, 1)}
	c.Cmd = exec.CommandContext(f.t.Context(), f.Program("colloid"), append([]string{"--socket", cell.Socket()}, arguments...)...)
	output, err := c.StdoutPipe()
	if err != nil {
		f.t.Fatal(err)
	}
	c.Stderr = c.Stdout
	c.SysProcAttr = &syscall.SysProcAttr{Credential: user}
	if c.input, err = c.StdinPipe(); err != nil {
		f.t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		f.t.Fatal(err)
	}
	go func() {
		lines := bufio.NewReader(output)
		for {
			line, err := lines.ReadString('\n')
			c.mutex.Lock()
			c.text.WriteString(line)
			c.mutex.Unlock()
			if err != nil {
				break
			}
		}
		c.done <- c.Wait()
	}()
	f.t.Cleanup(func() { c.Process.Kill() })
	return c
}

func (c *command) seen() string {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.text.String()
}

func (f *fixture) waitSeen(c *command, wanted string, times int) {
	f.t.Helper()
	f.wait(fmt.Sprintf("%q %d times", wanted, times), func(context.Context) error {
		if text := c.seen(); strings.Count(text, wanted) < times {
			return fmt.Errorf("the command has printed:\n%s", text)
		}
		return nil
	})
}

// Logs of replicas come from whichever cell they run on, and go on when one dies and its replica moves.
func TestLogsOfEveryReplicaFromAnyCell(t *testing.T) {
	t.Parallel()
	f := start(t, 3)
	a := f.Cells[0]
	f.run(a, 0, "apply", "-f", f.config(2, ""))
	f.answers(a, 2)
	holders, others := f.holders()
	if len(holders) != 2 || len(others) != 1 {
		t.Fatalf("%d cells run it, %d do not", len(holders), len(others))
	}
	from := others[0]
	text := f.run(from, 0, "logs", "hello")
	if strings.Count(text, "hello: listening on ") != 2 || !strings.Contains(text, "hello/0 ") || !strings.Contains(text, "hello/1 ") {
		t.Fatalf("logs of both:\n%s", text)
	}
	for _, cell := range f.Cells {
		if one := f.run(cell, 0, "logs", "hello/1"); strings.Count(one, "\n") != 1 || strings.Contains(one, "|") {
			t.Fatalf("one replica from %s:\n%s", cell.Name, one)
		}
	}
	if since := f.run(from, 0, "logs", "--since", "1ms", "hello"); since != "" {
		t.Fatalf("since now: %q", since)
	}
	if out := f.run(from, 0, "logs", "-t", "--tail", "1", "hello/0"); !strings.HasPrefix(out, time.Now().UTC().Format("2006-")) {
		t.Fatalf("with times: %q", out)
	}
	f.run(from, 1, "logs", "hello/7")
	f.run(from, 1, "logs", "nothing")

	follow := f.background(from, "logs", "-f", "hello")
	one, other := f.background(from, "logs", "-f", "hello/0"), f.background(from, "logs", "-f", "hello/1")
	f.waitSeen(follow, "listening on", 2)
	f.waitSeen(one, "listening on", 1)
	f.waitSeen(other, "listening on", 1)
	if f.index(from, holders[0]) == 1 {
		one, other = other, one
	}
	if err := holders[0].Kill(); err != nil {
		t.Fatal(err)
	}
	f.waitSeen(follow, "listening on", 3)
	text = follow.seen()
	if !strings.Contains(text, "does not answer") || !strings.Contains(text, "now on") {
		t.Fatalf("nobody said what happened:\n%s", text)
	}
	// One replica was followed: that it runs elsewhere now is said, and of the other one nothing is mixed in.
	f.waitSeen(one, "goes on as hello/", 1)
	f.waitSeen(one, "listening on", 2)
	if text := other.seen(); strings.Count(text, "listening on") != 1 {
		t.Errorf("the output of another replica came as well:\n%s", text)
	}
	f.run(from, 0, "delete", "hello")
	f.waitSeen(follow, "was deleted", 1)
	if err := <-follow.done; err != nil {
		t.Fatal(err)
	}
}

// index is the number of the replica that runs on a cell.
func (f *fixture) index(from, on *cluster.Cell) int {
	f.t.Helper()
	status, err := from.Status(f.t.Context())
	there, err2 := on.Status(f.t.Context())
	if err != nil || err2 != nil {
		f.t.Fatal(err, err2)
	}
	for _, w := range status.Workloads {
		for i, instance := range w.Instances {
			if w.Key == key && instance.Cell == there.Cell.ID {
				return i
			}
		}
	}
	f.t.Fatalf("%s runs nothing", on.Name)
	return -1
}

// operatorKey makes a key for the commands of a test and returns the line for the hosts' policy.
func operatorKey(t *testing.T, name string) string {
	t.Helper()
	directory, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("COLLOID_OPERATOR_KEY", filepath.Join(t.TempDir(), name))
	t.Setenv("USER", name)
	line, err := exec.Command(filepath.Join(directory, "colloid"), "operator", "keygen").Output()
	if err != nil {
		t.Fatal(err)
	}
	if shown, err := exec.Command(filepath.Join(directory, "colloid"), "operator", "show").Output(); err != nil || string(shown) != string(line) {
		t.Fatalf("%q %q %v", line, shown, err)
	}
	return string(line)
}

func (f *fixture) fails(cell *cluster.Cell, exit int, message string, arguments ...string) {
	f.t.Helper()
	result, err := cell.Run(f.t.Context(), arguments...)
	if err != nil || result.Exit != exit || !strings.Contains(result.Errors, message) {
		f.t.Fatalf("colloid %q: exit %d, want %d and %q; %v\n%s%s", arguments, result.Exit, exit, message, err, result.Output,
			result.Errors)
	}
}

// A program runs in a replica on another cell for an operator whom the host knows, and for nobody else
// (F137).
func TestF137_ExecNeedsAGrant(t *testing.T) {
	stranger := operatorKey(t, "stranger")
	strangerKey := os.Getenv("COLLOID_OPERATOR_KEY")
	line := operatorKey(t, "anna")
	annaKey := os.Getenv("COLLOID_OPERATOR_KEY")
	f := startWith(t, cluster.Options{Cells: 3, PolicyLines: "exec hello\n" + line})
	a := f.Cells[0]
	f.run(a, 0, "apply", "-f", f.config(1, ""))
	f.answers(a, 1)
	holders, others := f.holders()
	from, host := others[0], holders[0]

	// Exit statuses and both outputs.
	if out := f.run(from, 0, "exec", "hello/0", "--", "/bin/sh", "-c", "echo out; echo err >&2; pwd; cat"); !strings.HasPrefix(out, "out\n/") {
		t.Fatal(out)
	}
	f.run(from, 1, "exec", "hello/0", "--", "false")
	f.run(host, 42, "exec", "hello/0", "--", "sh", "-c", "exit 42")
	f.run(from, 137, "exec", "hello/0", "--", "sh", "-c", "kill -9 $$")
	f.fails(from, 127, "no program", "exec", "hello/0", "--", "no-such-program")
	if out := f.run(from, 0, "exec", "hello/0", "--", "id", "-un"); strings.TrimSpace(out) != "nobody" {
		t.Fatal("as", out)
	}
	if out := f.run(from, 0, "exec", "hello/0", "--", "grep", "NoNewPrivs", "/proc/self/status"); !strings.Contains(out, "1") {
		t.Fatal(out)
	}
	if out := f.run(from, 0, "exec", "-t", "hello/0", "--", "stty", "size"); strings.TrimSpace(out) == "" {
		t.Log("no size without a terminal:", out)
	}

	// Not for others.
	t.Setenv("COLLOID_OPERATOR_KEY", strangerKey)
	f.fails(from, 1, "colloid operator show", "exec", "hello/0", "--", "true")
	t.Setenv("COLLOID_OPERATOR_KEY", strangerKey+"-absent")
	f.fails(from, 2, "colloid operator keygen", "exec", "hello/0", "--", "true")
	t.Setenv("COLLOID_OPERATOR_KEY", annaKey)
	if strings.Contains(stranger, strings.Fields(line)[2]) {
		t.Fatal("two keys are one")
	}
	f.replay(from, host)

	// 10 MB there and back arrive as they were.
	sum := f.throughput(from)
	t.Logf("10 MB there and back: %s", sum)

	// A program that waits ends with the interrupt, and cleanly with whatever dies on the way.
	sleep := f.background(from, "exec", "hello/0", "--", "sh", "-c", "echo up; exec sleep 1000")
	f.waitSeen(sleep, "up", 1)
	sleep.Process.Signal(os.Interrupt)
	f.ends(sleep, 130, "")
	for _, victim := range []struct {
		cell    *cluster.Cell
		program string
	}{{host, "runnerd"}, {host, "meshd"}, {from, "meshd"}} {
		sleep := f.background(from, "exec", "hello/0", "--", "sh", "-c", "echo up; exec sleep 4321")
		f.waitSeen(sleep, "up", 1)
		began := time.Now()
		if _, err := victim.cell.KillProgram(victim.program); err != nil {
			t.Fatal(err)
		}
		f.ends(sleep, 255, "hello/0: ")
		t.Logf("%s of %s killed: ended after %v: %s", victim.program, victim.cell.Name, time.Since(began).Round(time.Millisecond), sleep.seen())
		f.wait("the program to be gone", func(context.Context) error {
			if out, _ := exec.Command("pgrep", "-f", "sleep 4321").Output(); len(out) > 0 {
				return fmt.Errorf("still there: %s", out)
			}
			return nil
		})
		f.answers(a, 1)
	}
}

// ends waits for the end of a command with an exit status.
func (f *fixture) ends(c *command, exit int, message string) {
	f.t.Helper()
	select {
	case <-c.done:
	case <-time.After(patience):
		f.t.Fatalf("the command does not end:\n%s", c.seen())
	}
	if got := c.ProcessState.ExitCode(); got != exit || !strings.Contains(c.seen(), message) {
		f.t.Fatalf("exit %d, want %d and %q:\n%s", got, exit, message, c.seen())
	}
}

// replay shows a grant that was used, one of another workload, and one that has expired to the host.
func (f *fixture) replay(from, host *cluster.Cell) {
	f.t.Helper()
	text, err := os.ReadFile(os.Getenv("COLLOID_OPERATOR_KEY"))
	if err != nil {
		f.t.Fatal(err)
	}
	seed, err := hex.DecodeString(strings.Fields(string(text))[1])
	if err != nil {
		f.t.Fatal(err)
	}
	status, err := host.Status(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	cell, _ := strconv.ParseUint(status.Cell.ID, 16, 64)
	sign := func(workload string, life time.Duration) []byte {
		g := grant.Grant{Workload: workload, Expiry: time.Now().Add(life)}
		rand.Read(g.Nonce[:])
		raw, err := grant.Sign(g, ed25519.NewKeyFromSeed(seed))
		if err != nil {
			f.t.Fatal(err)
		}
		return raw
	}
	streams, err := uds.DialStreams(from.Socket())
	if err != nil {
		f.t.Fatal(err)
	}
	defer streams.Close()
	handle := uint32(0)
	try := func(permission []byte) string {
		handle++
		request, _ := (&attach.Request{Key: key, Arguments: []string{"true"}}).Encode()
		streams.SetReadDeadline(time.Now().Add(patience))
		if err := streams.Open(uds.StreamOpen{Handle: handle, Kind: uds.StreamExec, Cell: cell, Name: key, Grant: permission}); err != nil {
			f.t.Fatal(err)
		}
		streams.Write(handle, attach.Append(nil, attach.KindRequest, request))
		var got []byte
		for {
			event, err := streams.Next()
			if err != nil {
				f.t.Fatal(err)
			}
			if event.Handle != handle {
				continue
			}
			got = append(got, event.Data...)
			if event.Fin || event.Closed {
				return string(got)
			}
		}
	}
	once := sign(key, time.Minute)
	if got := try(once); strings.Contains(got, "grant") {
		f.t.Fatalf("a good one: %q", got)
	}
	for name, c := range map[string]struct {
		grant []byte
		want  string
	}{
		"replayed": {once, "used before"}, "other workload": {sign("spread.other", time.Minute), "not for spread.hello"},
		"expired": {sign(key, -time.Minute), "expired"}, "none": {nil, "no grant"}, "noise": {[]byte("x"), "not understood"},
	} {
		if got := try(c.grant); !strings.Contains(got, c.want) {
			f.t.Errorf("%s: %q", name, got)
		}
	}
}

// throughput sends 10 MB through cat and compares.
func (f *fixture) throughput(from *cluster.Cell) string {
	f.t.Helper()
	data := make([]byte, 10<<20)
	rand.Read(data)
	c := exec.CommandContext(f.t.Context(), f.Program("colloid"), "--socket", from.Socket(), "exec", "-i", "hello/0", "--", "cat")
	c.Stdin = bytes.NewReader(data)
	began := time.Now()
	output, err := c.Output()
	if err != nil || sha256.Sum256(output) != sha256.Sum256(data) {
		f.t.Fatalf("%d of %d bytes, %v", len(output), len(data), err)
	}
	return time.Since(began).Round(time.Millisecond).String()
}

// terminalPair makes a terminal for a command; the test holds the other end.
func terminalPair(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Skip("needs pseudo-terminals: ", err)
	}
	t.Cleanup(func() { master.Close() })
	raw, _ := master.SyscallConn()
	raw.Control(func(fd uintptr) {
		unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0)
		number, numberErr := unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		if err = numberErr; err == nil {
			slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
		}
		unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: 33, Col: 99})
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slave.Close() })
	return master, slave
}

// A shell on a terminal, in a replica on another cell: its size and changes of it, control-C, the exit
// status, and the own terminal as it was before.
func TestExecOnATerminal(t *testing.T) {
	line := operatorKey(t, "anna")
	f := startWith(t, cluster.Options{Cells: 2, PolicyLines: "exec *\n" + line})
	f.run(f.Cells[0], 0, "apply", "-f", f.config(1, ""))
	f.answers(f.Cells[0], 1)
	_, others := f.holders()
	master, slave := terminalPair(t)
	before, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), f.Program("colloid"), "--socket", others[0].Socket(), "exec", "-it", "hello/0", "--", "sh")
	c.Stdin, c.Stdout, c.Stderr = slave, slave, slave
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	screen := &command{done: make(chan error, 1), Cmd: c}
	go func() {
		buffer := make([]byte, 4096)
		for {
			n, err := master.Read(buffer)
			screen.mutex.Lock()
			screen.text.Write(buffer[:n])
			screen.mutex.Unlock()
			if err != nil {
				return
			}
		}
	}()
	go func() { screen.done <- c.Wait() }()
	send := func(text string) {
		if _, err := master.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	f.waitSeen(screen, "$ ", 1)
	send("stty size\r")
	f.waitSeen(screen, "33 99", 1)
	raw, _ := master.SyscallConn()
	raw.Control(func(fd uintptr) { unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: 40, Col: 120}) })
	f.wait("the new size", func(context.Context) error {
		send("stty size\r")
		time.Sleep(100 * time.Millisecond)
		if !strings.Contains(screen.seen(), "40 120") {
			return fmt.Errorf("the screen shows:\n%s", screen.seen())
		}
		return nil
	})
	send("sleep 1000; echo cut=$?\r")
	time.Sleep(300 * time.Millisecond)
	send("\x03")
	send("echo still $((40 + 2))\r")
	f.waitSeen(screen, "still 42", 1)
	send("exit 7\r")
	f.ends(screen, 7, "")
	after, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
	if err != nil || *after != *before {
		t.Fatalf("the terminal is another: %+v, was %+v, %v", after, before, err)
	}
}

// Figures of every replica come from whichever cell they run on.
func TestTopShowsEveryReplica(t *testing.T) {
	t.Parallel()
	f := start(t, 2)
	f.run(f.Cells[0], 0, "apply", "-f", f.config(2, ""))
	f.answers(f.Cells[0], 2)
	for _, cell := range f.Cells {
		var picture struct {
			Instances []struct {
				Replica string
				Memory  *uint64 `json:"memory_bytes"`
				CPU     *int64  `json:"cpu_millicores"`
			}
		}
		text := f.run(cell, 0, "top", "-o", "json")
		if err := json.Unmarshal([]byte(text), &picture); err != nil || len(picture.Instances) != 2 {
			t.Fatalf("%v\n%s", err, text)
		}
		for _, i := range picture.Instances {
			if i.Memory == nil || *i.Memory < 1<<20 || i.CPU == nil {
				t.Errorf("%s:\n%s", i.Replica, text)
			}
		}
	}
	if text := f.run(f.Cells[0], 0, "top", "hello"); strings.Count(text, "MiB") != 2 || strings.Contains(text, "\x1b") {
		t.Fatal(text)
	}
}
