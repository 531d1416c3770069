package daemon

import (
	"bytes"
	"crypto/rand"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"colloid.net/ipc/attach"
	"colloid.net/ipc/message"
	"colloid.net/ipc/ring"
	"colloid.net/ipc/uds"
	"colloid.net/meshd/cell"
	"colloid.net/meshd/reactor"
)

// helperPair connects a runnerd that the test plays to a daemon.
func helperPair(t *testing.T, r *running) *ring.Link {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	connection := func(fd int) *net.UnixConn {
		file := os.NewFile(uintptr(fd), "pair")
		defer file.Close()
		conn, err := net.FileConn(file)
		if err != nil {
			t.Fatal(err)
		}
		return conn.(*net.UnixConn)
	}
	go r.daemon.connect("runnerd", connection(pair[1]))
	link, err := ring.Create(connection(pair[0]))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { link.Close() })
	hello, err := proto.Marshal(&message.Event{Body: &message.Event_Hello{Hello: &message.Hello{Protocol: helperProtocol}}})
	if err != nil || !link.Send(hello) {
		t.Fatal(err)
	}
	return link
}

// nextAttach waits for the next command that asks for a descriptor.
func nextAttach(t *testing.T, link *ring.Link) *message.Attach {
	t.Helper()
	buffer := make([]byte, ring.RecordMax)
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		n, ok, err := link.Receive(buffer)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			link.Wait(100 * time.Millisecond)
			continue
		}
		var command message.Command
		if err := proto.Unmarshal(buffer[:n], &command); err != nil {
			t.Fatal(err)
		}
		if a := command.GetAttach(); a != nil {
			return a
		}
	}
	t.Fatal("no attach came")
	return nil
}

func selfOf(r *running) (id uint64) {
	r.inspect(func(c *cell.Cell) { id = uint64(c.Self()) })
	return id
}

// openRequest opens a stream and sends its first bytes.
func openRequest(t *testing.T, c *uds.StreamConnection, handle uint32, kind uint8, cell uint64, first []byte) {
	t.Helper()
	err := c.Open(uds.StreamOpen{Handle: handle, Kind: kind, Cell: cell, Name: "spread.web"})
	if err == nil {
		err = c.Write(handle, first)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func requestFrame(t *testing.T, r *attach.Request) []byte {
	t.Helper()
	payload, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return attach.Append(nil, attach.KindRequest, payload)
}

// What is no request, is about something else, or cannot be served is refused with a sentence.
func TestF152_AttachmentsAreRefusedWithTheReason(t *testing.T) {
	r := launch(t, reactor.DriverAuto)
	c, self := dialStreams(t, r), selfOf(r)
	handle := uint32(0)
	refusal := func(kind uint8, first []byte) string {
		handle++
		openRequest(t, c, handle, kind, self, first)
		var got []byte
		for {
			event := next(t, c)
			if event.Handle != handle {
				continue // the end of one before
			}
			if got = append(got, event.Data...); event.Fin || event.Closed {
				c.Cancel(handle)
				kind, payload, size, err := attach.Decode(got)
				if err != nil || size == 0 || kind != attach.KindFailed {
					t.Fatalf("%q %v", got, err)
				}
				return string(payload)
			}
		}
	}
	for _, c := range []struct {
		kind  uint8
		first []byte
		want  string
	}{
		{uds.StreamLogs, []byte("noise of a client"), "does not begin with a request"},
		{uds.StreamLogs, attach.Append(nil, attach.KindInput, []byte("x")), "does not begin with a request"},
		{uds.StreamExec, attach.Append(nil, attach.KindRequest, []byte(`{"root":true}`)), "not understood"},
		{uds.StreamLogs, requestFrame(t, &attach.Request{Key: "spread.other"}), "the stream about"},
		{uds.StreamLogs, requestFrame(t, &attach.Request{Key: "spread.web"}), "no such instance"},
		{uds.StreamCopy, requestFrame(t, &attach.Request{Key: "spread.web", Slot: 9}), "no such instance"},
		{uds.StreamMetrics, requestFrame(t, &attach.Request{}), "not connected"},
	} {
		if got := refusal(c.kind, c.first); !strings.Contains(got, c.want) {
			t.Errorf("%q: %q", c.first, got)
		}
	}
	link := helperPair(t, r)
	eventually(t, "a runnerd", func() (there bool) {
		r.inspect(func(*cell.Cell) { there = r.daemon.helper.link != nil })
		return there
	})
	go func() {
		a := nextAttach(t, link)
		answer, _ := proto.Marshal(&message.Event{Body: &message.Event_Attached{
			Attached: &message.Attached{Channel: a.Channel, Error: "the host does not like it"},
		}})
		link.Send(answer)
	}()
	if got := refusal(uds.StreamMetrics, requestFrame(t, &attach.Request{})); got != "the host does not like it" {
		t.Errorf("%q", got)
	}
	go func() {
		nextAttach(t, link)
		link.Close()
	}()
	if got := refusal(uds.StreamMetrics, requestFrame(t, &attach.Request{})); !strings.Contains(got, "has ended") {
		t.Errorf("%q", got)
	}
	noAttachments(t, r)
}

func noAttachments(t *testing.T, r *running) {
	t.Helper()
	eventually(t, "no attachment is left", func() (none bool) {
		r.inspect(func(*cell.Cell) { none = r.daemon.attachments.count == 0 && len(r.daemon.attachments.waiting) == 0 })
		return none
	})
}

// Bytes pass between the descriptor and a client of another cell as they are, both ways, at the pace of the
// slower end; when either end goes, the other hears it.
func TestF152_AttachmentsPassEverythingOn(t *testing.T) {
	a, b := launch(t, reactor.DriverAuto), launch(t, reactor.DriverAuto)
	b.join(a)
	eventually(t, "two cells see each other", allSee([]*running{a, b}, 2))
	link, target := helperPair(t, b), selfOf(b)
	eventually(t, "a runnerd", func() (there bool) {
		b.inspect(func(*cell.Cell) { there = b.daemon.helper.link != nil })
		return there
	})
	attached := func(handle uint32, c *uds.StreamConnection) *os.File {
		openRequest(t, c, handle, uds.StreamMetrics, target, requestFrame(t, &attach.Request{}))
		command := nextAttach(t, link)
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
		if err := link.SendDescriptor(command.Channel, theirs); err != nil {
			t.Fatal(err)
		}
		theirs.Close()
		t.Cleanup(func() { ours.Close() })
		return ours
	}
	c := dialStreams(t, a)
	file := attached(1, c)
	data := make([]byte, 5<<20)
	rand.Read(data)
	go func() { // what comes goes back, slowly at first
		buffer := make([]byte, 64<<10)
		for began := time.Now(); ; {
			n, err := file.Read(buffer)
			if _, writeErr := file.Write(buffer[:n]); err != nil || writeErr != nil || n == 0 {
				file.Close()
				return
			}
			if time.Since(began) < 200*time.Millisecond {
				time.Sleep(time.Millisecond)
			}
		}
	}()
	go func() {
		c.Write(1, data)
		c.CloseWrite(1)
	}()
	var got []byte
	for {
		event := next(t, c)
		if event.Err != nil {
			t.Fatal(event.Err)
		}
		if got = append(got, event.Data...); event.Fin || event.Closed {
			break
		}
	}
	if kind, _, size, _ := attach.Decode(got); kind != attach.KindAccepted || !bytes.Equal(got[size:], data) {
		t.Fatalf("%d bytes came back", len(got))
	}

	// The client goes while the descriptor is blocked: its end hears it.
	other := dialStreams(t, a)
	file = attached(1, other)
	go func() {
		for {
			if _, err := file.Write(data); err != nil {
				return
			}
		}
	}()
	next(t, other)
	other.Close()
	_ = file.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := file.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
		t.Fatalf("the client has gone: %v", err)
	}
	noAttachments(t, b)
}

// More streams than a cell serves are refused, and all room comes back.
func TestF152_AttachmentsAreBounded(t *testing.T) {
	r := launch(t, reactor.DriverAuto)
	self := selfOf(r)
	r.inspect(func(*cell.Cell) { r.daemon.attachments.count = AttachmentsMax })
	c := dialStreams(t, r)
	openRequest(t, c, 1, uds.StreamLogs, self, requestFrame(t, &attach.Request{Key: "spread.web"}))
	if event := next(t, c); !event.Closed || event.Err == nil || !strings.Contains(event.Err.Error(), "busy") {
		t.Fatalf("%+v", event)
	}
	r.inspect(func(*cell.Cell) { r.daemon.attachments.count = 0 })
}
