package control

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"colloid.net/ipc/uds"
)

// giver is a handler that gives the reading end of a pipe that holds one byte.
type giver struct {
	t     *testing.T
	given atomic.Int32
	ended atomic.Int32
}

func (g *giver) handle(_ context.Context, request Request) Response {
	if request.Code != uds.CodeWasmChannel {
		return Response{Payload: request.Payload}
	}
	read, write, err := os.Pipe()
	if err != nil {
		g.t.Error(err)
		return failure(uds.ErrorIO, err.Error())
	}
	_, _ = write.Write([]byte{42})
	write.Close()
	g.given.Add(1)
	return Response{File: read, Ended: func() { g.ended.Add(1); read.Close() }}
}

// TestADescriptorLivesAsLongAsItsConnection: it is passed with the reply, and its giver hears once when the
// connection has ended, whoever ended it.
func TestADescriptorLivesAsLongAsItsConnection(t *testing.T) {
	g := &giver{t: t}
	path, j := serve(t, func(o *Options) { o.Handle = g.handle })
	client := dial(t, path)
	for range filesMax {
		reply, file, err := client.DoFile(uds.CodeWasmChannel, []byte("thumbs"))
		if err != nil || len(reply) != 0 {
			t.Fatalf("%q, %v", reply, err)
		}
		if data, err := io.ReadAll(file); err != nil || string(data) != "*" {
			t.Fatalf("%q, %v", data, err)
		}
		file.Close()
		if reply, err := client.Do(uds.CodeGet, []byte("key")); err != nil || string(reply) != "key" {
			t.Fatalf("%q, %v", reply, err)
		}
	}
	var refused *uds.ReplyError
	if _, _, err := client.DoFile(uds.CodeWasmChannel, []byte("thumbs")); !errors.As(err, &refused) ||
		refused.Errno != uds.ErrorBusy || !strings.Contains(refused.Text, "make another") {
		t.Errorf("one more: %v", err)
	}
	if _, _, err := client.DoFile(uds.CodeGet, []byte("key")); err == nil || !strings.Contains(err.Error(), "lacks its descriptor") {
		t.Errorf("none: %v", err)
	}
	if n := g.ended.Load(); n != 1 { // the refused one
		t.Errorf("%d have ended", n)
	}
	client.Close()
	eventually(t, "the giver hears of each", func() bool { return g.ended.Load() == filesMax+1 })
	if text := j.text(); !strings.Contains(text, `channel to "thumbs"`) {
		t.Errorf("the log lacks the channel:\n%s", text)
	}
}

// TestF135_DescriptorsNeedTheRightToChange: who may only read gets none.
func TestF135_DescriptorsNeedTheRightToChange(t *testing.T) {
	c, _ := connected(t, levelRead, false)
	say(t, c, uds.CodeWasmChannel, []byte("thumbs"))
	if code, payload := hear(t, c); code != uds.Code(uds.Error) || !strings.Contains(string(payload), "uid 12345 may read") {
		t.Errorf("%#x %q", code, payload)
	}
}

// TestF136_ADescriptorGoesOutAtOnceOrNotAtAll: behind replies that nobody reads it is refused, and ended.
func TestF136_ADescriptorGoesOutAtOnceOrNotAtAll(t *testing.T) {
	g := &giver{t: t}
	path, _ := serve(t, func(o *Options) {
		o.Handle = func(ctx context.Context, r Request) Response {
			if r.Code == uds.CodeGet {
				return Response{Payload: make([]byte, 900<<10)} // more than the socket takes
			}
			return g.handle(ctx, r)
		}
	})
	c := dialRaw(t, path)
	if err := uds.WriteFrame(c, byte(uds.CodeGet), []byte("key")); err != nil {
		t.Fatal(err)
	}
	if err := uds.WriteFrame(c, byte(uds.CodeWasmChannel), []byte("thumbs")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the descriptor is ended", func() bool { return g.given.Load() == 1 && g.ended.Load() == 1 })
	data := make([]byte, 0, 1<<20)
	buffer := make([]byte, 64<<10)
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	for !strings.Contains(string(data[max(0, len(data)-200):]), "read them first") {
		n, err := c.Read(buffer)
		if err != nil {
			t.Fatalf("after %d bytes: %v", len(data), err)
		}
		data = append(data, buffer[:n]...)
	}
}

// TestF136_ClientsWithDescriptorsLeaveRoomForOthers: they count like those with streams, and are not put out.
func TestF136_ClientsWithDescriptorsLeaveRoomForOthers(t *testing.T) {
	g := &giver{t: t}
	path, _ := serve(t, func(o *Options) { o.Handle, o.requestTimeout = g.handle, 50*time.Millisecond })
	for range uds.StreamingClientsMax {
		_, file, err := dial(t, path).DoFile(uds.CodeWasmChannel, []byte("thumbs"))
		if err != nil {
			t.Fatal(err)
		}
		file.Close()
	}
	var refused *uds.ReplyError
	if _, _, err := dial(t, path).DoFile(uds.CodeWasmChannel, []byte("thumbs")); !errors.As(err, &refused) ||
		refused.Errno != uds.ErrorBusy {
		t.Errorf("one more: %v", err)
	}
	time.Sleep(100 * time.Millisecond)
	for range 2 * uds.ClientsMax { // idle ones give way, those with descriptors do not
		time.Sleep(10 * time.Millisecond)
		if _, err := dial(t, path).Do(uds.CodeGet, []byte("key")); err != nil && !errors.As(err, &refused) {
			t.Fatal(err)
		}
	}
	if n := g.ended.Load(); n > 1 {
		t.Errorf("%d descriptors were ended", n)
	}
}
