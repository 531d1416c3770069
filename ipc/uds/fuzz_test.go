package uds

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"
)

// FuzzStreams holds what a client says about its streams, both ways.
func FuzzStreams(f *testing.F) {
	f.Add((&StreamOpen{Handle: 1, Kind: 2, Cell: 3, Name: "a", Grant: []byte{1}}).Append(nil))
	f.Add((&StreamClose{Handle: 1, Flag: StreamReset, Errno: 5, Text: "no"}).Append(nil))
	f.Add(append((&StreamClose{Handle: 1, Flag: StreamFin}).Append(nil), make([]byte, 2000)...))
	f.Fuzz(func(t *testing.T, payload []byte) {
		if open, err := ParseStreamOpen(payload); err == nil && !bytes.Equal(open.Append(nil), payload) {
			t.Fatalf("%x became %+v", payload, open)
		} else if err != nil && !errors.Is(err, ErrMalformedStream) {
			t.Fatal(err)
		}
		if end, err := ParseStreamClose(payload); err == nil && !bytes.Equal(end.Append(nil), payload) {
			t.Fatalf("%x became %+v", payload, end)
		} else if err != nil && !errors.Is(err, ErrMalformedStream) {
			t.Fatal(err)
		}
	})
}

// FuzzDocument holds the replies that carry JSON: a document or an error, and a conflict says which entries
// there are.
func FuzzDocument(f *testing.F) {
	f.Add(AppendReply(nil, []byte(`{"key":"spread.web","digest":"00","entries":[]}`)))
	f.Add(AppendReply(nil, []byte(`{"key":5}`)))
	f.Add(AppendFrame(nil, byte(Conflict), []byte(`{"entries":[{"value":"AA=="}]}`)))
	f.Fuzz(func(t *testing.T, reply []byte) {
		var entries Entries
		err := answering(t, reply).DoJSON(CodeGet, nil, &entries)
		var conflict *ConflictError
		if errors.As(err, &conflict) {
			if _, err := json.Marshal(conflict.Entries); err != nil {
				t.Fatal(err)
			}
		}
		if err != nil && err.Error() == "" {
			t.Fatal("an error without words")
		}
	})
}
