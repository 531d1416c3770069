package wire

import (
	"bytes"
	"net/netip"
	"testing"
)

// TestRES1_NoAllocations holds every appender and parser to zero heap allocations, given a buffer to
// append to and, for deltas, a Record that is used again.
func TestRES1_NoAllocations(t *testing.T) {
	failed := false
	check := func(ok bool, err error) { failed = failed || !ok || err != nil }
	families := []map[string]func(){probeMessages(check), storeMessages(check), streamMessages(check)}
	for _, messages := range families {
		for what, f := range messages {
			if n := testing.AllocsPerRun(100, f); n != 0 {
				t.Errorf("%s: %v allocations", what, n)
			}
			if failed {
				t.Fatalf("%s: did not come back", what)
			}
		}
	}
}

// probeMessages covers header, probes and hole punching.
func probeMessages(check func(bool, error)) map[string]func() {
	buffer := make([]byte, 0, 2*DatagramMax)
	contacts := []Contact{contactV4, contactV6}
	return map[string]func(){
		"header": func() {
			b := AppendHeader(buffer, Header{Type: TypeLeave, PayloadLength: 0, Sender: actorA, Nonce: 1})
			_, _, _, err := ParseHeader(b)
			check(LooksLike(b), err)
			_, _, _, err = ParseHeader(b[:3])
			check(err == ErrShort, nil)
		},
		"ping": func() {
			observed, err := ParsePing(AppendPing(buffer, addressV6))
			check(observed == addressV6, err)
		},
		"find": func() {
			target, err := ParseFindNode(AppendFindNode(buffer, actorA))
			check(target == actorA, err)
		},
		"nodes": func() {
			nodes, err := ParseNodes(AppendNodes(buffer, contacts), Options{})
			check(nodes.At(1) == contactV6, err)
		},
		"ping request": func() {
			target, err := ParsePingReq(AppendPingReq(buffer, contactV4), Options{})
			check(target == contactV4, err)
			a, err := ParsePingReqAck(AppendPingReqAck(buffer, PingReqAck{actorA, true, addressV4}))
			check(a.Reachable, err)
		},
		"punch": func() {
			p, err := ParsePunchReq(AppendPunchReq(buffer, PunchReq{contactV4, 1}), Options{})
			check(p.Rendezvous == 1, err)
			rendezvous, err := ParsePunchSyn(AppendPunchSyn(buffer, 1))
			check(rendezvous == 1, err)
		},
	}
}

// storeMessages covers deltas and anti-entropy.
func storeMessages(check func(bool, error)) map[string]func() {
	buffer := make([]byte, 0, 2*DatagramMax)
	record := deltaRecord()
	vector := largeVector(BeginVectorMax)
	hashes := make([]uint64, 128)
	var parsed Record
	check(true, ParseDelta(AppendDelta(nil, record), &parsed)) // makes the record's buffer
	return map[string]func(){
		"delta": func() { check(true, ParseDelta(AppendDelta(buffer, record), &parsed)) },
		"ack": func() {
			hash, err := ParseDeltaAck(AppendDeltaAck(buffer, 1))
			check(hash == 1, err)
		},
		"state": func() {
			b := AppendStateRecord(AppendStateRecord(buffer, record), record)
			records, err := CheckState(b)
			check(records == 2, err)
			var r Record
			_, err = NextStateRecord(b, &r)
			check(true, err)
			_, _, _, ok := NextEntry(r.Entries)
			check(ok, nil)
		},
		"begin": func() {
			begin, err := ParseBegin(AppendBegin(buffer, Begin{1, 2, vector}))
			check(len(begin.Vector) == len(vector), err)
		},
		"vector": func() {
			v, err := ParseVector(AppendVector(buffer, Vector{99, 1, vector}))
			check(v.Total == 99, err)
		},
		"merkle": func() {
			b := AppendMerkleReq(buffer, MerkleRange{1, 1, 7})
			ranges, err := CheckMerkleReq(b)
			check(ranges == 1, err)
			m, _, err := NextMerkleReq(b)
			check(true, err)
			h, err := ParseMerkleResp(AppendMerkleResp(buffer, m, hashes))
			check(h.At(127) == 0, err)
		},
	}
}

// streamMessages covers streams, volumes and gateways.
func streamMessages(check func(bool, error)) map[string]func() {
	buffer := make([]byte, 0, 2*DatagramMax)
	data := make([]byte, StreamDataMax)
	name := []byte("spread.web")
	vip := netip.MustParseAddr("2001:db8::1")
	return map[string]func(){
		"open and data": func() {
			open, err := ParseStreamOpen(AppendStreamOpen(buffer, StreamOpen{1, actorA, 1, name, nil}))
			check(open.Target == actorA, err)
			chunk, err := ParseStreamData(AppendStreamData(buffer, StreamData{1, 1, data}))
			check(len(chunk.Data) == len(data), err)
		},
		"close and ack": func() {
			end, err := ParseStreamClose(AppendStreamClose(buffer, StreamClose{Stream: 1, Reset: true, Reason: 1}))
			check(end.Reset, err)
			ack, err := ParseStreamAck(AppendStreamAck(buffer, StreamAck{1, 1, 1, 1, nil}))
			check(ack.Credit == 1, err)
		},
		"relay, volume, gateway": func() {
			offer, err := ParseRelayOffer(AppendRelayOffer(buffer, RelayOffer{1, actorA, actorB}))
			check(offer.Target == actorB, err)
			request, err := ParseVolumeRequest(AppendVolumeRequest(buffer, VolumeRequest{1, 2}))
			check(request.Generation == 2, err)
			claim, err := ParseGatewayClaim(AppendGatewayClaim(buffer, GatewayClaim{vip, 1}))
			check(claim.VIP == vip, err)
		},
	}
}

// BenchmarkParseDelta parses a payload of 208 bytes, two actors in the context.
func BenchmarkParseDelta(b *testing.B) {
	r := deltaRecord()
	r.Entries = AppendEntry(nil, Dot{actorB, 1<<40 | 3}, bytes.Repeat([]byte("v"), 208-DeltaHeadSize-32-10))
	payload := AppendDelta(nil, r)
	if len(payload) != 208 {
		b.Fatalf("%d bytes", len(payload))
	}
	var parsed Record
	b.SetBytes(208)
	b.ReportAllocs()
	for b.Loop() {
		if err := ParseDelta(payload, &parsed); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkParseStateRecord(b *testing.B) {
	payload := AppendStateRecord(nil, deltaRecord())
	var parsed Record
	b.ReportAllocs()
	for b.Loop() {
		if _, err := NextStateRecord(payload, &parsed); err != nil {
			b.Fatal(err)
		}
	}
}
