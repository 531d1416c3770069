package runnerd_test

import (
	"fmt"
	"io"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/ipc/invoke"
	"colloid.net/runnerd/procfs"
	"colloid.net/runnerd/runnerdtest"
)

// channel makes one to a worker, as meshd does.
func (r *remote) channel() *invoke.Channel {
	r.t.Helper()
	mine, theirs, err := invoke.ChannelPair()
	if err != nil {
		r.t.Fatal(err)
	}
	defer theirs.Close()
	if err := r.conn.SendFile(&invoke.ChannelOpen{ID: 1}, theirs); err != nil {
		r.t.Fatal(err)
	}
	channel, err := invoke.OpenChannel(mine)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(channel.Close)
	if err := channel.SetPatience(10 * time.Second); err != nil {
		r.t.Fatal(err)
	}
	return channel
}

func callChannel(t *testing.T, c *invoke.Channel, v *invoke.Invocation) (*invoke.Result, error) {
	t.Helper()
	if err := c.Send(v); err != nil {
		return nil, err
	}
	body, err := c.Receive(make([]byte, invoke.FrameMax+1))
	result, _ := body.(*invoke.Result)
	return result, err
}

// TestF142_ChannelsWorkInTheSandbox: the filter of the real worker lets it take them and end them; a new meshd ends
// those of the one before, and a worker that is killed those that it had.
func TestF142_ChannelsWorkInTheSandbox(t *testing.T) {
	h, spec := moduleHost(t, "functions")
	client := runnerdtest.Attach(t, h.open())
	id := client.Start("wasm.test", 0, spec)
	i := client.Await(id, ready)
	first := attachWorker(t, client, id)
	channel := first.channel()
	for n := range 100 {
		result, err := callChannel(t, channel, &invoke.Invocation{ID: 1, Function: "calls"})
		if err != nil || string(result.Output) != fmt.Sprint(n+1) {
			t.Fatalf("%+v, %v", result, err)
		}
	}
	second := attachWorker(t, client, id)
	ended := false
	for limit := time.Now().Add(10 * time.Second); !ended && time.Now().Before(limit); {
		_, err := callChannel(t, channel, &invoke.Invocation{ID: 1, Function: "add"})
		if ended = err == invoke.ErrNotSent || err == io.EOF; !ended {
			time.Sleep(time.Millisecond)
		}
	}
	if !ended {
		t.Fatal("the channel of a connection that was replaced goes on")
	}
	for n := range invoke.WorkerChannelsMax { // a thread of the worker for each
		channel = second.channel()
		result, err := callChannel(t, channel, &invoke.Invocation{ID: 1, Function: "calls"})
		if err != nil || string(result.Output) != fmt.Sprint(101+n) {
			t.Fatalf("channel %d: %+v, %v", n, result, err)
		}
	}
	time.AfterFunc(50*time.Millisecond, func() {
		p := procfs.Process{PID: int(i.Pid), StartTicks: i.StartTicks}
		_ = p.Signal(unix.SIGKILL)
	})
	if result, err := callChannel(t, channel, &invoke.Invocation{ID: 1, Function: "spin", Milliseconds: 30_000}); err != io.EOF {
		t.Fatalf("%+v, %v", result, err)
	}
}
