package cli

import (
	"bytes"
	"context"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Control-C ends every command, also one that waits for a pipe, for what a person types, or for a daemon that
// hangs.
func TestControlCEndsWhatWaits(t *testing.T) {
	directory := t.TempDir()
	pipe, deaf := filepath.Join(directory, "pipe"), filepath.Join(directory, "deaf.sock")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", deaf) // what connects waits in the backlog
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for _, line := range []string{
		"apply -f " + pipe, "apply -f -", "diff -f -", "delete -f " + pipe, "wasm invoke --stdin web", "status", "export",
		"connect 192.0.2.1", "lock", "drain a1",
	} {
		typed, never := io.Pipe()
		defer never.Close()
		ctx, interrupt := context.WithCancel(context.Background())
		time.AfterFunc(100*time.Millisecond, interrupt)
		var said bytes.Buffer
		exit := make(chan int, 1)
		go func() {
			Main(ctx, append(strings.Fields(line), "--socket", deaf), Environment{
				Input: typed, Output: io.Discard, Errors: &said, Variable: func(string) string { return "" },
				Abandon: func(status int) { exit <- status },
			})
		}()
		select {
		case status := <-exit:
			if status != exitInterrupted || !strings.HasPrefix(said.String(), "colloid: interrupted") {
				t.Errorf("%s: status %d, %q", line, status, said.String())
			}
		case <-time.After(5 * time.Second):
			t.Errorf("%s: goes on 5 s after control-C", line)
		}
	}
}

// What watches has not failed when it is interrupted, also while it waits for a daemon that hangs.
func TestControlCIsHowWatchingEnds(t *testing.T) {
	deaf := filepath.Join(t.TempDir(), "deaf.sock")
	listener, err := net.Listen("unix", deaf)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	ctx, interrupt := context.WithCancel(context.Background())
	time.AfterFunc(100*time.Millisecond, interrupt)
	var said bytes.Buffer
	exit := make(chan int, 1)
	go Main(ctx, []string{"status", "--watch", "--socket", deaf}, Environment{
		Output: io.Discard, Errors: &said, Variable: func(string) string { return "" },
		Abandon: func(status int) { exit <- status },
	})
	if status := <-exit; status != ExitOK || said.Len() > 0 {
		t.Errorf("status %d, %q", status, said.String())
	}
}

// Whoever reads neither output nor errors does not hold a command that has been told to end.
func TestNobodyReadsTheLastWords(t *testing.T) {
	_, write := io.Pipe()
	exit := make(chan int, 1)
	a := &app{Environment: Environment{Errors: write, Abandon: func(status int) { exit <- status }}}
	x := &execution{app: a, name: "web/0"}
	begin := time.Now()
	x.endAnyway(make(chan struct{}), exitLost)
	if status := <-exit; status != exitLost || time.Since(begin) < abandonGrace {
		t.Errorf("status %d after %v", status, time.Since(begin))
	}
	ended := make(chan struct{})
	close(ended)
	x.endAnyway(ended, exitLost)
	select {
	case <-exit:
		t.Error("what has ended was abandoned")
	default:
	}
}
