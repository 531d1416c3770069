package store

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"colloid.net/ipc/packet"
)

// TestF140_EveryRequestIsAnswered: an answer that is longer than a message is an error, and not silence in which a start of
// a container, or `colloid image ls`, waits for ever.
func TestF140_EveryRequestIsAnswered(t *testing.T) {
	s := openStore(t)
	m := memory{}
	digest := m.image(t, pack(t, file("a", "content")))
	var names []string
	for n := range 400 {
		names = append(names, fmt.Sprintf("example.org/%s:%d", strings.Repeat("x", 200), n))
	}
	s.mustImport(t, m, digest)
	r, err := s.load(digest)
	if err != nil {
		t.Fatal(err)
	}
	r.References = names // more than an image can get, but a record is a file
	if err := s.save(digest, r); err != nil {
		t.Fatal(err)
	}
	ours, theirs, err := packet.Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	conn, err := packet.Open(theirs)
	if err != nil {
		t.Fatal(err)
	}
	go s.Serve(conn, time.Minute)
	for n, operation := range []string{OperationFind, OperationList} {
		if err := ours.Send(Request{Version: Version, ID: uint64(n), Operation: operation, Digest: digest}, nil); err != nil {
			t.Fatal(err)
		}
		_ = ours.Socket().SetReadDeadline(time.Now().Add(10 * time.Second))
		var reply Reply
		_, err := ours.Receive(&reply)
		if err != nil || reply.ID != uint64(n) || !reply.Done || !strings.Contains(reply.Error, "message of") {
			t.Errorf("%s: %+v, %v, want an error about the length of the message", operation, reply, err)
		}
	}
}
