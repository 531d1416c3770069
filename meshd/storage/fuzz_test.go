package storage

import (
	"fmt"
	"strings"
	"testing"
)

// FuzzParseHolder holds the file of the lock, which names a process or nothing.
func FuzzParseHolder(f *testing.F) {
	for _, text := range []string{"123\n", "-1", "0", "99999999999", "x", "\x00", " 7 "} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		holder := parseHolder(text)
		var pid int
		if n, _ := fmt.Sscanf(holder, "process %d", &pid); n == 1 && (pid <= 0 || !strings.Contains(string(text), fmt.Sprint(pid))) ||
			n == 0 && holder != "another process" {
			t.Fatalf("%q is held by %q", text, holder)
		}
	})
}
