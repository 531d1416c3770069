// Package daemontest is what the tests of the daemons' commands have in common: a test's binary that plays
// the program.
package daemontest

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"colloid.net/ipc/supply"
)

const asProgram = "COLLOID_TEST_AS_PROGRAM"

// Main is the TestMain of a command: the tests, or the program where one of them runs it.
func Main(m *testing.M, program func()) {
	if os.Getenv(asProgram) != "" {
		program()
		return
	}
	os.Exit(m.Run())
}

// HelpIsNoMistake checks that who asks for help gets it and has done nothing wrong, and that wrong arguments
// are told as what trying again cannot mend.
func HelpIsNoMistake(t *testing.T) {
	t.Helper()
	for argument, want := range map[string]int{
		"--help": 0, "--nonsense": supply.ExitMisconfigured, "nonsense": supply.ExitMisconfigured,
	} {
		command := exec.CommandContext(t.Context(), "/proc/self/exe", argument)
		command.Env = append(os.Environ(), asProgram+"=1")
		output, err := command.CombinedOutput()
		var failed *exec.ExitError
		if err != nil && !errors.As(err, &failed) {
			t.Fatal(err)
		}
		got, text := command.ProcessState.ExitCode(), string(output)
		if got != want || want == 0 && (!strings.Contains(text, "-supply-fd") || strings.Contains(text, "wrong")) {
			t.Errorf("%s: status %d, want %d: %s", argument, got, want, text)
		}
	}
}
