package wasm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/sys"
	"golang.org/x/sys/unix"

	"colloid.net/ipc/invoke"
)

// worker is the state of the process.
type worker struct {
	settings *Settings
	engine   *engine
	log      io.Writer // for what the worker itself says
	stdout   io.Writer // of the module, as stderr
	stderr   io.Writer
	connection

	// executor is held by whoever runs the module, or makes its instance; it guards what follows.
	executor sync.Mutex

	instance     api.Module   // of the last invocation, nil = make one
	function     api.Function // of instance that was called last, nil = none
	functionName string
	watchdog     watchdog
	invocations  uint64
	callContext  context.Context // bounds what the module waits for in the host
	call         *invoke.Invocation
	output       []byte
	metrics      []*invoke.Metric
	view         view
	logical      int64
	streams      map[uint32]moduleStream // of instance, by the number that it knows
	lastStream   uint32
	rates        struct{ reads, writes, metrics bucket }
}

func newWorker(settings *Settings, log io.Writer) *worker {
	w := &worker{
		settings: settings, log: log, stdout: os.Stdout, stderr: os.Stderr, callContext: context.Background(),
	}
	w.connection.queue = make(chan task, invoke.InvocationsMax)
	w.connection.serve = w.serveChannel
	w.rates.reads = newBucket(invoke.ReadsPerSecond)
	w.rates.writes = newBucket(invoke.WritesPerSecond)
	w.rates.metrics = newBucket(invoke.MetricsPerSecond)
	return w
}

// Main is the program "runnerd wasm-worker". first is the number of the first extra descriptor. It returns
// the exit status.
func Main(first int) int {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT)
	go func() {
		<-signals
		if w := stoppable.Load(); w != nil {
			w.finish()
		}
		os.Exit(0)
	}()
	code, err := serve(first)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s%s\n", ReasonPrefix, strings.ReplaceAll(err.Error(), "\n", " "))
	}
	return code
}

// stoppable is the worker once it takes invocations.
var stoppable atomic.Pointer[worker]

// finishDelay is how long a worker that is to stop waits for the last invocations that meshd has sent it: meshd learns of the
// stop at the same time.
const finishDelay = 100 * time.Millisecond

// finish does what the worker has been sent, and returns with the executor held for good. It has no bound of its own: each
// invocation has a deadline, and runnerd kills after the grace.
func (w *worker) finish() {
	w.refuseChannels()
	for range time.Tick(finishDelay) {
		w.executor.Lock()
		if w.idle() && w.undone.Load() == 0 {
			return
		}
		w.executor.Unlock()
	}
}

func serve(first int) (int, error) {
	settingsFile := os.NewFile(uintptr(first+ExtraSettings), "settings")
	settings, err := readSettings(settingsFile)
	settingsFile.Close()
	if err != nil {
		return ExitModule, err
	}
	if err := confine(true); err != nil {
		return ExitModule, err
	}
	w := newWorker(settings, os.Stderr)
	if settings.CompileOnly {
		return w.compileOnly(first + ExtraModule)
	}
	guard := time.AfterFunc(compilePatience, endSlowCompilation)
	if err := w.load(first + ExtraModule); err != nil {
		return ExitModule, err
	}
	guard.Stop()
	if settings.CacheDirectory != "" { // on a full disk without; see runnerd
		_ = os.WriteFile(filepath.Join(settings.CacheDirectory, LoadedMark), nil, 0o600)
	}
	if err := confine(len(settings.Volumes) > 0); err != nil {
		return ExitModule, err
	}
	w.executor.Lock() // until there is an instance
	listener := os.NewFile(uintptr(first+ExtraListener), "listener")
	w.accept(listener, invoke.Hello{
		Style: invoke.Style(w.engine.module.Style), Deterministic: settings.Deterministic,
	})
	if w.engine.module.Style == StyleService {
		w.refuseInvocations()
		return w.runService(context.Background())
	}
	instance, err := w.instantiate(context.Background(), [32]byte{})
	if err != nil {
		return ExitModule, err
	}
	if settings.Deterministic {
		_ = instance.Close(context.Background()) // it was only to see whether there can be one
	} else {
		w.instance = instance
	}
	runtime.GC()
	debug.FreeOSMemory()
	w.executor.Unlock()
	stoppable.Store(w)
	for t := range w.queue {
		w.perform(t)
	}
	return 0, nil
}

// perform runs one invocation that came through meshd. The result's output is the worker's until it is sent.
func (w *worker) perform(t task) {
	w.executor.Lock()
	defer w.executor.Unlock()
	_ = t.connection.Send(w.execute(t.call)) // a meshd that has gone needs no result
	w.undone.Add(-1)
}

// endSlowCompilation ends a worker whose module takes too long: compiling cannot be interrupted.
func endSlowCompilation() {
	fmt.Fprintf(os.Stderr, "%sthe module takes longer than %v to compile\n", ReasonPrefix, compilePatience)
	os.Exit(ExitModule)
}

// load reads and compiles the module.
func (w *worker) load(descriptor int) error {
	file := os.NewFile(uintptr(descriptor), "module")
	binary, err := io.ReadAll(io.NewSectionReader(file, 0, ModuleSizeMax+1))
	file.Close()
	if err != nil {
		return fmt.Errorf("read the module: %w", err)
	}
	return w.open(context.Background(), binary, false)
}

// refuseInvocations answers them while the executor runs a service.
func (w *worker) refuseInvocations() {
	go func() {
		for t := range w.queue {
			_ = t.connection.Send(serviceRefusal(t.call))
		}
	}()
}

func serviceRefusal(call *invoke.Invocation) *invoke.Result {
	return &invoke.Result{ID: call.ID, Errno: invoke.ErrorUnsupported,
		Output: []byte("the module is a service (it exports _start), it takes no invocations")}
}

// runService runs _start as the workload; the exit code of the module is that of the worker.
func (w *worker) runService(ctx context.Context) (int, error) {
	instance, err := w.instantiate(ctx, [32]byte{})
	if err != nil {
		return ExitModule, err
	}
	defer instance.Close(ctx)
	function, err := w.exported(instance, startExport)
	if err != nil {
		return ExitModule, err
	}
	_, err = function.Call(ctx)
	var exit *sys.ExitError
	switch {
	case err == nil:
		return 0, nil
	case errors.As(err, &exit):
		return int(exit.ExitCode() & 0xff), nil
	}
	return ExitTrap, fmt.Errorf("trapped: %s", firstLine(err))
}
