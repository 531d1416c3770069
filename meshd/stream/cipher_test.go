package stream

import (
	"bytes"
	"testing"
	"time"

	"colloid.net/meshd/wire"
)

// AES is used if both ends have instructions for it, ChaCha20 otherwise, and a relay that changes what was
// offered or chosen breaks the stream instead of its encryption (F17).
func TestF17_CipherIsWhatBothEndsHave(t *testing.T) {
	for _, c := range []struct{ first, second, want uint8 }{
		{0, 0, 0}, {cipherAES, 0, 0}, {0, cipherAES, 0}, {cipherAES, cipherAES, cipherAES},
		{cipherAES | 0x80, cipherAES | 0x40, cipherAES},
	} {
		b := newBench(t, 1, link{delay: time.Millisecond})
		var got []*end
		b.add(1, nil).mux.ciphers = c.first
		b.add(2, accepting(&got, func(*Stream) *end { return &end{t: t} })).mux.ciphers = c.second
		s := b.open(1, 2, wire.StreamVolume, &end{write: 1 << 20, half: true})
		if !b.run(10*time.Second, func() bool { return len(got) == 1 && got[0].eof }) || got[0].got != 1<<20 {
			t.Fatalf("%+v: not through", c)
		}
		if s.keys.chosen != c.want || got[0].s.keys.chosen != c.want {
			t.Errorf("%+v: chosen %d and %d", c, s.keys.chosen, got[0].s.keys.chosen)
		}
	}
	for kind, b := range map[wire.Type]*bench{
		wire.TypeStreamOpen: newBench(t, 1, link{delay: time.Millisecond}),
		wire.TypeStreamAck:  newBench(t, 1, link{delay: time.Millisecond}),
	} {
		var got []*end
		b.add(1, nil).mux.ciphers = cipherAES
		b.add(2, accepting(&got, func(*Stream) *end { return &end{t: t} })).mux.ciphers = cipherAES
		changed := 0
		b.tap = func(_, _ wire.CellID, raw []byte) {
			if at := bytes.LastIndex(raw, []byte{wire.ExtensionCipher, 1, cipherAES}); wire.Type(raw[1]) == kind && at >= 0 {
				raw[at+2] = 0
				changed++
			}
		}
		b.open(1, 2, wire.StreamVolume, &end{write: 1 << 16})
		b.run(5*time.Second, nil)
		if changed == 0 || len(got) == 1 && got[0].got != 0 {
			t.Errorf("%v changed %d times: data came through all the same", kind, changed)
		}
	}
}

// A stream that ended in order and is then reset with something unread ends for its reader as cut off (F152).
func TestF152_ResetOfUnreadRestIsNoOrderlyEnd(t *testing.T) {
	for _, target := range []wire.CellID{1, 2} {
		b := newBench(t, 1, link{delay: time.Millisecond})
		var peer *Stream
		incoming := func(s *Stream) { peer = s; s.Accept(&quiet{}) }
		b.add(1, incoming)
		b.add(2, incoming)
		s, err := b.cells[1].mux.Open(target, wire.StreamExec, name, nil, &quiet{})
		if err != nil {
			t.Fatal(err)
		}
		s.Write([]byte("unread"))
		s.CloseWrite()
		b.run(time.Second, nil)
		peer.CloseWrite()
		b.arm(b.cells[target])
		b.run(10*time.Second, func() bool { return peer.State() == Closed })
		if peer.State() != Closed {
			t.Fatal(peer.State())
		}
		peer.Reset(ReasonCanceled)
		if n, err := peer.Read(make([]byte, 10)); n != 0 || err != ErrClosed {
			t.Errorf("%d, %v", n, err)
		}
	}
}
