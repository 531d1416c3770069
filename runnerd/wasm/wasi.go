package wasm

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"path"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental/sysfs"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"
	"github.com/tetratelabs/wazero/sys"

	"colloid.net/ipc/invoke"
)

// wasiPermission is errno perm of WASI preview 1.
const wasiPermission = 63

// logicalSecond is the length of one invocation on the logical clock, logicalStep that of one look at it.
const (
	logicalSecond = int64(time.Second)
	logicalStep   = int64(time.Microsecond)
)

// exportWASI makes the functions of WASI preview 1. What the capabilities do not grant answers EPERM.
// A module that imports none of them starts without: the engine compiles a piece of code for each.
func (w *worker) exportWASI(ctx context.Context, runtime wazero.Runtime) error {
	if !w.engine.module.importsFrom(wasiModule) {
		return nil
	}
	builder := runtime.NewHostModuleBuilder(wasiModule)
	wasi_snapshot_preview1.NewFunctionExporter().ExportFunctions(builder)
	const i32, i64 = api.ValueTypeI32, api.ValueTypeI64
	refuse := func(name string, parameters ...api.ValueType) {
		builder.NewFunctionBuilder().WithGoFunction(
			api.GoFunc(func(_ context.Context, stack []uint64) { stack[0] = wasiPermission }),
			parameters, []api.ValueType{i32}).Export(name)
	}
	if !w.settings.may(capabilityEnv) {
		for _, name := range []string{"args_get", "args_sizes_get", "environ_get", "environ_sizes_get"} {
			refuse(name, i32, i32)
		}
	}
	if !w.settings.may(capabilityClock) {
		refuse("clock_time_get", i32, i64, i32)
		refuse("clock_res_get", i32, i32)
	}
	// In deterministic mode random_get gives a sequence that the inputs determine, so it needs no right.
	if !w.settings.may(capabilityRandom) && !w.settings.Deterministic {
		refuse("random_get", i32, i32)
	}
	_, err := builder.Instantiate(ctx)
	return err
}

// instanceConfig is what one instance finds around it. seed matters in deterministic mode only.
func (w *worker) instanceConfig(seed [32]byte) (wazero.ModuleConfig, error) {
	config := wazero.NewModuleConfig().WithName("").WithStartFunctions()
	if w.settings.may(capabilityStdio) {
		config = config.WithStdout(w.stdout).WithStderr(w.stderr)
	} else {
		config = config.WithStdout(forbidden{}).WithStderr(forbidden{})
	}
	if w.settings.may(capabilityEnv) {
		config = config.WithArgs(append([]string{w.settings.Workload}, w.settings.Arguments...)...)
		for _, variable := range w.settings.Environment {
			name, value := cutVariable(variable)
			config = config.WithEnv(name, value)
		}
	}
	config = w.clocks(config, seed)
	files := wazero.NewFSConfig()
	for _, volume := range w.settings.Volumes {
		if !w.settings.may(capabilityFSRead) {
			break // without the right to read there are no volumes, also not to write
		}
		guarded, err := openGuarded(volume.Directory, w.settings.may(capabilityFSWrite))
		if err != nil {
			return nil, err
		}
		files = files.(sysfs.FSConfig).WithSysFSMount(guarded, path.Clean(volume.Mount))
	}
	return config.WithFSConfig(files), nil
}

func (w *worker) clocks(config wazero.ModuleConfig, seed [32]byte) wazero.ModuleConfig {
	if w.settings.Deterministic {
		return config.
			WithWalltime(func() (int64, int32) {
				now := w.logicalNow()
				return now / logicalSecond, int32(now % logicalSecond)
			}, sys.ClockResolution(logicalStep)).
			WithNanotime(w.logicalNow, sys.ClockResolution(logicalStep)).
			WithNanosleep(func(nanoseconds int64) { w.logical += max(0, nanoseconds) }).
			WithRandSource(rand.NewChaCha8(seed))
	}
	return config.WithSysWalltime().WithSysNanotime().WithNanosleep(w.sleep).WithRandSource(systemRandom{})
}

// logicalNow is the time of a deterministic module: it begins with the number of the invocation, in
// seconds, and goes on by a microsecond with each look.
func (w *worker) logicalNow() int64 {
	w.logical += logicalStep
	return w.logical
}

// sleep ends with the invocation's deadline: what waits in the host is no less a runaway than a loop.
func (w *worker) sleep(nanoseconds int64) {
	timer := time.NewTimer(time.Duration(max(0, nanoseconds)))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.callContext.Done():
	}
}

func cutVariable(variable string) (name, value string) {
	for i := range variable {
		if variable[i] == '=' {
			return variable[:i], variable[i+1:]
		}
	}
	return variable, ""
}

// seedOf is the seed of an invocation's randomness: a digest of all its inputs but the key-value space.
func (w *worker) seedOf(call *invoke.Invocation) (seed [32]byte) {
	hash := sha256.New()
	_, _ = io.WriteString(hash, w.settings.Digest)
	write := func(part []byte) {
		hash.Write(binary.BigEndian.AppendUint32(nil, uint32(len(part))))
		hash.Write(part)
	}
	write([]byte(call.Function))
	for _, argument := range call.Arguments {
		write(argument)
	}
	write(binary.BigEndian.AppendUint64(nil, call.Clock))
	hash.Sum(seed[:0])
	return seed
}
