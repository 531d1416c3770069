package uds

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// answering is a client whose daemon answers each connection with fixed bytes.
func answering(t testing.TB, reply []byte) *Client {
	t.Helper()
	near, far := net.Pipe()
	t.Cleanup(func() { near.Close(); far.Close() })
	go func() {
		if _, _, err := ReadFrame(far, RequestMax, nil); err == nil {
			far.Write(reply)
		}
		far.Close()
	}()
	return withTimeout(near, 5*time.Second)
}

func TestDoUnderstandsReplies(t *testing.T) {
	part := AppendFrame(nil, byte(OK), []byte("part"))
	conflict := []byte(`{"key":"web","entries":[{"actor":"a"},{"actor":"b"}]}`)
	for name, test := range map[string]struct {
		reply []byte
		size  int
		err   string // in the error's type and text; empty: none
	}{
		"empty":               {AppendReply(nil, nil), 0, ""},
		"chunks":              {AppendReply(nil, make([]byte, 200_000)), 200_000, ""},
		"not found":           {AppendFrame(nil, byte(NotFound), nil), 0, "not found"},
		"error":               {AppendError(nil, ErrorBusy, "syncing"), 0, "*uds.ReplyError: syncing"},
		"short error":         {AppendFrame(nil, byte(Error), []byte{1}), 0, "refused with error 5"},
		"conflict":            {AppendFrame(nil, byte(Conflict), conflict), 0, "ConflictError: web has"},
		"bad conflict":        {AppendFrame(nil, byte(Conflict), []byte("{")), 0, "not understood"},
		"error in the middle": {AppendError(part, ErrorIO, "broke"), 0, "*uds.ReplyError: broke"},
		"nothing":             {nil, 0, "closed the connection"},
		"cut":                 {part, 0, "closed the connection"},
		"unknown status":      {AppendFrame(nil, 9, nil), 0, "status 9"},
		"too large":           {[]byte{0, 0xff, 0xff, 0xff}, 0, ErrFrameTooLarge.Error()},
	} {
		payload, err := answering(t, test.reply).Do(CodeGet, []byte("k"))
		got := ""
		if err != nil {
			got = fmt.Sprintf("%T: %v", err, err)
		}
		if len(payload) != test.size || (test.err == "") != (err == nil) || !strings.Contains(got, test.err) {
			t.Errorf("%s: %d bytes, error %q, want %q", name, len(payload), got, test.err)
		}
		if (test.err == "not found") != errors.Is(err, ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDoTimesOut(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	go ReadFrame(far, RequestMax, nil)
	c := withTimeout(near, 20*time.Millisecond)
	for range 2 { // the second time without waiting
		if _, err := c.Do(CodeGet, nil); err == nil || !strings.Contains(err.Error(), "does not answer") {
			t.Errorf("%v", err)
		}
	}
}

func TestDoRefusesWhatTheDaemonWould(t *testing.T) {
	_, err := answering(t, nil).Do(CodeSet, make([]byte, RequestMax+1))
	if err == nil || !strings.Contains(err.Error(), "65536") {
		t.Errorf("%v", err)
	}
}

func TestDoJSON(t *testing.T) {
	var hello HelloReply
	reply := AppendReply(nil, []byte(`{"protocol":1,"later":true}`))
	if err := answering(t, reply).DoJSON(CodeHello, nil, &hello); err != nil || hello.Protocol != 1 {
		t.Errorf("%+v, %v", hello, err)
	}
	if err := answering(t, AppendReply(nil, []byte(`nonsense`))).DoJSON(CodeHello, nil, &hello); err == nil {
		t.Error("nonsense was understood")
	}
}

func TestDialErrorsNameTheWayOut(t *testing.T) {
	directory, err := os.MkdirTemp("", "uds")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(directory)
	path := filepath.Join(directory, "socket")
	expect := func(path string, parts ...string) {
		t.Helper()
		c, err := Dial(path)
		if err == nil {
			c.Close()
			t.Fatal("connected")
		}
		for _, part := range parts {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q is not in %q", part, err)
			}
		}
	}
	expect(path, "no daemon is running at "+path+": start it with `colloid`")
	expect("relative", "absolute path")

	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	expect(path, "no daemon is running")
	if os.Geteuid() != 0 {
		os.Chmod(path, 0)
		expect(path, "permission denied", "group colloid")
	}
}

// The reply comes from a daemon that may be of any version, or be something else.
func FuzzReply(f *testing.F) {
	f.Add(AppendReply(nil, []byte("x")))
	f.Add(AppendError(nil, 1, "text"))
	f.Add(AppendFrame(nil, byte(Conflict), []byte(`{"entries":null}`)))
	f.Add(AppendFrame(nil, byte(NotFound), nil))
	f.Fuzz(func(t *testing.T, reply []byte) {
		payload, err := answering(t, reply).Do(CodeGet, nil)
		if err != nil && payload != nil {
			t.Errorf("both a payload and %v", err)
		}
		if err != nil && err.Error() == "" {
			t.Error("an error without words")
		}
	})
}

func withTimeout(connection net.Conn, timeout time.Duration) *Client {
	c := newClient(connection)
	c.Timeout = timeout
	return c
}
