package wasm

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"
)

const (
	// startPatience bounds how long the start function and _initialize of a module may take.
	startPatience = 10 * time.Second
	// compilePatience bounds compiling, which cannot be interrupted: the worker ends instead.
	compilePatience = time.Minute
)

// engine is one compiled module.
type engine struct {
	runtime  wazero.Runtime
	compiled wazero.CompiledModule
	module   *Module
	pool     memoryPool
	stack    *callStack
}

type systemRandom struct{}

func (systemRandom) Read(p []byte) (int, error) { return rand.Read(p) }

// configOf is the configuration of the runtime; the interpreter serves tests only.
func configOf(pages uint32, interpreter bool) wazero.RuntimeConfig {
	config := wazero.NewRuntimeConfig()
	if interpreter {
		config = wazero.NewRuntimeConfigInterpreter()
	}
	return config.WithCloseOnContextDone(true).WithMemoryLimitPages(pages).WithDebugInfoEnabled(false).
		WithCoreFeatures(api.CoreFeaturesV2)
}

// open compiles the module, from the cache where it is.
func (w *worker) open(ctx context.Context, binary []byte, interpreter bool) error {
	module, err := Prepare(binary, w.settings.Deterministic, w.settings.MemoryPages)
	if err != nil {
		return err
	}
	store := cache{w.settings.CacheDirectory, w.settings.CacheKey}
	var files wazero.CompilationCache
	if store.directory != "" && len(store.key) > 0 {
		if err = store.verify(); err == nil {
			files, err = wazero.NewCompilationCacheWithDir(store.directory)
		}
		if err != nil && w.settings.CompileOnly {
			return fmt.Errorf("the compile cache cannot be used: %w", err)
		}
		if err != nil {
			fmt.Fprintf(w.log, "the compile cache cannot be used: %v\n", err)
			files = nil
		}
	}
	err = w.compile(ctx, module, files, interpreter)
	var disk *fs.PathError
	if files != nil && errors.As(err, &disk) { // it is full, as a rule
		if w.settings.CompileOnly {
			return fmt.Errorf("the compiled module cannot be kept: %w", disk.Err)
		}
		fmt.Fprintf(w.log, "the compiled module cannot be kept: %v\n", disk.Err)
		_ = w.engine.runtime.Close(ctx)
		files = nil
		err = w.compile(ctx, module, nil, interpreter)
	}
	if err != nil {
		return err
	}
	module.Binary = nil
	if files != nil {
		if err := store.seal(); err != nil && w.settings.CompileOnly {
			return fmt.Errorf("the compiled module cannot be kept: %w", err)
		}
	}
	return nil
}

// compile makes the engine, with a cache or nil.
func (w *worker) compile(ctx context.Context, module *Module, files wazero.CompilationCache, interpreter bool) error {
	config := configOf(w.settings.MemoryPages, interpreter)
	if files != nil {
		config = config.WithCompilationCache(files)
	}
	size := StackMax
	if w.settings.Deterministic {
		size = stackDeterministicMax
	}
	stack, err := newCallStack(size)
	if err != nil {
		return err
	}
	w.engine = &engine{module: module, stack: stack, runtime: wazero.NewRuntimeWithConfig(ctx, config)}
	if err := w.exportHost(ctx, w.engine.runtime); err != nil {
		return err
	}
	if err := w.exportWASI(ctx, w.engine.runtime); err != nil {
		return err
	}
	if w.engine.compiled, err = w.engine.runtime.CompileModule(ctx, module.Binary); err != nil {
		return invalidModule{err}
	}
	return nil
}

// invalidModule says what the engine has against a module, in one line.
type invalidModule struct{ error }

func (e invalidModule) Error() string { return "the module is invalid: " + firstLine(e.error) }

func (e invalidModule) Unwrap() error { return e.error }

// instantiate makes an instance and runs its start function and _initialize within startPatience.
func (w *worker) instantiate(ctx context.Context, seed [32]byte) (api.Module, error) {
	config, err := w.instanceConfig(seed)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(experimental.WithMemoryAllocator(ctx, &w.engine.pool), startPatience)
	defer cancel()
	previous := w.callContext
	w.callContext = ctx
	defer func() { w.callContext = previous }()
	instance, err := w.engine.runtime.InstantiateModule(ctx, w.engine.compiled, config.WithStartFunctions())
	if err == nil {
		if err = w.begin(ctx, instance); err != nil {
			_ = instance.Close(ctx)
		}
	}
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return nil, fmt.Errorf("the module's start function took longer than %v", startPatience)
		}
		return nil, fmt.Errorf("the module cannot be instantiated: %s", firstLine(err))
	}
	return instance, nil
}
