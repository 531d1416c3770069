package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"colloid.net/ipc/uds"
)

// oneLine is what an operator can be shown.
func oneLine(err error) bool {
	return err != nil && err.Error() != "" && strings.IndexFunc(err.Error(), func(r rune) bool { return r < ' ' }) < 0
}

// FuzzWords holds the words of command lines: what is understood is a thing that can be named again the same
// way, and what is not is refused in one line.
func FuzzWords(f *testing.F) {
	for _, text := range []string{"host", "host:1#k", "[::1]:1", "#", ":", "10m", "2026-01-02T15:04:05Z", "web/2", "web@a", "web/02",
		"192.0.2.1", ":9", "a=b", "\n", "-1h", "[", "host:", "[::1", "::1%\n"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if target, err := parseTarget(text); err != nil && !oneLine(err) {
			t.Fatalf("%q: %q", text, err)
		} else if err == nil {
			if again, err := parseTarget(target.String()); err != nil || again != target {
				t.Fatalf("%q became %+v, and %q that %+v, %v", text, target, target, again, err)
			}
		}
		now := time.Unix(1_800_000_000, 0)
		if since, err := parseSince(text, now); err == nil && since <= 0 || err != nil && (since != 0 || !oneLine(err)) {
			t.Fatalf("%q is %d, %v", text, since, err)
		}
		if r, err := parseReference(text); err != nil && !oneLine(err) {
			t.Fatalf("%q: %q", text, err)
		} else if err == nil && (r.index < -1 || r.index >= 0 && r.cell != "") {
			t.Fatalf("%q became %+v", text, r)
		}
		if endpoint, err := parseEndpoint("--bind", text); err != nil && !oneLine(err) {
			t.Fatalf("%q: %q", text, err)
		} else if err == nil {
			if again, err := parseEndpoint("--bind", endpoint.String()); err != nil || again != endpoint || again.Port() == 0 {
				t.Fatalf("%q became %v, and that %v, %v", text, endpoint, again, err)
			}
		}
		if variables, err := parseVariables([]string{text, "a=b"}); err != nil && (variables != nil || !oneLine(err)) ||
			err == nil && len(variables) != 2 {
			t.Fatalf("%q: %v, %v", text, variables, err)
		}
	})
}

// FuzzReadBounded: all of an input or an error that names it, never a part.
func FuzzReadBounded(f *testing.F) {
	f.Add([]byte("spread web { }"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, input []byte) {
		text, err := readBounded(bytes.NewReader(input), "the-file")
		if err == nil && !bytes.Equal(text, input) || err != nil && !strings.Contains(err.Error(), "the-file") {
			t.Fatalf("%q became %q, %v", input, text, err)
		}
	})
}

// FuzzUnderstand holds the documents of the daemon: understood, they can be written and read again, and else
// one line says what to compare.
func FuzzUnderstand(f *testing.F) {
	f.Add([]byte(`{"cells":[{"id":"00000000000000aa"}],"workloads":[{"key":"spread.web"}]}`))
	f.Add([]byte(`{"cells":5}`))
	f.Add([]byte("{}}"))
	f.Fuzz(func(t *testing.T, reply []byte) {
		var status uds.Status
		if err := understand(reply, &status); err != nil {
			if !oneLine(err) || !strings.Contains(err.Error(), "of one version") {
				t.Fatalf("%q", err)
			}
			return
		}
		again, err := json.Marshal(status)
		if err != nil {
			t.Fatal(err)
		}
		var second uds.Status
		if err := understand(again, &second); err != nil || len(second.Cells) != len(status.Cells) ||
			len(second.Workloads) != len(status.Workloads) {
			t.Fatalf("%q became %q, %v", reply, again, err)
		}
	})
}
