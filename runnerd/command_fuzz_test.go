package runnerd

import (
	"io"
	"log"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"colloid.net/ipc/message"
	"colloid.net/ipc/ring"
	"colloid.net/workload"
)

// FuzzCommand holds what meshd, which reads the network, may say to runnerd, which is root: whatever it is, on a host whose
// policy allows nothing, nothing runs, the session goes on or ends, and the next one is served.
func FuzzCommand(f *testing.F) {
	spec := &workload.Spec{Runtime: workload.RuntimeProcess, Image: "/bin/x"}
	encoded, err := workload.Encode(spec)
	if err != nil {
		f.Fatal(err)
	}
	id := &message.InstanceID{KeyHash: 1, Digest: spec.InstanceDigest()}
	for _, command := range []*message.Command{
		{Body: &message.Command_Start{Start: &message.Start{Id: id, Key: "spread.x", Spec: encoded, Address: []byte{127, 0, 0, 1}}}},
		{Body: &message.Command_Start{Start: &message.Start{Id: id, Key: "spread.\x1b\n", Spec: []byte{1}}}},
		{Body: &message.Command_Start{Start: &message.Start{Id: id, Key: "spread.x", Spec: encoded, PrepareOnly: true}}},
		{Body: &message.Command_Start{Start: &message.Start{Id: id, Key: "spread.x", Spec: encoded, CheckOnly: true, PrepareOnly: true,
			Environment: []string{"A=b"}}}},
		{Body: &message.Command_Start{Start: &message.Start{PrepareOnly: true}}},
		{Body: &message.Command_Stop{Stop: &message.Stop{Id: id}}},
		{Body: &message.Command_Host{Host: &message.Host{Address: []byte{1, 2, 3}}}},
		{Body: &message.Command_Attach{Attach: &message.Attach{Id: id, Channel: 5, What: &message.Attach_Usage{Usage: &message.Usage{}}}}},
		{Body: &message.Command_Attach{Attach: &message.Attach{Id: id, Channel: 5, What: &message.Attach_Logs{Logs: &message.Logs{}}}}},
		{Body: &message.Command_Attach{Attach: &message.Attach{Channel: 1, What: &message.Attach_Blob{Blob: &message.Blob{}}}}},
		{Body: &message.Command_NoBlob{NoBlob: &message.NoBlob{}}},
		{},
	} {
		raw, err := proto.Marshal(command)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	s, err := Open(Options{Directory: filepath.Join(f.TempDir(), "state"), PolicyFile: "/nowhere/policy", Log: log.New(io.Discard, "", 0)})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(s.Close)
	f.Fuzz(func(t *testing.T, raw []byte) {
		command := &message.Command{}
		malformed := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(raw, command) != nil
		if !malformed {
			command.Sequence = 1
			if raw, err = proto.Marshal(command); err != nil {
				t.Fatal(err)
			}
		}
		if len(raw) == 0 || len(raw) > ring.RecordMax {
			return
		}
		first := sessionOf(t, s)
		if !first.Send(raw) {
			t.Fatal("the ring takes nothing")
		}
		list, err := proto.Marshal(&message.Command{Sequence: 2, Body: &message.Command_List{List: &message.List{}}})
		if err != nil {
			t.Fatal(err)
		}
		first.Send(list)
		listed(t, first, 2)
		first.Close()
		listed(t, sessionOf(t, s), 0)
		s.do(func() {
			if n := len(s.ahead.byID) + len(s.ahead.launching) + len(s.ahead.answers); n > 1 {
				t.Errorf("%d preparations", n)
			}
			if len(s.instances) > deniedMax+1 {
				t.Errorf("%d instances", len(s.instances))
			}
			for id, i := range s.instances {
				if i.phase != phaseDenied || i.process.PID != 0 {
					t.Errorf("%v is %s, process %d", id, i.phase, i.process.PID)
				}
			}
		})
	})
}

// sessionOf attaches a meshd.
func sessionOf(t *testing.T, s *Supervisor) *ring.Link {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range pair {
		file := os.NewFile(uintptr(fd), "session")
		conn, err := net.FileConn(file)
		file.Close()
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = conn.(*net.UnixConn)
	}
	attached := make(chan error, 1)
	go func() { attached <- s.Attach(ends[0]) }()
	link, err := ring.Accept(ends[1])
	if err == nil {
		err = <-attached
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { link.Close() })
	go func() { link.WaitHangup(); link.Close() }()
	return link
}

// listed reads what runnerd says of itself until a listing that follows a command is complete, or the session ends.
func listed(t *testing.T, link *ring.Link, after uint64) {
	t.Helper()
	buffer := make([]byte, ring.RecordMax)
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		n, ok, err := link.Receive(buffer)
		if err != nil {
			return
		}
		if !ok {
			link.Wait(10 * time.Millisecond)
			continue
		}
		event := &message.Event{}
		if err := proto.Unmarshal(buffer[:n], event); err != nil {
			t.Fatalf("an event that does not parse: %v", err)
		}
		if i := event.GetInstance(); i != nil && (len(i.Reason) > 1<<10 || strings.ContainsAny(i.Reason, "\n\x1b")) {
			t.Fatalf("the reason %q", i.Reason)
		}
		if event.GetListing() != nil && event.Acknowledged >= after {
			return
		}
	}
	t.Fatal("runnerd does not list its instances")
}
