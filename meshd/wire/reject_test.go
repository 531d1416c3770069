package wire

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"
)

// change returns a copy of raw with f applied.
func change(raw []byte, f func(b []byte) []byte) []byte { return f(append([]byte(nil), raw...)) }

func set(at int, values ...byte) func([]byte) []byte {
	return func(b []byte) []byte { copy(b[at:], values); return b }
}

func cut(n int) func([]byte) []byte { return func(b []byte) []byte { return b[:len(b)-n] } }

func more(b []byte) []byte { return append(b, 0) }

func TestF26_UnknownVersionAndTypeAreToldApart(t *testing.T) {
	good := AppendHeader(nil, Header{Type: TypeLeave, Sender: actorA, Nonce: 9})
	for _, test := range []struct {
		name     string
		datagram []byte
		want     error
	}{
		{"good", good, nil},
		{"sealed", append(good[:16:16], make([]byte, TrailerSize)...), nil},
		{"short", good[:15], ErrShort},
		{"empty", nil, ErrShort},
		{"long", append(good[:16:16], make([]byte, DatagramMax)...), ErrLong},
		{"version 0", change(good, set(0, 0)), ErrVersion},
		{"version 2", change(good, set(0, 2)), ErrVersion},
		{"version 2 of a join", change(good, set(0, 2, 0x40)), nil},
		{"version 0 of a join", change(good, set(0, 0, 0x40)), ErrVersion},
		{"type 0", change(good, set(1, 0)), ErrType},
		{"type ff", change(good, set(1, 0xff)), ErrType},
		{"payload longer than datagram", change(good, set(3, 1)), ErrLength},
		{"half a trailer", append(good[:16:16], make([]byte, 12)...), ErrTrailer},
		{"trailer on a join", change(append(good[:16:16], make([]byte, TrailerSize)...), set(1, 0x40)), ErrTrailer},
		{"sender 0", change(good, set(4, 0, 0, 0, 0, 0, 0, 0, 0)), ErrCell},
		{"sender all ones", change(good, set(4, 255, 255, 255, 255, 255, 255, 255, 255)), ErrCell},
	} {
		header, _, _, err := ParseHeader(test.datagram)
		if err == nil && header.Version != test.datagram[0] {
			t.Errorf("%s: header of version %d", test.name, header.Version)
		}
		if !errors.Is(err, test.want) {
			t.Errorf("%s: error %v, want %v", test.name, err, test.want)
		}
		if (err == ErrType || err == ErrVersion) && header.Type != Type(test.datagram[1]) {
			t.Errorf("%s: header says type %d, so drops cannot be counted by type", test.name, header.Type)
		}
		switch err {
		case nil:
			if !LooksLike(test.datagram) {
				t.Errorf("%s: LooksLike rejects what ParseHeader accepts", test.name)
			}
		case ErrShort, ErrLong, ErrVersion, ErrType:
			if LooksLike(test.datagram) {
				t.Errorf("%s: LooksLike accepts", test.name)
			}
		}
	}
}

func TestTypesOfTheTable(t *testing.T) {
	known := 0
	for i := range 256 {
		if Type(i).Known() {
			known++
		}
		if Type(i).Known() == (Type(i).String() == "UNKNOWN") {
			t.Errorf("type %d: known %t, name %s", i, Type(i).Known(), Type(i))
		}
		// F155: exactly the message codes 0x10..0x22 without RELAY_OFFER and the anti-entropy ones.
		relayable := Type(i).Known() && i >= 0x10 && i <= 0x22 && (i < 0x14 || i > 0x17)
		if Type(i).Relayable() != relayable {
			t.Errorf("type %s: relayable %t", Type(i), !relayable)
		}
	}
	if known != 29 {
		t.Errorf("%d known types, want 29", known)
	}
}

func TestF22_DeltaRejects(t *testing.T) {
	good := AppendDelta(nil, deltaRecord())
	nameAt := len(good) - 10
	tests := []struct {
		name    string
		payload []byte
		want    error
	}{
		{"good", good, nil},
		{"empty", nil, ErrLength},
		{"head only", good[:28], ErrLength},
		{"trailing byte inside the payload", change(good, more), ErrLength},
		{"one byte short", change(good, cut(1)), ErrLength},
		{"value length beyond the payload", change(good, set(25, 0x00, 0xff)), ErrLength},
		{"value length above the limit", change(good, set(25, 0x02, 0x01)), ErrValue},
		{"context with a double actor", change(good, set(28+16, 0x0a, 0, 0, 0, 0, 0, 0, 1)), ErrContext},
		{"context unsorted", change(good, set(28, 0x0c)), ErrContext},
		{"context with actor 0", change(good, set(28, 0, 0, 0, 0, 0, 0, 0, 0)), ErrContext},
		{"context with actor all ones", change(good, set(44, 255, 255, 255, 255, 255, 255, 255, 255)), ErrContext},
		{"context with sequence 0", change(good, set(28+8, 0, 0, 0, 0, 0, 0, 0, 0)), ErrContext},
		{"dot above the context", change(good, set(23, 4)), ErrEntry},
		{"dot below the context", change(good, set(23, 2)), ErrEntry},
		{"dot of an actor outside the context", change(good, set(8, 0x0c)), ErrEntry},
		{"name with a control character", change(good, set(nameAt, 0x1f)), ErrName},
		{"name with DEL", change(good, set(nameAt, 0x7f)), ErrName},
		{"name with a high byte", change(good, set(nameAt, 0x80)), ErrName},
		{"name empty", change(change(good, cut(10)), set(27, 0)), ErrName},
		{"context empty", append(change(good[:28], set(24, 0)), good[60:]...), ErrContext},
	}
	var r Record
	for _, test := range tests {
		if err := ParseDelta(test.payload, &r); !errors.Is(err, test.want) {
			t.Errorf("%s: error %v, want %v", test.name, err, test.want)
		}
	}
}

func TestF22_NameAndContextBounds(t *testing.T) {
	long := deltaRecord()
	long.Name = make([]byte, NameMax+1)
	for i := range long.Name {
		long.Name[i] = 'n'
	}
	if err := CheckRecord(long); err != ErrName {
		t.Errorf("name of 97 bytes: %v", err)
	}
	long.Name = long.Name[:NameMax]
	if err := CheckRecord(long); err != nil {
		t.Errorf("name of 96 bytes: %v", err)
	}
	for _, count := range []int{0, 2} {
		miscounted := deltaRecord()
		if miscounted.EntryCount = count; CheckRecord(miscounted) != ErrLength {
			t.Errorf("one entry, said %d: accepted", count)
		}
	}
	wide := deltaRecord()
	wide.Context = largeVector(FrameContextMax + 1)
	wide.Entries = AppendEntry(nil, Dot{1, 1}, nil)
	if err := CheckRecord(wide); err != ErrContext {
		t.Errorf("context of 33 dots: %v", err)
	}
	wide.Context = largeVector(FrameContextMax)
	if err := CheckRecord(wide); err != nil {
		t.Errorf("context of 32 dots: %v", err)
	}
}

func TestF22_StateRejects(t *testing.T) {
	two := deltaRecord()
	two.EntryCount = 2
	two.Entries = AppendEntry(AppendEntry(nil, Dot{actorA, 1<<40 | 2}, []byte("x")), Dot{actorB, 1<<40 | 3}, nil)
	good := AppendStateRecord(nil, two)
	swapped := *two
	swapped.Entries = AppendEntry(AppendEntry(nil, Dot{actorB, 1<<40 | 3}, nil), Dot{actorA, 1<<40 | 2}, nil)
	double := *two
	double.Entries = AppendEntry(AppendEntry(nil, Dot{actorA, 1<<40 | 2}, nil), Dot{actorA, 1<<40 | 2}, nil)
	none := *two
	none.EntryCount, none.Entries = 0, nil
	for _, test := range []struct {
		name    string
		payload []byte
		want    error
	}{
		{"good", good, nil},
		{"no entries, only a context (F45)", raw(&none), nil},
		{"empty message", nil, ErrLength},
		{"entries swapped", raw(&swapped), ErrEntry},
		{"two entries of one actor", raw(&double), ErrEntry},
		{"entry count too small", change(good, set(8, 1)), ErrLength},
		{"entry count too large", change(good, set(8, 3)), ErrLength},
		{"entry count absurd", change(good, set(8, 255)), ErrEntry},
		{"context count absurd", change(good, set(9, 255)), ErrLength},
		{"name beyond the payload", change(good, set(10, 255)), ErrLength},
		{"value beyond the payload", change(good, set(27, 0xff, 0xff)), ErrLength},
		{"garbage behind the record", change(good, more), ErrLength},
		{"second record cut", append(change(good, more)[:len(good)], good[:20]...), ErrLength},
	} {
		_, err := CheckState(test.payload)
		if test.name == "entry count too small" {
			if err == nil {
				t.Errorf("%s: accepted", test.name)
			}
			continue
		}
		if !errors.Is(err, test.want) {
			t.Errorf("%s: error %v, want %v", test.name, err, test.want)
		}
	}
}

// raw encodes a record as it is, valid or not.
func raw(r *Record) []byte {
	b := binary.BigEndian.AppendUint64(nil, r.KeyHash)
	b = append(b, byte(r.EntryCount), byte(len(r.Context)/DotSize), byte(len(r.Name)))
	return append(append(append(b, r.Entries...), r.Context...), r.Name...)
}

func TestF22_ContactRejects(t *testing.T) {
	at := func(text string) Contact {
		return Contact{ID: actorA, Address: netip.MustParseAddrPort(text), Reach: ReachPublic}
	}
	tests := []struct {
		name     string
		contact  Contact
		want     error
		loopback error
	}{
		{"IPv4", at("192.0.2.1:1"), nil, nil},
		{"IPv6", at("[2001:db8::1]:1"), nil, nil},
		{"multicast IPv4", at("224.0.0.1:1"), ErrAddress, ErrAddress},
		{"multicast IPv6", at("[ff02::1]:1"), ErrAddress, ErrAddress},
		{"broadcast", at("255.255.255.255:1"), ErrAddress, ErrAddress},
		{"unspecified IPv4", at("0.0.0.0:1"), ErrAddress, ErrAddress},
		{"unspecified IPv6", at("[::]:1"), ErrAddress, ErrAddress},
		{"port 0", at("192.0.2.1:0"), ErrAddress, ErrAddress},
		{"loopback IPv4", at("127.1.2.3:1"), ErrAddress, nil},
		{"loopback IPv6", at("[::1]:1"), ErrAddress, nil},
		{"no address", Contact{ID: actorA}, ErrAddress, ErrAddress},
		{"reserved id", Contact{Address: addressV4}, ErrCell, ErrCell},
		{"reach 4", Contact{ID: actorA, Address: addressV4, Reach: 4}, ErrReach, ErrReach},
	}
	for _, test := range tests {
		wired := binary.BigEndian.AppendUint64(nil, uint64(test.contact.ID))
		wired = appendAddress(wired, test.contact.Address)
		wired = append(wired, byte(test.contact.Reach), test.contact.Flags)
		if _, err := ParseContact(wired, Options{}); err != test.want {
			t.Errorf("%s: %v, want %v", test.name, err, test.want)
		}
		if _, err := ParseContact(wired, Options{Loopback: true}); err != test.loopback {
			t.Errorf("%s with loopback allowed: %v, want %v", test.name, err, test.loopback)
		}
		nodes := append([]byte{0, 2}, hexBytes(t, hexContactV4)...)
		if _, err := ParseNodes(append(nodes, wired...), Options{}); err != test.want {
			t.Errorf("%s in NODES: %v, want %v", test.name, err, test.want)
		}
		if _, err := ParsePunchReq(append(wired, make([]byte, 8)...), Options{}); err != test.want {
			t.Errorf("%s in PUNCH_REQ: %v, want %v", test.name, err, test.want)
		}
	}
}

func hexBytes(t *testing.T, text string) []byte { return unhex(t, text) }

func TestNodesLeavesOutUnusableContacts(t *testing.T) {
	got, err := ParseNodes(AppendNodes(nil, []Contact{{ID: actorB}, contactV4}), Options{})
	if err != nil || got.Len() != 1 || got.At(0) != contactV4 {
		t.Fatalf("%d contacts, %v", got.Len(), err)
	}
}

func TestF25_MerkleRejects(t *testing.T) {
	good := AppendMerkleResp(nil, MerkleRange{9, 0x1ff, 7}, make([]uint64, 128))
	for _, test := range []struct {
		name    string
		payload []byte
		want    error
	}{
		{"good", good, nil},
		{"below the leaves", change(good, set(0, 10)), ErrRange},
		{"depth absurd", change(good, set(0, 250)), ErrRange},
		{"prefix wider than its depth", change(good, set(1, 0x02)), ErrRange},
		{"levels 8", change(good, set(3, 8)), ErrRange},
		{"count not that of the range", change(good, set(4, 127)), ErrLength},
		{"hash cut off", change(good, cut(1)), ErrLength},
		{"range smaller than its hashes", change(good, set(3, 6)), ErrLength},
	} {
		if _, err := ParseMerkleResp(test.payload); err != test.want {
			t.Errorf("%s: %v, want %v", test.name, err, test.want)
		}
	}
	request := AppendMerkleReq(nil, MerkleRange{16, 0xffff, 0})
	for _, test := range []struct {
		payload []byte
		want    error
	}{{request, nil}, {nil, ErrLength}, {change(request, more), ErrLength}, {change(request, set(3, 1)),
		ErrRange}} {
		if _, err := CheckMerkleReq(test.payload); err != test.want {
			t.Errorf("request %x: %v, want %v", test.payload, err, test.want)
		}
	}
}

func TestF44_VectorRejects(t *testing.T) {
	part := largeVector(3)
	good := AppendVector(nil, Vector{100, 71, part})
	whole := AppendVector(nil, Vector{71, 71, nil})
	for _, test := range []struct {
		name    string
		payload []byte
		want    error
	}{
		{"good", good, nil},
		{"nothing behind AE_BEGIN", whole, nil},
		{"empty part in the middle", change(whole, set(1, 72)), ErrLength},
		{"beyond total", change(good, set(1, 73)), ErrLength},
		{"count not that of the payload", change(good, set(4, 2)), ErrLength},
		{"unsorted", change(good, set(5, 9)), ErrContext},
	} {
		if _, err := ParseVector(test.payload); err != test.want {
			t.Errorf("%s: %v, want %v", test.name, err, test.want)
		}
	}
	begin := AppendBegin(nil, Begin{1, 2, part})
	if _, err := ParseBegin(change(begin, more)); err != ErrLength {
		t.Errorf("AE_BEGIN with a byte too many: %v", err)
	}
	if _, err := ParseBegin(change(begin, set(13, 9))); err != ErrContext {
		t.Errorf("AE_BEGIN with an unsorted vector: %v", err)
	}
}

func TestF152_StreamRejects(t *testing.T) {
	open := AppendStreamOpen(nil, StreamOpen{1, actorA, StreamLogs, []byte("spread.a"), nil})
	withKey := append(open[:len(open):len(open)], AppendExtension(nil, ExtensionKey, make([]byte, 32))...)
	parseOpen := func(b []byte) error { _, err := ParseStreamOpen(b); return err }
	parseClose := func(b []byte) error { _, err := ParseStreamClose(b); return err }
	parseData := func(b []byte) error { _, err := ParseStreamData(b); return err }
	parseAck := func(b []byte) error { _, err := ParseStreamAck(b); return err }
	ack := AppendStreamAck(nil, StreamAck{Stream: 1})
	data := AppendStreamData(nil, StreamData{1, 1, []byte("x")})
	fin := AppendStreamClose(nil, StreamClose{Stream: 1, Sequence: 9})
	for _, test := range []struct {
		name    string
		parse   func([]byte) error
		payload []byte
		want    error
	}{
		{"open", parseOpen, open, nil},
		{"open with a key", parseOpen, withKey, nil},
		{"open, type of a newer version", parseOpen, change(open, set(12, 99)), nil},
		{"open, type 0", parseOpen, change(open, set(12, 0)), ErrStream},
		{"open, no target", parseOpen, change(open, set(4, 0, 0, 0, 0, 0, 0, 0, 0)), ErrCell},
		{"open, name beyond the payload", parseOpen, change(open, set(13, 200)), ErrLength},
		{"open, extension cut", parseOpen, change(withKey, cut(1)), ErrExtension},
		{"open, extension twice", parseOpen, append(withKey, withKey[len(open):]...), ErrExtension},
		{"data", parseData, data, nil},
		{"data, sequence 0", parseData, change(data, set(7, 0)), ErrStream},
		{"data, length too large", parseData, change(data, set(9, 2)), ErrLength},
		{"close, neither FIN nor RST", parseClose, []byte{0, 0, 0, 1, 0}, ErrStream},
		{"close, both", parseClose, []byte{0, 0, 0, 1, 3}, ErrStream},
		{"close, FIN", parseClose, fin, nil},
		{"close, FIN without tag", parseClose, fin[:9], ErrLength},
		{"close, FIN with sequence 0", parseClose, change(fin, set(8, 0)), ErrStream},
		{"close, RST with a tag", parseClose, change(fin, set(4, 2)), ErrLength},
		{"close, FIN of the size of a RST", parseClose, []byte{0, 0, 0, 1, 1}, ErrLength},
		{"close, old form", parseClose, []byte{0, 0, 0, 1}, ErrLength},
		{"ack", parseAck, ack, nil},
		{"ack, one byte of extension", parseAck, change(ack, more), ErrExtension},
		{"ack, old form", parseAck, ack[:8], ErrLength},
	} {
		if err := test.parse(test.payload); err != test.want {
			t.Errorf("%s: %v, want %v", test.name, err, test.want)
		}
	}
}

func TestRestRejects(t *testing.T) {
	if _, err := ParsePing(make([]byte, 17)); err != ErrLength {
		t.Errorf("PING of 17 bytes: %v", err)
	}
	if _, err := ParsePing(change(make([]byte, 18), set(17, 1))); err != ErrAddress {
		t.Errorf("PING with a port but no address: %v", err)
	}
	acknowledged := AppendPingReqAck(nil, PingReqAck{Target: actorA})
	if _, err := ParsePingReqAck(change(acknowledged, set(8, 2))); err != ErrFlag {
		t.Errorf("PING_REQ_ACK with reachable 2: %v", err)
	}
	if _, err := ParseRelayOffer(make([]byte, 20)); err != ErrCell {
		t.Errorf("RELAY_OFFER of nobody: %v", err)
	}
	if _, err := ParseGatewayClaim(make([]byte, 18)); err != ErrAddress {
		t.Errorf("GW_CLAIM of no address: %v", err)
	}
	if ParseEmpty(nil) != nil || ParseEmpty([]byte{0}) != ErrLength {
		t.Error("LEAVE takes no payload")
	}
}

func TestF61_CellIDForm(t *testing.T) {
	for _, text := range []string{"", "0a0000000000001", "0A00000000000001", "0a000000000000011",
		"0x00000000000001", " a00000000000001", "0000000000000000", "ffffffffffffffff", "0a0000000000000g"} {
		if id, err := ParseCellID(text); err == nil {
			t.Errorf("%q accepted as %s", text, id)
		}
	}
	for _, id := range []CellID{1, actorA, 0xfffffffffffffffe, 0x123456789abcdef0} {
		if got, err := ParseCellID(id.String()); err != nil || got != id || len(id.String()) != 16 {
			t.Errorf("%s: back %s, %v", id, got, err)
		}
	}
}

func TestAppendersPanicOnWhatNobodyAccepts(t *testing.T) {
	many := deltaRecord()
	many.EntryCount, many.Entries = 0, nil
	broken := deltaRecord()
	broken.Context = broken.Context[:16]
	for name, f := range map[string]func(){
		"header of an unknown type": func() { AppendHeader(nil, Header{Type: 0xee, Sender: actorA}) },
		"header without sender":     func() { AppendHeader(nil, Header{Type: TypePing}) },
		"header, payload too long": func() {
			AppendHeader(nil, Header{Type: TypePing, PayloadLength: PayloadMax + 1, Sender: actorA, Nonce: 0})
		},
		"contact of nobody":       func() { AppendContact(nil, Contact{}) },
		"delta without entry":     func() { AppendDelta(nil, many) },
		"record out of context":   func() { AppendStateRecord(nil, broken) },
		"vector too long":         func() { AppendBegin(nil, Begin{Vector: largeVector(72)}) },
		"vector beyond its total": func() { AppendVector(nil, Vector{1, 1, largeVector(1)}) },
		"range outside the tree":  func() { AppendMerkleReq(nil, MerkleRange{17, 0, 0}) },
		"hashes missing":          func() { AppendMerkleResp(nil, MerkleRange{0, 0, 1}, nil) },
		"too many contacts":       func() { AppendNodes(nil, make([]Contact, 43)) },
		"chunk too long":          func() { AppendStreamData(nil, StreamData{1, 1, make([]byte, 1175)}) },
		"reason too large":        func() { AppendStreamClose(nil, StreamClose{Stream: 1, Reset: true, Reason: 64}) },
		"value too long":          func() { AppendEntry(nil, Dot{1, 1}, make([]byte, 513)) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}
