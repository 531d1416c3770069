package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"colloid.net/e2e/cluster"
)

// Signals reach the program, all that make sense, also while it reads nothing of an input that is full; the
// second of those that ask to end ends the connection. And who is told nothing more by a daemon that was
// killed hears of it soon.
func TestSignalsOvertakeInputAndRestartsAreTold(t *testing.T) {
	line := operatorKey(t, "anna")
	f := startWith(t, cluster.Options{Cells: 2, PolicyLines: "exec hello\n" + line})
	f.run(f.Cells[0], 0, "apply", "-f", f.config(1, ""))
	f.answers(f.Cells[0], 1)
	holders, others := f.holders()
	from, host := others[0], holders[0]

	stuffed := func(words ...string) *command { // its input is more than anything takes
		c := f.background(from, append([]string{"exec", "-i", "hello/0", "--"}, words...)...)
		f.waitSeen(c, "up", 1)
		go func() {
			for block := make([]byte, 1<<20); ; {
				if _, err := c.input.Write(block); err != nil {
					return
				}
			}
		}()
		time.Sleep(time.Second)
		return c
	}
	soon := func(c *command, exit int, message string, most time.Duration) {
		t.Helper()
		begin := time.Now()
		f.ends(c, exit, message)
		if took := time.Since(begin); took > most {
			t.Errorf("%v: %s", took, c.seen())
		} else {
			t.Logf("%v: %s", took.Round(time.Millisecond), strings.TrimSpace(c.seen()))
		}
	}
	c := stuffed("sh", "-c", "echo up; exec sleep 777")
	c.Process.Signal(os.Interrupt)
	soon(c, 130, "", 5*time.Second)
	c = stuffed("sh", "-c", "trap '' TERM; echo up; exec sleep 778")
	c.Process.Signal(syscall.SIGTERM)
	time.Sleep(500 * time.Millisecond)
	c.Process.Signal(syscall.SIGTERM)
	soon(c, 255, "interrupted", 5*time.Second)
	for _, signal := range []syscall.Signal{syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGWINCH, 35} {
		c := f.background(from, "exec", "hello/0", "--", "sh", "-c",
			fmt.Sprintf("trap 'exit 77' %d; echo up; while sleep 0.05; do :; done", signal))
		f.waitSeen(c, "up", 1)
		c.Process.Signal(signal)
		soon(c, 77, "", 5*time.Second)
	}
	f.run(from, 0, "exec", "hello/0", "--", "sh", "-c", "head -c 1000000 /dev/zero > zeros")
	f.endsUnread(from, syscall.SIGINT, 255, "exec", "hello/0", "--", "yes")
	f.endsUnread(from, syscall.SIGTERM, 130, "cp", "hello/0:zeros", "/dev/stdout")

	// The daemon of the other end: of a copy under way, of a program, and of a log.
	large := filepath.Join(t.TempDir(), "large")
	randomFile(t, large, 64<<20)
	for range 2 {
		c := f.background(from, "cp", large, "hello/0:large")
		time.Sleep(400 * time.Millisecond)
		if _, err := host.KillProgram("meshd"); err != nil {
			t.Fatal(err)
		}
		soon(c, 255, "hello/0: ", 6*time.Second)
		f.answers(from, 1)
	}
	c = f.background(from, "exec", "hello/0", "--", "sh", "-c", "echo up; exec sleep 779")
	f.waitSeen(c, "up", 1)
	if _, err := host.KillProgram("meshd"); err != nil {
		t.Fatal(err)
	}
	soon(c, 255, "its daemon was restarted", 6*time.Second)
	f.answers(from, 1)
}

// endsUnread lets a command fill a pipe that nobody reads and sends it a signal, twice. It must end all the
// same.
func (f *fixture) endsUnread(from *cluster.Cell, signal syscall.Signal, exit int, arguments ...string) {
	f.t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		f.t.Fatal(err)
	}
	defer read.Close()
	c := exec.Command(f.Program("colloid"), append([]string{"--socket", from.Socket()}, arguments...)...)
	c.Stdout, c.Stderr = write, write
	err = c.Start()
	write.Close()
	if err != nil {
		f.t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- c.Wait() }()
	time.Sleep(1500 * time.Millisecond)
	for range 2 {
		_ = c.Process.Signal(signal)
		time.Sleep(200 * time.Millisecond)
	}
	select {
	case <-done:
		if c.ProcessState.ExitCode() != exit {
			f.t.Errorf("%q after two of %v: %v, expected %d", arguments, signal, c.ProcessState, exit)
		}
	case <-time.After(10 * time.Second):
		c.Process.Kill()
		f.t.Errorf("%q goes on 10 s after two of %v", arguments, signal)
	}
}

// Followers of one user, forty of them, leave room for everybody; a refusal is whole and has status 1.
func TestF136_FollowersLeaveRoomForCommands(t *testing.T) {
	needRoot(t, "runs commands as another user")
	line := operatorKey(t, "anna")
	const readers, user = 61001, 61003
	groups := filepath.Join(t.TempDir(), "group")
	if err := os.WriteFile(groups, []byte(fmt.Sprintf("root:x:0:\ncolloid:x:%d:\n", readers)), 0o644); err != nil {
		t.Fatal(err)
	}
	f := startWith(t, cluster.Options{Cells: 1, PolicyLines: "exec hello\n" + line, GroupFile: groups})
	cell := f.Cells[0]
	f.run(cell, 0, "apply", "-f", f.config(1, ""))
	f.answers(cell, 1)
	var followers []*command
	for range 40 {
		reader := &syscall.Credential{Uid: user, Gid: user, Groups: []uint32{readers}}
		followers = append(followers, f.backgroundAs(reader, cell, "logs", "-f", "hello"))
	}
	f.wait("some to be refused, and the others to follow", func(context.Context) error {
		ended := 0
		for _, c := range followers {
			if text := c.seen(); strings.Contains(text, "close one") {
				ended++
			}
		}
		if ended != 40-32 {
			return fmt.Errorf("%d were refused", ended)
		}
		return nil
	})
	f.run(cell, 0, "status")
	f.run(cell, 0, "exec", "hello/0", "--", "true")
	for _, c := range followers {
		c.Process.Kill()
	}

	// Many programs at once: whoever is refused hears why.
	const many = 100
	type outcome struct {
		result cluster.Result
		err    error
	}
	outcomes := make(chan outcome, many)
	for range many {
		go func() {
			result, err := cell.Run(t.Context(), "exec", "hello/0", "--", "sleep", "5")
			outcomes <- outcome{result, err}
		}()
	}
	worked := 0
	for range many {
		o := <-outcomes
		switch {
		case o.err == nil && o.result.Exit == 0:
			worked++
		case o.err != nil, o.result.Exit != 1, !strings.Contains(o.result.Errors, "end one") && !strings.Contains(o.result.Errors, "close one"):
			t.Errorf("exit %d, %v: %s", o.result.Exit, o.err, o.result.Errors)
		}
	}
	if worked < 40 {
		t.Errorf("%d of %d worked", worked, many)
	}
	t.Logf("%d of %d programs worked", worked, many)
}
