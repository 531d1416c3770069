package control

import (
	"strings"
	"testing"
	"time"

	"colloid.net/ipc/uds"
)

// A client that opens streams which are refused, and reads none of the refusals, is disconnected: they may
// not gather without end (F136).
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

// Whoever is refused again and again does not fill the log, and does not hide what others are refused. The
// lines that are missing are counted in a later one (F135).
func TestF135_RefusalsDoNotFloodTheLog(t *testing.T) {
	j := &journal{}
	r := refusals{log: j.log}
	start := time.Now()
	const each = 5000
	for i := range each {
		r.say(start.Add(time.Duration(i)*time.Millisecond), refusedStream, &credentials{uid: 7, pid: int32(i)}, "was refused a stream")
	}
	r.say(start, refusedStream, &credentials{uid: 8}, "was refused a stream")
	r.say(start, refusedCommand, &credentials{uid: 7}, "was refused a command")
	if text := j.text(); len(j.lines) != refusalLines+2 || !strings.Contains(text, "uid 8") || !strings.Contains(text, "a command") {
		t.Fatalf("%d lines:\n%s", len(j.lines), text)
	}
	r.say(start.Add(refusalWindow), refusedStream, &credentials{uid: 7}, "was refused a stream")
	if last := j.lines[len(j.lines)-1]; !strings.HasSuffix(last, "and 4995 before that have no line") {
		t.Error(last)
	}
	for uid := range uint32(each) { // a container has many users
		r.say(start.Add(refusalWindow), refusedConnection, &credentials{uid: 100 + uid}, "was refused")
	}
	if len(r.told) > refusalKeysMax+1 || len(j.lines) > 2*refusalKeysMax {
		t.Errorf("%d told apart, %d lines", len(r.told), len(j.lines))
	}
	if r.say(start.Add(3*refusalWindow), refusedPlace, &credentials{uid: 3}, "was refused"); len(r.told) != 1 {
		t.Errorf("%d are still told apart", len(r.told))
	}
}

// The server does so: for streams, for commands, and for connections.
func TestF135_RefusedStreamsAndCommandsAreBounded(t *testing.T) {
	j := &journal{}
	ours, theirs := pairOf(t)
	s := streamServer(t)
	s.refusals.log = j.log
	c := newClient(s, theirs, credentials{uid: 12345}, levelRead)
	if reason := s.add(c); reason != "" {
		t.Fatal(reason)
	}
	_ = ours.SetDeadline(time.Now().Add(20 * time.Second))
	open := (&uds.StreamOpen{Handle: 1, Kind: uds.StreamExec, Name: "spread.web"}).Append(nil)
	for range 100 {
		if err := uds.WriteFrame(ours, byte(uds.CodeStreamOpen), open); err != nil {
			t.Fatal(err)
		}
	}
	for range 100 {
		s.execute(&c.who, levelRead, uds.CodeSet, nil)
	}
	eventually(t, "the refusals", func() bool { return strings.Count(j.text(), "a stream of kind") >= refusalLines })
	time.Sleep(50 * time.Millisecond)
	if n := strings.Count(j.text(), "\n") + 1; n > 2*refusalLines {
		t.Errorf("%d lines:\n%s", n, j.text())
	}
}
