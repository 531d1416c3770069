package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"colloid.net/ipc/operator"
)

// A wrong number of arguments gets the line that would be right, and never success.
func TestWrongArgumentsAreToldWhatFits(t *testing.T) {
	d := newFake(t)
	for arguments, want := range map[string]string{
		"get":                 "colloid get: 0 arguments do not fit: write colloid get KEY",
		"get a b":             "colloid get: 2 arguments do not fit: write colloid get KEY",
		"status web":          "colloid status: 1 argument does not fit: write colloid status [flags]",
		"rollout undo":        "write colloid rollout undo NAME",
		"image rm":            "write colloid image rm IMAGE",
		"wasm nosuch":         `unknown command "nosuch" for "colloid wasm"`,
		"rollout nosuch":      `unknown command "nosuch" for "colloid rollout"`,
		"connect a b --merge": "write colloid connect HOST",
	} {
		_, errors, code := d.words(strings.Fields(arguments)...)
		if code != ExitUsage || !strings.Contains(errors, want) {
			t.Errorf("%s: exit %d, %q lacks %q", arguments, code, errors, want)
		}
	}
}

// What stands behind -- is no flag, whatever it looks like: a cluster may hold a workload whose name begins
// with a hyphen.
func TestTwoHyphensEndTheFlags(t *testing.T) {
	d := newFake(t)
	d.run(web2, "apply", "-f", "-")
	for arguments, want := range map[string]string{
		"get -- -a":              "no workload is named -a",
		"delete -- -a":           "no workload is named -a",
		"explain -- -a":          "-a",
		"resolve --take 1 -- -a": "no workload is named -a",
		"rollout status -- -a":   "-a",
		"rollout undo -- -a":     "-a",
		"rollout history -- -a":  "-a",
		"logs -- -a":             "-a",
		"top --once -- -a":       "-a",
		"exec -- -a/0 -- true":   "-a",
		"cp -- -a/0:/x /tmp":     "-a",
		"forget -- -a":           "-a",
		"drain -- -a":            "-a",
		"uncordon -- -a":         "-a",
		"image load -- -a":       "-a",
	} {
		_, errors, code := d.words(strings.Fields(arguments)...)
		if code == ExitOK || strings.Contains(errors, "unknown shorthand flag") || strings.Contains(errors, "unknown flag") ||
			strings.Contains(errors, "do not fit") || !strings.Contains(errors, want) {
			t.Errorf("%s: exit %d, %q lacks %q", arguments, code, errors, want)
		}
	}
}

// A time that cannot be meant is refused before anything is done.
func TestNegativeTimeoutsAreRefused(t *testing.T) {
	d := newFake(t)
	for _, arguments := range []string{"drain cell --timeout -1s", "rollout status web --watch --timeout -1s"} {
		_, errors, code := d.words(strings.Fields(arguments)...)
		if code != ExitUsage || !strings.Contains(errors, "--timeout is -1s, expected 0") {
			t.Errorf("%s: exit %d, %q", arguments, code, errors)
		}
	}
	if len(d.requests) != 0 {
		t.Errorf("the daemon was asked: %q", d.requests)
	}
}

// An image of which nobody knows when it was built has no date, rather than one long before computers.
func TestF84_AnUnknownDateIsLeftOut(t *testing.T) {
	text, err := json.Marshal(operator.Image{Digest: "sha256:00"})
	if err != nil || strings.Contains(string(text), "0001-01-01") {
		t.Errorf("%s, %v", text, err)
	}
}

func TestNoDaemonNamesThePlacesPlainly(t *testing.T) {
	d := newFake(t)
	missing := t.TempDir() + "/missing"
	_, errors, code := d.words("--socket", missing, "status")
	if code != ExitUnreachable || !strings.Contains(errors, "(no socket at "+missing+")") {
		t.Errorf("exit %d, %q", code, errors)
	}
}

// One rule for all commands: what does not exist is status 1, what cannot be meant is 2.
func TestWhatDoesNotExistIsStatusOne(t *testing.T) {
	d := newFake(t)
	d.hold(web2)
	for _, arguments := range []string{"get nothing", "get spread.nothing", "explain nothing", "delete nothing",
		"resolve nothing --take 1", "rollout status nothing", "rollout history nothing", "rollout undo nothing",
		"rollout undo web --to ff", "drain nothing", "uncordon nothing", "forget nothing"} {
		if _, errors, code := d.words(strings.Fields(arguments)...); code != ExitError || errors == "" {
			t.Errorf("%s: exit %d, %q", arguments, code, errors)
		}
	}
	for _, arguments := range []string{"get ?", "explain ?", "delete ?", "rollout status ?", "get", "drain"} {
		if _, errors, code := d.words(strings.Fields(arguments)...); code != ExitUsage || errors == "" {
			t.Errorf("%s: exit %d, %q", arguments, code, errors)
		}
	}
}

// F156: what is wrong with a file or with --set is said with its place, once, and nothing is written.
func TestF156_ApplyNamesThePlaceOfAMistake(t *testing.T) {
	d := newFake(t)
	file := "spread web {\n  image a/b\n  env A ${A}\n}\n"
	for _, c := range []struct {
		file, arguments, want string
	}{
		{"", "apply -f /etc", "colloid: /etc is a directory: name a file\n"},
		{file, "apply -f - --set A=1 --set B=2", "--set B: ${B} is nowhere in -: leave it out"},
		{file, "diff -f - --set A=1 --set B=2", "--set B: "},
		{"spread web {\n  image NGINX::\n}\n", "apply -f -", `-:2:9: "NGINX::" is no image reference`},
		{"spread web {\n  image a/b\n  file /a from literal x\n  file /a/b from literal y\n}\n", "apply -f -", "-:1: spread.web: "},
	} {
		r := d.run(c.file, strings.Fields(c.arguments)...)
		if r.exit != ExitUsage || !strings.Contains(r.errors, c.want) || strings.Count(r.errors, "read ") > 0 {
			t.Errorf("%s: exit %d, %q, want %q", c.arguments, r.exit, r.errors, c.want)
		}
	}
	if d.writes != 0 {
		t.Errorf("%d writes", d.writes)
	}
	d.run(file, "apply", "-f", "-", "--set", "A=1").expect(t, 0, "spread.web created\n")
}
