package wasm

import (
	"context"
	"encoding/binary"

	"github.com/tetratelabs/wazero/api"

	"colloid.net/ipc/invoke"
)

// moduleStream is a stream of the present instance: its number at meshd, and the connection to which that belongs.
type moduleStream struct {
	conn   *invoke.Conn
	number uint16
}

// hostStreamOpen opens a stream to a function of another module and waits until somebody has taken it.
func hostStreamOpen(w *worker, memory api.Memory, stack []uint64) uint64 {
	name, ok := text(memory, stack[0], stack[1], invoke.KeyMax)
	switch kind := uint32(stack[2]); {
	case !ok || len(name) == 0 || kind > 255:
		return failed(invoke.ErrorInvalid)
	case kind != invoke.StreamInvoke:
		return failed(invoke.ErrorUnsupported)
	case len(w.streams) >= invoke.StreamsMax:
		return failed(invoke.ErrorBusy)
	}
	conn := w.present()
	answer := w.askStream(conn, &invoke.Request{
		Operation: invoke.OperationStreamOpen, Index: invoke.StreamInvoke, Key: string(name),
	})
	switch {
	case answer.Errno != 0:
		return failed(answer.Errno)
	case len(answer.Value) != 2:
		return failed(invoke.ErrorIO)
	}
	if w.streams == nil {
		w.streams = map[uint32]moduleStream{}
	}
	// Numbers are not used again soon: a module that uses a closed one is to notice.
	for used := true; used; {
		w.lastStream = w.lastStream%(1<<30) + 1
		_, used = w.streams[w.lastStream]
	}
	w.streams[w.lastStream] = moduleStream{conn, binary.BigEndian.Uint16(answer.Value)}
	return api.EncodeI32(int32(w.lastStream))
}

// hostStreamRead gives what has come, as much as fits, and waits if nothing has; 0 is the end.
func hostStreamRead(w *worker, memory api.Memory, stack []uint64) uint64 {
	s, known := w.streams[uint32(stack[0])]
	size := min(uint32(stack[2]), invoke.StreamChunkMax)
	view, ok := memory.Read(uint32(stack[1]), size)
	switch {
	case !known:
		return failed(invoke.ErrorNotFound)
	case !ok || size == 0:
		return failed(invoke.ErrorInvalid)
	}
	answer := w.askStream(s.conn, invoke.ReadStream(s.number, int(size)))
	switch {
	case answer.Errno != 0:
		return failed(answer.Errno)
	case len(answer.Value) > len(view):
		return failed(invoke.ErrorIO)
	}
	return api.EncodeI32(int32(copy(view, answer.Value)))
}

// hostStreamWrite hands over bytes, in pieces, and waits until all are taken.
func hostStreamWrite(w *worker, memory api.Memory, stack []uint64) uint64 {
	s, known := w.streams[uint32(stack[0])]
	view, ok := memory.Read(uint32(stack[1]), uint32(stack[2]))
	switch {
	case !known:
		return failed(invoke.ErrorNotFound)
	case !ok || len(view) > 1<<30:
		return failed(invoke.ErrorInvalid)
	}
	for rest := view; len(rest) > 0; {
		piece := rest[:min(len(rest), invoke.StreamChunkMax)]
		answer := w.askStream(s.conn, &invoke.Request{
			Operation: invoke.OperationStreamWrite, Index: s.number, Value: piece,
		})
		if answer.Errno != 0 {
			return failed(answer.Errno)
		}
		rest = rest[len(piece):]
	}
	return api.EncodeI32(int32(len(view)))
}

// hostStreamFinish says that the module writes no more; it may go on reading.
func hostStreamFinish(w *worker, _ api.Memory, stack []uint64) uint64 {
	s, known := w.streams[uint32(stack[0])]
	if !known {
		return failed(invoke.ErrorNotFound)
	}
	return failed(w.askStream(s.conn, &invoke.Request{Operation: invoke.OperationStreamFinish, Index: s.number}).Errno)
}

// hostStreamClose ends a stream.
func hostStreamClose(w *worker, _ api.Memory, stack []uint64) uint64 {
	s, known := w.streams[uint32(stack[0])]
	if !known {
		return failed(invoke.ErrorNotFound)
	}
	delete(w.streams, uint32(stack[0]))
	return failed(w.closeStream(s))
}

func (w *worker) closeStream(s moduleStream) uint16 {
	return w.askStream(s.conn, &invoke.Request{Operation: invoke.OperationStreamClose, Index: s.number}).Errno
}

// closeStreams ends those of an instance that is gone.
func (w *worker) closeStreams() {
	ctx, cancel := context.WithTimeout(context.Background(), requestPatience) // that of the invocation may be over
	defer cancel()
	w.callContext = ctx
	for number, s := range w.streams {
		delete(w.streams, number)
		w.closeStream(s)
	}
}

// askStream sends a request about a stream over the connection to which that belongs, and waits for the answer as
// long as the invocation may take.
func (w *worker) askStream(conn *invoke.Conn, request *invoke.Request) *invoke.Answer {
	answers, sent := w.requestOn(conn, request)
	if !sent {
		return &invoke.Answer{Errno: invoke.ErrorGone}
	}
	defer w.forget(request.ID)
	select {
	case answer, open := <-answers:
		if !open {
			break
		}
		return answer
	case <-w.callContext.Done():
		return &invoke.Answer{Errno: invoke.ErrorTimeout}
	}
	return &invoke.Answer{Errno: invoke.ErrorGone}
}
