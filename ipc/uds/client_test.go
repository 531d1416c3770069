package uds

import (
	"errors"
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
	return &Client{connection: near, Timeout: 5 * time.Second}
}

func TestDoUnderstandsReplies(t *testing.T) {
	var refused *ReplyError
	var conflict *ConflictError
	for name, test := range map[string]struct {
		reply []byte
		want  func(payload []byte, err error) bool
	}{
		"empty": {AppendReply(nil, nil), func(p []byte, err error) bool { return len(p) == 0 && err == nil }},
		"chunks": {AppendReply(nil, make([]byte, 200_000)), func(p []byte, err error) bool {
			return len(p) == 200_000 && err == nil
		}},
		"not found": {AppendFrame(nil, byte(NotFound), nil), func(_ []byte, err error) bool { return err == ErrNotFound }},
		"error": {AppendError(nil, ErrorBusy, "syncing"), func(_ []byte, err error) bool {
			return errors.As(err, &refused) && refused.Errno == ErrorBusy && err.Error() == "syncing"
		}},
		"short error": {AppendFrame(nil, byte(Error), []byte{1}), func(_ []byte, err error) bool {
			return errors.As(err, &refused) && refused.Errno == ErrorIO
		}},
		"conflict": {AppendFrame(nil, byte(Conflict), []byte(`{"key":"k","entries":[{"actor":"a"}]}`)), func(_ []byte, err error) bool {
			return errors.As(err, &conflict) && conflict.Entries.Entries[0].Actor == "a"
		}},
		"error in the middle": {AppendError(AppendFrame(nil, byte(OK), []byte("part")), ErrorIO, "broke"), func(p []byte, err error) bool {
			return p == nil && errors.As(err, &refused)
		}},
		"nothing":        {nil, func(_ []byte, err error) bool { return err != nil && strings.Contains(err.Error(), "closed") }},
		"cut":            {AppendFrame(nil, byte(OK), []byte("part")), func(_ []byte, err error) bool { return err != nil }},
		"unknown status": {AppendFrame(nil, 9, nil), func(_ []byte, err error) bool { return err != nil && strings.Contains(err.Error(), "9") }},
		"bad conflict":   {AppendFrame(nil, byte(Conflict), []byte("{")), func(_ []byte, err error) bool { return err != nil }},
		"too large":      {[]byte{0, 0xff, 0xff, 0xff}, func(_ []byte, err error) bool { return err == ErrFrameTooLarge }},
	} {
		payload, err := answering(t, test.reply).Do(CodeGet, []byte("k"))
		if !test.want(payload, err) {
			t.Errorf("%s: %d bytes, %v", name, len(payload), err)
		}
	}
}

func TestDoTimesOut(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	go ReadFrame(far, RequestMax, nil)
	c := &Client{connection: near, Timeout: 20 * time.Millisecond}
	for range 2 { // the second time without waiting
		if _, err := c.Do(CodeGet, nil); err == nil || !strings.Contains(err.Error(), "does not answer") {
			t.Errorf("%v", err)
		}
	}
}

func TestDoRefusesWhatTheDaemonWould(t *testing.T) {
	if _, err := answering(t, nil).Do(CodeSet, make([]byte, RequestMax+1)); err == nil || !strings.Contains(err.Error(), "65536") {
		t.Errorf("%v", err)
	}
}

func TestDoJSON(t *testing.T) {
	var hello HelloReply
	if err := answering(t, AppendReply(nil, []byte(`{"protocol":1,"later":true}`))).DoJSON(CodeHello, nil, &hello); err != nil || hello.Protocol != 1 {
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
