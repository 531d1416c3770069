package packet

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// ends gives both ends of a pair, and the raw descriptor of the second for what no Conn would send.
func ends(t testing.TB) (*Conn, *Conn, int) {
	t.Helper()
	a, file, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := unix.Dup(int(file.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	b, err := Open(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close(); unix.Close(raw) })
	_ = a.Socket().SetDeadline(time.Now().Add(10 * time.Second))
	return a, b, raw
}

type document struct {
	Text string `json:"text"`
}

func TestDocumentsAndDescriptorsArrive(t *testing.T) {
	a, b, _ := ends(t)
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := b.Send(document{"first"}, file); err != nil {
		t.Fatal(err)
	}
	if err := b.Send(document{"second"}, nil); err != nil {
		t.Fatal(err)
	}
	var d document
	got, err := a.Receive(&d)
	if err != nil || d.Text != "first" || got == nil {
		t.Fatalf("%+v, %v, %v", d, got, err)
	}
	text, _ := io.ReadAll(got)
	got.Close()
	if string(text) != "content" {
		t.Errorf("%q", text)
	}
	if got, err = a.Receive(&d); err != nil || d.Text != "second" || got != nil {
		t.Errorf("%+v, %v, %v", d, got, err)
	}
	b.Close()
}

func TestEndOfFile(t *testing.T) {
	a, b, raw := ends(t)
	unix.Close(raw)
	b.Close()
	var d document
	if _, err := a.Receive(&d); !errors.Is(err, io.EOF) {
		t.Errorf("%v", err)
	}
}

// TestF133_HostilePackets sends what no Conn would, and counts descriptors before and after.
func TestF133_HostilePackets(t *testing.T) {
	a, b, raw := ends(t)
	before := descriptors(t)
	one := int(os.Stdin.Fd())
	for name, send := range map[string]func() error{
		"no document":           func() error { return unix.Sendmsg(raw, []byte("{"), nil, nil, 0) },
		"no object":             func() error { return unix.Sendmsg(raw, []byte("[]"), nil, nil, 0) },
		"no object, descriptor": func() error { return unix.Sendmsg(raw, []byte("7"), unix.UnixRights(one), nil, 0) },
		"two descriptors":       func() error { return unix.Sendmsg(raw, []byte("{}"), unix.UnixRights(one, one), nil, 0) },
		"many descriptors": func() error {
			return unix.Sendmsg(raw, []byte("{}"), unix.UnixRights(one, one, one, one, one, one), nil, 0)
		},
		"too long":      func() error { return unix.Sendmsg(raw, make([]byte, MessageMax+1), unix.UnixRights(one), nil, 0) },
		"much too long": func() error { return unix.Sendmsg(raw, make([]byte, 2*MessageMax), nil, nil, 0) },
	} {
		if err := send(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var d document
		if file, err := a.Receive(&d); !errors.Is(err, ErrMalformed) || file != nil {
			t.Errorf("%s: %v, %v", name, file, err)
		}
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
	if err := b.Send(document{strings.Repeat("x", MessageMax)}, nil); err == nil {
		t.Error("a message that is too long was sent")
	}
	if err := b.Send(document{"still works"}, nil); err != nil {
		t.Error(err)
	}
	var d document
	if _, err := a.Receive(&d); err != nil || d.Text != "still works" {
		t.Errorf("%+v, %v", d, err)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestOnlySequencedPackets(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[1])
	if _, err := Open(os.NewFile(uintptr(pair[0]), "stream")); err == nil {
		t.Error("a stream was taken")
	}
}

func TestCredentialsOfTheDialler(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	listener, err := net.Listen("unixpacket", path)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	c, err := Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	socket, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	other, err := Over(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	uid, pid, err := other.Credentials()
	if err != nil || int(uid) != os.Geteuid() || pid != os.Getpid() {
		t.Errorf("uid %d, pid %d, %v", uid, pid, err)
	}
	if groups, err := other.Groups(); err != nil || len(groups) == 0 || groups[len(groups)-1] != uint32(os.Getegid()) {
		t.Errorf("groups %v, %v", groups, err)
	}
}

func FuzzReceive(f *testing.F) {
	f.Add([]byte(`{"text":"x"}`))
	f.Add([]byte(`{"text":`))
	f.Fuzz(func(t *testing.T, packet []byte) {
		if len(packet) == 0 || len(packet) > 2*MessageMax {
			return
		}
		a, _, raw := ends(t)
		if err := unix.Sendmsg(raw, packet, nil, nil, unix.MSG_DONTWAIT); err != nil {
			return
		}
		var d document
		if file, err := a.Receive(&d); file != nil || err != nil && !errors.Is(err, ErrMalformed) {
			t.Errorf("%v, %v", file, err)
		}
	})
}
