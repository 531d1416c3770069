package resolver

import (
	"bytes"
	"strings"
	"testing"
)

// FuzzReadFrame holds queries over TCP: a message of the length before it, never more than there is room for.
func FuzzReadFrame(f *testing.F) {
	f.Add([]byte{0, 2, 'a', 'b', 'c'})
	f.Add([]byte{255, 255, 1})
	f.Add([]byte{0, 0})
	f.Fuzz(func(t *testing.T, stream []byte) {
		var room [512]byte
		reader := bytes.NewReader(stream)
		n, err := readFrame(reader, room[:])
		if err != nil {
			if n != 0 { // the length that was sent, with nothing behind it
				t.Fatalf("%d of %d bytes, %v", n, len(stream), err)
			}
			return
		}
		var again bytes.Buffer
		if err := writeFrame(&again, room[:n]); err != nil || !bytes.HasPrefix(stream, again.Bytes()) ||
			reader.Len() != len(stream)-again.Len() {
			t.Fatalf("%x became %x", stream, again.Bytes())
		}
	})
}

func FuzzParseUpstreams(f *testing.F) {
	f.Add("# x\nnameserver 192.0.2.1\nnameserver fe80::1%eth0\n  nameserver ::1 trailing\n")
	f.Add(strings.Repeat("nameserver 192.0.2.1\n", 9))
	f.Fuzz(func(t *testing.T, text string) {
		list := parseUpstreams(strings.NewReader(text))
		if len(list) > upstreamsMax || len(list) > strings.Count(text, "nameserver") {
			t.Fatalf("%v out of %q", list, text)
		}
		for _, a := range list {
			if !a.IsValid() || a.Port() != 53 || !strings.Contains(text, "nameserver") {
				t.Fatalf("%v out of %q", a, text)
			}
		}
	})
}
