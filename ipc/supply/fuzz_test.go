package supply

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

func FuzzParseNotice(f *testing.F) {
	f.Add([]byte(`{"program":"runnerd","ends":3,"window_seconds":600,"ago_seconds":1,"reason":"exit status 2"}`))
	f.Add([]byte(`{"program":"runnerd","reason":"ä\nb"}`))
	f.Add([]byte("runnerd"))
	f.Fuzz(func(t *testing.T, text []byte) {
		n, ok := parseNotice(text)
		if !ok {
			return
		}
		if validName(text) {
			t.Fatalf("%q is a name and a notice", text)
		}
		if !validName([]byte(n.Program)) || !presentable(n.Reason) || min(n.Ends, n.WindowSeconds, n.AgoSeconds) < 0 {
			t.Fatalf("%q became %+v", text, n)
		}
		again, err := json.Marshal(n)
		if err != nil || len(again) > noticeMax {
			t.Fatalf("%d bytes, %v", len(again), err)
		}
		if second, ok := parseNotice(again); !ok || second != n {
			t.Fatalf("%+v became %+v, %t", n, second, ok)
		}
	})
}

func FuzzReadWords(f *testing.F) {
	f.Add([]byte("panic: no\n\ngoroutine 1"))
	f.Add([]byte("\x00\x00\n \n\x1b[31mred\x00"))
	f.Add(bytes.Repeat([]byte{0xff}, wordsSize+5))
	f.Fuzz(func(t *testing.T, text []byte) {
		line := ReadWords(bytes.NewReader(text))
		if !presentable(line) {
			t.Fatalf("%q", line)
		}
		if line == "" && bytes.ContainsFunc(text[:min(len(text), wordsSize)], func(r rune) bool { return r > ' ' && r <= '~' }) {
			t.Fatalf("nothing of %q", text)
		}
	})
}

// presentable is what a terminal may be given: one line, bounded.
func presentable(line string) bool {
	return len(line) <= ReasonMax && strings.IndexFunc(line, func(r rune) bool { return r < ' ' || r > '~' }) < 0
}
