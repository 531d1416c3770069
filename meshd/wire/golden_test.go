package wire

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"
)

// The golden bytes below are written by hand from SPEC-REVIEW Part 1 section 3.2 and specification
// section 3.5. They hold the layouts: a change here is a change of the protocol.

func unhex(t testing.TB, text string) []byte {
	t.Helper()
	raw, err := hex.DecodeString(strings.NewReplacer(" ", "", "\n", "", "\t", "").Replace(text))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

const (
	actorA = CellID(0x0a00000000000001)
	actorB = CellID(0x0b00000000000002)
)

var (
	addressV4 = netip.MustParseAddrPort("192.0.2.7:12421")
	addressV6 = netip.MustParseAddrPort("[2001:db8::9]:40001")

	contactV4 = Contact{ID: actorA, Address: addressV4, Reach: ReachPublic, Flags: 0x13}
	contactV6 = Contact{ID: actorB, Address: addressV6, Reach: ReachRelayed}
)

const (
	hexV4        = "00000000000000000000ffffc0000207 3085"
	hexV6        = "20010db8000000000000000000000009 9c41"
	hexContactV4 = "0a00000000000001" + hexV4 + "01 13"
	hexContactV6 = "0b00000000000002" + hexV6 + "03 00"
)

func context(dots ...Dot) (raw []byte) {
	for _, dot := range dots {
		raw = AppendDot(raw, dot)
	}
	return raw
}

// deltaRecord is a one-entry register that two actors have written.
func deltaRecord() *Record {
	return &Record{
		KeyHash:    0x1122334455667788,
		Name:       []byte("spread.web"),
		EntryCount: 1,
		Entries:    AppendEntry(nil, Dot{actorB, 1<<40 | 3}, []byte("abc")),
		Context:    context(Dot{actorA, 1<<40 | 2}, Dot{actorB, 1<<40 | 3}),
	}
}

const hexDelta = `1122334455667788 0b00000000000002 0000010000000003 02 0003 0a
	0a00000000000001 0000010000000002 0b00000000000002 0000010000000003
	616263 7370726561642e776562`

const hexRecord = `1122334455667788 01 02 0a
	0b00000000000002 0000010000000003 0003 616263
	0a00000000000001 0000010000000002 0b00000000000002 0000010000000003
	7370726561642e776562`

func TestF20_HeaderIsSixteenBytes(t *testing.T) {
	want := unhex(t, "01 05 00d0 0a00000000000001 deadbeef")
	header := Header{Version: Version, Type: TypeDelta, PayloadLength: 0xd0, Sender: actorA, Nonce: 0xdeadbeef}
	got := AppendHeader(nil, header)
	if !bytes.Equal(got, want) || len(got) != HeaderSize {
		t.Fatalf("header %x, want %x", got, want)
	}
	datagram := append(got, make([]byte, 0xd0+TrailerSize)...)
	parsed, payload, trailer, err := ParseHeader(datagram)
	if err != nil || parsed != header || len(payload) != 0xd0 || len(trailer) != TrailerSize {
		t.Fatalf("parsed %+v, payload %d, trailer %d, %v", parsed, len(payload), len(trailer), err)
	}
	if cap(payload) != len(payload) {
		t.Fatal("appending to the payload would overwrite the trailer")
	}
}

// TestF21_F24_GoldenPayloads holds the layout of every message; F21 is PUNCH_REQ with the nonce
// behind the contact, F24 is VOL_REPL_REQ.
func TestF21_F24_GoldenPayloads(t *testing.T) {
	merkle := MerkleRange{Depth: 7, Prefix: 0x55, Levels: 1}
	vector := context(Dot{actorA, 5}, Dot{actorB, 6})
	state := deltaRecord()
	tests := []struct {
		name string
		got  []byte
		want string
	}{
		{"PING v4", AppendPing(nil, addressV4), hexV4},
		{"PONG v6", AppendPing(nil, addressV6), hexV6},
		{"PING of a mapped address", AppendPing(nil, netip.MustParseAddrPort("[::ffff:192.0.2.7]:12421")), hexV4},
		{"F23 PING unknown", AppendPing(nil, netip.AddrPort{}), strings.Repeat("00", 18)},
		{"FIND_NODE", AppendFindNode(nil, actorA), "0a00000000000001"},
		{"NODES", AppendNodes(nil, []Contact{contactV4, contactV6}), "0002" + hexContactV4 + hexContactV6},
		{"CRDT_DELTA", AppendDelta(nil, deltaRecord()), hexDelta},
		{"CRDT_DELTA_ACK", AppendDeltaAck(nil, 0x1122334455667788), "1122334455667788"},
		{"AE_BEGIN", AppendBegin(nil, Begin{0x01020304, 0xa1a2a3a4a5a6a7a8, vector}),
			"01020304 a1a2a3a4a5a6a7a8 02 0a00000000000001 0000000000000005 0b00000000000002 0000000000000006"},
		{"AE_STATE, two records", AppendStateRecord(AppendStateRecord(nil, state), state), hexRecord + hexRecord},
		{"PING_REQ", AppendPingReq(nil, contactV4), hexContactV4},
		{"PING_REQ_ACK", AppendPingReqAck(nil, PingReqAck{actorB, true, addressV4}), "0b00000000000002 01" + hexV4},
		{"PUNCH_REQ", AppendPunchReq(nil, PunchReq{contactV6, 0xc1c2c3c4c5c6c7c8}), hexContactV6 +
			"c1c2c3c4c5c6c7c8"},
		{"PUNCH_SYN", AppendPunchSyn(nil, 0xc1c2c3c4c5c6c7c8), "c1c2c3c4c5c6c7c8"},
		{"STREAM_OPEN", AppendStreamOpen(nil, StreamOpen{7, actorB, StreamExec, []byte("spread.web"),
			AppendExtension(nil, ExtensionHops, []byte{3})}),
			"00000007 0b00000000000002 02 0a 7370726561642e776562 01 01 03"},
		{"STREAM_DATA", AppendStreamData(nil, StreamData{7, 9, []byte("hi")}), "00000007 00000009 0002 6869"},
		{"STREAM_CLOSE orderly", AppendStreamClose(nil, StreamClose{Stream: 7, Sequence: 9, Tag: [16]byte{1, 2}}),
			"00000007 01 00000009 01020000 00000000 00000000 00000000"},
		{"STREAM_CLOSE reset", AppendStreamClose(nil, StreamClose{Stream: 7, Reset: true, Reason: 5}), "00000007 16"},
		{"STREAM_ACK", AppendStreamAck(nil, StreamAck{7, 9, 8, 0x8000000000000001, nil}),
			"00000007 00000009 00000008 8000000000000001"},
		{"RELAY_OFFER", AppendRelayOffer(nil, RelayOffer{7, actorA, actorB}),
			"00000007 0a00000000000001 0b00000000000002"},
		{"AE_MERKLE_REQ", AppendMerkleReq(AppendMerkleReq(nil, merkle), MerkleRange{}), "07 0055 01 00 0000 00"},
		{"AE_MERKLE_RESP", AppendMerkleResp(nil, merkle, []uint64{1, 2}),
			"07 0055 01 02 0000000000000001 0000000000000002"},
		{"AE_VV", AppendVector(nil, Vector{200, 71, vector}),
			"00c8 0047 02 0a00000000000001 0000000000000005 0b00000000000002 0000000000000006"},
		{"VOL_REPL_REQ", AppendVolumeRequest(nil, VolumeRequest{0x1122334455667788, 42}),
			"1122334455667788 000000000000002a"},
		{"GW_CLAIM", AppendGatewayClaim(nil, GatewayClaim{netip.MustParseAddr("192.0.2.7"), 0x0102}),
			"00000000000000000000ffffc0000207 0102"},
	}
	for _, test := range tests {
		if want := unhex(t, test.want); !bytes.Equal(test.got, want) {
			t.Errorf("%s:\n got %x\nwant %x", test.name, test.got, want)
		}
	}
}

// TestF43_F44_Sizes holds the arithmetic of SPEC-REVIEW Part 1 section 7.1: the largest of everything
// still fits beside the trailer.
func TestF43_F44_Sizes(t *testing.T) {
	record := &Record{Name: bytes.Repeat([]byte("n"), NameMax), EntryCount: 1}
	for i := range FrameContextMax {
		record.Context = AppendDot(record.Context, Dot{CellID(i + 1), 1})
	}
	record.Entries = AppendEntry(nil, Dot{1, 1}, make([]byte, ValueMax))
	largest := func(n int, address netip.AddrPort) (contacts []Contact) {
		for i := range n {
			contacts = append(contacts, Contact{ID: CellID(i + 1), Address: address})
		}
		return contacts
	}
	for _, test := range []struct {
		name      string
		got, want int
	}{
		{"CRDT_DELTA", len(AppendDelta(nil, record)), 1148},
		{"DeltaSize", DeltaSize(record), 1148},
		{"AE_STATE with one entry", len(AppendStateRecord(nil, record)), 1149},
		{"RecordSize", RecordSize(record), 1149},
		{"NODES", len(AppendNodes(nil, largest(NodesMax, addressV4))), 1150},
		{"NODES on an open wire", len(AppendNodes(nil, largest(42, addressV6))), 1178},
		{"AE_BEGIN", len(AppendBegin(nil, Begin{Vector: largeVector(BeginVectorMax)})), 13 + 16*71},
		{"AE_VV", len(AppendVector(nil, Vector{500, 100, largeVector(VectorMax)})), 5 + 16*71},
		{"AE_MERKLE_RESP", len(AppendMerkleResp(nil, MerkleRange{Levels: 7}, make([]uint64, 128))), 1029},
		{"STREAM_DATA", len(AppendStreamData(nil, StreamData{1, 1, make([]byte, StreamDataMax)})), 1150},
		{"PING_REQ", PingReqSize, 28}, {"PING_REQ_ACK", PingReqAckSize, 27}, {"PUNCH_REQ", PunchReqSize, 36},
		{"sealed payload", SealedPayloadMax, 1150},
	} {
		if test.got != test.want || test.got > PayloadMax {
			t.Errorf("%s: %d bytes, want %d", test.name, test.got, test.want)
		}
		if test.got > SealedPayloadMax && test.name != "NODES on an open wire" {
			t.Errorf("%s: %d bytes do not fit beside the trailer", test.name, test.got)
		}
	}
}

func largeVector(dots int) (raw []byte) {
	for i := range dots {
		raw = AppendDot(raw, Dot{CellID(i + 1), uint64(i) + 1})
	}
	return raw
}
