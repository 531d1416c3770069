// Command testreport reads `go test -json` from standard input and prints what a person wants to know:
// one line per package, the full output of what failed, and every test that was skipped with its
// reason. It exits with status 1 if anything failed, did not build, or nothing ran at all, so that a
// pipe into it keeps the result of the test run.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

func main() {
	passed, err := report(os.Stdin, os.Stdout)
	if err != nil {
		fmt.Fprintf(os.Stderr, "testreport: %v\n", err)
		os.Exit(1)
	}
	if !passed {
		os.Exit(1)
	}
}

// event is one line of `go test -json`.
type event struct {
	Action     string
	Package    string
	ImportPath string // of build output
	Test       string
	Elapsed    float64
	Output     string
}

// lineSizeMax bounds one line; a test may print long ones.
const lineSizeMax = 16 << 20

// reporter collects the events of a run.
type reporter struct {
	out       io.Writer
	output    map[string][]string // of a test, by package and name; of a package, by package alone
	skipped   []string
	tests     int
	packages  int
	untested  int
	failures  int
	subfailed map[string]bool // tests with a failed subtest: their own output says nothing new
}

func report(in io.Reader, out io.Writer) (passed bool, err error) {
	r := &reporter{out: out, output: map[string][]string{}, subfailed: map[string]bool{}}
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 1<<16), lineSizeMax)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			fmt.Fprintf(out, "%s\n", lines.Text()) // the go command itself, complaining
			r.failures++
			continue
		}
		r.handle(e)
	}
	if err := lines.Err(); err != nil {
		return false, err
	}
	r.summary()
	return r.failures == 0 && r.packages > 0, nil
}

func (r *reporter) handle(e event) {
	key := e.Package + " " + e.Test
	switch e.Action {
	case "output":
		r.output[key] = append(r.output[key], e.Output)
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "build-fail":
		r.failures++
	case "pass", "skip", "fail":
		if e.Test == "" {
			r.packageDone(e)
		} else {
			r.testDone(e, key)
		}
		delete(r.output, key)
	}
}

func (r *reporter) testDone(e event, key string) {
	r.tests++
	switch e.Action {
	case "skip":
		r.skipped = append(r.skipped, fmt.Sprintf("%s %s: %s", short(e.Package), e.Test, skipReason(r.output[key])))
	case "fail":
		if parent, _, ok := cutLast(e.Test, "/"); ok {
			r.subfailed[e.Package+" "+parent] = true
		}
		r.failures++
		fmt.Fprintf(r.out, "FAIL  %s %s\n", short(e.Package), e.Test)
		if !r.subfailed[key] {
			fmt.Fprint(r.out, strings.Join(r.output[key], ""))
		}
	}
}

func (r *reporter) packageDone(e event) {
	r.packages++
	switch e.Action {
	case "skip":
		r.untested++
		return
	case "fail":
		r.failures++
		fmt.Fprintf(r.out, "FAIL  %s\n%s", short(e.Package), strings.Join(r.output[e.Package+" "], ""))
		return
	}
	fmt.Fprintf(r.out, "ok    %-32s %6.1fs\n", short(e.Package), e.Elapsed)
}

func (r *reporter) summary() {
	if len(r.skipped) > 0 {
		slices.Sort(r.skipped)
		fmt.Fprintf(r.out, "\nskipped, because this machine cannot run them or was told not to:\n")
		for _, line := range r.skipped {
			fmt.Fprintf(r.out, "  %s\n", line)
		}
	}
	fmt.Fprintf(r.out, "\n%d packages (%d without tests), %d tests, %d skipped, %d failures\n", r.packages, r.untested,
		r.tests, len(r.skipped), r.failures)
}

// skipReason finds what t.Skip was given among the lines of a test.
func skipReason(output []string) string {
	for _, line := range slices.Backward(output) {
		text := strings.TrimSpace(line)
		if text == "" || strings.HasPrefix(text, "---") || strings.HasPrefix(text, "===") {
			continue
		}
		if _, reason, ok := strings.Cut(text, ".go:"); ok {
			if _, reason, ok = strings.Cut(reason, ": "); ok {
				return reason
			}
		}
		return text
	}
	return "no reason given"
}

// short leaves out the module's name.
func short(path string) string {
	_, rest, ok := strings.Cut(path, "/")
	if !ok {
		return path
	}
	return rest
}

func cutLast(s, separator string) (before, after string, found bool) {
	i := strings.LastIndex(s, separator)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(separator):], true
}
