package e2e

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// readmeCommands are the commands of the README's walk through two machines, from the first apply on: what
// comes before starts the cells, which the fixture does.
func readmeCommands(t *testing.T) (commands [][]string) {
	t.Helper()
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, walk, found := strings.Cut(string(text), "\n## Two machines by hand\n")
	walk, _, ended := strings.Cut(walk, "\n## ")
	if !found || !ended {
		t.Fatal("README.md has no section \"Two machines by hand\"")
	}
	for line := range strings.SplitSeq(walk, "\n") {
		line, _, _ = strings.Cut(line, " #")
		if words := strings.Fields(line); strings.HasPrefix(line, "       sudo colloid ") && words[2] != "connect" {
			commands = append(commands, words[2:])
		}
	}
	return commands
}

// Who follows the README gets what it says.
func TestReadmeWalkWorks(t *testing.T) {
	f := start(t, 2)
	commands := readmeCommands(t)
	if len(commands) < 6 || commands[0][0] != "apply" || commands[len(commands)-1][0] != "leave" {
		t.Fatalf("README.md shows %q: want apply first and leave last", commands)
	}
	fill := strings.NewReplacer("/usr/local/bin/hello", f.Program("hello"), "8080", strconv.Itoa(f.port),
		"examples/", filepath.Join("..", "examples")+"/")
	for i, words := range commands {
		for n := range words {
			words[n] = fill.Replace(words[n])
		}
		f.run(f.Cells[1], 0, words...)
		if i == 0 {
			f.answers(f.Cells[1], 2)
		}
	}
	f.run(f.Cells[0], 0, "delete", "hello")
}
