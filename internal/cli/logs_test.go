package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"colloid.net/ipc/attach"
	"colloid.net/ipc/uds"
)

// Of what a workload writes, a terminal gets text and colours, nothing that moves, names or asks.
func TestLogsCannotDriveTheTerminal(t *testing.T) {
	for in, want := range map[string]string{
		"plain text":                             "plain text",
		"a\tb\r":                                 "a\tb",
		"\x1b[31mred\x1b[0m":                     "\x1b[31mred\x1b[0m\x1b[0m",
		"\x1b[1;38;5;9mx":                        "\x1b[1;38;5;9mx\x1b[0m",
		"\x1b[2J\x1b[H":                          "?[2J?[H",
		"\x1b]0;title\x07":                       "?]0;title?",
		"\x1b[6n\x1bP+q\x1b\\":                   "?[6n?P+q?\\",
		"\x9b2Jx":                                "?2Jx",
		"\xff\xfe\u202eabc":                      "\ufffd\ufffd?abc",
		"\x1b":                                   "?",
		"\x1b[":                                  "?[",
		"\x1b[" + strings.Repeat("1;", 40) + "m": "?[" + strings.Repeat("1;", 40) + "m",
		"grün 日本":                                "grün 日本",
	} {
		got := string(harmless([]byte(in)))
		if in == "\x9b2Jx" || strings.HasPrefix(in, "\xff") { // bytes that are no text become U+FFFD
			if strings.Contains(got, "\x9b") || strings.Contains(got, "\u202e") {
				t.Errorf("%q gave %q", in, got)
			}
			continue
		}
		if got != want {
			t.Errorf("%q gave %q, expected %q", in, got, want)
		}
	}
}

func TestReplicasAreNamedByPlace(t *testing.T) {
	status := &uds.Status{
		Cells: []uds.CellInfo{{ID: "00000000000000a1", Hostname: "one"}, {ID: "00000000000000b2", Hostname: "two"}},
		Workloads: []uds.WorkloadStatus{{Key: "spread.web", Instances: []uds.InstanceInfo{
			{Cell: "00000000000000a1"}, {Cell: "00000000000000a1", Slot: 1}, {Cell: "00000000000000b2"},
		}}},
	}
	for text, want := range map[string]string{
		"web": "web/0 web/1 web/2", "web/1": "web/1", "web@two": "web/2", "web@00000000000000a1": "web/0 web/1",
		"web/3": "!no replica 3, only 3 (web/0 to web/2)", "web@three": "!no cell", "web/x": "!expected WORKLOAD/INDEX", "web/01": "!expected",
		"web/-1": "!expected", "web@": "!names no cell", "web/": "!expected",
	} {
		r, err := parseReference(text)
		var found []replica
		if err == nil {
			found, err = r.find(status, "spread.web")
		}
		var names []string
		for i := range found {
			names = append(names, found[i].name())
		}
		if complaint, bad := strings.CutPrefix(want, "!"); bad {
			if err == nil || !strings.Contains(err.Error(), complaint) {
				t.Errorf("%s: %v", text, err)
			}
		} else if err != nil || strings.Join(names, " ") != want {
			t.Errorf("%s: %q %v", text, names, err)
		}
	}
}

func TestSinceIsADurationOrATime(t *testing.T) {
	now := time.UnixMilli(1_800_000_000_000)
	for text, want := range map[string]int64{
		"10m": now.UnixMilli() - 600_000, "0s": now.UnixMilli(), "2027-01-15T08:00:00Z": now.UnixMilli(), "1000000h": 1,
		"-1m": 0, "yesterday": 0, "1960-01-01T00:00:00Z": 0,
	} {
		if got, err := parseSince(text, now); got != want || (err != nil) != (want == 0) {
			t.Errorf("%s: %d %v", text, got, err)
		}
	}
}

// What is kept is printed in the order of its times, parts of a line together, and what comes afterwards as
// it comes. A log that is opened again goes on where it ended.
func TestLinesOfReplicasAreMerged(t *testing.T) {
	var output bytes.Buffer
	a := &app{Environment: Environment{Output: &output, Errors: &output, Variable: func(string) string { return "" }}}
	f := &follower{app: a, printer: newLogPrinter(a, false)}
	f.printer.gathering = true
	newSource := func(index int, host string) *source {
		return &source{replica: replica{key: "spread.web", index: index}, host: host}
	}
	one, two := newSource(0, "a"), newSource(1, "b")
	line := func(s *source, at int64, text string, partial bool) {
		f.line(s, attach.Line{UnixMilliseconds: at, Text: []byte(text), Partial: partial})
	}
	line(one, 10, "first", false)
	line(one, 30, "third", false)
	line(two, 20, "sec", true)
	line(two, 20, "ond", false)
	f.printer.flush()
	line(two, 40, "fourth", false)
	line(two, 40, "fifth", false)
	two.skip = two.seen // opened again
	line(two, 40, "fourth", false)
	line(two, 40, "fifth", false)
	line(two, 40, "sixth", false)
	want := "web/0 a | first\nweb/1 b | second\nweb/0 a | third\nweb/1 b | fourth\nweb/1 b | fifth\nweb/1 b | sixth\n"
	if output.String() != want {
		t.Fatalf("%s", output.String())
	}
}

// Parts of a line are one line where a log is opened again.
func TestPartsOfALineAreSkippedTogether(t *testing.T) {
	var output bytes.Buffer
	a := &app{Environment: Environment{Output: &output, Errors: &output, Variable: func(string) string { return "" }}}
	f := &follower{app: a, printer: newLogPrinter(a, false)}
	f.printer.single = true
	s := &source{replica: replica{key: "spread.web"}}
	for round := range 2 {
		if round == 1 {
			s.skip = s.seen
		}
		for _, text := range []string{"a+", "b+", "c", "second"} {
			f.line(s, attach.Line{UnixMilliseconds: 40, Text: []byte(strings.TrimSuffix(text, "+")), Partial: strings.HasSuffix(text, "+")})
		}
	}
	f.line(s, attach.Line{UnixMilliseconds: 40, Text: []byte("third")})
	if output.String() != "abc\nsecond\nthird\n" {
		t.Fatalf("%q", output.String())
	}
}

// The output of one replica is as it was written, whatever the length of its lines; where another one goes
// on, that begins on a line of its own.
func TestOneReplicaIsPrintedAsItIs(t *testing.T) {
	var output bytes.Buffer
	a := &app{Environment: Environment{Output: &output, Errors: &output, Variable: func(string) string { return "" }}}
	f := &follower{app: a, printer: newLogPrinter(a, false)}
	f.printer.single = true
	one, two := &source{replica: replica{key: "spread.web"}}, &source{replica: replica{key: "spread.web"}}
	long := strings.Repeat("x", 10*logsHeld)
	for rest := long; rest != ""; rest = rest[attach.LineMax:] {
		f.line(one, attach.Line{UnixMilliseconds: 1, Text: []byte(rest[:attach.LineMax]), Partial: len(rest) > attach.LineMax})
	}
	f.line(one, attach.Line{UnixMilliseconds: 2, Text: []byte("half"), Partial: true})
	f.line(two, attach.Line{UnixMilliseconds: 3, Text: []byte("other"), Partial: true})
	f.printer.finish(two)
	if want := long + "\nhalf\nother\n"; output.String() != want {
		t.Fatalf("%d bytes instead of %d, in the end %q", output.Len(), len(want), output.String()[max(0, output.Len()-20):])
	}
}

// A full key of a workload that does not exist was never deleted, and runs nowhere "yet" neither.
func TestKeysThatDoNotExist(t *testing.T) {
	d := newFake(t)
	d.status = sampleStatus(d)
	for _, arguments := range []string{"logs spread.nothing", "logs -f spread.nothing", "logs spread.nothing/0", "exec spread.nothing/0 -- id",
		"cp spread.nothing/0:x x"} {
		r := d.run("", strings.Fields(arguments)...)
		if r.exit != ExitError || r.errors != "colloid: no workload is named spread.nothing: see colloid status\n" {
			t.Errorf("%s: exit %d, %q", arguments, r.exit, r.errors)
		}
	}
}

func TestPathsOfInstances(t *testing.T) {
	for text, want := range map[string]bool{
		"web/0:/etc": true, "web@host:x": true, "/a:b": false, "./a:b": false, "../a:b": false, "web/0": false, "web/0:": false, ":x": false,
	} {
		if _, _, ok := instancePath(text); ok != want {
			t.Errorf("%s: %v", text, ok)
		}
	}
}
