package storage

import (
	"bytes"
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

// FuzzFiles holds files as a whole: one that is taken is what was written, and of a log that is to be saved
// as much is kept as reads back.
func FuzzFiles(f *testing.F) {
	f.Add(appendEnvelope(nil, kindPeers, []byte("payload")), byte(kindPeers))
	f.Add(append(appendEnvelope(nil, kindPeers, []byte("payload")), 0), byte(kindPeers))
	log := appendEntry(appendEntry(append([]byte{}, logHeader...), 1, []byte("one")), 2, []byte("two"))
	f.Add(log, byte(kindLog))
	f.Add(log[:len(log)-1], byte(kindLog))
	f.Fuzz(func(t *testing.T, data []byte, kind byte) {
		if payload, err := parseFile(data, "peers", kind); err == nil {
			if again := appendEnvelope(nil, kind, payload); !bytes.Equal(again, data) {
				t.Fatalf("%x became %x", data, again)
			}
		} else if !strings.Contains(err.Error(), "peers") || strings.Contains(err.Error(), "\n") {
			t.Fatalf("%q", err)
		}
		whole := wholeEntries(data)
		if !bytes.HasPrefix(data, whole) && !bytes.Equal(whole, logHeader) || !bytes.Equal(wholeEntries(whole), whole) {
			t.Fatalf("%x is whole in %x", whole, data)
		}
		l := loader{writer: &writer{bootID: "x"}, expected: inventory{bootID: "x"}}
		content, err := l.parseLog(bytes.Clone(whole), nameLog, 0)
		if err != nil || content.damaged != "" || content.torn != 0 {
			t.Fatalf("%x is not whole: %v, %q, %d torn", whole, err, content.damaged, content.torn)
		}
	})
}
