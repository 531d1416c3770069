package cell

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/clock"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// counted counts what a cell sends, and how large it is.
type counted struct {
	nowhere
	sent, largest int
}

func (c *counted) Send(_ netip.AddrPort, datagram []byte) {
	c.sent++
	c.largest = max(c.largest, len(datagram))
}

// FuzzReceive holds a whole cell against another one of its cluster that says anything: whatever it is, under a seal that
// fits, it ends nothing, gets no flood of answers, makes no datagram too large, and the cell serves others as before.
func FuzzReceive(f *testing.F) {
	message := func(kind wire.Type, payload []byte) []byte {
		return append(append([]byte{byte(kind), 0}, binary.BigEndian.AppendUint16(nil, uint16(len(payload)))...), payload...)
	}
	contact := wire.Contact{ID: 30, Address: netip.MustParseAddrPort("10.0.0.30:12421")}
	f.Add(message(wire.TypePing, wire.AppendPing(nil, netip.MustParseAddrPort("10.0.0.9:1"))))
	f.Add(append(message(wire.TypePingReq, wire.AppendPingReq(nil, contact)), message(wire.TypeLeave, nil)...))
	f.Add(message(wire.TypeFindNode, make([]byte, 8)))
	f.Add(message(wire.TypePunchSyn, wire.AppendPunchSyn(nil, 4)))
	f.Add(append(message(wire.TypeAEBegin, make([]byte, 60)), message(wire.TypeAEMerkleReq, make([]byte, 40))...))
	f.Add(append(message(wire.TypeStreamOpen, make([]byte, 80)), message(wire.TypeStreamData, make([]byte, 50))...))
	f.Add(append(message(wire.TypeRelayOffer, make([]byte, 40)), message(wire.TypeGatewayClaim, make([]byte, 40))...))
	f.Fuzz(func(t *testing.T, script []byte) {
		c := lonely(t)
		network := &counted{}
		c.config.Network = network
		now := clock.Instant(time.Hour)
		liar, honest := newVoice(t, c, 20), newVoice(t, c, 21)
		liar.introduce(now)
		honest.introduce(now)
		for messages := 0; len(script) >= 4 && messages < 50; messages++ {
			kind, flags, size := script[0], script[1], int(binary.BigEndian.Uint16(script[2:]))
			script = script[4:]
			payload := script[:min(size, len(script), wire.SealedPayloadMax)]
			script = script[len(payload):]
			if flags&1 != 0 {
				now = now.Add(time.Duration(flags) * 10 * time.Millisecond)
				c.Tick(now)
			}
			before := network.sent
			header := wire.Header{
				Type: wire.TypePing, PayloadLength: uint16(len(payload)), Sender: liar.id, Nonce: uint32(flags >> 1),
			}
			datagram := append(wire.AppendHeader(nil, header), payload...)
			datagram[1] = kind // also one that no cell knows
			c.Receive(now, liar.address, liar.sealer.Seal(datagram))
			if answers := network.sent - before; answers > answersMax {
				t.Fatalf("%d datagrams follow one of type %d, %v", answers, kind, header)
			}
		}
		for range 20 {
			now = now.Add(100 * time.Millisecond)
			c.Tick(now)
		}
		if network.largest > wire.DatagramMax {
			t.Fatalf("a datagram of %d bytes", network.largest)
		}
		load := state.LoadKey(honest.id, state.LoadCPU)
		honest.delta(now, []byte(load), state.AppendLoad(nil, 7))
		if value, found := c.newest([]byte(load)); !found || string(value) != string(state.AppendLoad(nil, 7)) {
			t.Fatalf("what an honest cell says is not taken any more: %x, %t", value, found)
		}
		answered := false
		c.Command(now, Request{Code: uds.CodeStatus}, func(r Response) { answered = r.Status == uds.OK })
		if !answered {
			t.Fatal("the command socket is not served any more")
		}
	})
}

// answersMax is far above what any one message may cause: acknowledgement, forwards to three cells, a page of anti-entropy.
const answersMax = 64
