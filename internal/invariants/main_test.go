package main

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// Every invariant and flaw that has landed is held by a test that says so.
func TestLandedInvariantsHaveTests(t *testing.T) {
	entries, err := parse(list)
	if err != nil {
		t.Fatal(err)
	}
	found, err := scan(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	if err := report(&strings.Builder{}, entries, found); err != nil {
		t.Fatal(err)
	}
}

// What is written holds something only if it is run.
func TestScanReadsNamesAndStories(t *testing.T) {
	test := func(name, body string) string { return "func " + name + "(t *testing.T) {" + body + "}\n" }
	found, err := scan(fstest.MapFS{
		"a/x_test.go": {Data: []byte("package a\n" + test("TestF57F58_Frozen", " check(t) ") +
			test("TestSAFE1_Too", "\n\tt.Run(\"a\", f)\n") + "func FuzzF59(f *testing.F) { f.Fuzz(g) }\n" +
			test("TestF60_SkipsSometimes", "\n\tif testing.Short() {\n\t\tt.Skip()\n\t}\n\tcheck(t)\n") +
			test("TestF3_Empty", "") + test("TestF4_SkippedForNow", " t.Skip(\"later\"); check(t) ") +
			test("TestF5_OnlySays", " t.Log(1) ") + test("TestF6_Leaves", "\n\treturn\n\tcheck(t)\n") +
			"var text = `\n" + test("TestF7_InText", " check(t) ") + "`\n/*\n" + test("TestF8_InComment", " check(t) ") + "*/\n" +
			"func BenchmarkF10(b *testing.B) { check(b) }\nfunc (s suite) TestF11_Method(t *testing.T) { check(t) }\n")},
		"a/never_test.go":    {Data: []byte("//go:build never\n\npackage a\n" + test("TestF12_NotBuilt", " check(t) "))},
		"a/arm_test.go":      {Data: []byte("//go:build arm64 && linux\n\npackage a\n" + test("TestF61_Arm", " check(t) "))},
		"a/norace_test.go":   {Data: []byte("// Words.\n\n//go:build !race\n\npackage a\n" + test("TestF62_NoRace", " check(t) "))},
		"a/x.go":             {Data: []byte("package a\n" + test("TestF1_NotATest", " check(t) "))},
		stories + "one.txt":  {Data: []byte("# a story about (AVAIL-2, F46)\nshow F9\n")},
		"a/testdata/one.txt": {Data: []byte("# no story (F13)\n")},
		".git/y_test.go":     {Data: []byte("package a\n" + test("TestF2_Hidden", " check(t) "))},
		"_old/y_test.go":     {Data: []byte("package a\n" + test("TestF14_Ignored", " check(t) "))},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"AVAIL-2", "F46", "F57", "F58", "F59", "F60", "F61", "F62", "SAFE-1"}
	if got := slices.Sorted(maps.Keys(found)); !slices.Equal(got, want) {
		t.Errorf("%v are held, want %v", got, want)
	}
	if _, err := scan(fstest.MapFS{"a/x_test.go": {Data: []byte("func TestF1_Broken(")}}); err == nil {
		t.Error("a file that cannot be read was passed over")
	}
}

func TestReportNamesWhatIsMissing(t *testing.T) {
	entries, err := parse("F1 landed # a comment\nF2 later: not built\nSAFE-1 landed\n")
	if err != nil {
		t.Fatal(err)
	}
	err = report(&strings.Builder{}, entries, map[string][]string{"F1": {"a"}, "F3": {"b"}})
	if err == nil || !strings.Contains(err.Error(), "SAFE-1") || !strings.Contains(err.Error(), "F3") ||
		strings.Contains(err.Error(), "F2") {
		t.Fatal(err)
	}
}

func TestParseRefusesWhatItDoesNotUnderstand(t *testing.T) {
	for _, text := range []string{"F1", "F1 later:", "G1 landed", "F1 landed\nF1 landed", "F1 soon"} {
		if _, err := parse(text); err == nil {
			t.Errorf("%q was accepted", text)
		}
	}
}
