package wasm

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"slices"
	"time"

	"github.com/tetratelabs/wazero/api"

	"colloid.net/ipc/invoke"
)

// requestPatience is how long a host function waits for meshd when the invocation has no deadline before.
const requestPatience = 5 * time.Second

// keyOf reads the key of a host call. What a key may hold is not restricted: meshd puts
// "kv.<workload>." before it, and nothing in a name leads elsewhere (F19).
func keyOf(memory api.Memory, stack []uint64) (string, bool) {
	key, ok := text(memory, stack[0], stack[1], invoke.KeyMax)
	return string(key), ok && len(key) > 0
}

func hostGet(w *worker, memory api.Memory, stack []uint64) uint64 {
	value, _, errno := w.read(memory, stack, 0)
	if errno != 0 {
		return failed(errno)
	}
	return give(memory, value, stack[2], stack[3])
}

// hostSibling gives one of several concurrent values and how many there are (F148).
func hostSibling(w *worker, memory api.Memory, stack []uint64) uint64 {
	index := uint32(stack[2])
	if index > 1<<16-1 {
		return failed(invoke.ErrorNotFound)
	}
	value, siblings, errno := w.read(memory, stack, uint16(index))
	if errno != 0 {
		return failed(errno)
	}
	if pointer := uint32(stack[5]); pointer != 0 && !memory.Write(pointer, littleEndian32(uint32(siblings))) {
		return failed(invoke.ErrorInvalid)
	}
	return give(memory, value, stack[3], stack[4])
}

func (w *worker) read(memory api.Memory, stack []uint64, index uint16) (value []byte, siblings uint16, errno uint16) {
	key, ok := keyOf(memory, stack)
	if !ok {
		return nil, 0, invoke.ErrorInvalid
	}
	if w.settings.Deterministic {
		return w.view.get(key, index)
	}
	if !w.rates.reads.take(time.Now()) {
		return nil, 0, invoke.ErrorTryAgain
	}
	answer := w.ask(&invoke.Request{Operation: invoke.OperationGet, Key: key, Index: index})
	return answer.Value, answer.Siblings, answer.Errno
}

func hostSet(w *worker, memory api.Memory, stack []uint64) uint64 {
	key, ok := keyOf(memory, stack)
	value, valueOK := text(memory, stack[2], stack[3], invoke.ValueMax)
	if !ok || !valueOK || len(value) == 0 {
		return failed(invoke.ErrorInvalid)
	}
	return failed(w.write(&invoke.Request{Operation: invoke.OperationSet, Key: key, Value: value}))
}

func hostDelete(w *worker, memory api.Memory, stack []uint64) uint64 {
	key, ok := keyOf(memory, stack)
	if !ok {
		return failed(invoke.ErrorInvalid)
	}
	return failed(w.write(&invoke.Request{Operation: invoke.OperationDelete, Key: key}))
}

func (w *worker) write(request *invoke.Request) uint16 {
	if w.settings.Deterministic {
		return w.view.put(request)
	}
	if !w.rates.writes.take(time.Now()) {
		return invoke.ErrorTryAgain
	}
	return w.ask(request).Errno
}

// view is the key-value space of one deterministic invocation: what it was at the beginning, and the
// writes that are made when the invocation returns (F19, F143).
type view struct {
	values map[string][]byte
	writes []*invoke.Request
	digest [32]byte
}

func (v *view) get(key string, index uint16) (value []byte, siblings uint16, errno uint16) {
	value, found := v.values[key]
	if !found || index > 0 {
		return nil, 0, invoke.ErrorNotFound
	}
	return value, 1, 0
}

// put remembers a write; the last one of a key counts. Later reads of the invocation see it.
func (v *view) put(request *invoke.Request) uint16 {
	at := slices.IndexFunc(v.writes, func(w *invoke.Request) bool { return w.Key == request.Key })
	switch {
	case at >= 0:
		v.writes[at] = request
	case len(v.writes) >= invoke.WritesPerSecond:
		return invoke.ErrorTryAgain // as many as may be made in a second
	default:
		v.writes = append(v.writes, request)
	}
	if request.Operation == invoke.OperationDelete {
		delete(v.values, request.Key)
	} else {
		v.values[request.Key] = request.Value
	}
	return 0
}

// snapshot asks for all keys as of one moment.
func (w *worker) snapshot(ctx context.Context) (view, uint16) {
	v := view{values: map[string][]byte{}}
	errno := w.askAll(ctx, &invoke.Request{Operation: invoke.OperationSnapshot}, func(a *invoke.Answer) bool {
		return invoke.Pairs(a.Value, func(key string, value []byte) {
			v.values[key] = bytes.Clone(value)
		}) == nil && len(v.values) <= invoke.KeysMax
	})
	if errno != 0 {
		return v, errno
	}
	keys := make([]string, 0, len(v.values))
	for key := range v.values {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, cmp.Compare[string])
	hash := sha256.New()
	for _, key := range keys {
		hash.Write(invoke.AppendPair(nil, key, v.values[key]))
	}
	hash.Sum(v.digest[:0])
	return v, 0
}

// commit makes the writes of an invocation that returned.
func (w *worker) commit(v *view) uint16 {
	for _, request := range v.writes {
		if errno := w.ask(request).Errno; errno != 0 {
			return errno
		}
	}
	return 0
}
