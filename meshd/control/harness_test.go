package control

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"colloid.net/ipc/uds"
)

// journal collects log lines.
type journal struct {
	mutex sync.Mutex
	lines []string
}

func (j *journal) log(line string) {
	j.mutex.Lock()
	defer j.mutex.Unlock()
	j.lines = append(j.lines, line)
}

func (j *journal) text() string {
	j.mutex.Lock()
	defer j.mutex.Unlock()
	return strings.Join(j.lines, "\n")
}

// echo answers with the payload; Leave blocks until the context ends.
func echo(ctx context.Context, r Request) Response {
	switch r.Code {
	case uds.CodeLeave:
		<-ctx.Done()
		return failure(uds.ErrorTimeout, "stopping")
	case uds.CodeConnect:
		return Response{Payload: fmt.Appendf(nil, "%v key=%q merge=%v uid=%d",
			r.Addresses, r.JoinKey, r.Merge, r.UID)}
	}
	return Response{Payload: r.Payload}
}

func serve(t *testing.T, change func(*Options)) (path string, j *journal) {
	t.Helper()
	directory, err := os.MkdirTemp("", "control") // t.TempDir is longer than a socket path may be
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(directory) })
	os.Chmod(directory, 0o755)
	j = &journal{}
	options := Options{
		Path: filepath.Join(directory, "run", "socket"), Handle: echo, Log: j.log,
		UID: uint32(os.Geteuid()), ReadGroup: NoGroup, WriteGroup: NoGroup,
	}
	if change != nil {
		change(&options)
	}
	s, err := Listen(options)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve() }()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return options.Path, j
}

func dial(t testing.TB, path string) *uds.Client {
	t.Helper()
	c, err := uds.Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func dialRaw(t testing.TB, path string) net.Conn {
	t.Helper()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(10 * time.Second))
	return c
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for limit := time.Now().Add(5 * time.Second); !condition(); {
		if time.Now().After(limit) {
			t.Fatalf("within 5 s not: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}
