package cli

import (
	"strings"
	"testing"
)

// A wrong number of arguments gets the line that would be right, and never success.
func TestWrongArgumentsAreToldWhatFits(t *testing.T) {
	d := newFake(t)
	for arguments, want := range map[string]string{
		"get":                 "colloid get: 0 arguments do not fit: write colloid get KEY",
		"get a b":             "colloid get: 2 arguments do not fit: write colloid get KEY",
		"status web":          "colloid status: 1 arguments do not fit: write colloid status [flags]",
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

func TestNoDaemonNamesThePlacesPlainly(t *testing.T) {
	d := newFake(t)
	missing := t.TempDir() + "/missing"
	_, errors, code := d.words("--socket", missing, "status")
	if code != ExitUnreachable || !strings.Contains(errors, "(no socket at "+missing+")") {
		t.Errorf("exit %d, %q", code, errors)
	}
}
