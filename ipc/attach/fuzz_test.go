package attach

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzDocuments holds the payloads: what one side understands the other can have written, and nothing is left
// over.
func FuzzDocuments(f *testing.F) {
	f.Add([]byte(`{"key":"spread.web","slot":1,"arguments":["a","b"]}`))
	f.Add([]byte(`{"key":"spread.web"}}`))
	f.Add([]byte(`{"blob":"` + strings.Repeat("0a", 32) + `","offset":5}`))
	f.Add(AppendLimit(nil, InputAhead))
	f.Add(Usage{Instances: []InstanceUsage{{Key: "a"}}}.Encode())
	f.Fuzz(func(t *testing.T, payload []byte) {
		if limit, ok := ParseLimit(payload); ok && string(AppendLimit(nil, limit)) != string(payload) {
			t.Fatalf("limit %d out of %x", limit, payload)
		}
		if r, err := ParseRequest(payload); err == nil {
			if !json.Valid(payload) {
				t.Fatalf("%q is taken for %+v", payload, r)
			}
			again, err := r.Encode()
			if len(again) > PayloadMax || err != nil && len(payload) <= PayloadMax/8 {
				t.Fatalf("%q: %d bytes, %v", payload, len(again), err)
			}
			if err == nil {
				if second, err := ParseRequest(again); err != nil || !equalRequests(r, second) {
					t.Fatalf("%+v became %+v, %v", r, second, err)
				}
			}
		}
		if u, err := ParseUsage(payload); err == nil {
			again, err := ParseUsage(u.Encode())
			if err != nil || len(again.Instances)+again.Omitted != len(u.Instances)+u.Omitted {
				t.Fatalf("%+v became %+v, %v", u, again, err)
			}
		}
	})
}

// equalRequests: no arguments are no arguments, whichever way they are written.
func equalRequests(a, b *Request) bool {
	if len(a.Arguments) == 0 && len(b.Arguments) == 0 {
		one, other := *a, *b
		one.Arguments, other.Arguments = nil, nil
		return reflect.DeepEqual(one, other)
	}
	return reflect.DeepEqual(a, b)
}

// FuzzRequest holds the other direction: what can be encoded arrives as it was.
func FuzzRequest(f *testing.F) {
	f.Add("spread.web", "/tmp/x", "ls", "0123456789abcdef", int64(0))
	f.Add("spread.web", "/tmp/\xff", "", "", int64(5))
	f.Fuzz(func(t *testing.T, key, path, argument, digest string, offset int64) {
		r := &Request{Key: key, Path: path, Arguments: []string{argument}, Digest: digest, Offset: offset}
		payload, err := r.Encode()
		if err != nil {
			if strings.Contains(err.Error(), "\n") || !utf8.ValidString(err.Error()) {
				t.Fatalf("an error that nobody reads: %q", err)
			}
			return
		}
		if again, err := ParseRequest(payload); err != nil || !reflect.DeepEqual(again, r) {
			t.Fatalf("%+v became %+v, %v", r, again, err)
		}
	})
}
