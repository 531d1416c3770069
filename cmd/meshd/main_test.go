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

// Addresses that nobody can be reached at are wrong arguments; they were a panic.
func TestAdvertisedAddressesAreChecked(t *testing.T) {
	one := "--advertise=192.0.2.1"
	for _, flags := range [][]string{
		{"--advertise=0.0.0.0"}, {"--advertise=[::]:9"}, {"--advertise=::ffff:0.0.0.0"}, {"--advertise=224.0.0.1:9"},
		{"--advertise=ff02::1"}, {"--advertise=255.255.255.255"}, {one, one, one, one, one},
	} {
		if _, err := parse(append(flags, "--directory", "/x")); err == nil {
			t.Errorf("%q is taken", flags)
		}
	}
	if _, err := parse([]string{one, "--advertise=[2001:db8::1]:9", "--advertise=127.0.0.1", "--directory", "/x"}); err != nil {
		t.Error(err)
	}
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
