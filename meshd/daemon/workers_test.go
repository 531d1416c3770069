package daemon

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"colloid.net/ipc/invoke"
	"colloid.net/ipc/uds"
	"colloid.net/meshd/reconcile"
	"colloid.net/workload"
)

// fakeWorker is the worker's end of a connection that the registry believes to be an instance's.
type fakeWorker struct {
	t      testing.TB
	conn   *invoke.Conn
	actual reconcile.Actual
	next   uint64 // of callThrough
}

// connectWorker enters an instance into the registry and connects it as runnerd would.
func (r *running) connectWorker(key string, slot uint16, capabilities uint32) *fakeWorker {
	r.t.Helper()
	spec, err := workload.Encode(&workload.Spec{
		Runtime: workload.RuntimeWasm, Replicas: 1, Image: "file:///x.wasm", Capabilities: capabilities,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	f := &fakeWorker{t: r.t, actual: reconcile.Actual{
		ID: reconcile.InstanceID{KeyHash: 1, Slot: slot, Digest: 2}, Key: key, State: reconcile.Ready, PID: 100, Spec: spec,
	}}
	w := &r.daemon.workers
	done := make(chan struct{})
	r.daemon.inbox.post(func() { w.observe(&f.actual); close(done) })
	<-done
	one, other, err := invoke.Pair()
	if err != nil {
		r.t.Fatal(err)
	}
	w.mutex.Lock()
	to := w.byInstance[f.actual.ID]
	channel := to.channel
	w.mutex.Unlock()
	w.connect(to, channel, one)
	if f.conn, err = invoke.Open(other); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { f.conn.Close() })
	return f
}

func (f *fakeWorker) hello() {
	if err := f.conn.Send(&invoke.Hello{Style: invoke.StyleFunctions}); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fakeWorker) receive() (any, error) { return f.conn.Receive(make([]byte, invoke.FrameMax+1)) }

// ask sends one request and returns the first answer.
func (f *fakeWorker) ask(request *invoke.Request) *invoke.Answer {
	f.t.Helper()
	if err := f.conn.Send(request); err != nil {
		f.t.Fatal(err)
	}
	body, err := f.receive()
	answer, ok := body.(*invoke.Answer)
	if err != nil || !ok || answer.ID != request.ID {
		f.t.Fatalf("%v, %v", body, err)
	}
	return answer
}

// echo answers every invocation with its function and arguments.
func (f *fakeWorker) echo() {
	for {
		body, err := f.receive()
		if err != nil {
			return
		}
		v, is := body.(*invoke.Invocation)
		if !is {
			continue // a channel is offered, whose descriptor was not taken
		}
		_ = f.conn.Send(&invoke.Result{ID: v.ID, Output: append([]byte(v.Function+" "), v.Arguments[0]...)})
	}
}

func (r *running) invoke(name, function, argument string) ([]byte, error) {
	r.t.Helper()
	client, err := uds.Dial(r.options.Socket)
	if err != nil {
		r.t.Fatal(err)
	}
	defer client.Close()
	call := &invoke.Invocation{Function: function, Milliseconds: 100, Arguments: [][]byte{[]byte(argument)}}
	reply, err := client.Do(uds.CodeWasmInvoke, invoke.AppendCall(nil, name, call))
	if err != nil {
		return nil, err
	}
	result, err := invoke.ParseOutcome(reply)
	if err != nil {
		r.t.Fatal(err)
	}
	return result.Output, nil
}

func (r *running) connected(names string) {
	r.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if strings.Join(r.daemon.workers.names(), " ") == names {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("connected are %q", r.daemon.workers.names())
		}
	}
}

func TestF144_InvocationsGoToAConnectedWorker(t *testing.T) {
	r := launch(t, "epoll")
	refused := func(name string, errno uint16, text string) {
		t.Helper()
		_, err := r.invoke(name, "f", "x")
		var reply *uds.ReplyError
		if !errors.As(err, &reply) || reply.Errno != errno || !strings.Contains(reply.Text, text) {
			t.Fatalf("%v", err)
		}
	}
	refused("w", uds.ErrorNotFound, "no workload is named \"w\"")
	f := r.connectWorker("wasm.w", 0, 0)
	refused("w", uds.ErrorBusy, "starting")
	f.hello()
	r.connected("w")
	go f.echo()
	for _, name := range []string{"w", "wasm.w"} {
		if output, err := r.invoke(name, "f", "x"); err != nil || string(output) != "f x" {
			t.Fatalf("%q, %v", output, err)
		}
	}
	f.conn.Close()
	r.connected("")
	refused("w", uds.ErrorBusy, "starting")
	f.actual.State = reconcile.Exited
	f.actual.PID = 0
	done := make(chan struct{})
	r.daemon.inbox.post(func() { r.daemon.workers.observe(&f.actual); close(done) })
	<-done
	refused("w", uds.ErrorNotFound, "no workload is named \"w\"")
}

// TestF142_AWorkerThatEndsOrLiesCostsItsConnectionOnly: what waits for it is answered, others go on.
func TestF142_AWorkerThatEndsOrLiesCostsItsConnectionOnly(t *testing.T) {
	r := launch(t, "epoll")
	good := r.connectWorker("wasm.good", 1, 0)
	good.hello()
	r.connected("good")
	go good.echo()
	for name, lie := range map[string]func(f *fakeWorker){
		"no hello":        func(f *fakeWorker) { _ = f.conn.Send(&invoke.Result{ID: 1}) },
		"two hellos":      func(f *fakeWorker) { f.hello(); f.hello() },
		"an invocation":   func(f *fakeWorker) { f.hello(); _ = f.conn.Send(&invoke.Invocation{ID: 1}) },
		"an answer":       func(f *fakeWorker) { f.hello(); _ = f.conn.Send(&invoke.Answer{ID: 1}) },
		"a request flood": func(f *fakeWorker) { f.hello(); f.flood() },
	} {
		f := r.connectWorker("wasm.evil", 0, workload.CapabilitiesKnown)
		lie(f)
		for range 1000 {
			if _, err := f.receive(); err != nil {
				break
			}
		}
		if output, err := r.invoke("good", "f", name); err != nil || string(output) != "f "+name {
			t.Fatalf("%s: %q, %v", name, output, err)
		}
		r.daemon.workers.drop(r.daemon.workers.byInstance[f.actual.ID])
	}
	f := r.connectWorker("wasm.evil", 0, 0)
	f.hello()
	r.connected("evil good")
	go func() {
		_, _ = f.receive() // the invocation
		_ = f.conn.Send(&invoke.Result{ID: 999})
		f.conn.Close()
	}()
	_, err := r.invoke("evil", "f", "x")
	var reply *uds.ReplyError
	if !errors.As(err, &reply) || reply.Errno != invoke.ErrorGone {
		t.Fatalf("%v", err)
	}
}

// flood asks for more at a time than a worker ever has under way, without reading answers.
func (f *fakeWorker) flood() {
	for id := range uint64(5000) {
		if f.conn.Send(&invoke.Request{ID: id, Operation: invoke.OperationSnapshot}) != nil {
			return
		}
	}
	f.conn.Close() // all were served in time: no harm done
}

// TestF19_CapabilitiesAndRatesHoldAtMeshd: a worker that was taken over gets no more than its workload.
func TestF19_CapabilitiesAndRatesHoldAtMeshd(t *testing.T) {
	r := launch(t, "epoll")
	none := r.connectWorker("wasm.none", 0, 0)
	none.hello()
	for _, request := range []*invoke.Request{
		{ID: 1, Operation: invoke.OperationGet, Key: "k"}, {ID: 2, Operation: invoke.OperationSnapshot},
		{ID: 3, Operation: invoke.OperationSet, Key: "k", Value: []byte("v")},
		{ID: 4, Operation: invoke.OperationDelete, Key: "k"},
	} {
		if answer := none.ask(request); answer.Errno != invoke.ErrorPermission {
			t.Errorf("%+v: errno %d", request, answer.Errno)
		}
	}
	all := r.connectWorker("wasm.all", 1, workload.CapabilitiesKnown)
	all.hello()
	stored, refused := 0, 0
	for id := range uint64(30) {
		switch all.ask(&invoke.Request{ID: id, Operation: invoke.OperationSet, Key: "k", Value: []byte{byte(id + 1)}}).Errno {
		case 0:
			stored++
		case invoke.ErrorTryAgain:
			refused++
		}
	}
	if stored < invoke.WritesPerSecond || refused == 0 || stored+refused != 30 {
		t.Errorf("%d stored, %d refused", stored, refused)
	}
	if answer := all.ask(&invoke.Request{ID: 99, Operation: invoke.OperationGet, Key: "k"}); answer.Siblings != 1 {
		t.Errorf("%+v", answer)
	}
	keys := map[string]string{}
	answer := all.ask(&invoke.Request{ID: 100, Operation: invoke.OperationSnapshot})
	if err := invoke.Pairs(answer.Value, func(key string, value []byte) { keys[key] = string(value) }); err != nil || len(keys) != 1 {
		t.Errorf("%v, %v", keys, err)
	}
	_ = none.conn.Send(&invoke.Metric{Name: "refused", Value: 1})
	for n := range 40 {
		_ = all.conn.Send(&invoke.Metric{Name: "m" + string(rune('a'+n%26)) + string(rune('a'+n/26)), Value: float64(n)})
	}
	_ = all.ask(&invoke.Request{ID: 101, Operation: invoke.OperationGet, Key: "k"}) // behind the metrics
	_ = none.ask(&invoke.Request{ID: 102, Operation: invoke.OperationGet, Key: "k"})
	metrics := r.daemon.workers.metrics()
	if len(metrics) != invoke.MetricNamesMax || metrics[0].Name != "colloid_workload_all_maa" {
		raw, _ := json.Marshal(metrics)
		t.Errorf("%d metrics: %s", len(metrics), raw)
	}
}
