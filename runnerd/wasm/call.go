package wasm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/sys"

	"colloid.net/ipc/invoke"
)

// deterministicPatience is how many times the deadline the clock allows a deterministic invocation: fuel
// ends it first on any machine that is not much slower than those of today.
const (
	deterministicPatience = 10
	deterministicSlack    = 2 * time.Second
)

// failure is an error with its number for the result.
type failure struct {
	errno uint16
	text  string
}

func (f failure) Error() string { return f.text }

func refuse(errno uint16, format string, arguments ...any) error {
	return failure{errno, fmt.Sprintf(format, arguments...)}
}

// execute runs one invocation and gives its result, whatever the module does.
func (w *worker) execute(call *invoke.Invocation) *invoke.Result {
	if call.Function == "" {
		call.Function = invokeExport
	}
	if call.Milliseconds == 0 {
		call.Milliseconds = invoke.DeadlineDefaultMilliseconds
	}
	w.invocations++
	if call.Clock == 0 {
		call.Clock = w.invocations
	}
	w.call, w.output, w.metrics, w.view = call, w.output[:0], w.metrics[:0], view{}
	began := time.Now()
	status, err := w.run(call)
	result := &invoke.Result{
		ID: call.ID, Status: status, Nanos: uint64(time.Since(began)), Output: w.output, Snapshot: w.view.digest,
	}
	if w.settings.Deterministic {
		result.Clock = call.Clock
	}
	w.call = nil
	if err != nil {
		var known failure
		if !errors.As(err, &known) {
			known = failure{invoke.ErrorIO, err.Error()}
		}
		result.Errno, result.Status = known.errno, 0
		result.Output = []byte(strings.ToValidUTF8(known.text[:min(len(known.text), invoke.TextMax)], "?"))
	}
	return result
}

func (w *worker) run(call *invoke.Invocation) (int32, error) {
	if w.engine.module.Style == StyleService {
		return 0, refuse(invoke.ErrorUnsupported, "the module is a service (it exports %s), it takes no invocations",
			startExport)
	}
	patience := time.Duration(call.Milliseconds) * time.Millisecond
	if w.settings.Deterministic {
		patience = deterministicPatience*patience + deterministicSlack
	}
	ctx := w.watchdog.begin(patience)
	defer w.watchdog.end()
	w.callContext = ctx
	if !w.settings.Deterministic {
		return w.runWarm(ctx, call)
	}
	return w.runFresh(ctx, call)
}

// runWarm uses the instance of the last invocation. After a trap or a deadline there is a new one.
func (w *worker) runWarm(ctx context.Context, call *invoke.Invocation) (int32, error) {
	if w.instance == nil {
		instance, err := w.instantiate(ctx, [32]byte{})
		if err != nil {
			return 0, err
		}
		w.instance = instance
	}
	status, closed, err := w.callFunction(ctx, w.instance, call)
	if closed {
		_ = w.instance.Close(context.Background())
		w.instance, w.function = nil, nil
		w.closeStreams()
	}
	return status, err
}

// runFresh gives each invocation an instance of its own, so that nothing but its inputs reaches it.
func (w *worker) runFresh(ctx context.Context, call *invoke.Invocation) (int32, error) {
	w.logical = int64(call.Clock) * logicalSecond
	if w.engine.module.hasKV && w.settings.may(capabilityKVRead) {
		var errno uint16
		if w.view, errno = w.snapshot(ctx); errno != 0 {
			return 0, refuse(errno, "the key-value space cannot be read now: try again")
		}
	} else {
		w.view.values = map[string][]byte{}
	}
	instance, err := w.instantiate(ctx, w.seedOf(call))
	if err != nil {
		return 0, err
	}
	defer instance.Close(context.Background())
	fuel, ok := instance.ExportedGlobal(fuelExport).(api.MutableGlobal)
	if !ok {
		return 0, errors.New("the module lost its fuel")
	}
	fuel.Set(uint64(call.Milliseconds) * FuelPerMillisecond)
	status, _, err := w.callFunction(ctx, instance, call)
	if err != nil {
		return 0, w.explainTrap(instance, fuel, call, err)
	}
	for _, metric := range w.metrics {
		w.sendMetric(metric)
	}
	if errno := w.commit(&w.view); errno != 0 {
		return 0, refuse(errno, "the function returned, but its writes could not be made (errno %d)", errno)
	}
	return status, nil
}

// explainTrap tells traps of the added counters from the module's own.
func (w *worker) explainTrap(instance api.Module, fuel api.Global, call *invoke.Invocation, err error) error {
	if int64(fuel.Get()) < 0 {
		return refuse(invoke.ErrorTimeout, "the function used up its fuel of %d, which is %d ms of deadline",
			uint64(call.Milliseconds)*FuelPerMillisecond, call.Milliseconds)
	}
	if depth := instance.ExportedGlobal(depthExport); depth != nil && uint32(depth.Get()) > DepthMax {
		return refuse(invoke.ErrorIO, "calls nest deeper than %d", DepthMax)
	}
	return err
}

// callFunction calls an export by name. closed says that the instance cannot be used again.
func (w *worker) callFunction(ctx context.Context, instance api.Module, call *invoke.Invocation) (
	status int32, closed bool, err error,
) {
	function, err := w.lookUp(instance, call.Function)
	if err != nil {
		return 0, false, err
	}
	if function == nil || strings.HasPrefix(call.Function, "_") || strings.HasPrefix(call.Function, reservedPrefix) {
		return 0, false, refuse(invoke.ErrorNotFound, "the module has no function %q, it has %s",
			cut(call.Function), exportList(instance))
	}
	definition := function.Definition()
	parameters, err := parameters(definition, call)
	if err != nil {
		return 0, false, err
	}
	results, err := function.Call(ctx, parameters...)
	if err == nil && ctx.Err() != nil { // it slept in the host past its deadline, and woke for that alone
		err = sys.NewExitError(sys.ExitCodeDeadlineExceeded)
	}
	if err != nil {
		w.engine.stack.clear()
		return w.ended(call, err)
	}
	if call.Function == invokeExport {
		if len(results) > 0 && definition.ResultTypes()[0] == api.ValueTypeI32 {
			status = int32(uint32(results[0]))
		}
		return status, false, nil
	}
	w.appendResults(definition.ResultTypes(), results)
	return 0, false, nil
}

// lookUp finds an exported function. The one that was called last is kept: finding it costs more than a short call.
func (w *worker) lookUp(instance api.Module, name string) (api.Function, error) {
	if instance != w.instance {
		return w.exported(instance, name)
	}
	if w.function == nil || w.functionName != name {
		function, err := w.exported(instance, name)
		if err != nil {
			return nil, err
		}
		w.function, w.functionName = function, name
	}
	return w.function, nil
}

// ended says why a call did not return.
func (w *worker) ended(call *invoke.Invocation, err error) (int32, bool, error) {
	var exit *sys.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() == sys.ExitCodeDeadlineExceeded:
		return 0, true, refuse(invoke.ErrorTimeout, "%s took longer than its deadline of %d ms",
			cut(call.Function), call.Milliseconds)
	case errors.As(err, &exit) && exit.ExitCode() == sys.ExitCodeContextCanceled:
		return 0, true, refuse(invoke.ErrorGone, "the invocation was cancelled")
	case errors.As(err, &exit):
		return int32(exit.ExitCode()), true, nil // proc_exit: its code is the status
	}
	return 0, true, refuse(invoke.ErrorIO, "%s trapped: %s", cut(call.Function), firstLine(err))
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(strings.TrimPrefix(err.Error(), "wasm error: "), "\n")
	return line
}

// exportList names the functions that can be invoked.
func exportList(instance api.Module) string {
	var names []string
	for name := range instance.ExportedFunctionDefinitions() {
		if !strings.HasPrefix(name, "_") && !strings.HasPrefix(name, reservedPrefix) {
			names = append(names, cut(name))
		}
	}
	if len(names) == 0 {
		return "none"
	}
	slices.Sort(names)
	if more := len(names) - 8; more > 0 {
		names = append(names[:8], fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}

// parameters reads the arguments as the numbers that the function takes. A function without parameters
// gets them through colloid_argument.
func parameters(definition api.FunctionDefinition, call *invoke.Invocation) ([]uint64, error) {
	types := definition.ParamTypes()
	if len(types) == 0 {
		return nil, nil
	}
	if len(types) != len(call.Arguments) {
		return nil, refuse(invoke.ErrorInvalid, "arguments of %s: expected %d, given were %d",
			cut(call.Function), len(types), len(call.Arguments))
	}
	values := make([]uint64, len(types))
	for i, kind := range types {
		value, err := number(kind, string(bytes.TrimSpace(call.Arguments[i])))
		if err != nil {
			return nil, refuse(invoke.ErrorInvalid, "argument %d of %s is no %s",
				i+1, cut(call.Function), api.ValueTypeName(kind))
		}
		values[i] = value
	}
	return values, nil
}

func number(kind api.ValueType, text string) (uint64, error) {
	switch kind {
	case api.ValueTypeI32:
		if value, err := strconv.ParseInt(text, 0, 32); err == nil {
			return api.EncodeI32(int32(value)), nil
		}
		value, err := strconv.ParseUint(text, 0, 32)
		return value, err
	case api.ValueTypeI64:
		if value, err := strconv.ParseInt(text, 0, 64); err == nil {
			return uint64(value), nil
		}
		return strconv.ParseUint(text, 0, 64)
	case api.ValueTypeF32:
		value, err := strconv.ParseFloat(text, 32)
		return api.EncodeF32(float32(value)), err
	case api.ValueTypeF64:
		value, err := strconv.ParseFloat(text, 64)
		return api.EncodeF64(value), err
	}
	return 0, errors.New("not a number")
}

// appendResults adds the returned numbers to the output, separated by blanks.
func (w *worker) appendResults(types []api.ValueType, results []uint64) {
	for i, kind := range types {
		if len(w.output) > 0 {
			w.output = append(w.output, ' ')
		}
		switch kind {
		case api.ValueTypeI32:
			w.output = strconv.AppendInt(w.output, int64(int32(uint32(results[i]))), 10)
		case api.ValueTypeI64:
			w.output = strconv.AppendInt(w.output, int64(results[i]), 10)
		case api.ValueTypeF32:
			w.output = strconv.AppendFloat(w.output, float64(api.DecodeF32(results[i])), 'g', -1, 32)
		case api.ValueTypeF64:
			w.output = strconv.AppendFloat(w.output, api.DecodeF64(results[i]), 'g', -1, 64)
		default:
			w.output = append(w.output, '?')
		}
	}
	if len(w.output) > invoke.OutputMax {
		w.output = w.output[:invoke.OutputMax]
	}
}
