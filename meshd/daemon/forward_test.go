package daemon

import (
	"bytes"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"colloid.net/ipc/invoke"
	"colloid.net/ipc/uds"
	"colloid.net/meshd/cell"
	"colloid.net/meshd/stream"
	"colloid.net/meshd/wire"
)

// elsewhere makes a cell believe that others have instances of everything.
func (r *running) elsewhere(hosts ...wire.CellID) {
	r.inspect(func(*cell.Cell) {
		r.daemon.workers.hosts = func(string) []wire.CellID { return hosts }
	})
}

// waitIdle waits until no invocation and no stream is left.
func waitIdle(t *testing.T, cells ...*running) {
	t.Helper()
	eventually(t, "nothing is left of the invocations", func() bool {
		left := 0
		for _, r := range cells {
			r.inspect(func(c *cell.Cell) { left += c.Streams().Len() + r.daemon.workers.serving })
		}
		return left == 0
	})
}

func refusedWith(t *testing.T, err error, errno uint16, text string) {
	t.Helper()
	var reply *uds.ReplyError
	if !errors.As(err, &reply) || reply.Errno != errno || !strings.Contains(reply.Text, text) {
		t.Fatalf("%v, expected errno %d with %q", err, errno, text)
	}
}

// TestF144_InvocationsReachOtherCells: a cell without an instance asks one that has it, and gives back whatever
// comes of it: output, trap, deadline, and why there is nobody.
func TestF144_InvocationsReachOtherCells(t *testing.T) {
	a, b, target := pair(t, "epoll")
	a.elsewhere(target)
	_, err := a.invoke("w", "f", "x")
	refusedWith(t, err, uds.ErrorNotFound, "no workload is named \"w\"") // b has none any more, and nobody knows it
	f := b.connectWorker("wasm.w", 0, 0)
	f.hello()
	b.connected("w")
	var deadline atomic.Uint32
	go func() {
		for {
			body, err := f.receive()
			if err != nil {
				return
			}
			v := body.(*invoke.Invocation)
			deadline.Store(v.Milliseconds)
			result := &invoke.Result{ID: v.ID, Status: 7, Output: append([]byte(v.Function+" "), v.Arguments[0]...)}
			switch v.Function {
			case "trap":
				result.Errno, result.Output = invoke.ErrorIO, []byte("trapped")
			case "late":
				result.Errno, result.Output = invoke.ErrorTimeout, []byte("too late")
			case "large":
				result.Output = bytes.Repeat([]byte("o"), invoke.OutputMax)
			}
			_ = f.conn.Send(result)
		}
	}()
	large := strings.Repeat("a", invoke.ArgumentSum)
	for _, argument := range []string{"x", large} {
		if output, err := a.invoke("wasm.w", "f", argument); err != nil || string(output) != "f "+argument {
			t.Fatalf("%.80q, %v", output, err)
		}
	}
	if deadline.Load() != 100 {
		t.Errorf("the deadline arrived as %d ms", deadline.Load())
	}
	if output, err := a.invoke("w", "large", "x"); err != nil || len(output) != invoke.OutputMax {
		t.Fatalf("%d bytes, %v", len(output), err)
	}
	_, err = a.invoke("w", "trap", "x")
	refusedWith(t, err, invoke.ErrorIO, "trapped")
	_, err = a.invoke("w", "late", "x")
	refusedWith(t, err, uds.ErrorDeadline, "too late")
	// A cell that is gone is passed over; the one after it answers.
	a.elsewhere(^target, target)
	for range 2 {
		if output, err := a.invoke("w", "f", "y"); err != nil || string(output) != "f y" {
			t.Fatalf("%q, %v", output, err)
		}
	}
	a.elsewhere()
	_, err = a.invoke("w", "f", "x")
	refusedWith(t, err, uds.ErrorNotFound, "no workload is named")
	waitIdle(t, a, b)
}

// TestF144_AnotherCellServesWhileTheOwnInstanceCannot: while the instance here starts, or has as much to do as it takes,
// one elsewhere does the invocation; without one the reason says which of the two it is, and where.
func TestF144_AnotherCellServesWhileTheOwnInstanceCannot(t *testing.T) {
	a, b, target := pair(t, "epoll")
	own := a.connectWorker("wasm.w", 0, 0) // no Hello yet: it starts
	a.elsewhere(target)
	_, err := a.invoke("w", "f", "x")
	refusedWith(t, err, uds.ErrorBusy, "the instance of w on this cell is starting: try again")
	f := b.connectWorker("wasm.w", 0, 0)
	_, err = a.invoke("w", "f", "x")
	refusedWith(t, err, uds.ErrorBusy, "the instance of w on cell "+target.String()+" is starting: try again")
	f.hello()
	b.connected("w")
	go f.echo()
	for range 3 {
		if output, err := a.invoke("w", "f", "x"); err != nil || string(output) != "f x" {
			t.Fatalf("%q, %v", output, err)
		}
	}
	own.hello()
	a.connected("w")
	fill := func(r *running) (empty func()) {
		w := &r.daemon.workers
		w.mutex.Lock()
		defer w.mutex.Unlock()
		for _, one := range w.byInstance {
			for id := range uint64(invoke.InvocationsMax) {
				one.pending[1<<40+id] = waiter{make(chan *invoke.Result, 1), time.Now().Add(time.Hour)}
			}
		}
		return func() {
			w.mutex.Lock()
			defer w.mutex.Unlock()
			for _, one := range w.byInstance {
				for id := range uint64(invoke.InvocationsMax) {
					delete(one.pending, 1<<40+id)
				}
			}
		}
	}
	emptyOwn := fill(a)
	if output, err := a.invoke("w", "f", "y"); err != nil || string(output) != "f y" {
		t.Fatalf("%q, %v", output, err)
	}
	empty := fill(b)
	_, err = a.invoke("w", "f", "y")
	refusedWith(t, err, uds.ErrorBusy, "this cell has 64 invocations to do already")
	emptyOwn()
	a.daemon.workers.drop(a.daemon.workers.byInstance[own.actual.ID])
	_, err = a.invoke("w", "f", "y")
	refusedWith(t, err, uds.ErrorBusy, "on cell "+target.String()+" has 64 invocations to do already")
	empty()
	waitIdle(t, a, b)
}

// TestF144_AForwardedCallRunsOnce: when the worker ends under it, no other cell is asked: it may have had effects.
func TestF144_AForwardedCallRunsOnce(t *testing.T) {
	a, b, target := pair(t, "epoll")
	a.elsewhere(target, target, target)
	f := b.connectWorker("wasm.w", 0, 0)
	f.hello()
	b.connected("w")
	var calls atomic.Int32
	go func() {
		_, _ = f.receive()
		calls.Add(1)
		f.conn.Close()
	}()
	_, err := a.invoke("w", "f", "x")
	refusedWith(t, err, invoke.ErrorGone, "ended while")
	if calls.Load() != 1 {
		t.Fatalf("%d calls", calls.Load())
	}
	waitIdle(t, a, b)
}

// TestF144_ForwardedCallsAreBounded: what is no request ends its stream and is forgotten, and a cell takes
// forwardsMax at a time.
func TestF144_ForwardedCallsAreBounded(t *testing.T) {
	a, b, target := pair(t, "epoll")
	call := invoke.AppendCall(nil, "w", &invoke.Invocation{Function: "f"})
	for name, request := range map[string][]byte{
		"another name": invoke.AppendCall(nil, "v", &invoke.Invocation{Function: "f"}),
		"cut":          call[:len(call)-1],
		"nothing":      {},
		"too long":     make([]byte, uds.RequestMax+1),
	} {
		c := dialStreams(t, a)
		open := uds.StreamOpen{Kind: uds.StreamInvoke, Cell: uint64(target), Name: "wasm.w"}
		if err := c.Open(open); err != nil {
			t.Fatal(err)
		}
		_ = c.Write(0, request)
		_ = c.CloseWrite(0)
		for {
			event := next(t, c)
			if len(event.Data) > 0 || event.Closed && event.Err == nil {
				t.Fatalf("%s: %+v", name, event)
			}
			if event.Closed {
				break
			}
		}
	}
	waitIdle(t, a, b)
	b.inspect(func(*cell.Cell) { b.daemon.workers.serving = forwardsMax })
	a.elsewhere(target)
	_, err := a.invoke("w", "f", "x")
	refusedWith(t, err, uds.ErrorBusy, stream.ReasonBusy.String())
	b.inspect(func(*cell.Cell) { b.daemon.workers.serving = 0 })
}

// TestF144_AWorkerThatDoesNotAnswerIsGivenUp: expire answers for it.
func TestF144_AWorkerThatDoesNotAnswerIsGivenUp(t *testing.T) {
	r := launch(t, "epoll")
	f := r.connectWorker("wasm.w", 0, 0)
	f.hello()
	r.connected("w")
	done := make(chan error, 1)
	go func() {
		_, err := r.invoke("w", "f", "x")
		done <- err
	}()
	if _, err := f.receive(); err != nil {
		t.Fatal(err)
	}
	w := &r.daemon.workers
	w.mutex.Lock()
	for id, waiting := range w.byInstance[f.actual.ID].pending {
		waiting.until = time.Now()
		w.byInstance[f.actual.ID].pending[id] = waiting
	}
	w.mutex.Unlock()
	refusedWith(t, <-done, uds.ErrorDeadline, "does not answer")
}
