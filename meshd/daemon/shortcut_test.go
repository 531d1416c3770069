package daemon

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"colloid.net/ipc/invoke"
	"colloid.net/ipc/uds"
	"colloid.net/meshd/reconcile"
)

// client is a connection over which invocations go through meshd.
type client struct {
	t *testing.T
	*uds.Client
}

func (r *running) client(t *testing.T) *client {
	t.Helper()
	c, err := uds.Dial(r.options.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &client{t, c}
}

func (c *client) invoke(function, argument string, milliseconds uint32) (string, error) {
	call := &invoke.Invocation{Function: function, Milliseconds: milliseconds, Arguments: [][]byte{[]byte(argument)}}
	reply, err := c.Do(uds.CodeWasmInvoke, invoke.AppendCall(nil, "w", call))
	if err != nil {
		return "", err
	}
	result, err := invoke.ParseOutcome(reply)
	if err != nil {
		return "", err
	}
	return string(result.Output), nil
}

func (c *client) says(argument, want string) {
	c.t.Helper()
	if output, err := c.invoke("f", argument, 5000); err != nil || output != want {
		c.t.Fatalf("%q, %v, expected %q", output, err, want)
	}
}

func (c *client) fails(function string, milliseconds uint32, errno uint16) {
	c.t.Helper()
	output, err := c.invoke(function, "x", milliseconds)
	var reply *uds.ReplyError
	if !errors.As(err, &reply) || reply.Errno != errno {
		c.t.Fatalf("%s: %q, %v, expected error %d", function, output, err, errno)
	}
}

// warm makes calls until there is a shortcut, and returns how many there were.
func (r *running) warm(c *client, want string) (calls int) {
	r.t.Helper()
	for limit := time.Now().Add(10 * time.Second); !r.hasShortcut(); calls++ {
		if time.Now().After(limit) {
			r.t.Fatal("no shortcut")
		}
		c.says("x", want)
	}
	return calls
}

// hasShortcut reports whether some worker has one that can be used.
func (r *running) hasShortcut() bool {
	w := &r.daemon.workers
	w.mutex.Lock()
	defer w.mutex.Unlock()
	for _, one := range w.byInstance {
		if one.shortcut != nil && one.shortcut.ready {
			return true
		}
	}
	return false
}

func (r *running) shortcutCount() int {
	w := &r.daemon.workers
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.shortcuts
}

// TestAWorkerThatIsCalledAgainHasAShortcut, by which calls go from then on, of all clients; nobody's use ends it.
func TestAWorkerThatIsCalledAgainHasAShortcut(t *testing.T) {
	r := launch(t, "epoll")
	w := r.channelWorker("wasm.w", 0, "one")
	r.connected("w")
	first, second := r.client(t), r.client(t)
	if calls := r.warm(first, "one x"); calls < 2 {
		t.Errorf("a shortcut after %d calls", calls)
	}
	for range 20 {
		first.says("y", "one y")
		second.says("z", "one z")
	}
	first.fails("fail", 100, uds.ErrorDeadline)
	if direct, open := w.count(); direct != 41 || open != 1 || r.channelCount() != 0 {
		t.Errorf("%d calls came by the shortcut, %d channels of the worker, %d of clients", direct, open, r.channelCount())
	}
	workers := &r.daemon.workers
	workers.expire()
	if !r.hasShortcut() {
		t.Fatal("it ended while it is used")
	}
	workers.mutex.Lock()
	for _, one := range workers.byInstance {
		one.shortcut.used = time.Now().Add(-shortcutIdle)
	}
	workers.mutex.Unlock()
	workers.expire()
	for limit := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, open := w.count(); open == 0 && r.shortcutCount() == 0 {
			break
		}
		if time.Now().After(limit) {
			t.Fatal("an idle shortcut goes on")
		}
	}
	r.warm(first, "one x")
}

// TestNoShortcutLeadsToAnEarlierWorker: an instance that is stopped, fails, is replaced or moves takes no more
// calls, though its process goes on; the next call reaches the one that runs now, or nobody.
func TestNoShortcutLeadsToAnEarlierWorker(t *testing.T) {
	r := launch(t, "epoll")
	c := r.client(t)
	for round, end := range []func(w *channelWorker){
		func(w *channelWorker) { w.report(r, reconcile.Stopping, 100) },
		func(w *channelWorker) { w.report(r, reconcile.Exited, 0) },
		func(w *channelWorker) { w.report(r, reconcile.Ready, 101) }, // another process
		func(w *channelWorker) { w.conn.Close(); r.connected("") },
	} {
		old := r.channelWorker("wasm.w", 0, "old")
		r.connected("w")
		r.warm(c, "old x")
		c.says("x", "old x")
		before, _ := old.count()
		end(old)
		if n := r.shortcutCount(); n != 0 {
			t.Fatalf("round %d: %d shortcuts", round, n)
		}
		if output, err := c.invoke("f", "x", 100); err == nil {
			t.Errorf("round %d: %q from an instance that has ended", round, output)
		}
		r.daemon.workers.close()
		r.channelWorker("wasm.w", 1, "new")
		r.connected("w")
		for range 5 {
			c.says("x", "new x")
		}
		if after, _ := old.count(); after != before || before == 0 {
			t.Errorf("round %d: the old worker had %d calls, then %d", round, before, after)
		}
		r.daemon.workers.close()
	}
}

// TestACallByShortcutEndsWithItsInstance: at once, with the number that says that it may have run.
func TestACallByShortcutEndsWithItsInstance(t *testing.T) {
	r := launch(t, "epoll")
	w := r.channelWorker("wasm.w", 0, "one")
	r.connected("w")
	c := r.client(t)
	r.warm(c, "one x")
	began := time.Now()
	time.AfterFunc(50*time.Millisecond, func() { w.report(r, reconcile.Exited, 0) })
	c.fails("never", 60_000, invoke.ErrorGone)
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	other := r.channelWorker("wasm.w", 0, "two")
	r.connected("w")
	r.warm(c, "two x")
	c.fails("die", 5000, invoke.ErrorGone) // it closes the channel without an answer
	c.says("x", "two x")
	other.conn.Close()
	r.connected("")
	c.fails("f", 100, uds.ErrorBusy)
}

// TestF144_DeadlinesHoldByShortcut: who waits for a silent worker has an answer in time, and one that comes late is not
// taken for another call's.
func TestF144_DeadlinesHoldByShortcut(t *testing.T) {
	r := launch(t, "epoll")
	r.channelWorker("wasm.w", 0, "one")
	r.connected("w")
	c := r.client(t)
	r.warm(c, "one x")
	patience := (&invoke.Invocation{Milliseconds: 1}).Patience()
	workers := &r.daemon.workers
	workers.mutex.Lock()
	s := workers.byInstance[reconcile.InstanceID{KeyHash: 1, Slot: 0, Digest: 2}].shortcut
	workers.mutex.Unlock()
	began := time.Now()
	c.fails("never", 1, uds.ErrorDeadline)
	if took := time.Since(began); took < patience || took > patience+5*time.Second {
		t.Errorf("it took %v, expected %v", took, patience)
	}
	workers.mutex.Lock()
	ended := s.ended
	workers.mutex.Unlock()
	if !ended {
		t.Error("a shortcut goes on whose answer is missing")
	}
	for range 3 {
		c.says("y", "one y")
	}
}

// TestF142_AWorkerThatLiesByShortcut costs its connection; the client hears that its call may have run.
func TestF142_AWorkerThatLiesByShortcut(t *testing.T) {
	for name, lie := range map[string]func(channel *invoke.Channel, v *invoke.Invocation){
		"another number": func(channel *invoke.Channel, v *invoke.Invocation) {
			_ = channel.Send(&invoke.Result{ID: v.ID + 1, Output: []byte("lie")})
		},
		"another frame": func(channel *invoke.Channel, v *invoke.Invocation) { _ = channel.Send(&invoke.Hello{}) },
		"no frame":      func(channel *invoke.Channel, v *invoke.Invocation) { _ = channel.SendRaw([]byte{255}) },
	} {
		t.Run(name, func(t *testing.T) {
			r := launch(t, "epoll")
			w := r.channelWorker("wasm.w", 0, "one")
			w.mutex.Lock()
			w.lie = lie
			w.mutex.Unlock()
			r.connected("w")
			c := r.client(t)
			r.warm(c, "one x")
			c.fails("lie", 5000, invoke.ErrorGone)
			r.connected("")
			if n := r.shortcutCount(); n != 0 {
				t.Errorf("%d shortcuts", n)
			}
		})
	}
}

// TestAShortcutThatIsRefusedCostsNothing: a worker with all its channels taken, or of another mind.
func TestAShortcutThatIsRefusedCostsNothing(t *testing.T) {
	r := launch(t, "epoll")
	refusing := r.connectWorker("wasm.w", 0, 0)
	refusing.hello()
	var offered atomic.Int64
	go func() {
		for {
			body, file, err := refusing.conn.ReceiveFile(make([]byte, invoke.FrameMax+1))
			if err != nil {
				return
			}
			switch frame := body.(type) {
			case *invoke.ChannelOpen:
				offered.Add(1)
				file.Close()
				_ = refusing.conn.Send(&invoke.ChannelEnd{ID: frame.ID})
			case *invoke.Invocation:
				_ = refusing.conn.Send(&invoke.Result{ID: frame.ID, Output: []byte("ok")})
			}
		}
	}()
	r.connected("w")
	c := r.client(t)
	for range 50 {
		c.says("x", "ok")
	}
	if r.hasShortcut() {
		t.Error("a shortcut that the worker refused")
	}
	refusing.conn.Close()
	r.connected("")
	if offered.Load() == 0 {
		t.Error("none was offered")
	}
	r.daemon.workers.close()
	deaf := r.connectWorker("wasm.w", 0, 0) // it drops what comes with frames
	deaf.hello()
	go deaf.echo()
	r.connected("w")
	for range 50 {
		c.says("x", "f x")
	}
}

// TestAStoppingDaemonWaitsForNoShortcut.
func TestAStoppingDaemonWaitsForNoShortcut(t *testing.T) {
	r := launch(t, "epoll")
	r.channelWorker("wasm.w", 0, "one")
	r.connected("w")
	c := r.client(t)
	r.warm(c, "one x")
	failed := make(chan error, 1)
	go func() {
		_, err := c.invoke("never", "x", 60_000)
		failed <- err
	}()
	time.Sleep(50 * time.Millisecond)
	began := time.Now()
	r.stop()
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
	if err := <-failed; err == nil || strings.Contains(err.Error(), "may have run") {
		t.Error(err)
	}
}

// TestShortcutsAndQueueTogetherAreBounded: what is under way by shortcut counts among those that wait.
func TestShortcutsAndQueueTogetherAreBounded(t *testing.T) {
	w := &worker{pending: map[uint64]waiter{1: {}}, shortcut: &shortcut{}}
	if w.load() != 1 {
		t.Error(w.load())
	}
	if w.shortcut.busy = true; w.load() != 2 {
		t.Error(w.load())
	}
}

// TestHelloNeedsNotTheReactor as long as that does its work, and waits for it when it does not.
func TestHelloNeedsNotTheReactor(t *testing.T) {
	r := launch(t, "epoll")
	c := r.client(t)
	hello := func() (reply uds.HelloReply, err error) {
		err = c.DoJSON(uds.CodeHello, []byte{0, uds.ProtocolVersion}, &reply)
		return reply, err
	}
	if reply, err := hello(); err != nil || reply.State != "active" || reply.Cell == "" {
		t.Fatalf("%+v, %v", reply, err)
	}
	for _, text := range []string{"no answer from seed", ""} {
		set := make(chan struct{})
		r.daemon.inbox.post(func() { r.daemon.cell.SetJoining(text, true, false); close(set) })
		<-set
		for limit := time.Now().Add(5 * time.Second); ; {
			reply, err := hello()
			if err == nil && reply.Joining == text {
				break
			}
			if err != nil || time.Now().After(limit) {
				t.Fatalf("%+v, %v", reply, err)
			}
		}
	}
	release, entered := make(chan struct{}), make(chan struct{})
	r.daemon.inbox.post(func() { close(entered); <-release })
	<-entered
	r.daemon.greeting.due.Store(int64(r.daemon.reactor.Now()))
	if _, err := hello(); err != nil {
		t.Fatal(err)
	}
	r.daemon.greeting.due.Store(int64(r.daemon.reactor.Now().Add(-2 * greetingPatience)))
	answered := make(chan error, 1)
	go func() { _, err := hello(); answered <- err }()
	select {
	case err := <-answered:
		t.Errorf("an answer for a reactor that hangs: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(release)
	if err := <-answered; err != nil {
		t.Error(err)
	}
}
