package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

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
	c := &command{done: make(chan error, 1)}
	c.Cmd = exec.CommandContext(f.t.Context(), f.Program("colloid"), append([]string{"--socket", cell.Socket()}, arguments...)...)
	output, err := c.StdoutPipe()
	if err != nil {
		f.t.Fatal(err)
	}
	c.Stderr = c.Stdout
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
	f.waitSeen(follow, "listening on", 2)
	if err := holders[0].Kill(); err != nil {
		t.Fatal(err)
	}
	f.waitSeen(follow, "listening on", 3)
	text = follow.seen()
	if !strings.Contains(text, "does not answer") || !strings.Contains(text, "now on") {
		t.Fatalf("nobody said what happened:\n%s", text)
	}
	f.run(from, 0, "delete", "hello")
	f.waitSeen(follow, "was deleted", 1)
	if err := <-follow.done; err != nil {
		t.Fatal(err)
	}
}
