package control

import (
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"colloid.net/ipc/uds"
)

// connectedAs is a client of a server as if it had been accepted from that user.
func connectedAs(t *testing.T, s *Server, uid uint32, may level) (net.Conn, string) {
	t.Helper()
	ours, theirs := pairOf(t)
	return ours, s.add(newClient(s, theirs, credentials{uid: uid}, may))
}

// F136: who may only look cannot lock others out, neither with connections nor with streams, nor can one
// user.
func TestF136_ReadersLeaveRoomForOthers(t *testing.T) {
	s := streamServer(t)
	const reader, operator = 12345, 23456
	admitted := 0
	for n := range uint32(3 * uds.UserClientsMax) {
		if _, refusal := connectedAs(t, s, reader+n/(uds.UserClientsMax+6), levelRead); refusal == "" {
			admitted++
		}
	}
	if admitted != uds.ClientsMax-uds.RootClients-uds.OperatorClients {
		t.Errorf("%d connections of readers", admitted)
	}
	for range uds.OperatorClients {
		if _, refusal := connectedAs(t, s, operator, levelWrite); refusal != "" {
			t.Fatalf("an operator: %s", refusal)
		}
	}
	if _, refusal := connectedAs(t, s, operator, levelWrite); refusal == "" {
		t.Error("an operator got a place of root's")
	}
	c, refusal := connectedAs(t, s, 0, levelWrite)
	if refusal != "" {
		t.Fatalf("root: %s", refusal)
	}
	say(t, c, uds.CodeHello, nil)
	if status, payload := hear(t, c); status != uds.Code(uds.OK) {
		t.Errorf("root: %#x %q", status, payload)
	}
}

func TestF136_OneUserHasABoundOfItsOwn(t *testing.T) {
	s := streamServer(t)
	for n := range uds.UserClientsMax + 1 {
		_, refusal := connectedAs(t, s, 12345, levelWrite)
		if (refusal == "") != (n < uds.UserClientsMax) {
			t.Fatalf("connection %d: %q", n+1, refusal)
		}
	}
	if _, refusal := connectedAs(t, s, 12346, levelRead); refusal != "" {
		t.Errorf("somebody else: %s", refusal)
	}
}

// F136: readers have bounds together, in clients that follow and in streams to one cell, and root has none
// but the cell's.
func TestF136_ReadersStreamsAreBounded(t *testing.T) {
	s := streamServer(t)
	open := func(c net.Conn, handle uint32, cell uint64) string {
		t.Helper()
		say(t, c, uds.CodeStreamOpen, (&uds.StreamOpen{Handle: handle, Kind: uds.StreamLogs, Cell: cell, Name: "spread.web"}).Append(nil))
		code, payload := hear(t, c)
		if code == uds.CodeStreamOpen {
			return ""
		}
		end, err := uds.ParseStreamClose(payload)
		if err != nil || end.Errno != uds.ErrorBusy {
			t.Fatalf("%#x %q", code, payload)
		}
		return end.Text
	}
	for n := range uds.StreamingReadersMax + 10 {
		c, refusal := connectedAs(t, s, 12345+uint32(n/(uds.StreamingUserMax+4)), levelRead)
		if refusal != "" {
			t.Fatal(refusal)
		}
		reason := open(c, 1, uint64(n%7))
		taken := n < uds.StreamingUserMax || n >= uds.StreamingUserMax+4 && n < uds.StreamingReadersMax+4
		if (reason == "") != taken {
			t.Errorf("follower %d: %q", n+1, reason)
		}
	}
	c, _ := connectedAs(t, s, 0, levelWrite)
	for handle := range uint32(uds.ClientStreamsMax) {
		if reason := open(c, handle, 1); reason != "" {
			t.Fatalf("root: %s", reason)
		}
	}
	s = streamServer(t)
	c, _ = connectedAs(t, s, 12345, levelRead)
	for handle := range uint32(uds.StreamsReadersCellMax) {
		if reason := open(c, handle, 1); reason != "" {
			t.Fatalf("stream %d: %s", handle, reason)
		}
	}
	if reason := open(c, 99, 1); !strings.Contains(reason, "to this cell") {
		t.Errorf("one more to one cell: %q", reason)
	}
	if reason := open(c, 98, 2); reason != "" {
		t.Errorf("to another: %q", reason)
	}
}

// Whoever is refused hears why, however many come at once and whatever they have sent meanwhile.
func TestF136_RefusalsArriveWhole(t *testing.T) {
	path, _ := serve(t, func(o *Options) {
		o.requestTimeout = time.Minute // on a slow machine a client that has not asked yet must not be taken for idle
		o.OpenStream = func(_ uds.StreamOpen, _ uint32, sink Sink) Handle {
			sink.Opened()
			return &loop{sink: sink, canceled: make(chan struct{})}
		}
	})
	const clients = uds.ClientsMax + 60
	var group sync.WaitGroup
	var opened, refused, heard atomic.Int32
	hold := make(chan struct{})
	for range clients {
		group.Go(func() {
			c, err := uds.DialStreams(path)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			err = c.Open(uds.StreamOpen{Handle: 1, Kind: uds.StreamExec, Name: "spread.web"})
			if err == nil {
				err = c.Write(1, make([]byte, 4096))
			}
			event, nextErr := c.Next()
			var reply *uds.ReplyError
			switch {
			case nextErr == nil && event.Opened:
				opened.Add(1)
			case errors.As(nextErr, &reply) && reply.Errno == uds.ErrorBusy && strings.Contains(reply.Text, "close one"),
				errors.As(event.Err, &reply) && reply.Errno == uds.ErrorBusy:
				refused.Add(1)
			default:
				t.Errorf("write: %v, read: %+v, %v", err, event, nextErr)
			}
			if heard.Add(1) == clients {
				close(hold)
			}
			select {
			case <-hold:
			case <-time.After(20 * time.Second):
			}
		})
	}
	group.Wait()
	if opened.Load() != uds.StreamingClientsMax {
		t.Errorf("%d opened, %d refused", opened.Load(), refused.Load())
	}
}

// A daemon that stops says that, and not that there are too many clients.
func TestAStoppingDaemonSaysSo(t *testing.T) {
	s := streamServer(t)
	s.Close()
	if _, refusal := connectedAs(t, s, 0, levelWrite); !strings.Contains(refusal, "stops") {
		t.Errorf("%q", refusal)
	}
}

// The same for a client that had sent its request before it was refused, and goes on sending.
func TestF136_ARefusalSurvivesAnUnreadRequest(t *testing.T) {
	s := streamServer(t)
	for range uds.ClientsMax {
		if _, refusal := connectedAs(t, s, 0, levelWrite); refusal != "" {
			t.Fatal(refusal)
		}
	}
	c := dialRaw(t, s.options.Path)
	say(t, c, uds.CodeGet, []byte("spread.web"))
	done := make(chan error)
	go func() { done <- s.Serve() }()
	time.Sleep(50 * time.Millisecond)
	_, _ = c.Write(uds.AppendStreamData(nil, 1, make([]byte, 1000))) // and goes on sending
	status, payload := hear(t, c)
	if status != uds.Code(uds.Error) || !strings.Contains(string(payload), "close one") {
		t.Errorf("%#x %q", status, payload)
	}
	s.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
