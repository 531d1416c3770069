package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

const showVariable = "COLLOID_TEST_SHOW_ARGUMENTS"

func TestMain(m *testing.M) {
	if os.Getenv(showVariable) == "" {
		os.Exit(m.Run())
	}
	arguments := takeArguments()
	shown, err := os.ReadFile("/proc/self/cmdline")
	fmt.Printf("%s\n%s\n%v\n", strings.Join(arguments, " "), strings.ReplaceAll(string(shown), "\x00", " "), err)
}

// The key of a locked cluster is used, and cannot be read by every user of the host as long as the cell runs.
func TestF132_TheKeyDoesNotStayOnTheCommandLine(t *testing.T) {
	key := strings.Repeat("k2", 26)
	given := []string{"connect", "host:1#" + key, "--join=other#" + key, "--label", "a=b#c"}
	c := exec.Command(os.Args[0], given...)
	c.Env = append(os.Environ(), showVariable+"=1")
	out, err := c.CombinedOutput()
	lines := strings.Split(string(out), "\n")
	if err != nil || len(lines) < 3 || lines[2] != "<nil>" {
		t.Fatalf("%v: %s", err, out)
	}
	if lines[0] != strings.Join(given, " ") {
		t.Errorf("the program gets %q", lines[0])
	}
	if strings.Contains(lines[1], "k2") || !strings.Contains(lines[1], "host:1#....") || !strings.Contains(lines[1], "a=b#c") {
		t.Errorf("everybody reads %q", lines[1])
	}
}
