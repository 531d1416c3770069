package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"colloid.net/ipc/invoke"
	"colloid.net/ipc/uds"
)

func TestRequestAndReply(t *testing.T) {
	path, _ := serve(t, nil)
	c := dial(t, path)
	for _, size := range []int{0, 1, uds.RequestMax} {
		payload := bytes.Repeat([]byte{'x'}, size)
		reply, err := c.Do(uds.CodeGet, payload)
		if err != nil || !bytes.Equal(reply, payload) {
			t.Errorf("%d bytes: %d came back, %v", size, len(reply), err)
		}
	}
}

func TestReplyKinds(t *testing.T) {
	large := bytes.Repeat([]byte("0123456789"), 500_000)
	path, _ := serve(t, func(o *Options) {
		o.Handle = func(_ context.Context, r Request) Response {
			switch r.Code {
			case uds.CodeStatus:
				return Response{Payload: large}
			case uds.CodeGet:
				return Response{Status: uds.NotFound}
			case uds.CodeSet:
				return Response{Status: uds.Conflict, Payload: []byte(`{"key":"spread.web","entries":[{},{}]}`)}
			}
			return failure(uds.ErrorNoSpace, "the disk is full: free some space")
		}
	})
	c := dial(t, path)
	if reply, err := c.Do(uds.CodeStatus, nil); err != nil || !bytes.Equal(reply, large) {
		t.Errorf("a reply of %d bytes: %d came, %v", len(large), len(reply), err)
	}
	if _, err := c.Do(uds.CodeGet, nil); !errors.Is(err, uds.ErrNotFound) {
		t.Errorf("not found: %v", err)
	}
	var conflict *uds.ConflictError
	_, err := c.Do(uds.CodeSet, uds.WriteRequest{Key: "spread.web"}.Append(nil))
	if !errors.As(err, &conflict) ||
		len(conflict.Entries.Entries) != 2 || conflict.Entries.Key != "spread.web" {
		t.Errorf("conflict: %v", err)
	}
	var reply *uds.ReplyError
	if _, err := c.Do(uds.CodePeers, nil); !errors.As(err, &reply) || reply.Errno != uds.ErrorNoSpace {
		t.Errorf("error: %v", err)
	}
	if _, err := c.Do(uds.Code(0x77), nil); !errors.As(err, &reply) || reply.Errno != uds.ErrorInvalid {
		t.Errorf("unknown command: %v", err)
	}
}

// F136: requests may be sent ahead; replies keep their order, also after the sender has finished.
func TestF136_PipelinedRepliesKeepTheirOrder(t *testing.T) {
	path, _ := serve(t, nil)
	c := dialRaw(t, path)
	var requests []byte
	for i := range 500 {
		requests = uds.AppendFrame(requests, byte(uds.CodeGet), []byte{byte(i >> 8), byte(i)})
	}
	go func() {
		c.Write(requests)
		c.(*net.UnixConn).CloseWrite()
	}()
	for i := range 500 {
		status, payload, err := uds.ReadFrame(c, uds.ReplyChunkMax, nil)
		if err != nil || uds.ReplyStatus(status) != uds.OK || !bytes.Equal(payload, []byte{byte(i >> 8), byte(i)}) {
			t.Fatalf("reply %d: status %d, %x, %v", i, status, payload, err)
		}
		if _, end, err := uds.ReadFrame(c, uds.ReplyChunkMax, nil); err != nil || len(end) != 0 {
			t.Fatalf("reply %d has no end: %x, %v", i, end, err)
		}
	}
	if _, err := c.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("after the last reply: %v", err)
	}
}

// F136: a request that has begun must be complete within the time limit, whether nothing more comes
// or one byte now and then.
func TestF136_Slowloris(t *testing.T) {
	path, j := serve(t, func(o *Options) { o.requestTimeout = 100 * time.Millisecond })
	for name, pause := range map[string]time.Duration{"silent": time.Hour, "trickling": 10 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			c := dialRaw(t, path)
			stop := make(chan struct{})
			defer close(stop)
			go func() {
				request := uds.AppendFrame(nil, byte(uds.CodeGet), make([]byte, 1000))
				for i := range request {
					if _, err := c.Write(request[i : i+1]); err != nil {
						return
					}
					select {
					case <-stop:
						return
					case <-time.After(pause):
					}
				}
			}()
			start := time.Now()
			status, payload, err := uds.ReadFrame(c, uds.ReplyChunkMax, nil)
			if err != nil || uds.ReplyStatus(status) != uds.Error || !strings.Contains(string(payload), "in time") {
				t.Errorf("status %d, %q, %v", status, payload, err)
			}
			if _, err := io.Copy(io.Discard, c); err != nil && !strings.Contains(err.Error(), "reset") {
				t.Errorf("not disconnected: %v", err)
			}
			if took := time.Since(start); took > 3*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
	if !strings.Contains(j.text(), "too long to send") {
		t.Errorf("log: %s", j.text())
	}
}

// A client may wait between requests for longer than one request may take.
func TestIdleClientStays(t *testing.T) {
	path, _ := serve(t, func(o *Options) { o.requestTimeout = 20 * time.Millisecond })
	c := dial(t, path)
	for range 2 {
		if _, err := c.Do(uds.CodeGet, []byte("x")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// F136: a client that asks and does not read is disconnected, and costs no more than its queue.
func TestF136_SlowReaderIsDisconnected(t *testing.T) {
	path, j := serve(t, func(o *Options) {
		o.Handle = func(context.Context, Request) Response {
			return Response{Payload: make([]byte, 300<<10)}
		}
	})
	c := dialRaw(t, path)
	for range 20 {
		if err := uds.WriteFrame(c, byte(uds.CodeStatus), nil); err != nil {
			break
		}
	}
	eventually(t, "disconnected", func() bool { return strings.Contains(j.text(), "does not read its replies") })
	n, _ := io.Copy(io.Discard, c)
	if n > 2<<20 {
		t.Errorf("%d bytes were queued", n)
	}
}

func TestF136_SlowReaderOfOneReply(t *testing.T) {
	path, j := serve(t, func(o *Options) {
		o.requestTimeout = 100 * time.Millisecond
		o.Handle = func(context.Context, Request) Response { return Response{Payload: make([]byte, 5<<20)} }
	})
	c := dialRaw(t, path)
	uds.WriteFrame(c, byte(uds.CodeStatus), nil)
	eventually(t, "disconnected", func() bool { return strings.Contains(j.text(), "does not read its reply:") })
}

func TestF136_RequestIsBounded(t *testing.T) {
	path, _ := serve(t, nil)
	c := dialRaw(t, path)
	c.Write([]byte{byte(uds.CodeGet), 0xff, 0xff, 0xff}) // 16 MiB announced
	status, payload, err := uds.ReadFrame(c, uds.ReplyChunkMax, nil)
	if err != nil || uds.ReplyStatus(status) != uds.Error || !strings.Contains(string(payload), "65536") {
		t.Errorf("status %d, %q, %v", status, payload, err)
	}
}

// F136: as many clients as there may be; one more is told so, unless another sits idle.
func TestF136_ClientsAreBounded(t *testing.T) {
	path, j := serve(t, nil)
	for range uds.ClientsMax {
		if _, err := dial(t, path).Do(uds.CodeHello, nil); err != nil {
			t.Fatal(err)
		}
	}
	var reply *uds.ReplyError
	if _, err := dial(t, path).Do(uds.CodeHello, nil); !errors.As(err, &reply) || reply.Errno != uds.ErrorBusy {
		t.Errorf("client %d: %v", uds.ClientsMax+1, err)
	}
	if !strings.Contains(j.text(), fmt.Sprint(uds.ClientsMax, " clients")) {
		t.Errorf("log: %s", j.text())
	}
}

func TestF136_IdleClientsGiveWay(t *testing.T) {
	path, _ := serve(t, func(o *Options) { o.requestTimeout = 50 * time.Millisecond })
	busy := dialRaw(t, path)
	uds.WriteFrame(busy, byte(uds.CodeLeave), []byte{0, 1})
	for range uds.ClientsMax - 1 {
		dialRaw(t, path)
	}
	time.Sleep(100 * time.Millisecond)
	if _, err := dial(t, path).Do(uds.CodeHello, nil); err != nil {
		t.Errorf("the idle ones did not give way: %v", err)
	}
	busy.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if _, err := busy.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the busy client: %v", err)
	}
}

func TestCloseCancelsRunningRequests(t *testing.T) {
	entered := make(chan struct{})
	path, _ := serve(t, func(o *Options) {
		o.Handle = func(ctx context.Context, r Request) Response { close(entered); return echo(ctx, r) }
	})
	c := dial(t, path)
	go c.Do(uds.CodeLeave, []byte{0, 1})
	<-entered
}

// F135: each change is logged with who made it, without values or keys of clusters.
func TestF135_ChangesAreLogged(t *testing.T) {
	path, j := serve(t, nil)
	c := dial(t, path)
	c.Do(uds.CodeSet, uds.WriteRequest{Key: "spread.web", Value: []byte("SECRET")}.Append(nil))
	c.Do(uds.CodeDelete, uds.WriteRequest{Key: "spread.old\n"}.Append(nil))
	c.Do(uds.CodeConnect, append([]byte{0}, "127.0.0.1#SECRET"...))
	c.Do(uds.CodeGet, []byte("spread.web"))
	text := j.text()
	for _, want := range []string{
		`: set "spread.web"`, `: delete "spread.old\n"`, ": connect to 127.0.0.1:12421",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in the log", want)
		}
	}
	if strings.Contains(text, "SECRET") || strings.Count(text, "\n") != 2 || strings.Count(text, "uid ") != 3 {
		t.Errorf("log:\n%s", text)
	}
}

func TestConnectIsResolved(t *testing.T) {
	path, _ := serve(t, nil)
	c := dial(t, path)
	reply, err := c.Do(uds.CodeConnect, append([]byte{1}, "[::1]:7#k-1"...))
	if want := `[[::1]:7] key="k-1" merge=true uid=`; err != nil || !strings.HasPrefix(string(reply), want) {
		t.Errorf("%q, %v", reply, err)
	}
	for _, payload := range []string{"", "\x02127.0.0.1", "\x00", "\x00a b", "\x00h:0"} {
		var reply *uds.ReplyError
		_, err := c.Do(uds.CodeConnect, []byte(payload))
		if !errors.As(err, &reply) || reply.Errno != uds.ErrorInvalid {
			t.Errorf("%q: %v", payload, err)
		}
	}
}

func TestF135_SocketIsForTheGroupOnly(t *testing.T) {
	path, _ := serve(t, nil)
	for name, want := range map[string]os.FileMode{path: 0o660, filepath.Dir(path): 0o750} {
		info, err := os.Stat(name)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v, want %v", name, info.Mode(), err, want)
		}
	}
}

func TestListenErrors(t *testing.T) {
	path, _ := serve(t, nil)
	regular := filepath.Join(filepath.Dir(path), "file")
	os.WriteFile(regular, nil, 0o600)
	for socket, want := range map[string]string{
		path:                           "running",
		regular:                        "not a socket",
		"@abstract":                    "abstract",
		"\x00abstract":                 "abstract",
		"":                             "empty",
		"/" + strings.Repeat("x", 120): "121 bytes, the kernel takes 107",
	} {
		s, err := Listen(Options{Path: socket, Handle: echo, ReadGroup: NoGroup})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q in it", socket, err, want)
		}
		if err == nil {
			s.Close()
		}
	}
}

func TestStaleSocketIsReplaced(t *testing.T) {
	directory := t.TempDir()
	path := filepath.Join(directory, "s")
	if uds.CheckPath(path) != nil {
		t.Skip("temporary directory has a long name")
	}
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	left.SetUnlinkOnClose(false)
	left.Close()
	s, err := Listen(Options{Path: path, Handle: echo, ReadGroup: NoGroup})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket stays after Close: %v", err)
	}
}

// Invocations are in the log as other changes are, without their arguments, and never flood it.
func TestF135_InvocationsAreLogged(t *testing.T) {
	path, j := serve(t, nil)
	client, err := uds.Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	call := invoke.AppendCall(nil, "thumbs", &invoke.Invocation{Function: "make", Arguments: [][]byte{[]byte("secret")}})
	for range 500 {
		if _, err := client.Do(uds.CodeWasmInvoke, call); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(time.Second)
	if _, err := client.Do(uds.CodeWasmInvoke, call); err != nil {
		t.Fatal(err)
	}
	text := j.text()
	lines := strings.Count(text, `invoke "make" of "thumbs"`)
	if lines < invokeLinesPerSecond || lines > 100 || strings.Contains(text, "secret") ||
		!strings.Contains(text, "invocations before that have no line") {
		t.Fatalf("%d lines:\n%s", lines, text)
	}
}
