package wire

import (
	"bytes"
	"net/netip"
	"testing"
)

// TestRES1_NoAllocations holds every appender and parser to zero heap allocations, given a buffer to
// append to and, for deltas, a Record that is used again.
func TestRES1_NoAllocations(t *testing.T) {
	buffer := make([]byte, 0, 2*DatagramMax)
	record := deltaRecord()
	var parsed Record
	vector := largeVector(BeginVectorMax)
	contacts := []Contact{contactV4, contactV6}
	hashes := make([]uint64, 128)
	data := make([]byte, StreamDataMax)
	name := []byte("spread.web")
	vip := netip.MustParseAddr("2001:db8::1")
	delta := AppendDelta(nil, record)
	if err := ParseDelta(delta, &parsed); err != nil { // makes the record's buffer
		t.Fatal(err)
	}
	failed := false
	check := func(err error) { failed = failed || err != nil }
	for what, f := range map[string]func(){
		"header": func() {
			b := AppendHeader(buffer, Header{TypeLeave, 0, actorA, 1})
			_, _, _, err := ParseHeader(b)
			check(err)
			LooksLike(b)
			_, _, _, err = ParseHeader(b[:3])
			failed = failed || err == nil
		},
		"ping": func() { _, err := ParsePing(AppendPing(buffer, addressV6)); check(err) },
		"find": func() { _, err := ParseFindNode(AppendFindNode(buffer, actorA)); check(err) },
		"nodes": func() {
			n, err := ParseNodes(AppendNodes(buffer, contacts), Options{})
			check(err)
			failed = failed || n.At(1) != contactV6
		},
		"delta":  func() { check(ParseDelta(AppendDelta(buffer, record), &parsed)) },
		"ack":    func() { _, err := ParseDeltaAck(AppendDeltaAck(buffer, 1)); check(err) },
		"begin":  func() { _, err := ParseBegin(AppendBegin(buffer, Begin{1, 2, vector})); check(err) },
		"vector": func() { _, err := ParseVector(AppendVector(buffer, Vector{99, 1, vector})); check(err) },
		"state": func() {
			b := AppendStateRecord(AppendStateRecord(buffer, record), record)
			_, err := CheckState(b)
			check(err)
			var r Record
			_, err = NextStateRecord(b, &r)
			check(err)
			_, _, _, ok := NextEntry(r.Entries)
			failed = failed || !ok
		},
		"merkle": func() {
			b := AppendMerkleReq(buffer, MerkleRange{1, 1, 7})
			_, err := CheckMerkleReq(b)
			check(err)
			m, _, err := NextMerkleReq(b)
			check(err)
			h, err := ParseMerkleResp(AppendMerkleResp(buffer, m, hashes))
			check(err)
			failed = failed || h.At(127) != 0
		},
		"ping request": func() {
			_, err := ParsePingReq(AppendPingReq(buffer, contactV4), Options{})
			check(err)
			_, err = ParsePingReqAck(AppendPingReqAck(buffer, PingReqAck{actorA, true, addressV4}))
			check(err)
		},
		"punch": func() {
			_, err := ParsePunchReq(AppendPunchReq(buffer, PunchReq{contactV4, 1}), Options{})
			check(err)
			_, err = ParsePunchSyn(AppendPunchSyn(buffer, 1))
			check(err)
		},
		"stream": func() {
			_, err := ParseStreamOpen(AppendStreamOpen(buffer, StreamOpen{1, actorA, 1, name, nil}))
			check(err)
			_, err = ParseStreamData(AppendStreamData(buffer, StreamData{1, 1, data}))
			check(err)
			_, err = ParseStreamClose(AppendStreamClose(buffer, StreamClose{1, true, 1}))
			check(err)
			_, err = ParseStreamAck(AppendStreamAck(buffer, StreamAck{1, 1, 1, 1, nil}))
			check(err)
			_, err = ParseRelayOffer(AppendRelayOffer(buffer, RelayOffer{1, actorA, actorB}))
			check(err)
			_, err = ParseVolumeRequest(AppendVolumeRequest(buffer, VolumeRequest{1, 1}))
			check(err)
		},
		"gateway": func() { _, err := ParseGatewayClaim(AppendGatewayClaim(buffer, GatewayClaim{vip, 1})); check(err) },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", what, n)
		}
	}
	if failed {
		t.Error("a message did not parse")
	}
}

// BenchmarkParseDelta parses a datagram-sized delta: 208 bytes with header and trailer left out.
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
