package daemon

import (
	"bytes"
	"encoding/binary"
	"testing"

	"colloid.net/ipc/invoke"
	"colloid.net/meshd/cell"
	"colloid.net/workload"
)

// callThrough calls a function of another workload over a stream, as a module does.
func (f *fakeWorker) callThrough(name, function, argument string) (reply []byte, errno uint16) {
	f.t.Helper()
	f.next += 100
	id := f.next
	answer := f.ask(&invoke.Request{
		ID: id, Operation: invoke.OperationStreamOpen, Index: invoke.StreamInvoke, Key: name,
	})
	if answer.Errno != 0 {
		return nil, answer.Errno
	}
	number := binary.BigEndian.Uint16(answer.Value)
	request := invoke.AppendCall(nil, name, &invoke.Invocation{
		Function: function, Milliseconds: 1000, Arguments: [][]byte{[]byte(argument)},
	})
	for len(request) > 0 {
		id++
		piece := request[:min(len(request), invoke.StreamChunkMax)]
		write := &invoke.Request{ID: id, Operation: invoke.OperationStreamWrite, Index: number, Value: piece}
		if answer := f.ask(write); answer.Errno != 0 {
			return nil, answer.Errno
		}
		request = request[len(piece):]
	}
	f.ask(&invoke.Request{ID: id + 1, Operation: invoke.OperationStreamFinish, Index: number})
	for id += 2; ; id++ {
		read := invoke.ReadStream(number, 1000)
		read.ID = id
		answer := f.ask(read)
		if answer.Errno != 0 || len(answer.Value) == 0 {
			f.ask(&invoke.Request{ID: id + 1, Operation: invoke.OperationStreamClose, Index: number})
			return reply, answer.Errno
		}
		reply = append(reply, answer.Value...)
	}
}

func moduleStreams(r *running) (count int) {
	r.inspect(func(*cell.Cell) { count = r.daemon.workers.streams })
	return count
}

// TestModulesOpenStreamsToOtherCells: a module calls one of another cell, and one of its own, and nothing is left.
func TestModulesOpenStreamsToOtherCells(t *testing.T) {
	a, b, target := pair(t, "epoll")
	caller := a.connectWorker("wasm.caller", 0, workload.CapabilityStreams)
	caller.hello()
	a.connected("caller")
	callee := b.connectWorker("wasm.w", 0, 0)
	callee.hello()
	b.connected("w")
	go callee.echo()
	// A cell that is gone is passed over.
	a.elsewhere(^target, target)
	large := string(bytes.Repeat([]byte("a"), invoke.ArgumentSum-10))
	for _, argument := range []string{"x", large} {
		reply, errno := caller.callThrough("w", "f", argument)
		if errno != 0 || len(reply) < 2 || binary.BigEndian.Uint16(reply) != 0 {
			t.Fatalf("errno %d, %.80q", errno, reply)
		}
		if outcome, err := invoke.ParseOutcome(reply[2:]); err != nil || string(outcome.Output) != "f "+argument {
			t.Fatalf("%v, %v", outcome, err)
		}
	}
	a.elsewhere()
	if _, errno := caller.callThrough("w", "f", "x"); errno != invoke.ErrorNotFound {
		t.Errorf("nobody has it: errno %d", errno)
	}
	b.elsewhere(target) // b itself
	local := b.connectWorker("wasm.local", 1, workload.CapabilityStreams)
	local.hello()
	b.connected("local w")
	if reply, errno := local.callThrough("wasm.w", "f", "x"); errno != 0 || !bytes.HasSuffix(reply, []byte("f x")) {
		t.Fatalf("errno %d, %q", errno, reply)
	}
	waitIdle(t, a, b)
	if n := moduleStreams(a) + moduleStreams(b); n != 0 {
		t.Errorf("%d streams are counted", n)
	}
}

// TestModuleStreamsNeedTheirCapabilityAndEndWithTheirWorker: meshd does not rely on the worker.
func TestModuleStreamsNeedTheirCapabilityAndEndWithTheirWorker(t *testing.T) {
	a, b, target := pair(t, "epoll")
	callee := b.connectWorker("wasm.w", 0, 0)
	callee.hello()
	b.connected("w")
	a.elsewhere(target)
	none := a.connectWorker("wasm.none", 0, workload.CapabilitiesKnown&^workload.CapabilityStreams)
	none.hello()
	open := &invoke.Request{ID: 1, Operation: invoke.OperationStreamOpen, Index: invoke.StreamInvoke, Key: "w"}
	for _, request := range []*invoke.Request{
		open, invoke.ReadStream(0, 1), {Operation: invoke.OperationStreamClose},
	} {
		if answer := none.ask(request); answer.Errno != invoke.ErrorPermission {
			t.Errorf("%+v without the capability: errno %d", request, answer.Errno)
		}
	}
	f := a.connectWorker("wasm.caller", 1, workload.CapabilityStreams)
	f.hello()
	for _, c := range []struct {
		request *invoke.Request
		errno   uint16
	}{
		{&invoke.Request{Operation: invoke.OperationStreamOpen, Index: 2, Key: "w"}, invoke.ErrorUnsupported},
		{&invoke.Request{Operation: invoke.OperationStreamOpen, Index: invoke.StreamInvoke, Key: "../w"}, invoke.ErrorInvalid},
		{invoke.ReadStream(0, 1), invoke.ErrorNotFound},
		{&invoke.Request{Operation: invoke.OperationStreamWrite, Index: 9, Value: []byte("x")}, invoke.ErrorNotFound},
	} {
		if answer := f.ask(c.request); answer.Errno != c.errno {
			t.Errorf("%+v: errno %d, expected %d", c.request, answer.Errno, c.errno)
		}
	}
	for n := range invoke.StreamsMax {
		if answer := f.ask(open); answer.Errno != 0 || binary.BigEndian.Uint16(answer.Value) != uint16(n) {
			t.Fatalf("stream %d: %+v", n, answer)
		}
	}
	if answer := f.ask(open); answer.Errno != invoke.ErrorBusy {
		t.Errorf("one more: errno %d", answer.Errno)
	}
	// A read that waits is answered when its stream ends; a second one is refused.
	read := invoke.ReadStream(3, 10)
	read.ID = 77
	_ = f.conn.Send(read)
	eventually(t, "the read waits", func() (waits bool) {
		a.inspect(func(*cell.Cell) {
			for _, of := range a.daemon.workers.byInstance {
				waits = waits || of.streams[3] != nil && of.streams[3].reading != nil
			}
		})
		return waits
	})
	second := invoke.ReadStream(3, 10)
	second.ID = 78
	if answer := f.ask(second); answer.Errno != invoke.ErrorBusy {
		t.Errorf("a second read: errno %d", answer.Errno)
	}
	_ = f.conn.Send(&invoke.Request{ID: 79, Operation: invoke.OperationStreamClose, Index: 3})
	for range 2 {
		body, err := f.receive()
		answer, ok := body.(*invoke.Answer)
		if err != nil || !ok || answer.ID == 77 && answer.Errno != invoke.ErrorGone || answer.ID == 79 && answer.Errno != 0 {
			t.Fatalf("%+v, %v", body, err)
		}
	}
	// What waits when the worker ends is ended with it, on both cells.
	read = invoke.ReadStream(5, 10)
	read.ID = 80
	_ = f.conn.Send(read)
	f.conn.Close()
	waitIdle(t, a, b)
	eventually(t, "no stream is counted", func() bool { return moduleStreams(a) == 0 })
}
