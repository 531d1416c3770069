package wire

import (
	"bytes"
	"net/netip"
	"testing"
)

// Each fuzz target holds one family of messages to F22: no panic on any bytes, and what is accepted
// encodes to the very same bytes, so that a message has one form only.

func same(t *testing.T, in, out []byte) {
	t.Helper()
	if !bytes.Equal(in, out) {
		t.Fatalf("accepted, but encoded differently:\n in %x\nout %x", in, out)
	}
}

func FuzzHeader(f *testing.F) {
	f.Add(append(AppendHeader(nil, Header{Type: TypePing, PayloadLength: 18, Sender: actorA, Nonce: 1}), make([]byte, 18+TrailerSize)...))
	f.Add(AppendHeader(nil, Header{Type: TypeLeave, PayloadLength: 0, Sender: actorA, Nonce: 1}))
	f.Fuzz(func(t *testing.T, b []byte) {
		header, payload, trailer, err := ParseHeader(b)
		if err == nil {
			same(t, b, append(append(AppendHeader(nil, header), payload...), trailer...))
		}
		if err == nil && !LooksLike(b) {
			t.Fatal("LooksLike is stricter than ParseHeader")
		}
	})
}

func FuzzProbe(f *testing.F) {
	f.Add(uint8(0), AppendPing(nil, addressV4))
	f.Add(uint8(1), AppendNodes(nil, []Contact{contactV4, contactV6}))
	f.Add(uint8(2), AppendPingReq(nil, contactV6))
	f.Add(uint8(3), AppendPingReqAck(nil, PingReqAck{actorA, true, netip.AddrPort{}}))
	f.Add(uint8(4), AppendFindNode(nil, actorA))
	f.Fuzz(func(t *testing.T, kind uint8, b []byte) {
		o := Options{Loopback: kind&0x80 != 0}
		switch kind & 0x7f {
		case 0:
			if observed, err := ParsePing(b); err == nil {
				same(t, b, AppendPing(nil, observed))
			}
		case 1:
			if nodes, err := ParseNodes(b, o); err == nil {
				var contacts []Contact
				for i := range nodes.Len() {
					contacts = append(contacts, nodes.At(i))
				}
				same(t, b, AppendNodes(nil, contacts))
			}
		case 2:
			if target, err := ParsePingReq(b, o); err == nil {
				same(t, b, AppendPingReq(nil, target))
			}
		case 3:
			if a, err := ParsePingReqAck(b); err == nil {
				same(t, b, AppendPingReqAck(nil, a))
			}
		case 4:
			if target, err := ParseFindNode(b); err == nil {
				same(t, b, AppendFindNode(nil, target))
			}
		}
	})
}

func FuzzDelta(f *testing.F) {
	f.Add(AppendDelta(nil, deltaRecord()))
	f.Fuzz(func(t *testing.T, b []byte) {
		var r Record
		if ParseDelta(b, &r) == nil {
			same(t, b, AppendDelta(nil, &r))
			if len(b) != DeltaSize(&r) || len(b) > SealedPayloadMax {
				t.Fatalf("size %d of %d bytes", DeltaSize(&r), len(b))
			}
			// The same register in the other form.
			var again Record
			rest, err := NextStateRecord(AppendStateRecord(nil, &r), &again)
			if err != nil || len(rest) != 0 || !equal(&r, &again) {
				t.Fatalf("delta and state record differ: %v", err)
			}
		}
		if keyHash, err := ParseDeltaAck(b); err == nil {
			same(t, b, AppendDeltaAck(nil, keyHash))
		}
	})
}

func FuzzState(f *testing.F) {
	one := AppendStateRecord(nil, deltaRecord())
	f.Add(one)
	f.Add(append(one, one...))
	f.Fuzz(func(t *testing.T, b []byte) {
		records, err := CheckState(b)
		if err != nil {
			return
		}
		var out []byte
		var r Record
		for rest := b; len(rest) > 0; records-- {
			if rest, err = NextStateRecord(rest, &r); err != nil {
				t.Fatalf("CheckState accepted what NextStateRecord rejects: %v", err)
			}
			out = AppendStateRecord(out, &r)
			entries := 0
			for raw := r.Entries; len(raw) > 0; entries++ {
				dot, _, rest, ok := NextEntry(raw)
				if !ok || ContextLookup(r.Context, dot.Actor) != dot.Sequence {
					t.Fatalf("entry %v is not in the context", dot)
				}
				raw = rest
			}
			if entries != r.EntryCount {
				t.Fatalf("%d entries, said %d", entries, r.EntryCount)
			}
		}
		if records != 0 {
			t.Fatalf("CheckState miscounted by %d", records)
		}
		same(t, b, out)
	})
}

func equal(a, b *Record) bool {
	return a.KeyHash == b.KeyHash && bytes.Equal(a.Name, b.Name) && a.EntryCount == b.EntryCount &&
		bytes.Equal(a.Entries, b.Entries) && bytes.Equal(a.Context, b.Context)
}

func FuzzAntiEntropy(f *testing.F) {
	f.Add(uint8(0), AppendBegin(nil, Begin{1, 2, largeVector(2)}))
	f.Add(uint8(1), AppendVector(nil, Vector{90, 71, largeVector(3)}))
	f.Add(uint8(2), AppendMerkleReq(nil, MerkleRange{8, 3, 7}))
	f.Add(uint8(3), AppendMerkleResp(nil, MerkleRange{1, 1, 1}, []uint64{1, 2}))
	f.Fuzz(func(t *testing.T, kind uint8, b []byte) {
		switch kind {
		case 0:
			// 72 and 73 dots fit only an open wire; the appender is for sealed ones.
			if begin, err := ParseBegin(b); err == nil && len(begin.Vector) <= BeginVectorMax*DotSize {
				same(t, b, AppendBegin(nil, begin))
			}
		case 1:
			if vector, err := ParseVector(b); err == nil {
				same(t, b, AppendVector(nil, vector))
			}
		case 2:
			if ranges, err := CheckMerkleReq(b); err == nil {
				var out []byte
				for rest := b; len(rest) > 0; ranges-- {
					var m MerkleRange
					if m, rest, err = NextMerkleReq(rest); err != nil {
						t.Fatal(err)
					}
					out = AppendMerkleReq(out, m)
				}
				same(t, b, out)
				if ranges != 0 {
					t.Fatal("miscounted")
				}
			}
		case 3:
			if hashes, err := ParseMerkleResp(b); err == nil {
				var values []uint64
				for i := range hashes.Len() {
					values = append(values, hashes.At(i))
				}
				same(t, b, AppendMerkleResp(nil, hashes.Range, values))
			}
		}
	})
}

func FuzzStreamAndPunch(f *testing.F) {
	f.Add(uint8(0), AppendStreamOpen(nil, StreamOpen{1, actorA, 2, []byte("a"), []byte{1, 0}}))
	f.Add(uint8(1), AppendStreamData(nil, StreamData{1, 2, []byte("a")}))
	f.Add(uint8(2), AppendStreamClose(nil, StreamClose{Stream: 1, Reset: true, Reason: 2}))
	f.Add(uint8(3), AppendStreamAck(nil, StreamAck{1, 2, 3, 4, nil}))
	f.Add(uint8(4), AppendRelayOffer(nil, RelayOffer{1, actorA, actorB}))
	f.Add(uint8(5), AppendVolumeRequest(nil, VolumeRequest{1, 2}))
	f.Add(uint8(6), AppendGatewayClaim(nil, GatewayClaim{addressV6.Addr(), 2}))
	f.Add(uint8(7), AppendPunchReq(nil, PunchReq{contactV4, 2}))
	f.Add(uint8(8), AppendPunchSyn(nil, 2))
	f.Fuzz(func(t *testing.T, kind uint8, b []byte) {
		switch kind {
		case 0:
			if s, err := ParseStreamOpen(b); err == nil {
				same(t, b, AppendStreamOpen(nil, s))
			}
		case 1:
			if s, err := ParseStreamData(b); err == nil {
				same(t, b, AppendStreamData(nil, s))
			}
		case 2:
			if s, err := ParseStreamClose(b); err == nil {
				same(t, b, AppendStreamClose(nil, s))
			}
		case 3:
			if s, err := ParseStreamAck(b); err == nil {
				same(t, b, AppendStreamAck(nil, s))
			}
		case 4:
			if r, err := ParseRelayOffer(b); err == nil {
				same(t, b, AppendRelayOffer(nil, r))
			}
		case 5:
			if v, err := ParseVolumeRequest(b); err == nil {
				same(t, b, AppendVolumeRequest(nil, v))
			}
		case 6:
			if g, err := ParseGatewayClaim(b); err == nil {
				same(t, b, AppendGatewayClaim(nil, g))
			}
		case 7:
			if p, err := ParsePunchReq(b, Options{}); err == nil {
				same(t, b, AppendPunchReq(nil, p))
			}
		case 8:
			if r, err := ParsePunchSyn(b); err == nil {
				same(t, b, AppendPunchSyn(nil, r))
			}
		}
	})
}
