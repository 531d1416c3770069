package uds

import (
	"bytes"
	"testing"
)

func FuzzParseEnvironmentRequest(f *testing.F) {
	f.Add([]byte{})
	f.Add(EnvironmentRequest{Store: true, Key: "spread.web", Plain: []byte("plain")}.Append(nil))
	f.Add([]byte{0, 255})
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := ParseEnvironmentRequest(data)
		if err == nil && !bytes.Equal(r.Append(nil), data) {
			t.Fatalf("%x became %x", data, r.Append(nil))
		}
	})
}
