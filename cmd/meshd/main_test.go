package main

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"colloid.net/ipc/supply"
)

const asProgram = "COLLOID_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// Who asks for help gets it and has done nothing wrong; wrong arguments are what trying again cannot mend.
func TestHelpIsNoMistake(t *testing.T) {
	for argument, want := range map[string]int{"--help": 0, "--nonsense": supply.ExitMisconfigured, "nonsense": supply.ExitMisconfigured} {
		command := exec.CommandContext(t.Context(), "/proc/self/exe", argument)
		command.Env = append(os.Environ(), asProgram+"=1")
		output, err := command.CombinedOutput()
		var failed *exec.ExitError
		got := 0
		if errors.As(err, &failed) {
			got = failed.ExitCode()
		} else if err != nil {
			t.Fatal(err)
		}
		if got != want || want == 0 && (!strings.Contains(string(output), "-supply-fd") || strings.Contains(string(output), "wrong")) {
			t.Errorf("%s: status %d, want %d: %s", argument, got, want, output)
		}
	}
}
