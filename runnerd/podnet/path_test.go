package podnet

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"colloid.net/workload"
)

// echo answers each byte with a byte and counts what comes after an 'x'.
func echo(conn net.Conn) {
	defer conn.Close()
	buffer := make([]byte, 1<<18)
	for {
		n, err := conn.Read(buffer)
		if err != nil {
			return
		}
		if n == 1 {
			_, _ = conn.Write(buffer[:1])
			continue
		}
		_, _ = io.CopyBuffer(struct{ io.Writer }{io.Discard}, conn, buffer)
		return
	}
}

// BenchmarkPaths measures round trips of one byte and bulk throughput: over loopback, from container to
// container, and through a published port from outside, from the host and from a container.
func BenchmarkPaths(b *testing.B) {
	s := newStage(b)
	one := s.prepare("one", workload.Port{Host: 8080, Container: 80})
	two := s.prepare("two")
	for _, at := range []struct {
		space string
		port  netip.AddrPort
	}{{one.Namespace, at(one.IPv4, 80)}, {"", netip.MustParseAddrPort("127.0.0.1:90")}} {
		s.must(s.within(at.space, func() error {
			listener, err := net.Listen("tcp", at.port.String())
			if err != nil {
				return err
			}
			b.Cleanup(func() { listener.Close() })
			go func() {
				for {
					conn, err := listener.Accept()
					if err != nil {
						return
					}
					go echo(conn)
				}
			}()
			return nil
		}))
	}
	for _, path := range []struct {
		name, from string
		to         netip.AddrPort
	}{
		{"loopback", "", netip.MustParseAddrPort("127.0.0.1:90")},
		{"container", two.Namespace, at(one.IPv4, 80)},
		{"host", "", at(one.IPv4, 80)},
		{"published_outside", s.outside, at(hostOutside4, 8080)},
		{"published_container", two.Namespace, at(hostOutside4, 8080)},
		{"published_localhost", "", netip.MustParseAddrPort("127.0.0.1:8080")},
	} {
		dial := func() (conn net.Conn) {
			s.must(s.within(path.from, func() (err error) {
				conn, err = net.DialTimeout("tcp", path.to.String(), 3*time.Second)
				return err
			}))
			return conn
		}
		b.Run(path.name+"/round_trip", func(b *testing.B) {
			conn := dial()
			defer conn.Close()
			one := []byte{1}
			for b.Loop() {
				_, _ = conn.Write(one)
				if _, err := io.ReadFull(conn, one); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(path.name+"/bulk", func(b *testing.B) {
			conn := dial()
			defer conn.Close()
			block := make([]byte, 1<<18)
			b.SetBytes(int64(len(block)))
			for b.Loop() {
				if _, err := conn.Write(block); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkStart measures what a container's network costs while there is another one.
func BenchmarkStart(b *testing.B) {
	s := newStage(b)
	s.prepare("first")
	for b.Loop() {
		s.prepare("second")
		s.must(s.n.Release("second"))
	}
}
