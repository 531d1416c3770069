package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"colloid.net/ipc/supply"
)

// Exit statuses. They are documented in docs/commands.md and `colloid help exit-codes`.
const (
	ExitOK          = 0
	ExitError       = 1 // the command failed; also if there is no such cell, workload, version or key
	ExitUsage       = 2 // wrong arguments, an invalid file; also how Go ends a program that panics
	ExitNeedsHuman  = 3 // `status` shows something that waits for a person
	ExitUnreachable = 4 // no daemon answers on the socket
	ExitConflict    = 5 // the key holds concurrent values, or changed since it was read
	// ExitConfiguration: the cell cannot run as it is configured, or its directory is unusable; trying again
	// cannot help. No panic ends a program with it.
	ExitConfiguration = supply.ExitMisconfigured
)

const exitCodesHelp = `Exit statuses of every command:

  0  success
  1  the command failed; the message says why and what to do. Also: there is no cell, workload,
     key or version of the given name
  2  wrong arguments, or an invalid file (nothing was written)
  3  status, rollout status: something waits for a person (a conflict, a failed update, a critical alarm)
  4  no daemon answers on the socket
  5  the key holds concurrent values, or changed since it was read
  130 interrupted by control-C or SIGTERM before it was done
  78 the cell cannot run as it is configured, or its state directory cannot be used; trying again
     does not help: an init system should not restart
`

// failure is an error with an exit status. Lines are printed one by one, each as a message.
type failure struct {
	exit  int
	lines []string
	cause error
}

func (f *failure) Error() string { return strings.Join(f.lines, "\n") }
func (f *failure) Unwrap() error { return f.cause }

// fail makes a failure of one line.
func fail(exit int, format string, arguments ...any) error {
	err := fmt.Errorf(format, arguments...)
	return &failure{exit: exit, lines: []string{printable(err.Error())}, cause: err}
}

// silent ends the command with a status without saying anything more.
func silent(exit int) error { return &failure{exit: exit} }

// report prints an error and returns the exit status that it means.
func report(w io.Writer, err error) int {
	if err == nil {
		return ExitOK
	}
	var f *failure
	if !errors.As(err, &f) {
		// What is not a failure comes from cobra or pflag: wrong arguments.
		f = &failure{exit: ExitUsage, lines: []string{err.Error() + "; see colloid help"}}
	}
	for _, line := range f.lines {
		for single := range strings.Lines(line) {
			fmt.Fprintf(w, "colloid: %s\n", printable(strings.TrimRight(single, "\n")))
		}
	}
	return f.exit
}
