package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"colloid.net/runnerd/image/imagetest"
)

// readmeCommands are the commands of a section of the README, from the first apply on: what comes before starts
// the cells, which the fixture does.
func readmeCommands(t *testing.T, section string) (commands [][]string) {
	t.Helper()
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, walk, found := strings.Cut(string(text), "\n## "+section+"\n")
	walk, _, ended := strings.Cut(walk, "\n## ")
	if !found || !ended {
		t.Fatalf("README.md has no section %q", section)
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
	t.Parallel()
	f := start(t, 2)
	commands := readmeCommands(t, "Two machines by hand")
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

// The same for containers: the words of the README, with an image of the test's registry for the one of the internet, on
// fresh state directories.
func TestReadmeContainersWork(t *testing.T) {
	t.Parallel()
	c := startContainers(t, nil)
	c.registry.Push(t, "busybox:1.36", imagetest.Busybox(t, runtime.GOARCH, v1.Config{Cmd: []string{"sh"}}))
	commands := readmeCommands(t, "Containers")
	if len(commands) != 6 || commands[0][0] != "apply" {
		t.Fatalf("README.md shows %q", commands)
	}
	fill := strings.NewReplacer("docker.io/library/busybox:1.36", c.in("busybox:1.36"), "8080", strconv.Itoa(c.port),
		"examples/", filepath.Join("..", "examples")+"/")
	for i, words := range commands {
		for n := range words {
			words[n] = fill.Replace(words[n])
		}
		out := c.run(c.Cells[1], 0, words...)
		switch i {
		case 1: // it has waited until two copies were ready
			for _, answer := range c.answersOf("spread.site", 2) {
				if !strings.HasPrefix(answer, "site-") {
					t.Errorf("a container answers %q", answer)
				}
			}
		case 3:
			if !strings.Contains(out, "busybox:1.36") && len(c.images(c.Cells[1])) > 0 {
				t.Errorf("image ls prints %s", out)
			}
		case 4:
			c.waitLong("nothing to run", func(context.Context) error { return c.nothingRuns(c.Cells[1]) })
		}
	}
}

// answersOf waits until so many replicas answer at their published ports and returns what they said.
func (c *containers) answersOf(key string, replicas int) (answers []string) {
	c.t.Helper()
	c.waitLong(fmt.Sprintf("%d answers of %s", replicas, key), func(ctx context.Context) (err error) {
		if answers, err = c.Ask(ctx, c.Cells[1], key); err == nil && len(answers) != replicas {
			err = fmt.Errorf("%d answer: %q", len(answers), answers)
		}
		return err
	})
	return answers
}
