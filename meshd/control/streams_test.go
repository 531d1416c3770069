package control

import (
	"bytes"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"golang.org/x/sys/unix"
)

// loop is a Handle that gives back what it takes, and never takes anything when it is stuck.
type loop struct {
	sink     Sink
	stuck    bool
	canceled chan struct{}
	once     sync.Once
}

func (l *loop) Write(p []byte) <-chan struct{} {
	taken := make(chan struct{}, 1)
	if !l.stuck {
		l.sink.Data(bytes.Clone(p))
		taken <- struct{}{}
	}
	return taken
}
func (l *loop) CloseWrite() { l.sink.Fin(); l.sink.Closed(0, "") }
func (l *loop) Cancel()     { l.once.Do(func() { close(l.canceled) }) }
func (l *loop) Resume()     {}

// pairOf is a connection, both ends of it.
func pairOf(t *testing.T) (ours net.Conn, theirs *net.UnixConn) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ends := [2]net.Conn{}
	for i, fd := range pair {
		file := os.NewFile(uintptr(fd), "pair")
		if ends[i], err = net.FileConn(file); err != nil {
			t.Fatal(err)
		}
		file.Close()
	}
	t.Cleanup(func() { ends[1].Close() })
	return ends[1], ends[0].(*net.UnixConn)
}

// streamServer is a server that takes all streams, and does nothing with them.
func streamServer(t *testing.T) *Server {
	t.Helper()
	s, err := Listen(Options{Path: t.TempDir() + "/s", UID: 1, ReadGroup: NoGroup, WriteGroup: NoGroup, Handle: echo,
		OpenStream: func(_ uds.StreamOpen, _ uint32, sink Sink) Handle {
			sink.Opened()
			return &loop{sink: sink, canceled: make(chan struct{})}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// connected is a client of the given level, as if it had been accepted.
func connected(t *testing.T, may level, stuck bool) (net.Conn, chan *loop) {
	t.Helper()
	ours, theirs := pairOf(t)
	opened := make(chan *loop, 100)
	s, err := Listen(Options{Path: t.TempDir() + "/s", ReadGroup: NoGroup, WriteGroup: NoGroup,
		OpenStream: func(_ uds.StreamOpen, _ uint32, sink Sink) Handle {
			l := &loop{sink: sink, stuck: stuck, canceled: make(chan struct{})}
			opened <- l
			sink.Opened()
			return l
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	s.add(newClient(s, theirs, credentials{uid: 12345}, may))
	return ours, opened
}

func say(t *testing.T, c net.Conn, code uds.Code, payload []byte) {
	t.Helper()
	if err := uds.WriteFrame(c, byte(code), payload); err != nil {
		t.Fatal(err)
	}
}

func hear(t *testing.T, c net.Conn) (uds.Code, []byte) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	code, payload, err := uds.ReadFrame(c, uds.OutputQueueMax, nil)
	if err != nil {
		t.Fatal(err)
	}
	return uds.Code(code), payload
}

// Readers may look at logs and figures; a shell, files, functions and volumes need the right to change
// (F135).
func TestF135_StreamsNeedTheirLevel(t *testing.T) {
	c, _ := connected(t, levelRead, false)
	for kind := uint8(1); kind <= uds.StreamCopy+1; kind++ {
		say(t, c, uds.CodeStreamOpen, (&uds.StreamOpen{Handle: uint32(kind), Kind: kind, Name: "spread.web"}).Append(nil))
		code, payload := hear(t, c)
		if kind == uds.StreamLogs || kind == uds.StreamMetrics {
			if code != uds.CodeStreamOpen {
				t.Errorf("kind %d: %#x %q", kind, code, payload)
			}
			continue
		}
		end, err := uds.ParseStreamClose(payload)
		if code != uds.CodeStreamClose || err != nil || end.Errno != uds.ErrorPermission || !strings.Contains(end.Text, "12345") {
			t.Errorf("kind %d: %#x %+v %v", kind, code, end, err)
		}
	}
}

// Handles are the client's and each is one stream; what is malformed ends the connection with a sentence.
func TestF136_StreamsOfOneClient(t *testing.T) {
	c, opened := connected(t, levelWrite, false)
	open := func(handle uint32) {
		say(t, c, uds.CodeStreamOpen, (&uds.StreamOpen{Handle: handle, Kind: uds.StreamExec, Name: "spread.web"}).Append(nil))
	}
	for handle := range uint32(uds.ClientStreamsMax) {
		open(handle)
		if code, _ := hear(t, c); code != uds.CodeStreamOpen {
			t.Fatalf("%#x", code)
		}
	}
	for _, handle := range []uint32{3, 999} { // in use, one too many
		open(handle)
		code, payload := hear(t, c)
		if end, _ := uds.ParseStreamClose(payload); code != uds.CodeStreamClose || end.Errno != uds.ErrorBusy {
			t.Fatalf("%#x %+v", code, end)
		}
	}
	if _, err := c.Write(uds.AppendStreamData(nil, 3, []byte("hello"))); err != nil {
		t.Fatal(err)
	}
	if code, payload := hear(t, c); code != uds.CodeStreamData || string(payload) != "\x00\x00\x00\x03hello" {
		t.Fatalf("%#x %q", code, payload)
	}
	say(t, c, uds.CodeStreamOpen, []byte{1, 2})
	code, payload := hear(t, c)
	if code != uds.Code(uds.Error) || !strings.Contains(string(payload), "malformed") {
		t.Fatalf("%#x %q", code, payload)
	}
	for range uds.ClientStreamsMax { // they all end with the connection
		select {
		case <-(<-opened).canceled:
		case <-time.After(10 * time.Second):
			t.Fatal("a stream outlives its client")
		}
	}
}

// A client that dies while its stream takes nothing is noticed, although nobody reads from it.
func TestF136_DeadClientsOfStuckStreams(t *testing.T) {
	c, opened := connected(t, levelWrite, true)
	say(t, c, uds.CodeStreamOpen, (&uds.StreamOpen{Kind: uds.StreamExec, Name: "spread.web"}).Append(nil))
	hear(t, c)
	if _, err := c.Write(uds.AppendStreamData(nil, 0, make([]byte, 1000))); err != nil {
		t.Fatal(err)
	}
	l := <-opened
	select {
	case <-l.canceled:
		t.Fatal("canceled too early")
	case <-time.After(50 * time.Millisecond):
	}
	c.Close()
	select {
	case <-l.canceled:
	case <-time.After(10 * time.Second):
		t.Fatal("not noticed")
	}
}

func FuzzStreamOpen(f *testing.F) {
	f.Add((&uds.StreamOpen{Handle: 1, Kind: 2, Name: "a", Grant: []byte{1}}).Append(nil))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if open, err := uds.ParseStreamOpen(raw); err == nil && !bytes.Equal(open.Append(nil), raw) {
			t.Fatalf("%+v", open)
		}
		if end, err := uds.ParseStreamClose(raw); err == nil && len(end.Text) <= 1024 && !bytes.Equal(end.Append(nil), raw) {
			t.Fatalf("%+v", end)
		}
	})
}
