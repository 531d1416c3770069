package daemon

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"colloid.net/ipc/caller"
	"colloid.net/ipc/invoke"
	"colloid.net/ipc/uds"
	"colloid.net/meshd/reconcile"
)

// channelWorker is a fake worker that takes channels: it answers on both ways with its own name in front.
type channelWorker struct {
	*fakeWorker
	name string

	mutex    sync.Mutex
	lie      func(channel *invoke.Channel, v *invoke.Invocation) // answers the function of that name
	channels map[uint64]*invoke.Channel
	direct   int // invocations that came through channels
}

func (r *running) channelWorker(key string, slot uint16, name string) *channelWorker {
	w := &channelWorker{fakeWorker: r.connectWorker(key, slot, 0), name: name, channels: map[uint64]*invoke.Channel{}}
	w.hello()
	go w.serve()
	return w
}

func (w *channelWorker) answer(v *invoke.Invocation) *invoke.Result {
	switch v.Function {
	case "late":
		time.Sleep(50 * time.Millisecond)
	case "fail":
		return &invoke.Result{ID: v.ID, Errno: invoke.ErrorTimeout, Output: []byte("fail took longer than its deadline")}
	}
	return &invoke.Result{ID: v.ID, Output: append([]byte(w.name+" "), v.Arguments[0]...)}
}

func (w *channelWorker) serve() {
	buffer := make([]byte, invoke.FrameMax+1)
	for {
		body, file, err := w.conn.ReceiveFile(buffer)
		if err != nil {
			return
		}
		switch frame := body.(type) {
		case *invoke.Invocation:
			_ = w.conn.Send(w.answer(frame))
		case *invoke.ChannelOpen:
			channel, err := invoke.OpenChannel(file)
			if err != nil {
				w.t.Error(err)
				return
			}
			w.mutex.Lock()
			w.channels[frame.ID] = channel
			w.mutex.Unlock()
			go w.serveChannel(frame.ID, channel)
		}
	}
}

func (w *channelWorker) serveChannel(id uint64, channel *invoke.Channel) {
	buffer, count := make([]byte, invoke.FrameMax+1), uint64(0)
	for {
		body, err := channel.Receive(buffer)
		v, is := body.(*invoke.Invocation)
		if err != nil || !is || v.Function == "die" {
			break
		}
		count++
		w.mutex.Lock()
		w.direct++
		lie := w.lie
		w.mutex.Unlock()
		switch {
		case v.Function == "never":
		case v.Function == "lie" && lie != nil:
			lie(channel, v)
		default:
			_ = channel.Send(w.answer(v))
		}
	}
	w.mutex.Lock()
	delete(w.channels, id)
	w.mutex.Unlock()
	channel.Close()
	_ = w.conn.Send(&invoke.ChannelEnd{ID: id, Invocations: count})
}

func (w *channelWorker) count() (direct, open int) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.direct, len(w.channels)
}

func (r *running) caller(name string) *caller.Caller {
	r.t.Helper()
	c, err := caller.Open(r.options.Socket, name)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	return c
}

func (r *running) channelCount() int {
	w := &r.daemon.workers
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.channels
}

func (r *running) awaitChannels(n int) {
	r.t.Helper()
	for limit := time.Now().Add(10 * time.Second); r.channelCount() != n; time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			r.t.Fatalf("%d channels, expected %d", r.channelCount(), n)
		}
	}
}

func says(t *testing.T, c *caller.Caller, argument, want string) {
	t.Helper()
	result, err := c.Call(&invoke.Invocation{Function: "f", Milliseconds: 500, Arguments: [][]byte{[]byte(argument)}})
	if err != nil || string(result.Output) != want {
		t.Fatalf("%+v, %v, expected %q", result, err, want)
	}
}

// callFails expects an error with a number.
func callFails(t *testing.T, c *caller.Caller, function string, errno uint16) {
	t.Helper()
	result, err := c.Call(&invoke.Invocation{Function: function, Milliseconds: 100, Arguments: [][]byte{[]byte("x")}})
	var reply *uds.ReplyError
	if !errors.As(err, &reply) || reply.Errno != errno {
		t.Fatalf("%s: %+v, %v", function, result, err)
	}
}

// TestACallerReachesItsWorkerDirectly, and everything that ends with the client's connection ends.
func TestACallerReachesItsWorkerDirectly(t *testing.T) {
	r := launch(t, "epoll")
	w := r.channelWorker("wasm.w", 0, "one")
	r.connected("w")
	c := r.caller("wasm.w")
	for range 100 {
		says(t, c, "x", "one x")
	}
	callFails(t, c, "fail", uds.ErrorDeadline)
	says(t, c, "y", "one y")
	if direct, open := w.count(); direct != 102 || open != 1 || r.channelCount() != 1 {
		t.Errorf("%d calls came directly, %d channels of the worker, %d of meshd", direct, open, r.channelCount())
	}
	c.Close()
	r.awaitChannels(0)
	for limit := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, open := w.count(); open == 0 {
			break
		}
		if time.Now().After(limit) {
			t.Fatal("the worker keeps its end")
		}
	}
	if _, err := c.Call(&invoke.Invocation{}); err != caller.ErrClosed {
		t.Error(err)
	}
}

// TestF135_AChannelEndsWithTheConnectionThatMayInvoke: whoever kept the descriptor cannot use it any more.
func TestF135_AChannelEndsWithTheConnectionThatMayInvoke(t *testing.T) {
	r := launch(t, "epoll")
	w := r.channelWorker("wasm.w", 0, "one")
	r.connected("w")
	client, err := uds.Dial(r.options.Socket)
	if err != nil {
		t.Fatal(err)
	}
	_, file, err := client.DoFile(uds.CodeWasmChannel, []byte("w"))
	if err != nil {
		t.Fatal(err)
	}
	channel, err := invoke.OpenChannel(file)
	if err != nil {
		t.Fatal(err)
	}
	defer channel.Close()
	call := &invoke.Invocation{ID: 1, Function: "late", Arguments: [][]byte{[]byte("x")}}
	if err := channel.Send(call); err != nil {
		t.Fatal(err)
	}
	client.Close()
	r.awaitChannels(0)
	if err := channel.Send(call); err != invoke.ErrNotSent {
		t.Errorf("sent: %v", err)
	}
	body, err := channel.Receive(make([]byte, invoke.FrameMax+1)) // what was sent before is done
	if result, is := body.(*invoke.Result); !is || string(result.Output) != "one x" {
		t.Errorf("%v, %v", body, err)
	}
	if direct, _ := w.count(); direct != 1 {
		t.Errorf("%d calls", direct)
	}
}

// TestNoChannelLeadsToAnEarlierWorker: an instance that is stopped, replaced or whose connection ends takes no
// more calls, though its process goes on; the next call reaches the one that runs now.
func TestNoChannelLeadsToAnEarlierWorker(t *testing.T) {
	r := launch(t, "epoll")
	for round, end := range []func(w *channelWorker){
		func(w *channelWorker) { w.report(r, reconcile.Stopping, 100) },
		func(w *channelWorker) { w.report(r, reconcile.Exited, 0) },
		func(w *channelWorker) { w.report(r, reconcile.Ready, 101) }, // another process
		func(w *channelWorker) { w.conn.Close() },
	} {
		old := r.channelWorker("wasm.w", 0, "old")
		r.connected("w")
		c := r.caller("w")
		says(t, c, "x", "old x")
		end(old)
		r.awaitChannels(0)
		r.daemon.workers.close()
		r.channelWorker("wasm.w", 1, "new")
		r.connected("w")
		for range 3 {
			says(t, c, "x", "new x")
		}
		if direct, _ := old.count(); direct != 1 {
			t.Errorf("round %d: the old worker had %d calls", round, direct)
		}
		c.Close()
		r.daemon.workers.close()
		r.awaitChannels(0)
	}
}

// report has runnerd say something else of a worker's instance.
func (f *fakeWorker) report(r *running, state reconcile.State, pid uint32) {
	f.actual.State, f.actual.PID = state, pid
	done := make(chan struct{})
	r.daemon.inbox.post(func() { r.daemon.workers.observe(&f.actual); close(done) })
	<-done
}

// TestACallerSaysWhenACallMayHaveRun: a worker that dies during a call costs that call and no other.
func TestACallerSaysWhenACallMayHaveRun(t *testing.T) {
	r := launch(t, "epoll")
	r.channelWorker("wasm.w", 0, "one")
	r.connected("w")
	c := r.caller("w")
	says(t, c, "x", "one x")
	callFails(t, c, "die", invoke.ErrorGone)
	says(t, c, "y", "one y")
}

// TestCallersDoWithoutAChannel: with a worker of an earlier version, with all channels taken, and with none there.
func TestCallersDoWithoutAChannel(t *testing.T) {
	r := launch(t, "epoll")
	c := r.caller("w")
	callFails(t, c, "f", uds.ErrorNotFound)
	c.Close()
	c = r.caller("w") // which has not been refused a channel yet
	old := r.connectWorker("wasm.w", 0, 0)
	if err := old.conn.Send(&invoke.Hello{Version: 1, Style: invoke.StyleFunctions}); err != nil {
		t.Fatal(err)
	}
	r.connected("w")
	go old.echo()
	says(t, c, "x", "f x")
	says(t, c, "x", "f x")
	if n := r.channelCount(); n != 0 {
		t.Errorf("%d channels to a worker that knows none", n)
	}
	c.Close()
	r.daemon.workers.close()
	w := r.channelWorker("wasm.w", 0, "one")
	r.connected("w")
	var callers []*caller.Caller
	for range invoke.ChannelsMax + 2 {
		c := r.caller("w")
		says(t, c, "x", "one x")
		callers = append(callers, c)
	}
	if direct, _ := w.count(); direct != invoke.ChannelsMax || r.channelCount() != invoke.ChannelsMax {
		t.Errorf("%d channels, %d calls through them", r.channelCount(), direct)
	}
	for _, c := range callers {
		says(t, c, "y", "one y")
	}
}

// TestF142_AWorkerThatLiesAboutChannelsEndsItsOwn.
func TestF142_AWorkerThatLiesAboutChannelsEndsItsOwn(t *testing.T) {
	r := launch(t, "epoll")
	w := r.channelWorker("wasm.w", 0, "one")
	r.connected("w")
	c := r.caller("w")
	says(t, c, "x", "one x")
	w.mutex.Lock()
	for id := range w.channels { // which it goes on serving
		_ = w.conn.Send(&invoke.ChannelEnd{ID: id, Invocations: 1 << 63})
	}
	w.mutex.Unlock()
	r.awaitChannels(0)
	says(t, c, "x", "one x")
	r.awaitChannels(1)
	for _, id := range []uint64{0, 1 << 63} {
		_ = w.conn.Send(&invoke.ChannelEnd{ID: id})
	}
	says(t, c, "y", "one y")
	_ = w.conn.Send(&invoke.ChannelOpen{ID: 5}) // what only meshd sends
	r.connected("")
	r.awaitChannels(0)
}

// TestACallerOutlivesMeshd: with a new meshd at the same socket it goes on.
func TestACallerOutlivesMeshd(t *testing.T) {
	r := launch(t, "epoll")
	r.channelWorker("wasm.w", 0, "one")
	r.connected("w")
	c := r.caller("w")
	says(t, c, "x", "one x")
	r.stop()
	_, err := c.Call(&invoke.Invocation{Function: "f", Arguments: [][]byte{[]byte("x")}})
	if err == nil || !strings.Contains(err.Error(), "no daemon is running") {
		t.Fatalf("without a meshd: %v", err)
	}
	r.start()
	r.channelWorker("wasm.w", 0, "two")
	r.connected("w")
	says(t, c, "x", "two x")
	r.awaitChannels(1)
}

// TestAWorkerThatIsStoppedGivesTheResultsOfWhatItHas: an instance that is being stopped is chosen no more, its channels end, and
// the calls it had been sent get their results as long as its connection lasts.
func TestAWorkerThatIsStoppedGivesTheResultsOfWhatItHas(t *testing.T) {
	r := launch(t, "epoll")
	f := r.connectWorker("wasm.x", 0, 0)
	f.hello()
	eventually(t, "the registry", func() bool { return len(r.daemon.workers.names()) == 1 })
	type outcome struct {
		output []byte
		err    error
	}
	outcomes := make(chan outcome, 1)
	go func() {
		output, err := r.invoke("x", "slow", "1")
		outcomes <- outcome{output, err}
	}()
	body, err := f.receive()
	call, is := body.(*invoke.Invocation)
	if err != nil || !is {
		t.Fatalf("%v, %v", body, err)
	}
	f.actual.State = reconcile.Stopping
	r.daemon.inbox.post(func() { r.daemon.workers.observe(&f.actual) })
	eventually(t, "the registry", func() bool { return len(r.daemon.workers.names()) == 0 })
	if output, err := r.invoke("x", "next", "1"); err == nil {
		t.Errorf("an instance that is being stopped was called: %q", output)
	}
	if err := f.conn.Send(&invoke.Result{ID: call.ID, Output: []byte("done")}); err != nil {
		t.Fatal(err)
	}
	if o := <-outcomes; o.err != nil || string(o.output) != "done" {
		t.Errorf("%q, %v, want the result", o.output, o.err)
	}
	f.conn.Close()
	w := &r.daemon.workers
	eventually(t, "the registry", func() bool {
		w.mutex.Lock()
		defer w.mutex.Unlock()
		return len(w.byInstance) == 0 && len(w.accounts) == 0
	})
}
