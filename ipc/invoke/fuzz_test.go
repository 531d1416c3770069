package invoke

import (
	"bytes"
	"testing"
)

// FuzzPayloads holds what comes in the payloads of the command socket, and of a snapshot.
func FuzzPayloads(f *testing.F) {
	f.Add(AppendCall(nil, "f", &Invocation{Function: "add", Milliseconds: 5, Arguments: [][]byte{[]byte("1")}}))
	f.Add(AppendOutcome(nil, &Result{Status: -1, Clock: 2, Nanos: 3, Output: []byte("x")}))
	f.Add([]byte{1, 'k', 0, 1, 'v'})
	f.Fuzz(func(t *testing.T, payload []byte) {
		if workload, v, err := ParseCall(payload); err == nil {
			if err := v.Check(); err != nil {
				t.Fatalf("%x is understood and then refused: %v", payload, err)
			}
			if again := AppendCall(nil, workload, v); !bytes.Equal(again, payload) {
				t.Fatalf("%x became %x", payload, again)
			}
		}
		if s, err := ParseOutcome(payload); err == nil {
			if again := AppendOutcome(nil, s); !bytes.Equal(again, payload) || len(s.Output) > OutputMax {
				t.Fatalf("%x became %x", payload, again)
			}
		}
		size := 0
		if Pairs(payload, func(key string, value []byte) { size += 3 + len(key) + len(value) }) == nil && size != len(payload) {
			t.Fatalf("%d of %d bytes", size, len(payload))
		}
	})
}
