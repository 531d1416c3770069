package uds

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// listening is a daemon that hands each connection to serve.
func listening(t *testing.T, serve func(connection *net.UnixConn)) (path string) {
	t.Helper()
	directory, err := os.MkdirTemp("", "uds")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(directory) })
	path = filepath.Join(directory, "socket")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer connection.Close()
				serve(connection.(*net.UnixConn))
			}()
		}
	}()
	return path
}

func dialed(t *testing.T, path string, timeout time.Duration) *Client {
	t.Helper()
	c, err := Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.Timeout = timeout
	return c
}

// TestF136_AClientGivesUpOnADaemon that answers nothing, too slowly, or does not take the request: in its
// time, the time of all parts together, and for good.
func TestF136_AClientGivesUpOnADaemon(t *testing.T) {
	for name, serve := range map[string]func(connection *net.UnixConn){
		"silent": func(connection *net.UnixConn) {
			_, _, _ = ReadFrame(connection, RequestMax, nil)
			_, _ = connection.Read(make([]byte, 1))
		},
		"slow": func(connection *net.UnixConn) {
			for _, b := range AppendReply(nil, make([]byte, 1000)) {
				if _, err := connection.Write([]byte{b}); err != nil {
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
		},
		"full": func(connection *net.UnixConn) { time.Sleep(time.Second) },
	} {
		c := dialed(t, listening(t, serve), 100*time.Millisecond)
		if err := unix.SetsockoptInt(c.connection.(*blocking).fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 4096); err != nil {
			t.Fatal(err) // less than a request
		}
		began := time.Now()
		_, err := c.Do(CodeSet, make([]byte, RequestMax))
		took := time.Since(began)
		if err == nil || !strings.Contains(err.Error(), "does not answer") || took < 100*time.Millisecond || took > 5*time.Second {
			t.Errorf("%s: %v after %v", name, err, took)
		}
		began = time.Now()
		if _, err := c.Do(CodeGet, nil); err == nil || time.Since(began) > 90*time.Millisecond {
			t.Errorf("%s: the second time %v after %v", name, err, time.Since(began))
		}
	}
}

// TestClosingAClientEndsItsCommand, whose thread waits in the kernel, and later ones.
func TestClosingAClientEndsItsCommand(t *testing.T) {
	path := listening(t, func(connection *net.UnixConn) {
		for {
			if _, _, err := ReadFrame(connection, RequestMax, nil); err != nil {
				return
			}
		}
	})
	for range 20 {
		c := dialed(t, path, -1)
		failed := make(chan error, 1)
		go func() {
			_, err := c.Do(CodeGet, nil)
			failed <- err
		}()
		time.Sleep(time.Millisecond)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		select {
		case err := <-failed:
			if err == nil {
				t.Error("a command without a reply succeeded")
			}
		case <-time.After(10 * time.Second):
			t.Fatal("the command goes on")
		}
		if _, err := c.Do(CodeGet, nil); err == nil {
			t.Error("a command of a closed client")
		}
		if err := c.Close(); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	}
}

// TestClientsTakeLongRepliesAndManyCommands, one after the other over one connection.
func TestClientsTakeLongRepliesAndManyCommands(t *testing.T) {
	path := listening(t, func(connection *net.UnixConn) {
		for {
			_, payload, err := ReadFrame(connection, RequestMax, nil)
			if err != nil {
				return
			}
			if _, err := connection.Write(AppendReply(nil, append(make([]byte, 1<<20), payload...))); err != nil {
				return
			}
		}
	})
	c := dialed(t, path, 0)
	for _, request := range []string{"one", "two"} {
		reply, err := c.Do(CodeGet, []byte(request))
		if err != nil || string(reply[1<<20:]) != request {
			t.Fatalf("%d bytes, %v", len(reply), err)
		}
	}
}

// TestADescriptorIsTakenWhenItIsAskedFor, with the flag that keeps it from programs that are started; one
// that nobody asked for is not.
func TestADescriptorIsTakenWhenItIsAskedFor(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { null.Close() })
	two := unix.UnixRights(int(null.Fd()), int(null.Fd()))
	path := listening(t, func(connection *net.UnixConn) {
		for {
			if _, _, err := ReadFrame(connection, RequestMax, nil); err != nil {
				return
			}
			if _, _, err := connection.WriteMsgUnix(AppendReply(nil, nil), two, nil); err != nil {
				return
			}
		}
	})
	c := dialed(t, path, 5*time.Second)
	before := 0
	const commands = 50
	for n := range commands {
		if _, err := c.Do(CodeGet, nil); err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			before = descriptors(t) // the other end is open by now
		}
	}
	// Other tests' connections come to their ends meanwhile, but not fifty begin.
	if now := descriptors(t); now >= before+commands/2 {
		t.Errorf("%d descriptors, %d before", now, before)
	}
	_, file, err := c.DoFile(CodeWasmChannel, []byte("w"))
	if err != nil {
		t.Fatal(err)
	}
	flags, err := unix.FcntlInt(file.Fd(), unix.F_GETFD, 0)
	if err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("%#x, %v", flags, err)
	}
	file.Close()
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}
