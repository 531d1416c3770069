package control

import (
	"bytes"
	"context"
	"testing"
	"time"

	"colloid.net/ipc/uds"
)

// A reply that did not fit the socket at once is written under a deadline. That deadline is of this reply
// only: the next one, long after, is not late.
func TestF136_ALongReplyDoesNotEndTheNextOne(t *testing.T) {
	const long = 400 << 10 // more than the socket takes
	path, _ := serve(t, func(o *Options) {
		o.requestTimeout = time.Second
		o.Handle = func(_ context.Context, r Request) Response {
			if r.Code == uds.CodeStatus {
				return Response{Payload: bytes.Repeat([]byte("x"), long)}
			}
			return Response{Payload: r.Payload}
		}
	})
	client := dial(t, path)
	if reply, err := client.Do(uds.CodeStatus, nil); err != nil || len(reply) != long {
		t.Fatalf("the long reply: %d bytes, %v", len(reply), err)
	}
	time.Sleep(1100 * time.Millisecond) // its deadline passes
	if reply, err := client.Do(uds.CodeGet, []byte("key")); err != nil || string(reply) != "key" {
		t.Fatalf("the next reply: %q, %v", reply, err)
	}
}
