package main

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"colloid.net/meshd/sim"
)

// TestMain plays the program when a test runs it, with a rule that is always broken if the test says so.
func TestMain(m *testing.M) {
	switch os.Getenv("COLLOID_SIM_MAIN") {
	case "":
		os.Exit(m.Run())
	case "broken":
		prepare = func(w *sim.World) { w.AddChecker(broken(0)) }
	case "slow":
		prepare = func(w *sim.World) { w.AddChecker(broken(time.Second)) }
	case "endless":
		prepare = func(w *sim.World) { w.AddChecker(&sim.Checker{Name: "slow", Step: patient(time.Millisecond)}) }
	}
	main()
}

// broken fails after two minutes, whatever happens, and takes its time for it.
func broken(pause time.Duration) *sim.Checker {
	return &sim.Checker{Name: "always", Every: 2 * time.Minute, Periodic: func(*sim.World) error {
		time.Sleep(pause)
		return errors.New("broken by a test")
	}}
}

func patient(pause time.Duration) func(*sim.World, *sim.Node) error {
	return func(*sim.World, *sim.Node) error { time.Sleep(pause); return nil }
}

func program(mode, line string) *exec.Cmd {
	command := exec.Command(os.Args[0], strings.Fields(line)...)
	command.Env = append(os.Environ(), "COLLOID_SIM_MAIN="+mode)
	return command
}

// Numbers that cannot be meant end with one line and status 2: a run that simulated nothing is no success. So
// do flags that would change nothing.
func TestWrongArgumentsAreRefused(t *testing.T) {
	for line, names := range map[string]string{
		"-hours NaN": "-hours", "-hours +Inf": "-hours", "-hours 1e300": "-hours", "-hours -1": "-hours", "-hours 0": "-hours",
		"-cells 0": "-cells", "-cells -3": "-cells", "-cells 1000000000": "-cells", "-faults nonsense": "nonsense",
		"-set ci -count -1": "-count", "-set ci -seed 18446744073709551615 -count 2": "-seed",
		"-set ci -jobs 0": "-jobs", "-set ci -jobs 1000000": "-jobs", "-set other": "ci or long", "extra": "extra",
		"-set ci -cells 5": "leave out one", "-set long -hours 2": "-hours has no effect", "-set ci -trace": "-trace has no effect",
		"-set ci -faults crash": "-faults has no effect", "-count 3": "add -set ci", "-jobs 2": "-jobs has no effect",
		"-set ci -trace=false": "-trace has no effect",
	} {
		command := program("plain", line)
		output, err := command.CombinedOutput()
		text := string(output)
		if command.ProcessState.ExitCode() != exitUsage || strings.Count(text, "\n") != 1 ||
			!strings.HasPrefix(text, "colloid-sim: ") || !strings.Contains(text, names) || strings.Contains(text, "%!") {
			t.Errorf("%s: %v, %q", line, err, text)
		}
	}
}

// again finds the command that a failure prints.
func again(t *testing.T, output string) string {
	t.Helper()
	_, rest, found := strings.Cut(output, "\nagain: go run ./cmd/colloid-sim ")
	line, _, whole := strings.Cut(rest, "\n")
	if !found || !whole {
		t.Fatalf("no command to play it again in:\n%s", output)
	}
	return line
}

// A failure prints one command that plays it again, with everything that made the scenario.
func TestAFailureSaysHowToPlayItAgain(t *testing.T) {
	if testing.Short() {
		t.Skip("plays scenarios")
	}
	for line, want := range map[string]string{
		"-cells 3 -hours 0.05 -seed 7 -faults crash,weather": "-cells 3 -hours 0.05 -seed 7 -faults crash,weather",
		"-hours 0.05":                "-cells 5 -hours 0.05 -seed 1 -faults all",
		"-set ci -seed 40 -count 1":  "-set ci -seed 40 -count 1",
		"-set long -seed 9 -count 1": "-set long -seed 9 -count 1",
	} {
		command := program("broken", line)
		output, _ := command.CombinedOutput()
		if command.ProcessState.ExitCode() != exitFailed {
			t.Fatalf("%s: %v\n%s", line, command.ProcessState, output)
		}
		replay := again(t, string(output))
		if replay != want {
			t.Errorf("%s is played again by %q, want %q", line, replay, want)
		}
		second := program("broken", replay)
		repeated, _ := second.CombinedOutput()
		if failure(string(repeated)) != failure(string(output)) || failure(string(output)) == "" {
			t.Errorf("%s fails with %q, played again with %q", line, failure(string(output)), failure(string(repeated)))
		}
	}
}

func failure(output string) string {
	for line := range strings.Lines(output) {
		if strings.HasPrefix(line, "FAIL ") {
			return line
		}
	}
	return ""
}

// Ctrl-C ends a scenario, many of them, and the shrinking of one, at once and with what is known by then.
func TestInterruptsEndEverything(t *testing.T) {
	if testing.Short() {
		t.Skip("plays scenarios")
	}
	for _, c := range []struct {
		mode, line, after string // the output after which it comes, "" = some time
		status            int
		want              string
	}{
		{"slow", "-cells 4 -hours 1 -faults all", "again:", exitFailed, "are enough so far, interrupted"},
		{"slow", "-set ci -jobs 2", "again:", exitFailed, "are enough so far, interrupted"},
		{"endless", "-cells 4 -hours 100", "", exitInterrupted, "interrupted after"},
		{"endless", "-set ci", "", exitInterrupted, "interrupted after"},
		{"endless", "-set long", "", exitOK, "0 seeds"},
	} {
		command := program(c.mode, c.line)
		path := filepath.Join(t.TempDir(), "output")
		file, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		command.Stdout, command.Stderr = file, file
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		kill := time.AfterFunc(2*time.Minute, func() { _ = command.Process.Kill() })
		if c.after == "" {
			time.Sleep(time.Second)
		}
		for deadline := time.Now().Add(time.Minute); c.after != "" && !contains(path, c.after); {
			if time.Now().After(deadline) {
				break // what is wrong is seen below
			}
			time.Sleep(20 * time.Millisecond)
		}
		sent := time.Now()
		_ = command.Process.Signal(syscall.SIGINT)
		_ = command.Wait()
		kill.Stop()
		file.Close()
		output, _ := os.ReadFile(path)
		if command.ProcessState.ExitCode() != c.status || !strings.Contains(string(output), c.want) || time.Since(sent) > 30*time.Second {
			t.Errorf("%s %s: %v after %v\n%s", c.mode, c.line, command.ProcessState, time.Since(sent), output)
		}
	}
}

// contains reports whether a line of a file begins with a text.
func contains(path, begin string) bool {
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), begin) {
			return true
		}
	}
	return false
}
