package daemon

import (
	"context"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"colloid.net/ipc/message"
	"colloid.net/ipc/ring"
	"colloid.net/workload"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

// fakeRunnerd is runnerd's end of the rings, with sockets of loopback instead of the bridge's.
type fakeRunnerd struct {
	t    *testing.T
	link *ring.Link
	at   netip.AddrPort
}

func (r *running) connectRunnerd(t *testing.T, generation uint64) *fakeRunnerd {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan struct{})
	go func() {
		defer close(accepted)
		r.daemon.connect("runnerd", fileConn(t, pair[1]))
	}()
	link, err := ring.Create(fileConn(t, pair[0]))
	if err != nil {
		t.Fatal(err)
	}
	<-accepted
	f := &fakeRunnerd{t: t, link: link}
	t.Cleanup(func() { link.Close() })
	f.send(&message.Event{Body: &message.Event_Hello{Hello: &message.Hello{Protocol: helperProtocol, RunsOci: true}}})
	f.send(&message.Event{Body: &message.Event_Network{Network: &message.Network{Generation: generation,
		Ranges: []*message.Range{{Address: []byte{127, 0, 0, 0}, Bits: 8}}}}})
	return f
}

func (f *fakeRunnerd) send(event *message.Event) {
	f.t.Helper()
	record, err := proto.Marshal(event)
	if err != nil || !f.link.Send(record) {
		f.t.Fatalf("cannot send: %v", err)
	}
}

// serve passes a datagram socket when meshd asks for one.
func (f *fakeRunnerd) serve() {
	f.t.Helper()
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		f.t.Fatal(err)
	}
	defer conn.Close()
	f.at = conn.LocalAddr().(*net.UDPAddr).AddrPort()
	file, err := conn.File()
	if err != nil {
		f.t.Fatal(err)
	}
	defer file.Close()
	buffer := make([]byte, ring.RecordMax)
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		n, ok, err := f.link.Receive(buffer)
		if err != nil {
			f.t.Fatal(err)
		}
		if !ok {
			f.link.Wait(10 * time.Millisecond)
			continue
		}
		command := new(message.Command)
		if err := proto.Unmarshal(buffer[:n], command); err != nil {
			f.t.Fatal(err)
		}
		attach := command.GetAttach()
		if wanted := attach.GetResolver(); wanted != nil && !wanted.Stream {
			if err := f.link.SendDescriptor(attach.Channel, file); err != nil {
				f.t.Fatal(err)
			}
			return
		}
	}
	f.t.Fatal("meshd asks for no socket")
}

func fileConn(t *testing.T, fd int) *net.UnixConn {
	t.Helper()
	file := os.NewFile(uintptr(fd), "pair")
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		t.Fatal(err)
	}
	return conn.(*net.UnixConn)
}

// lookup asks for the addresses of a workload until the answer is as wanted.
func (f *fakeRunnerd) lookup(name, want string) {
	f.t.Helper()
	resolver := &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		return net.Dial("udp", f.at.String())
	}}
	var got []netip.Addr
	var err error
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		got, err = resolver.LookupNetIP(ctx, "ip4", name)
		cancel()
		if len(got) == 1 && got[0].Unmap().String() == want || want == "" && err != nil && err.(*net.DNSError).IsNotFound {
			return
		}
	}
	f.t.Fatalf("%s is %v (%v), want %q", name, got, err, want)
}

// TestF158_ReadyContainersHaveNames: what runnerd reports as ready is found, what is not is not, and names are
// answered while runnerd is away.
func TestF158_ReadyContainersHaveNames(t *testing.T) {
	r := launch(t, "auto")
	f := r.connectRunnerd(t, 1)
	f.serve()
	spec := &workload.Spec{Runtime: workload.RuntimeOCI, Replicas: 1, Image: "example.com/x", ImageDigest: [32]byte{1},
		Ports: []workload.Port{{Host: 8080, Container: 80}}}
	encoded, err := workload.Encode(spec)
	if err != nil {
		t.Fatal(err)
	}
	instance := &message.Instance{Id: &message.InstanceID{KeyHash: 1, Digest: spec.InstanceDigest()}, Key: "spread.web",
		State: message.InstanceState_INSTANCE_STARTING, Spec: encoded, Address: []byte{10, 64, 0, 2}}
	report := func() {
		f.send(&message.Event{Body: &message.Event_Instance{Instance: instance}})
		f.send(&message.Event{Body: &message.Event_Listing{Listing: &message.Listing{Count: 1}}})
	}
	report()
	f.lookup("web.colloid", "")
	instance.State = message.InstanceState_INSTANCE_READY
	report()
	f.lookup("web.colloid", "10.64.0.2")
	f.link.Close()
	time.Sleep(namesKept)
	f.lookup("web.colloid", "10.64.0.2")
	again := r.connectRunnerd(t, 2)
	again.serve()
	again.send(&message.Event{Body: &message.Event_Instance{Instance: instance}})
	again.lookup("web.colloid", "10.64.0.2")
}
