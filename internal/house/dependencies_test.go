package house

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// direct returns the modules a go.mod requires by name, without those marked as indirect.
func direct(t *testing.T, path string) (modules []string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	block := false
	for line := range strings.SplitSeq(string(text), "\n") {
		one, single := strings.CutPrefix(line, "require ")
		switch {
		case single && strings.HasPrefix(one, "("):
			block = true
		case line == ")":
			block = false
		case (block || single) && !strings.Contains(line, "// indirect"):
			modules = append(modules, strings.Fields(one)[0])
		}
	}
	return modules
}

// A dependency is taken in knowing what it is for and what it weighs, or not at all.
func TestEveryDependencyIsExplained(t *testing.T) {
	text, err := os.ReadFile(root + "docs/dependencies.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{root + "go.mod", root + "bench/go.mod"} {
		modules := direct(t, path)
		if len(modules) == 0 {
			t.Errorf("no requirements found in %s", path)
		}
		for _, module := range modules {
			if !strings.Contains(string(text), "\n| `"+module+"` |") {
				t.Errorf("docs/dependencies.md does not say what %s of %s is for", module, path)
			}
		}
	}
}

var programLine = regexp.MustCompile("(?m)^\\| `(colloid|meshd|runnerd)` \\| ([^|]*) \\|")

// What reads the network and what runs as root link few modules, and exactly those that are written down.
func TestProgramsLinkWhatIsWrittenDown(t *testing.T) {
	text, err := os.ReadFile(root + "docs/dependencies.md")
	if err != nil {
		t.Fatal(err)
	}
	lines := programLine.FindAllStringSubmatch(string(text), -1)
	if len(lines) != 3 {
		t.Fatalf("docs/dependencies.md lists %d programs, want 3", len(lines))
	}
	for _, line := range lines {
		var listed []string
		for _, match := range codeSpan.FindAllStringSubmatch(line[2], -1) {
			listed = append(listed, match[1])
		}
		command := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", "./cmd/"+line[1])
		command.Dir = root
		command.Stderr = os.Stderr
		output, err := command.Output()
		if err != nil {
			t.Fatalf("go list: %v", err)
		}
		linked := strings.Fields(string(output))
		slices.Sort(linked)
		linked = slices.DeleteFunc(slices.Compact(linked), func(m string) bool { return m+"/" == module })
		slices.Sort(listed)
		if !slices.Equal(linked, listed) {
			t.Errorf("%s links %v, docs/dependencies.md says %v", line[1], linked, listed)
		}
	}
}
