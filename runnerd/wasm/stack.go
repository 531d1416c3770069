package wasm

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"unsafe"

	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/sys"
	"golang.org/x/sys/unix"
)

// Stacks of calls. The engine gives each function a small stack and doubles it while calls nest, up to 100 MB, each
// time with the old one beside it: more than the worker may have, so the kernel would end the worker for what is a
// trap. There is no setting for it. So functions get this worker's stack instead, of a fixed size: only one function
// runs at a time (worker.executor), so one stack serves them all, and nothing is ever copied.
const (
	// StackMax is how much stack the calls of an invocation may have.
	StackMax = 8 << 20
	// stackDeterministicMax is the same of a deterministic module, whose calls end at DepthMax on every machine: that
	// many of the greatest frames fit. Only what is touched counts.
	stackDeterministicMax = 48 << 20
	// stackMapped is more than the length (50,000,000 bytes) from which on the engine does not let a stack grow.
	stackMapped = 64 << 20
	// stackSlack may be written below the stack by the few instructions that find out that it has ended.
	stackSlack = 64 << 10
)

// callStack is the stack of all calls of a worker.
type callStack struct {
	region []byte // of stackMapped bytes, of which the last size are used
	size   int
}

func newCallStack(size int) (*callStack, error) {
	region, err := unix.Mmap(-1, 0, stackMapped, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err == nil {
		err = unix.Mprotect(region[:stackMapped-size-stackSlack], unix.PROT_NONE)
	}
	if err != nil {
		return nil, fmt.Errorf("stack of the module's calls: %w", err)
	}
	return &callStack{region, size}, nil
}

// errEngine says that this version of the engine keeps its stacks in another way than stack.go knows.
var errEngine = errors.New("the engine's stack cannot be bounded")

// give makes a function use the stack. It reaches into the engine, whose version go.mod fixes; what is not as
// expected is an error. Functions of the host and those of the interpreter, which bounds its own stack, have none.
func (s *callStack) give(function api.Function) error {
	value := reflect.ValueOf(function)
	if value.Kind() != reflect.Pointer || value.Elem().Type().Name() != "callEngine" ||
		!strings.HasSuffix(value.Elem().Type().PkgPath(), "/wazevo") {
		return nil
	}
	engine := value.Elem()
	stack, top := engine.FieldByName("stack"), engine.FieldByName("stackTop")
	context := engine.FieldByName("execCtx")
	if !stack.IsValid() || stack.Type() != reflect.TypeFor[[]byte]() || !top.IsValid() ||
		top.Kind() != reflect.Uintptr || context.Kind() != reflect.Struct {
		return errEngine
	}
	bottom := context.FieldByName("stackBottomPtr")
	if !bottom.IsValid() || bottom.Type() != reflect.TypeFor[*byte]() {
		return errEngine
	}
	last := uintptr(unsafe.Pointer(&s.region[len(s.region)-1]))
	*(*[]byte)(unsafe.Pointer(stack.UnsafeAddr())) = s.region
	*(*uintptr)(unsafe.Pointer(top.UnsafeAddr())) = last &^ 15
	*(**byte)(unsafe.Pointer(bottom.UnsafeAddr())) = &s.region[len(s.region)-s.size]
	return nil
}

// clear gives the memory of the stack back to the kernel, while no function runs.
func (s *callStack) clear() {
	_ = unix.Madvise(s.region[len(s.region)-s.size-stackSlack:], unix.MADV_DONTNEED) // it stays in use, no more
}

// exported finds an exported function, with the worker's stack; nil if there is none.
func (w *worker) exported(instance api.Module, name string) (api.Function, error) {
	function := instance.ExportedFunction(name)
	if function == nil {
		return nil, nil
	}
	return function, w.engine.stack.give(function)
}

// begin runs the start function of a new instance and then _initialize, each if the module has it. The engine would do
// so by itself, with stacks of its own.
func (w *worker) begin(ctx context.Context, instance api.Module) error {
	names := []string{startSectionExport}
	if w.engine.module.Style == StyleFunctions {
		names = append(names, initializeExport)
	}
	for _, name := range names {
		function, err := w.exported(instance, name)
		if err == nil && function != nil {
			_, err = function.Call(ctx)
		}
		var exit *sys.ExitError
		if errors.As(err, &exit) && exit.ExitCode() == 0 {
			return nil // it has ended itself, and did so in peace
		}
		if err != nil {
			w.engine.stack.clear()
			return err
		}
	}
	return nil
}
