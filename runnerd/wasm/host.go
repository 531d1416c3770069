package wasm

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"colloid.net/ipc/invoke"
)

// Names of the host functions about the key-value space.
var keyValueNames = []string{
	"colloid_kv_get", "colloid_kv_get_sibling", "colloid_kv_set", "colloid_kv_delete",
}

// hostNames are all host functions of section 13.5 and the conventions of invocations.
var hostNames = append([]string{
	"colloid_argument", "colloid_argument_count", "colloid_output",
	"colloid_log", "colloid_metric_emit", "colloid_random", "colloid_time",
	"colloid_stream_open", "colloid_stream_read", "colloid_stream_write", "colloid_stream_finish", "colloid_stream_close",
}, keyValueNames...)

// wasiNames are the functions of WASI preview 1.
var wasiNames = strings.Fields(`args_get args_sizes_get clock_res_get clock_time_get environ_get
	environ_sizes_get fd_advise fd_allocate fd_close fd_datasync fd_fdstat_get fd_fdstat_set_flags
	fd_fdstat_set_rights fd_filestat_get fd_filestat_set_size fd_filestat_set_times fd_pread fd_prestat_dir_name
	fd_prestat_get fd_pwrite fd_read fd_readdir fd_renumber fd_seek fd_sync fd_tell fd_write
	path_create_directory path_filestat_get path_filestat_set_times path_link path_open path_readlink
	path_remove_directory path_rename path_symlink path_unlink_file poll_oneoff proc_exit proc_raise
	random_get sched_yield sock_accept sock_recv sock_send sock_shutdown`)

func importKnown(module, name string) bool {
	switch module {
	case hostModule:
		return slices.Contains(hostNames, name)
	case wasiModule:
		return slices.Contains(wasiNames, name)
	}
	return false
}

const logLineMax = 4096

// failed is how a host function says that something did not work: a negative errno.
func failed(errno uint16) uint64 { return api.EncodeI32(-int32(errno)) }

// hostCall is one host function: it reads its parameters from the stack and gives its result.
type hostCall func(w *worker, memory api.Memory, stack []uint64) uint64

// needs makes a host function answer EPERM unless the capability is granted.
func needs(capability uint32, call hostCall) hostCall {
	return func(w *worker, memory api.Memory, stack []uint64) uint64 {
		if !w.settings.may(capability) {
			return failed(invoke.ErrorPermission)
		}
		return call(w, memory, stack)
	}
}

// exportHost makes the module of host functions, those that the module imports: the engine compiles a piece of
// code for each, which for all of them takes longer than all else in the start of a small module.
func (w *worker) exportHost(ctx context.Context, runtime wazero.Runtime) error {
	if !w.engine.module.importsFrom(hostModule) {
		return nil
	}
	const i32, i64, f64 = api.ValueTypeI32, api.ValueTypeI64, api.ValueTypeF64
	types := func(t ...api.ValueType) []api.ValueType { return t }
	builder := runtime.NewHostModuleBuilder(hostModule)
	add := func(name string, parameters []api.ValueType, result api.ValueType, call hostCall) {
		if !w.engine.module.importsFunction(hostModule, name) {
			return
		}
		builder.NewFunctionBuilder().WithGoModuleFunction(
			api.GoModuleFunc(func(_ context.Context, module api.Module, stack []uint64) {
				if !w.engine.module.hasMemory { // module.Memory() is then an interface of nothing, and not nil
					stack[0] = failed(invoke.ErrorInvalid)
					return
				}
				stack[0] = call(w, module.Memory(), stack)
			}), parameters, []api.ValueType{result}).Export(name)
	}
	add("colloid_argument_count", types(i32)[:0], i32, hostArgumentCount)
	add("colloid_argument", types(i32, i32, i32), i32, hostArgument)
	add("colloid_output", types(i32, i32), i32, hostOutput)
	add("colloid_log", types(i32, i32, i32), i32, needs(capabilityStdio, hostLog))
	add("colloid_metric_emit", types(i32, i32, f64), i32, needs(capabilityMetrics, hostMetric))
	add("colloid_time", types(i32)[:0], i64, hostTime)
	add("colloid_random", types(i32, i32), i32, needs(capabilityRandom, hostRandom))
	add("colloid_stream_open", types(i32, i32, i32), i32, needs(capabilityStreams, hostStreamOpen))
	add("colloid_stream_read", types(i32, i32, i32), i32, needs(capabilityStreams, hostStreamRead))
	add("colloid_stream_write", types(i32, i32, i32), i32, needs(capabilityStreams, hostStreamWrite))
	add("colloid_stream_finish", types(i32), i32, needs(capabilityStreams, hostStreamFinish))
	add("colloid_stream_close", types(i32), i32, needs(capabilityStreams, hostStreamClose))
	add("colloid_kv_get", types(i32, i32, i32, i32), i32, needs(capabilityKVRead, hostGet))
	add("colloid_kv_get_sibling", types(i32, i32, i32, i32, i32, i32), i32, needs(capabilityKVRead, hostSibling))
	add("colloid_kv_set", types(i32, i32, i32, i32), i32, needs(capabilityKVWrite, hostSet))
	add("colloid_kv_delete", types(i32, i32), i32, needs(capabilityKVWrite, hostDelete))
	_, err := builder.Instantiate(ctx)
	return err
}

// text reads bytes of the module's memory and copies them; ok is false outside the memory or beyond limit.
func text(memory api.Memory, pointer, length uint64, limit int) ([]byte, bool) {
	if uint32(length) > uint32(limit) {
		return nil, false
	}
	view, ok := memory.Read(uint32(pointer), uint32(length))
	return slices.Clone(view), ok
}

// give copies a value into the module's buffer, as far as it has room, and returns the whole length.
func give(memory api.Memory, value []byte, pointer, length uint64) uint64 {
	if !memory.Write(uint32(pointer), value[:min(len(value), int(uint32(length)))]) {
		return failed(invoke.ErrorInvalid)
	}
	return api.EncodeI32(int32(len(value)))
}

func hostArgumentCount(w *worker, _ api.Memory, _ []uint64) uint64 {
	if w.call == nil {
		return 0
	}
	return uint64(len(w.call.Arguments))
}

func hostArgument(w *worker, memory api.Memory, stack []uint64) uint64 {
	index := uint32(stack[0])
	if w.call == nil || int64(index) >= int64(len(w.call.Arguments)) {
		return failed(invoke.ErrorNotFound)
	}
	return give(memory, w.call.Arguments[index], stack[1], stack[2])
}

func hostOutput(w *worker, memory api.Memory, stack []uint64) uint64 {
	view, ok := memory.Read(uint32(stack[0]), uint32(stack[1]))
	switch {
	case w.call == nil || !ok:
		return failed(invoke.ErrorInvalid)
	case len(w.output)+len(view) > invoke.OutputMax:
		return failed(invoke.ErrorNoSpace)
	}
	w.output = append(w.output, view...)
	return 0
}

var logLevels = [...]string{"debug", "info", "warning", "error"}

func hostLog(w *worker, memory api.Memory, stack []uint64) uint64 {
	line, ok := text(memory, stack[1], stack[2], logLineMax)
	if !ok || uint32(stack[0]) >= uint32(len(logLevels)) {
		return failed(invoke.ErrorInvalid)
	}
	fmt.Fprintf(w.log, "%s %s\n", logLevels[uint32(stack[0])], strings.ReplaceAll(string(line), "\n", " "))
	return 0
}

func hostMetric(w *worker, memory api.Memory, stack []uint64) uint64 {
	name, ok := text(memory, stack[0], stack[1], invoke.MetricMax)
	value := math.Float64frombits(stack[2])
	if !ok || !invoke.ValidMetricName(string(name)) || math.IsNaN(value) || math.IsInf(value, 0) {
		return failed(invoke.ErrorInvalid)
	}
	metric := &invoke.Metric{Name: string(name), Value: value}
	if w.settings.Deterministic {
		if len(w.metrics) >= invoke.MetricNamesMax {
			return failed(invoke.ErrorTryAgain)
		}
		w.metrics = append(w.metrics, metric) // sent at the return, and never refused by a clock
		return 0
	}
	if !w.rates.metrics.take(time.Now()) {
		return failed(invoke.ErrorTryAgain)
	}
	w.sendMetric(metric)
	return 0
}

func hostTime(w *worker, _ api.Memory, _ []uint64) uint64 {
	switch {
	case !w.settings.may(capabilityClock):
		return api.EncodeI64(-int64(invoke.ErrorPermission))
	case w.settings.Deterministic:
		return uint64(w.logicalNow())
	}
	return uint64(time.Now().UnixNano())
}

func hostRandom(_ *worker, memory api.Memory, stack []uint64) uint64 {
	view, ok := memory.Read(uint32(stack[0]), uint32(stack[1]))
	if !ok || len(view) > 64<<10 {
		return failed(invoke.ErrorInvalid)
	}
	_, _ = rand.Read(view) // never fails
	return 0
}

// bucket is a rate with a burst of one second.
type bucket struct {
	perSecond float64
	tokens    float64
	refilled  time.Time
}

func newBucket(perSecond float64) bucket { return bucket{perSecond: perSecond, tokens: perSecond} }

func (b *bucket) take(now time.Time) bool {
	if !b.refilled.IsZero() {
		b.tokens = min(b.perSecond, b.tokens+now.Sub(b.refilled).Seconds()*b.perSecond)
	}
	b.refilled = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

// stdout of a module without the capability: EPERM, as the specification says.
type forbidden struct{}

func (forbidden) Write([]byte) (int, error) { return 0, os.ErrPermission }

func littleEndian32(value uint32) []byte { return binary.LittleEndian.AppendUint32(nil, value) }
