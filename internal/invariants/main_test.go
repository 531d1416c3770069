package main

import (
	"os"
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

func TestScanReadsNamesAndStories(t *testing.T) {
	found, err := scan(fstest.MapFS{
		"a/x_test.go":        {Data: []byte("func TestF57F58_Frozen(t *testing.T) {\nfunc TestSAFE1_Too(t *testing.T) {\n")},
		"a/x.go":             {Data: []byte("func TestF1_NotATest() {\n")},
		"a/testdata/one.txt": {Data: []byte("# a story about (AVAIL-2, F46)\nshow F9\n")},
		".git/y_test.go":     {Data: []byte("func TestF2_Hidden(t *testing.T) {\n")},
	})
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]int{"F57": 1, "F58": 1, "SAFE-1": 1, "AVAIL-2": 1, "F46": 1, "F1": 0, "F2": 0, "F9": 0} {
		if len(found[id]) != want {
			t.Errorf("%s is held by %v", id, found[id])
		}
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
