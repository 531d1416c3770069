package cli

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"time"
	"unicode/utf8"

	"colloid.net/ipc/invoke"
	"colloid.net/ipc/uds"
	"github.com/spf13/cobra"
)

func (a *app) wasmCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "wasm",
		Short: "Use workloads that are WebAssembly modules",
		Args:  cobra.NoArgs,
		RunE:  func(command *cobra.Command, _ []string) error { return command.Help() },
	}
	command.AddCommand(a.wasmInvokeCommand())
	return command
}

// wasmCall is what the flags of wasm invoke say.
type wasmCall struct {
	function string
	timeout  time.Duration
	clock    uint64
	format   string
	standard bool
}

// Output formats of wasm invoke.
const (
	wasmRaw  = "raw"
	wasmHex  = "hex"
	wasmJSON = "json"
)

func (a *app) wasmInvokeCommand() *cobra.Command {
	var c wasmCall
	command := &cobra.Command{
		Use:   "invoke NAME [ARGUMENT ...]",
		Short: "Call a function of a module and print what it returns",
		Long: `Calls a function of the instance that runs on this cell, or else of one on another cell, and prints its
output. Without --function that is colloid_invoke, which reads the arguments as it likes; a function that
takes numbers gets the arguments as numbers. A function that does not return in time is stopped.`,
		Args:        cobra.MinimumNArgs(1),
		Annotations: map[string]string{takesWords: "yes"},
		ValidArgsFunction: func(command *cobra.Command, arguments []string, prefix string) (
			[]cobra.Completion, cobra.ShellCompDirective,
		) {
			if len(arguments) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return a.completeKeys(command, arguments, prefix)
		},
		RunE: func(_ *cobra.Command, arguments []string) error {
			return a.wasmInvoke(arguments[0], arguments[1:], &c)
		},
	}
	flags := command.Flags()
	flags.StringVar(&c.function, "function", "", "exported function to call")
	flags.DurationVar(&c.timeout, "timeout", invoke.DeadlineDefaultMilliseconds*time.Millisecond,
		"how long the function may run")
	flags.Uint64Var(&c.clock, "clock", 0, "logical clock of a deterministic module, 0 = the next")
	flags.StringVarP(&c.format, "output", "o", wasmRaw, "output format: raw, hex or json")
	flags.BoolVar(&c.standard, "stdin", false, "standard input is one more argument")
	flags.SetInterspersed(false) // what follows NAME are arguments of the function, also with dashes
	_ = command.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(
		[]cobra.Completion{wasmRaw, wasmHex, wasmJSON}, cobra.ShellCompDirectiveNoFileComp))
	for _, name := range []string{"function", "timeout", "clock"} {
		_ = command.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions)
	}
	return command
}

// wasmOutcome is the JSON document of -o json.
type wasmOutcome struct {
	Status       int32   `json:"status"`
	Output       string  `json:"output"`          // as text, if it is valid UTF-8
	OutputHex    string  `json:"output_hex"`      // always
	Milliseconds float64 `json:"milliseconds"`    // in the module
	Clock        uint64  `json:"clock,omitempty"` // of a deterministic module
	Snapshot     string  `json:"kv_snapshot,omitempty"`
}

func (a *app) wasmInvoke(name string, arguments []string, c *wasmCall) error {
	call, err := a.wasmInvocation(arguments, c)
	if err != nil {
		return err
	}
	if len(name) > keyLengthMax || printable(name) != name {
		return fail(ExitUsage, "%.80q is no name of a workload", name)
	}
	return a.with(func(s *session) error {
		s.client.Timeout = 2*uds.DefaultTimeout + 12*c.timeout // the daemon ends it long before
		reply, err := s.client.Do(uds.CodeWasmInvoke, invoke.AppendCall(nil, name, call))
		var refused *uds.ReplyError
		if errors.As(err, &refused) && refused.Errno == uds.ErrorDeadline {
			return fail(ExitError, "%s: allow more with --timeout", printable(refused.Error()))
		}
		if err != nil {
			return s.explain(name, err)
		}
		result, err := invoke.ParseOutcome(reply)
		if err != nil {
			return fail(ExitError, "the daemon's answer is not understood (%w): are colloid and meshd of one version?", err)
		}
		if err := a.printOutcome(result, c.format); err != nil {
			return err
		}
		if result.Status != 0 {
			return fail(ExitError, "%s: the function returned status %d", name, result.Status)
		}
		return nil
	})
}

func (a *app) wasmInvocation(arguments []string, c *wasmCall) (*invoke.Invocation, error) {
	if c.format != wasmRaw && c.format != wasmHex && c.format != wasmJSON {
		return nil, fail(ExitUsage, "%.80q is not an output format, use raw, hex or json", c.format)
	}
	const most = invoke.DeadlineMaxMilliseconds * time.Millisecond
	if c.timeout < time.Millisecond || c.timeout > most {
		return nil, fail(ExitUsage, "--timeout is %v, expected 1ms to %v", c.timeout, most)
	}
	call := &invoke.Invocation{
		Function: c.function, Clock: c.clock, Milliseconds: uint32(c.timeout.Milliseconds()),
	}
	for _, argument := range arguments {
		call.Arguments = append(call.Arguments, []byte(argument))
	}
	if c.standard {
		input, err := io.ReadAll(io.LimitReader(a.Input, invoke.ArgumentSum+1))
		if err != nil {
			return nil, fail(ExitUsage, "read standard input: %w", err)
		}
		call.Arguments = append(call.Arguments, input)
	}
	if err := call.Check(); err != nil {
		return nil, fail(ExitUsage, "%w", err)
	}
	return call, nil
}

// printOutcome prints the output as it is, unless it is asked for otherwise: what a module returns may be
// an image, and whoever wants to see it on a terminal says hex or json.
func (a *app) printOutcome(result *invoke.Result, format string) error {
	switch format {
	case wasmHex:
		a.data("%s", hex.EncodeToString(result.Output))
		return nil
	case wasmJSON:
		outcome := wasmOutcome{
			Status: result.Status, OutputHex: hex.EncodeToString(result.Output), Clock: result.Clock,
			Milliseconds: float64(result.Nanos) / 1e6,
		}
		if utf8.Valid(result.Output) {
			outcome.Output = string(result.Output)
		}
		if result.Snapshot != [32]byte{} {
			outcome.Snapshot = fmt.Sprintf("%x", result.Snapshot)
		}
		return a.printJSON(outcome)
	}
	if _, err := a.Output.Write(result.Output); err != nil {
		return err
	}
	if n := len(result.Output); n > 0 && result.Output[n-1] != '\n' && utf8.Valid(result.Output) {
		a.data("")
	}
	return nil
}
