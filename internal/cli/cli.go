package cli

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	"colloid.net/internal/version"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Environment is what the command line gets from the process it runs in.
type Environment struct {
	Input    io.Reader
	Output   io.Writer
	Errors   io.Writer
	Variable func(string) string // os.Getenv
	Root     bool                // effective user is root
	// Abandon ends the process with a status while Main still runs: what os.Exit does. Nil: commands are not
	// abandoned.
	Abandon func(status int)
}

// Main runs one command and returns its exit status.
func Main(ctx context.Context, arguments []string, environment Environment) int {
	out := newOutput(environment.Output)
	environment.Output = out
	a := &app{Environment: environment, out: out}
	root := a.rootCommand()
	root.SetArgs(arguments)
	root.SetIn(environment.Input)
	root.SetOut(environment.Output)
	refuseUnknownTopics(root) // once it is known where output goes
	root.SetErr(environment.Errors)
	return a.execute(ctx, root.ExecuteContext)
}

// app is one run of the command line.
type app struct {
	Environment
	out    *output // what Output is
	socket string  // --socket
	run    runFlags
	// digests of programs that this run has read, by path
	digests map[string][sha256.Size]byte
	// endsItself: the command answers an interruption by itself, however long that takes; see execute.
	endsItself atomic.Bool
	// watches: the command goes on until it is interrupted, so that is no failure.
	watches atomic.Bool
}

func (a *app) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "colloid",
		Short: "Run workloads on a cluster of equal machines",
		Long: `Without a command, colloid starts this machine's cell and stays in the foreground: a complete
cluster of one. Further machines join with "colloid connect HOST".`,
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(command *cobra.Command, _ []string) error {
			return refuseEmptyFlags(command.Flags())
		},
		Version: version.String(),
		RunE:    func(command *cobra.Command, _ []string) error { return a.runAppliance(command.Context(), nil) },
	}
	root.SetVersionTemplate("colloid {{.Version}}\n")
	root.SetFlagErrorFunc(func(command *cobra.Command, err error) error {
		return fail(ExitUsage, "%w; see %s --help", err, command.CommandPath())
	})
	root.PersistentFlags().StringVar(&a.socket, "socket", "", "command socket of the local daemon")
	a.run.register(root.Flags())
	root.AddCommand(
		a.applyCommand(), a.diffCommand(), a.deleteCommand(), a.exportCommand(), a.getCommand(),
		a.statusCommand(), a.cellsCommand(), a.netcheckCommand(), a.explainCommand(), a.resolveCommand(),
		a.connectCommand(), a.leaveCommand(), a.forgetCommand(), a.lockCommand(), a.unlockCommand(),
		a.logsCommand(), a.topCommand(), a.execCommand(), a.copyCommand(), a.operatorCommand(),
		a.rolloutCommand(), a.drainCommand(), a.uncordonCommand(), a.acceptLossCommand(),
		a.imageCommand(), a.wasmCommand(), a.versionCommand(),
		&cobra.Command{Use: "exit-codes", Short: "What the exit statuses mean", Long: exitCodesHelp},
	)
	sayWhatFits(root)
	splitHelp(root)
	return root
}

// sayWhatFits: the library counts arguments without saying what they should be, and takes one too many for an
// unknown command also where there are none.
func sayWhatFits(command *cobra.Command) {
	for _, sub := range command.Commands() {
		sayWhatFits(sub)
	}
	count := command.Args
	if count == nil || command.HasSubCommands() {
		return
	}
	command.Args = func(command *cobra.Command, arguments []string) error {
		if count(command, arguments) == nil {
			return refuseEmptyArguments(command, arguments)
		}
		do := "do"
		if len(arguments) == 1 {
			do = "does"
		}
		return fail(ExitUsage, "%s: %s %s not fit: write %s; see %s --help", command.CommandPath(),
			counted(len(arguments), "argument"), do, command.UseLine(), command.CommandPath())
	}
}

// takesWords marks a command whose arguments behind the first belong to somebody else, who may want empty
// ones.
const takesWords = "takes-words"

// refuseEmptyArguments: an argument with nothing in it is most often a variable of a script that is not set,
// and would mean the working directory, or everything.
func refuseEmptyArguments(command *cobra.Command, arguments []string) error {
	for i, argument := range arguments {
		if argument == "" && (i == 0 || command.Annotations[takesWords] == "") {
			return fail(ExitUsage, "%s: argument %d is empty: write %s", command.CommandPath(), i+1, command.UseLine())
		}
	}
	return nil
}

// refuseEmptyFlags: an option with nothing behind it is most often a variable of a script that is not set. To
// take the default then could be another directory or another daemon than was meant.
func refuseEmptyFlags(flags *pflag.FlagSet) (err error) {
	flags.Visit(func(f *pflag.Flag) {
		empty := f.Value.String() == ""
		if list, ok := f.Value.(pflag.SliceValue); ok {
			empty = slices.Contains(list.GetSlice(), "")
		}
		if empty && err == nil && f.Value.Type() != "FORMAT" {
			err = fail(ExitUsage, "--%s is empty: give it a value or leave it out", f.Name)
		}
	})
	return err
}

// refuseUnknownTopics adds the commands of the library that parse the command line, which would answer a
// topic or shell that does not exist with a text about something else, and success.
func refuseUnknownTopics(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, command := range root.Commands() {
		switch command.Name() {
		case "help":
			command.Args = func(_ *cobra.Command, topic []string) error {
				if found, rest, err := root.Find(topic); err != nil || found == root && len(rest) > 0 {
					return fmt.Errorf("there is no help on %.80q", strings.Join(topic, " "))
				}
				return nil
			}
		case "completion":
			command.Args = cobra.NoArgs // a known shell is a command of its own
			command.RunE = func(command *cobra.Command, _ []string) error { return command.Help() }
		}
	}
}

// talk prints a line for people on standard error.
func (a *app) talk(format string, arguments ...any) {
	fmt.Fprintln(a.Errors, harmlessText(format, arguments...))
}

// data prints a line of the result on standard output.
func (a *app) data(format string, arguments ...any) {
	fmt.Fprintln(a.Output, harmlessText(format, arguments...))
}

// outputFormat is the value of -o.
type outputFormat string

const formatJSON outputFormat = "json"

func (f *outputFormat) String() string { return string(*f) }

// Type names the value in help texts.
func (f *outputFormat) Type() string { return "FORMAT" }

// Set accepts json, and text for the default.
func (f *outputFormat) Set(text string) error {
	switch text {
	case "json":
		*f = formatJSON
	case "text":
		*f = ""
	default:
		return fmt.Errorf("%q is not an output format, use json or text", text)
	}
	return nil
}

func (f *outputFormat) register(command *cobra.Command) {
	command.Flags().VarP(f, "output", "o", "output format: text or json")
	_ = command.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(
		[]cobra.Completion{"text", "json"}, cobra.ShellCompDirectiveNoFileComp))
}

// printJSON prints a document, indented.
func (a *app) printJSON(document any) error {
	encoder := json.NewEncoder(a.Output)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(document)
}

// readInput reads a file, or standard input for "-", up to a bound.
func (a *app) readInput(name string) ([]byte, error) {
	if name == "-" {
		return readBounded(a.Input, "standard input")
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, fail(ExitUsage, "%w", err)
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil && info.IsDir() {
		return nil, fail(ExitUsage, "%s is a directory: name a file", printable(name))
	}
	return readBounded(file, name)
}

// inputSizeMax bounds a configuration file.
const inputSizeMax = 16 << 20

func readBounded(r io.Reader, name string) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, inputSizeMax+1))
	if broken := new(os.PathError); errors.As(err, &broken) { // names the file as well
		err = broken.Err
	}
	if err != nil {
		return nil, fail(ExitUsage, "read %s: %w", name, err)
	}
	if len(text) > inputSizeMax {
		return nil, fail(ExitUsage, "%s has more than %d MiB, split it", name, inputSizeMax>>20)
	}
	return text, nil
}
