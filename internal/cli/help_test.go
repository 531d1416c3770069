package cli

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// Every flag that the documents show for starting a cell stands in the help of the commands that start one,
// in a section of its own, and in no other command's help.
func TestHelpShowsTheFlagsOfTheDaemon(t *testing.T) {
	text, err := os.ReadFile("../../docs/commands.md")
	if err != nil {
		t.Fatal(err)
	}
	_, start, _ := strings.Cut(string(text), "### `colloid`\n")
	start, _, _ = strings.Cut(start, "\n### ")
	documented := regexp.MustCompile("(?m)^\\| `(--[a-z-]+) ").FindAllStringSubmatch(start, -1)
	if len(documented) < 9 {
		t.Fatalf("only %q are documented", documented)
	}
	for _, arguments := range [][]string{{"--help"}, {"connect", "--help"}} {
		own, daemon, split := strings.Cut(runCommand("", nil, arguments...).output, "\nFlags of the daemon:\n")
		if !split || !strings.Contains(own, "\nFlags:\n") || !strings.Contains(own, "--help") {
			t.Errorf("%q: %q", arguments, own)
		}
		for _, flag := range documented {
			if !strings.Contains(daemon, flag[1]+" ") || strings.Contains(own, "  "+flag[1]+" ") {
				t.Errorf("%q: %s is not among the flags of the daemon:\n%s", arguments, flag[1], daemon)
			}
		}
	}
	if r := runCommand("", nil, "status", "--help"); strings.Contains(r.output, "of the daemon:") ||
		!strings.Contains(r.output, "\nFlags:\n") || !strings.Contains(r.output, "--metrics") {
		t.Errorf("%s", r.output)
	}
}
