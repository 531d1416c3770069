package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestMain plays the program when a test runs it.
func TestMain(m *testing.M) {
	if os.Getenv("COLLOID_SIM_MAIN") != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// Numbers that cannot be meant end with one line and status 2: a run that simulated nothing is no success.
func TestWrongNumbersAreRefused(t *testing.T) {
	for _, line := range []string{"-hours NaN", "-hours +Inf", "-hours 1e300", "-hours -1", "-hours 0", "-cells 0", "-cells -3",
		"-cells 1000000000", "-faults nonsense", "-set ci -count -1", "-set ci -seed 18446744073709551615 -count 2",
		"-set ci -jobs 0", "-set ci -jobs 1000000", "-set other", "extra"} {
		command := exec.Command(os.Args[0], strings.Fields(line)...)
		command.Env = append(os.Environ(), "COLLOID_SIM_MAIN=1")
		output, err := command.CombinedOutput()
		text := string(output)
		if command.ProcessState.ExitCode() != 2 || strings.Count(text, "\n") != 1 || !strings.HasPrefix(text, "colloid-sim: ") {
			t.Errorf("%s: %v, %q", line, err, text)
		}
	}
}
