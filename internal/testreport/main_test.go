package main

import (
	"strings"
	"testing"
)

const good = `{"Action":"start","Package":"colloid.net/a"}
{"Action":"run","Package":"colloid.net/a","Test":"TestX"}
{"Action":"output","Package":"colloid.net/a","Test":"TestX","Output":"=== RUN   TestX\n"}
{"Action":"output","Package":"colloid.net/a","Test":"TestX","Output":"    a_test.go:7: needs root: makes namespaces\n"}
{"Action":"output","Package":"colloid.net/a","Test":"TestX","Output":"--- SKIP: TestX (0.00s)\n"}
{"Action":"skip","Package":"colloid.net/a","Test":"TestX"}
{"Action":"pass","Package":"colloid.net/a","Test":"TestY"}
{"Action":"pass","Package":"colloid.net/a","Elapsed":1.25}
{"Action":"skip","Package":"colloid.net/b"}
`

func run(t *testing.T, input string) (bool, string) {
	t.Helper()
	var out strings.Builder
	passed, err := report(strings.NewReader(input), &out)
	if err != nil {
		t.Fatal(err)
	}
	return passed, out.String()
}

func TestSkippedTestsAreNamedWithTheirReason(t *testing.T) {
	passed, text := run(t, good)
	if !passed {
		t.Error("a run without failures did not pass")
	}
	for _, want := range []string{"ok    a ", "  a TestX: needs root: makes namespaces\n",
		"2 packages (1 without tests), 2 tests, 1 skipped, 0 failures"} {
		if !strings.Contains(text, want) {
			t.Errorf("report lacks %q:\n%s", want, text)
		}
	}
}

func TestEveryKindOfFailureFailsTheRun(t *testing.T) {
	for name, input := range map[string]string{
		"test": good + `{"Action":"output","Package":"colloid.net/c","Test":"TestZ/one","Output":"    c_test.go:1: boom\n"}
{"Action":"fail","Package":"colloid.net/c","Test":"TestZ/one"}
{"Action":"fail","Package":"colloid.net/c","Test":"TestZ"}
{"Action":"fail","Package":"colloid.net/c"}
`,
		"build": good + `{"ImportPath":"colloid.net/c","Action":"build-output","Output":"c.go:1: boom\n"}
{"ImportPath":"colloid.net/c","Action":"build-fail"}
`,
		"panic": good + `{"Action":"output","Package":"colloid.net/c","Output":"boom\n"}
{"Action":"fail","Package":"colloid.net/c"}
`,
		"go itself": good + "go: boom\n",
	} {
		passed, text := run(t, input)
		if passed || !strings.Contains(text, "boom") {
			t.Errorf("%s: passed=%v\n%s", name, passed, text)
		}
	}
	if passed, _ := run(t, ""); passed {
		t.Error("a run of nothing passed")
	}
}
