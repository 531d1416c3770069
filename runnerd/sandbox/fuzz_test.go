package sandbox

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"colloid.net/runnerd/record"
)

// FuzzAllocator holds the file of id ranges: no range is given twice, and what is read is written the same.
func FuzzAllocator(f *testing.F) {
	f.Add([]byte("next \"3\"\nrange \"1 a\"\nrange \"2 b\"\n"))
	f.Add([]byte("next \"x\"\nrange \"01 a\"\n"))
	f.Add([]byte("range \"1 a\"\nrange \"1 b\"\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := record.Parse(text)
		if err != nil {
			return
		}
		a := &Allocator{path: "/state/ids", taken: map[string]int{}}
		if err := a.parse(r); err != nil {
			if !strings.Contains(err.Error(), a.path) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("%q", err)
			}
			return
		}
		seen := map[int]bool{}
		for name, n := range a.taken {
			if seen[n] || n < 0 || n >= rangesMax || name == "" {
				t.Fatalf("%s has %d", name, n)
			}
			seen[n] = true
		}
		again := &Allocator{path: a.path, taken: map[string]int{}}
		if err := again.parse(a.record()); err != nil || again.next != a.next || !reflect.DeepEqual(again.taken, a.taken) {
			t.Fatalf("%v became %v, %v", a.taken, again.taken, err)
		}
	})
}

func FuzzWords(f *testing.F) {
	for _, word := range []string{"exit 0", "exit 137", "exit -1", "signal 15", "signal 65", "signal 9x", "", "exit 1exit 2"} {
		f.Add(word)
	}
	f.Fuzz(func(t *testing.T, word string) {
		if code, err := parseExit(word); err == nil && (code < 0 || code > 255) || err != nil && code != -1 {
			t.Fatalf("%q is %d, %v", word, code, err)
		}
		if signal := parseSignal(word); signal < 0 || signal > signalMax || signal != 0 && !strings.HasPrefix(word, "signal ") {
			t.Fatalf("%q is %d", word, signal)
		}
		number := SignalNumber(word)
		if number < 0 || number > signalMax {
			t.Fatalf("%q is %d", word, number)
		}
		if number != 0 && SignalNumber(fmt.Sprint(number)) != number {
			t.Fatalf("%q is %d, and that is %d", word, number, SignalNumber(fmt.Sprint(number)))
		}
	})
}

// What stood behind the number of a signal was overlooked, and a minus moved it below the real-time ones.
func TestSignalsAreReadWhollyOrNotAtAll(t *testing.T) {
	for text, want := range map[string]int{"SIGTERM": 15, "term": 15, "9": 9, "SIGRTMIN": 34, "SIGRTMIN+3": 37, "SIGRTMIN+30": 64,
		"9x": 0, "SIGRTMIN+-3": 0, "SIGRTMIN+3x": 0, "SIGRTMIN+31": 0, "SIGRTMINx": 0, "65": 0, "0": 0, "": 0, "SIGRTMIN+": 0} {
		if got := SignalNumber(text); got != want {
			t.Errorf("%q is %d, want %d", text, got, want)
		}
	}
}

// FuzzAccounts holds the user of an image in the image's own files, which are anybody's: ids of the instance or an error.
func FuzzAccounts(f *testing.F) {
	f.Add("root:x:0:0:root:/root:/bin/sh\nbuild:x:1000:100::/home:/bin/sh\n", "app:x:7:build,root\n", "build:app")
	f.Add("x:x:4294967296:0:::\n", "", "x")
	f.Add("#x:x:1:1:::\n:x:1:1:::\n", "a:b:c:\n", "5:a")
	f.Fuzz(func(t *testing.T, passwd, group, user string) {
		entry := scanEntries(strings.NewReader(passwd), 7, func(fields []string) bool { return fields[0] == user })
		if entry != nil && (len(entry) < 7 || entry[0] != user || strings.Contains(strings.Join(entry, ""), "\n")) {
			t.Fatalf("%q in %q", entry, passwd)
		}
		if entry != nil && !strings.HasPrefix(homeOf(entry), "/") {
			t.Fatalf("home of %q", entry)
		}
		var groups []uint32
		scanEntries(strings.NewReader(group), 4, collectGroups(&groups, user))
		if len(groups) > groupsMax {
			t.Fatalf("%d groups", len(groups))
		}
		for _, gid := range groups {
			if gid >= IDCount || !strings.Contains(group, user) {
				t.Fatalf("group %d of %q in %q", gid, user, group)
			}
		}
	})
}
