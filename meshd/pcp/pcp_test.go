package pcp

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

var question = Request{
	Nonce: Nonce{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, Client: netip.MustParseAddr("192.168.1.10"),
	Internal: 12421, Wanted: netip.MustParseAddrPort("203.0.113.9:40001"), Lifetime: time.Hour,
}

// answer makes the answer of an honest router to a request.
func answer(request []byte, result byte, lifetime uint32, external netip.AddrPort) []byte {
	out := bytes.Clone(request)
	out[1] |= answerBit
	out[2], out[3] = 0, result
	out[4], out[5], out[6], out[7] = byte(lifetime>>24), byte(lifetime>>16), byte(lifetime>>8), byte(lifetime)
	clear(out[8:headerSize])
	raw := external.Addr().As16()
	out[headerSize+18], out[headerSize+19] = byte(external.Port()>>8), byte(external.Port())
	copy(out[headerSize+20:], raw[:])
	return out
}

// A request is what RFC 6887 7.1 and 11.1 draw, byte by byte.
func TestRequestOnTheWire(t *testing.T) {
	want := []byte{
		2, 1, 0, 0, 0, 0, 0x0e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 168, 1, 10,
		1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 17, 0, 0, 0, 0x30, 0x85, 0x9c, 0x41,
		0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 203, 0, 113, 9,
	}
	if got := question.Append(nil); !bytes.Equal(got, want) || len(got) != MessageSize {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	without := question
	without.Wanted = netip.AddrPort{}
	if got := without.Append(nil); !bytes.Equal(got[44:], append(make([]byte, 10), 0xff, 0xff, 0, 0, 0, 0)) {
		t.Errorf("without a wish: %v", got[44:])
	}
}

// What a router can answer: what counts, what it refuses, what is no answer to this question.
func TestAnswers(t *testing.T) {
	external := netip.MustParseAddrPort("203.0.113.9:40001")
	good := answer(question.Append(nil), 0, 600, external)
	change := func(at int, to byte) []byte {
		out := bytes.Clone(good)
		out[at] = to
		return out
	}
	for name, test := range map[string]struct {
		datagram []byte
		want     error
	}{
		"the answer":           {good, nil},
		"another nonce":        {change(24, 99), errForeign},
		"another protocol":     {change(36, 6), errForeign},
		"another port":         {change(41, 1), errForeign},
		"a request":            {change(1, 1), errForeign},
		"another operation":    {change(1, answerBit|2), errForeign},
		"NAT-PMP":              {[]byte{0, 129, 0, 1, 0, 0, 0, 0}, ErrVersion},
		"version 3":            {change(0, 3), ErrVersion},
		"unsupported version":  {answer(question.Append(nil), 1, 0, external), ErrVersion},
		"refused":              {answer(question.Append(nil), 2, 30, external), Refusal(2)},
		"refused, unknown why": {answer(question.Append(nil), 200, 30, external), Refusal(200)},
		"an option":            {append(bytes.Clone(good), 1, 0, 0, 0), errForeign},
		"cut":                  {good[:56], errForeign},
		"a byte more":          {append(bytes.Clone(good), 0), errForeign},
		"nothing":              {nil, errForeign},
		"too long":             {make([]byte, datagramMax+1), errForeign},
	} {
		mapping, err := question.Parse(test.datagram)
		if !errors.Is(err, test.want) || err == nil && (mapping != Mapping{external, 10 * time.Minute}) {
			t.Errorf("%s: %+v, %v, want %v", name, mapping, err, test.want)
		}
	}
	for name, datagram := range map[string][]byte{
		"no port":           answer(question.Append(nil), 0, 600, netip.MustParseAddrPort("203.0.113.9:0")),
		"no address":        answer(question.Append(nil), 0, 600, netip.MustParseAddrPort("0.0.0.0:40001")),
		"everybody":         answer(question.Append(nil), 0, 600, netip.MustParseAddrPort("224.0.0.1:40001")),
		"the host itself":   answer(question.Append(nil), 0, 600, netip.MustParseAddrPort("127.0.0.1:40001")),
		"for no time":       answer(question.Append(nil), 0, 0, external),
		"an address nobody": answer(question.Append(nil), 0, 9, netip.MustParseAddrPort("[::]:40001")),
	} {
		if mapping, err := question.Parse(datagram); err == nil || errors.Is(err, errForeign) {
			t.Errorf("%s: %+v, %v", name, mapping, err)
		}
	}
	if mapping, err := question.Parse(answer(question.Append(nil), 0, 1<<32-1, external)); err != nil || mapping.Lifetime != time.Hour {
		t.Errorf("136 years: %+v, %v", mapping, err)
	}
	end := question
	end.Lifetime = 0
	if _, err := end.Parse(answer(end.Append(nil), 0, 0, netip.AddrPortFrom(netip.IPv6Unspecified(), 0))); err != nil {
		t.Errorf("the end of a mapping: %v", err)
	}
}

// Any bytes may come from a router: what is accepted repeats the question and names an address of somebody.
func FuzzParse(f *testing.F) {
	f.Add(answer(question.Append(nil), 0, 600, netip.MustParseAddrPort("203.0.113.9:40001")))
	f.Add(answer(question.Append(nil), 2, 600, netip.MustParseAddrPort("203.0.113.9:40001")))
	f.Add([]byte{0, 129, 0, 1, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, datagram []byte) {
		mapping, err := question.Parse(datagram)
		if err != nil {
			if len(err.Error()) > 200 || strings.Contains(err.Error(), "\n") {
				t.Fatalf("an error that nobody reads: %q", err)
			}
			return
		}
		if mapping.External.Port() == 0 || !mapping.External.Addr().IsGlobalUnicast() ||
			mapping.Lifetime <= 0 || mapping.Lifetime > question.Lifetime || len(datagram) != MessageSize ||
			!bytes.Equal(datagram[headerSize:headerSize+NonceSize], question.Nonce[:]) {
			t.Fatalf("%v accepted as %+v", datagram, mapping)
		}
	})
}

// inFreshNetwork runs f on a thread with a network of its own in which only lo is there, so that port 5351 is
// free.
func inFreshNetwork(t *testing.T, f func()) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine, and the namespace with the thread
		handle, err := netns.New()
		if err == nil {
			defer handle.Close()
			var link netlink.Link
			if link, err = netlink.LinkByName("lo"); err == nil {
				err = netlink.LinkSetUp(link)
			}
		}
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Skip("no network namespace: " + err.Error())
	}
}

// A router that is silent, floods, lies or is slow costs a few seconds and nothing else.
func TestHostileRouters(t *testing.T) {
	local := netip.MustParseAddr("127.0.0.1")
	external := netip.MustParseAddrPort("203.0.113.9:40001")
	inFreshNetwork(t, func() {
		client := NewClient(local, question.Nonce)
		begin := time.Now()
		if _, err := client.Map(context.Background(), 12421, netip.AddrPort{}, time.Hour); err == nil || time.Since(begin) > time.Second {
			t.Errorf("nobody there: %v after %v", err, time.Since(begin))
		}
		for name, test := range map[string]struct {
			serve func(net.PacketConn, net.Addr, []byte, int)
			works bool
			limit time.Duration
		}{
			"honest": {func(c net.PacketConn, to net.Addr, q []byte, _ int) { _, _ = c.WriteTo(answer(q, 0, 60, external), to) }, true, time.Second},
			"answers the second time": {func(c net.PacketConn, to net.Addr, q []byte, n int) {
				if n == 2 {
					_, _ = c.WriteTo(answer(q, 0, 60, external), to)
				}
			}, true, time.Second},
			"silent": {func(net.PacketConn, net.Addr, []byte, int) {}, false, 5 * time.Second},
			"floods": {func(c net.PacketConn, to net.Addr, q []byte, _ int) {
				for range 1000 {
					_, _ = c.WriteTo(q, to)
				}
			}, false, time.Second},
			"rubbish first": {func(c net.PacketConn, to net.Addr, q []byte, _ int) {
				_, _ = c.WriteTo(make([]byte, 1400), to)
				_, _ = c.WriteTo([]byte{2}, to)
				_, _ = c.WriteTo(answer(q, 0, 60, external), to)
			}, true, time.Second},
			"refuses": {func(c net.PacketConn, to net.Addr, q []byte, _ int) { _, _ = c.WriteTo(answer(q, 2, 60, external), to) }, false, time.Second},
		} {
			socket, err := net.ListenPacket("udp4", "127.0.0.1:5351")
			if err != nil {
				t.Error(err)
				return
			}
			go func() {
				buffer := make([]byte, datagramMax)
				for n := 1; ; n++ {
					size, from, err := socket.ReadFrom(buffer)
					if err != nil {
						return
					}
					test.serve(socket, from, bytes.Clone(buffer[:size]), n)
				}
			}()
			begin := time.Now()
			mapping, err := client.Map(context.Background(), 12421, external, time.Hour)
			if (err == nil) != test.works || time.Since(begin) > test.limit || test.works && mapping.External != external {
				t.Errorf("%s: %+v, %v after %v", name, mapping, err, time.Since(begin))
			}
			socket.Close()
		}
		silent, err := net.ListenPacket("udp4", "127.0.0.1:5351")
		if err != nil {
			t.Error(err)
			return
		}
		defer silent.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		begin = time.Now()
		if err := client.Unmap(ctx, 12421); err == nil || time.Since(begin) > time.Second {
			t.Errorf("cancelled: %v after %v", err, time.Since(begin))
		}
	})
}
