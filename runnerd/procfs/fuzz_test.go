package procfs

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

// FuzzStat holds both readers of a stat file: a name in it cannot move the fields behind it.
func FuzzStat(f *testing.F) {
	whole := "1 (x) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22"
	f.Add([]byte(whole), []byte("x"))
	f.Add([]byte("1 (x) S -1 2 3"), []byte(") Z 0 0"))
	f.Fuzz(func(t *testing.T, text, name []byte) {
		s, err := parseStat(5, text)
		ticks, pages := parseUsage(text)
		if err != nil && (!errors.Is(err, errStat) || s != (stat{})) || err == nil && s.PID != 5 {
			t.Fatalf("%+v, %v", s, err)
		}
		at, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
		if bytes.ContainsAny(name, ")") || end < 0 || at > end {
			return
		}
		renamed := append(append(append(bytes.Clone(text[:at+1]), name...), ") ("...), name...)
		renamed = append(renamed, text[end:]...)
		other, otherErr := parseStat(5, renamed)
		if other != s || (err == nil) != (otherErr == nil) {
			t.Fatalf("%q is %+v, %q is %+v", text, s, renamed, other)
		}
		if t1, p1 := parseUsage(renamed); t1 != ticks || p1 != pages {
			t.Fatalf("%q uses %d, %d, %q uses %d, %d", text, ticks, pages, renamed, t1, p1)
		}
	})
}

// The fields of a file end with zero bytes; what stands behind the last one is a field as well.
func TestFieldsOfThisProcess(t *testing.T) {
	fields := procFields(0, "nothing")
	if fields != nil {
		t.Errorf("%q", fields)
	}
	if found := procFields(1, "cmdline"); len(found) < 2 || strings.Contains(strings.Join(found, ""), "\x00") {
		t.Errorf("%q", found)
	}
}
