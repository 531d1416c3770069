package control

import (
	"testing"
	"time"

	"colloid.net/ipc/uds"
)

// A client that opens streams which are refused, and reads none of the refusals, is disconnected: they may not gather
// without end (F136).
func TestF136_UnreadRefusalsOfStreamsAreBounded(t *testing.T) {
	ours, theirs := pairOf(t)
	s := streamServer(t)
	c := newClient(s, theirs, credentials{uid: 12345}, levelRead)
	if reason := s.add(c); reason != "" {
		t.Fatal(reason)
	}
	open := (&uds.StreamOpen{Handle: 1, Kind: uds.StreamExec, Name: "spread.web"}).Append(nil)
	_ = ours.SetWriteDeadline(time.Now().Add(20 * time.Second))
	largest := 0
	for i := range 100_000 {
		if uds.WriteFrame(ours, byte(uds.CodeStreamOpen), open) != nil {
			break
		}
		if i%100 == 0 {
			c.mutex.Lock()
			largest = max(largest, len(c.streams.buffer))
			c.mutex.Unlock()
		}
	}
	if limit := 2 * uds.StreamQueueMax; largest > limit {
		t.Errorf("%d bytes of refusals wait, at most %d should", largest, limit)
	}
}
