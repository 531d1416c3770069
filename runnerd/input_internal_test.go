package runnerd

import (
	"bytes"
	"io"
	"testing"

	"colloid.net/ipc/attach"
)

// What an operator sends in small pieces, or in none, takes no more room than in large ones, and comes out as it went in.
func TestInputInSmallPiecesIsBounded(t *testing.T) {
	q := newInputQueue()
	var want []byte
	for n := range 100_000 {
		q.put(nil)
		q.put([]byte{})
		q.put([]byte{byte(n)})
		want = append(want, byte(n))
	}
	if most := len(want)/blockRoom + 1; len(q.blocks) > most {
		t.Errorf("%d blocks for %d bytes, want at most %d", len(q.blocks), len(want), most)
	}
	large := bytes.Repeat([]byte("large"), blockRoom)
	q.put(large)
	q.end()
	var got bytes.Buffer
	ended := 0
	q.feed(&got, attach.NewWriter(io.Discard), func() { ended++ })
	if !bytes.Equal(got.Bytes(), append(want, large...)) || ended != 1 || q.size != 0 {
		t.Errorf("%d bytes came out, ended %d times, %d bytes left", got.Len(), ended, q.size)
	}
}
