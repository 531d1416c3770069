package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

// keeperVariable tells a copy of this program to be a keeper.
const keeperVariable = "COLLOID_E2E_KEEPER"

// RunKeeper turns this process into a keeper if it was started as one; otherwise it does nothing.
func RunKeeper() {
	if os.Getenv(keeperVariable) == "" {
		return
	}
	if err := keep(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "keeper: %v\n", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// keep runs a command and then reaps whatever becomes its child until nothing is left.
func keep(arguments []string) error {
	if len(arguments) == 0 {
		return errors.New("nothing to run")
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become subreaper: %w", err)
	}
	os.Unsetenv(keeperVariable)
	command := exec.Command(arguments[0], arguments[1:]...)
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	if err := command.Start(); err != nil {
		return err
	}
	for {
		_, err := unix.Wait4(-1, nil, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ECHILD):
			return nil
		case err != nil:
			return fmt.Errorf("wait: %w", err)
		}
	}
}
