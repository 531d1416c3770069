package house

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"colloid.net/internal/cli"
)

// manual is one text for people: README.md and docs/*.md.
type manual struct {
	path   string // relative to the root
	text   string
	blocks []string // code set apart, fenced or indented
	spans  []string // code within a line, also headings
}

const root = "../../"

var codeSpan = regexp.MustCompile("`([^`\n]+)`")

func loadManuals(t *testing.T) []manual {
	t.Helper()
	paths, err := filepath.Glob(root + "docs/*.md")
	if err != nil || len(paths) < 3 {
		t.Fatalf("only %d manuals found: %v", len(paths), err)
	}
	var manuals []manual
	for _, path := range append(paths, root+"README.md") {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		manuals = append(manuals, parseManual(strings.TrimPrefix(path, root), string(text)))
	}
	return manuals
}

func parseManual(path, text string) manual {
	m := manual{path: path, text: text}
	var block, prose []string
	fenced := false
	end := func() {
		if len(block) > 0 {
			m.blocks = append(m.blocks, strings.Join(block, "\n"))
		}
		block = nil
	}
	for line := range strings.SplitSeq(text, "\n") {
		fence := strings.HasPrefix(line, "```")
		switch {
		case fence:
			fenced = !fenced
			end()
		case fenced:
			block = append(block, line)
		case strings.HasPrefix(line, "    "):
			block = append(block, line[4:])
		default:
			if line != "" {
				end()
			}
			prose = append(prose, line)
		}
	}
	end()
	for _, match := range codeSpan.FindAllStringSubmatch(strings.Join(prose, "\n"), -1) {
		m.spans = append(m.spans, match[1])
	}
	return m
}

// shellLines are the commands of a block, one per element, joined where a backslash continues them.
func shellLines(block string) (lines []string) {
	for line := range strings.SplitSeq(strings.ReplaceAll(block, "\\\n", " "), "\n") {
		line, _, _ = strings.Cut(strings.TrimSpace(line), " #")
		for _, part := range regexp.MustCompile(`\|\||&&|[|;]`).Split(line, -1) {
			part = strings.TrimPrefix(strings.TrimSpace(part), "$ ")
			lines = append(lines, strings.TrimPrefix(part, "sudo "))
		}
	}
	return lines
}

// Commands that a manual shows must be commands that the program takes.
func TestManualsShowCommandsThatParse(t *testing.T) {
	checked := 0
	for _, m := range loadManuals(t) {
		for _, block := range m.blocks {
			for _, line := range shellLines(block) {
				if words := strings.Fields(line); len(words) > 0 && words[0] == "colloid" {
					checked++
					if err := cli.CheckArguments(arguments(words[1:])); err != nil {
						t.Errorf("%s shows %q: %v", m.path, line, err)
					}
				}
			}
		}
		for _, span := range strings.Split(strings.Join(m.spans, " | "), " | ") {
			if words := strings.Fields(span); len(words) > 1 && words[0] == "colloid" {
				checked++
				if err := checkSynopsis(words[1:]); err != nil {
					t.Errorf("%s shows `%s`: %v", m.path, span, err)
				}
			}
		}
	}
	if checked < 30 {
		t.Errorf("only %d commands found", checked)
	}
}

// Daemons are started by the launcher; where a manual shows them all the same, the flags must exist.
func TestManualsShowFlagsThatExist(t *testing.T) {
	for _, m := range loadManuals(t) {
		for _, block := range m.blocks {
			for _, line := range shellLines(block) {
				words := strings.Fields(line)
				if len(words) == 0 || words[0] != "meshd" && words[0] != "runnerd" {
					continue
				}
				source, err := os.ReadFile(root + "cmd/" + words[0] + "/main.go")
				if err != nil {
					t.Fatal(err)
				}
				for _, word := range words[1:] {
					flag, is := strings.CutPrefix(strings.Trim(word, "[]"), "--")
					if is && !strings.Contains(string(source), `"`+flag+`"`) {
						t.Errorf("%s shows %q, but %s has no flag --%s", m.path, line, words[0], flag)
					}
				}
			}
		}
	}
}

// The map of packages in docs/ARCHITECTURE.md is complete.
func TestArchitectureListsEveryPackage(t *testing.T) {
	text, err := os.ReadFile(root + "docs/ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	missing := map[string]bool{}
	for _, f := range loadTree(t) {
		if !regexp.MustCompile(`(?m)^` + f.pkg + ` +\S`).Match(text) {
			missing[f.pkg] = true
		}
	}
	for pkg := range missing {
		t.Errorf("docs/ARCHITECTURE.md, Packages: add a line for %s", pkg)
	}
}

// arguments drops what the shell would take: redirections, and everything behind them.
func arguments(words []string) []string {
	for i, word := range words {
		if strings.HasPrefix(word, ">") || strings.HasPrefix(word, "2>") || word == "&" {
			return words[:i]
		}
	}
	return words
}

// checkSynopsis checks the command and the flags of a text with placeholders, such as "get KEY [-o json]".
func checkSynopsis(words []string) error {
	if strings.HasPrefix(words[0], "-") || strings.HasPrefix(words[0], "[") {
		words = slices.Insert(slices.Clone(words), 0, "")
	}
	name, _, _ := strings.Cut(words[0], "|")
	usage, known := cli.Usage(name)
	if !known {
		return fmt.Errorf("no command %q", name)
	}
	if len(words) > 1 {
		if below, is := cli.Usage(name + " " + words[1]); is && name != "" {
			usage = below
		}
	}
	for _, word := range words[1:] {
		flag := strings.TrimRight(strings.TrimLeft(word, "["), "].,")
		flag, _, _ = strings.Cut(flag, "=")
		if strings.HasPrefix(flag, "-") && flag != "-" && !strings.Contains(usage, flag) {
			return fmt.Errorf("no flag %s", flag)
		}
	}
	return nil
}

var makeTarget = regexp.MustCompile(`^make ([a-z][a-z-]*)`)

func TestManualsNameTargetsThatExist(t *testing.T) {
	makefile, err := os.ReadFile(root + "Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range loadManuals(t) {
		for _, code := range append(m.blocks, m.spans...) {
			for _, line := range shellLines(code) {
				match := makeTarget.FindStringSubmatch(line)
				if match != nil && !strings.Contains(string(makefile), "\n"+match[1]+":") {
					t.Errorf("%s shows `make %s`, which the Makefile does not have", m.path, match[1])
				}
			}
		}
	}
}

var (
	treePath   = regexp.MustCompile(`^(\.ci|bench|cmd|docs|e2e|examples|internal|ipc|meshd|runnerd|workload)(/[\w.*/-]*)?$`)
	mapPath    = regexp.MustCompile(`\b(?:cmd|docs|e2e|examples|internal|ipc|meshd|runnerd|workload)/[\w./-]*\w`)
	goFile     = regexp.MustCompile(`^[\w/-]+\.(go|proto|md|colloid)$`)
	markedLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading    = regexp.MustCompile(`(?m)^#+ (.*)$`)
)

// notPaths look like paths of the tree in what a cell keeps or prints.
var notPaths = []string{"runnerd.policy"}

func TestManualsNamePathsThatExist(t *testing.T) {
	for _, m := range loadManuals(t) {
		var paths []string
		for _, span := range m.spans {
			if treePath.MatchString(span) && strings.Contains(span, "/") || goFile.MatchString(span) && strings.Contains(span, "/") {
				paths = append(paths, span)
			}
		}
		if m.path == "docs/ARCHITECTURE.md" { // its maps are made of paths
			for _, block := range m.blocks {
				paths = append(paths, mapPath.FindAllString(block, -1)...)
			}
		}
		for _, path := range paths {
			found, err := filepath.Glob(root + path)
			if (err != nil || len(found) == 0) && !slices.Contains(notPaths, path) {
				t.Errorf("%s names %s, which does not exist", m.path, path)
			}
		}
		for _, match := range markedLink.FindAllStringSubmatch(m.text, -1) {
			if problem := checkLink(m, match[1]); problem != "" {
				t.Errorf("%s links to %s: %s", m.path, match[1], problem)
			}
		}
	}
}

func checkLink(m manual, link string) string {
	if strings.Contains(link, "://") {
		return ""
	}
	path, anchor, _ := strings.Cut(link, "#")
	text := m.text
	if path != "" {
		target := filepath.Join(root, filepath.Dir(m.path), path)
		info, err := os.Stat(target)
		if err != nil {
			return "there is no such file"
		}
		if anchor == "" || info.IsDir() {
			return ""
		}
		raw, err := os.ReadFile(target)
		if err != nil {
			return err.Error()
		}
		text = string(raw)
	}
	for _, match := range heading.FindAllStringSubmatch(text, -1) {
		if anchorOf(match[1]) == anchor {
			return ""
		}
	}
	return "there is no such heading"
}

// anchorOf makes the anchor of a heading as web front ends of repositories do.
func anchorOf(heading string) string {
	heading = strings.ReplaceAll(strings.ToLower(heading), " ", "-")
	return regexp.MustCompile(`[^\p{L}\p{N}_-]`).ReplaceAllString(heading, "")
}

var (
	flawNumber = regexp.MustCompile(`\bF[0-9]{1,3}\b`)
	testName   = regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z][A-Za-z0-9_]*\b`)
)

// Whoever looks for a flaw or a test that a manual names must find it in the code with grep.
func TestManualsNameFlawsAndTestsThatExist(t *testing.T) {
	flaws, tests := map[string]bool{}, map[string]bool{}
	for _, f := range loadTree(t) {
		if strings.HasPrefix(f.path, "internal/house/") {
			continue
		}
		text, err := os.ReadFile(root + f.path)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range testName.FindAllString(string(text), -1) {
			tests[name] = true
		}
		for _, number := range regexp.MustCompile(`F[0-9]{1,3}`).FindAllString(string(text), -1) {
			flaws[number] = true
		}
	}
	for _, m := range loadManuals(t) {
		for _, number := range flawNumber.FindAllString(m.text, -1) {
			if !flaws[number] {
				t.Errorf("%s speaks of %s, which no Go file mentions", m.path, number)
			}
		}
		for _, name := range testName.FindAllString(m.text, -1) {
			if !tests[name] && !slices.ContainsFunc(slices.Collect(maps.Keys(tests)), func(test string) bool {
				return strings.HasSuffix(name, "_") && strings.HasPrefix(test, name) // a group of tests
			}) {
				t.Errorf("%s names the test %s, which does not exist", m.path, name)
			}
		}
	}
}

// The checks themselves are tested on what they must refuse.
func TestManualChecksRefuseWhatTheyShould(t *testing.T) {
	m := parseManual("docs/x.md", "# A b\n\ntext `colloid get KEY`\n\n    $ colloid get a \\\n      -o json | sort # why\n\n```\nsudo colloid lock > f\n```\n")
	if want := []string{"colloid get a    -o json", "sort", "colloid lock > f"}; !slices.Equal(
		append(shellLines(m.blocks[0]), shellLines(m.blocks[1])...), want) {
		t.Errorf("commands %q", append(shellLines(m.blocks[0]), shellLines(m.blocks[1])...))
	}
	for line, good := range map[string]bool{"get a -o json": true, "get": false, "get a -o xml": false, "fly a": false,
		"get a --what": false, "apply a": false, "": true, "lock": true, "lock a": false, "connect a --merge": true,
		"completion bash": true, "help exit-codes": true} {
		if err := cli.CheckArguments(strings.Fields(line)); (err == nil) != good {
			t.Errorf("colloid %s: %v, want good=%v", line, err, good)
		}
	}
	for line, good := range map[string]bool{"get KEY [-o json]": true, "get KEY [-x]": false, "fly KEY": false,
		"completion bash|zsh": true, "apply -f FILE [--set NAME=VALUE]": true, "--bind ADDR": true, "--bend ADDR": false} {
		if err := checkSynopsis(strings.Fields(line)); (err == nil) != good {
			t.Errorf("synopsis %s: %v, want good=%v", line, err, good)
		}
	}
	for link, good := range map[string]bool{"#a-b": true, "#b": false, "../README.md": true, "none.md": false} {
		if problem := checkLink(m, link); (problem == "") != good {
			t.Errorf("link %s: %q", link, problem)
		}
	}
}
