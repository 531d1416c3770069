package resolver

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"colloid.net/meshd/names"
)

// upstream is a resolver of the host that answers everything with 192.0.2.1, after rubbish.
func upstream(t *testing.T, answer func(raw []byte) [][]byte) netip.AddrPort {
	t.Helper()
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() {
		buffer := make([]byte, 2000)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buffer)
			if err != nil {
				return
			}
			for _, response := range answer(slices.Clone(buffer[:n])) {
				_, _ = conn.WriteToUDPAddrPort(response, from)
			}
		}
	}()
	listener, err := net.Listen("tcp", conn.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			buffer := make([]byte, 2000)
			if n, err := readFrame(conn, buffer); err == nil {
				_ = writeFrame(conn, good(buffer[:n]))
			}
			conn.Close()
		}
	}()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort()
}

func good(raw []byte) []byte {
	var m dnsmessage.Message
	if m.Unpack(raw) != nil {
		return nil
	}
	m.Response, m.Additionals = true, nil
	m.Answers = []dnsmessage.Resource{{
		Header: dnsmessage.ResourceHeader{Name: m.Questions[0].Name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET},
		Body:   &dnsmessage.AResource{A: [4]byte{192, 0, 2, 1}},
	}}
	text, _ := m.Pack()
	return text
}

// serve starts a server on loopback and gives its address.
func serve(t *testing.T, options Options) netip.AddrPort {
	t.Helper()
	s := New(options)
	t.Cleanup(s.Close)
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", conn.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	datagrams, err := conn.File()
	if err != nil {
		t.Fatal(err)
	}
	stream, err := listener.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	at := conn.LocalAddr().(*net.UDPAddr).AddrPort()
	conn.Close()
	listener.Close()
	for stream, file := range map[bool]*os.File{false: datagrams, true: stream} {
		if err := s.Serve(file, stream); err != nil {
			t.Fatal(err)
		}
	}
	return at
}

func question(t *testing.T, name string) []byte {
	t.Helper()
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: 4711, RecursionDesired: true}, Questions: []dnsmessage.Question{
		{Name: dnsmessage.MustNewName(name), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}}}
	raw, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func ask(t *testing.T, at netip.AddrPort, network, name string) (m dnsmessage.Message, err error) {
	t.Helper()
	conn, err := net.Dial(network, at.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	buffer := make([]byte, 1<<16-1)
	var n int
	if network == "tcp" {
		if err := writeFrame(conn, question(t, name)); err != nil {
			return m, err
		}
		n, err = readFrame(conn, buffer)
	} else {
		_, _ = conn.Write(question(t, name))
		n, err = conn.Read(buffer)
	}
	if err == nil {
		err = m.Unpack(buffer[:n])
	}
	return m, err
}

var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}

func table() *names.Table {
	return names.NewTable(map[string][]names.Target{
		"web": {{Label: "0", Addresses: []netip.Addr{netip.MustParseAddr("10.64.0.2")}, Near: true}}})
}

func TestF158_NamesAreAnsweredAndForwarded(t *testing.T) {
	far := upstream(t, func(raw []byte) [][]byte {
		other := good(raw)
		other[0]++ // of another query
		elsewhere := good(raw)
		elsewhere[13]++ // of another name
		return [][]byte{other, elsewhere, []byte("x"), good(raw)}
	})
	dead := netip.MustParseAddrPort("10.64.0.9:53") // a container: never asked
	ranges := []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32"), netip.MustParsePrefix("10.64.0.0/24")}
	at := serve(t, Options{Ranges: ranges, Table: table,
		Upstreams: func() []netip.AddrPort { return []netip.AddrPort{dead} }})
	for _, network := range []string{"udp", "tcp"} {
		m, err := ask(t, at, network, "web.colloid.")
		if err != nil || len(m.Answers) != 1 || m.Answers[0].Body.(*dnsmessage.AResource).A != [4]byte{10, 64, 0, 2} {
			t.Errorf("%s: %v %v", network, m.GoString(), err)
		}
		if m, err := ask(t, at, network, "example.com."); err != nil || m.RCode != dnsmessage.RCodeServerFailure {
			t.Errorf("%s: %v %v", network, m.RCode, err)
		}
	}
	for _, network := range []string{"udp", "tcp"} {
		var raw []byte
		s := New(Options{Ranges: []netip.Prefix{netip.MustParsePrefix("10.64.0.0/24")}, Table: table,
			Upstreams: func() []netip.AddrPort { return []netip.AddrPort{dead, far} }})
		raw = s.ask(question(t, "example.com."), network == "tcp")
		var m dnsmessage.Message
		if err := m.Unpack(raw); err != nil || m.ID != 4711 || len(m.Answers) != 1 ||
			m.Answers[0].Body.(*dnsmessage.AResource).A != [4]byte{192, 0, 2, 1} {
			t.Errorf("%s: %v %v", network, m.GoString(), err)
		}
	}
}

// TestItIsNoOpenResolver: who is not a container of this host gets nothing.
func TestItIsNoOpenResolver(t *testing.T) {
	at := serve(t, Options{Ranges: []netip.Prefix{netip.MustParsePrefix("10.64.0.0/24")}, Table: table,
		Upstreams: func() []netip.AddrPort { t.Error("a stranger's query is forwarded"); return nil }})
	for _, network := range []string{"udp", "tcp"} {
		for _, name := range []string{"web.colloid.", "example.com."} {
			if m, err := ask(t, at, network, name); err == nil {
				t.Errorf("%s %s: %v", network, name, m.GoString())
			}
		}
	}
}

func TestEachSourceHasABudget(t *testing.T) {
	at := serve(t, Options{Ranges: loopback, Table: table})
	conn, err := net.Dial("udp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answered := 0
	buffer := make([]byte, 2000)
	start := time.Now()
	for range 4 * QueriesPerSecond {
		_, _ = conn.Write(question(t, "web.colloid."))
		_ = conn.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
		if _, err := conn.Read(buffer); err == nil {
			answered++
		}
	}
	if most := 2*QueriesPerSecond + int((time.Since(start)+time.Second).Seconds()*QueriesPerSecond); answered > most ||
		answered < QueriesPerSecond {
		t.Errorf("%d of %d answered, expected at most %d", answered, 4*QueriesPerSecond, most)
	}
	var conns []net.Conn
	for range StreamsPerSource + 4 {
		c, err := net.Dial("tcp", at.String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns = append(conns, c)
	}
	closed := 0
	for _, c := range conns {
		_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		if _, err := c.Read(buffer); err != nil && !os.IsTimeout(err) {
			closed++
		}
	}
	if closed < 4 {
		t.Errorf("%d of %d connections closed, want 4", closed, len(conns))
	}
}

func TestUpstreamsComeFromTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	text := "# x\nsearch a\nnameserver 127.0.0.53\nnameserver fe80::1%lo\nnameserver x\nnameserver 192.0.2.1\nnameserver 192.0.2.2\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	list := (&upstreams{path: path}).list()
	if len(list) != upstreamsMax || list[0].String() != "127.0.0.53:53" || list[2].String() != "192.0.2.1:53" {
		t.Errorf("%v", list)
	}
}
