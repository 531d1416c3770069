package state

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"colloid.net/meshd/wire"
)

func testContact() CellContact {
	return CellContact{
		SecretHash: 1, ClusterID: 2, Flags: FlagOCI | FlagProcess, VersionMin: 1, VersionMax: 2, Features: 3,
		KeysMax: 65536,
		Arch:    "amd64", Hostname: "h", Software: "0.1",
		Candidates: []Candidate{{netip.MustParseAddrPort("192.0.2.1:12421"), wire.ReachPublic}},
		Labels:     [][2]string{{"rack", "7"}, {"zone", "a=b"}},
	}
}

var (
	testCapacity = CellCapacity{4000, 8192, 100, 250, true, true}
	testEndpoint = CellEndpoint{9, netip.MustParseAddr("192.0.2.1"),
		[]EndpointInstance{{1, 2, EndpointReady, 3, 0, "", []uint16{8080}, netip.Addr{}, 0},
			{2, 2, EndpointStarting, 0, 0, "", nil, netip.Addr{}, 0}}}
	testExits = CellEndpoint{KeyHash: 9, Instances: []EndpointInstance{{Slot: 0, Digest: 1, State: EndpointExited, ExitCode: -1},
		{Slot: 1, Digest: 1, State: EndpointReady}, {Slot: 2, Digest: 1, State: EndpointExited, ExitCode: 7}}}
	testReasons = CellEndpoint{KeyHash: 9, Instances: []EndpointInstance{
		{Slot: 0, Digest: 1, State: EndpointBackoff, Restarts: 3, Reason: "ended with exit code 7"},
		{Slot: 1, Digest: 1, State: EndpointExited, ExitCode: 1, Reason: "memory"}}}
	testNotReady = CellEndpoint{KeyHash: 9, Instances: []EndpointInstance{
		{Slot: 0, Digest: 1, State: EndpointStarting, Reason: "tcp 81: connection refused"},
		{Slot: 1, Digest: 1, State: EndpointBackoff, Reason: "memory"},
		{Slot: 2, Digest: 1, State: EndpointUnready, Reason: "http 80 / answers 503"}}}
	testMoved = CellEndpoint{KeyHash: 9, Instances: []EndpointInstance{
		{Slot: 0, Digest: 1, State: EndpointReady, Pod: netip.MustParseAddr("10.1.2.3"), DataOn: 0xc3},
		{Slot: 1, Digest: 1, State: EndpointBackoff, Reason: "killed", DataOn: 0xc4}}}
	testDenial = CellDenial{9, 7, "no host paths"}
)

// TestValuesGolden holds the bytes of every value: replicas of different versions exchange them.
func TestValuesGolden(t *testing.T) {
	for _, test := range []struct {
		name string
		got  []byte
		want string
	}{
		{"contact", AppendCellContact(nil, testContact()), "01" +
			"01080000000000000001" + "02080000000000000002" + "030400000014" + "04020102" + "050400000003" +
			"060400010000" +
			"0705" + hex.EncodeToString([]byte("amd64")) + "0801" + "68" + "0903" + "302e31" +
			"0a13" + "00000000000000000000ffffc0000201" + "3085" + "01" +
			"0b06" + hex.EncodeToString([]byte("rack=7")) + "0b08" + hex.EncodeToString([]byte("zone=a=b"))},
		{"capacity", AppendCellCapacity(nil, testCapacity),
			"01" + "010400000fa0" + "020400002000" + "030400000064" + "0404000000fa" + "050400000003"},
		{"endpoint", AppendCellEndpoint(nil, testEndpoint),
			"01" + "01080000000000000009" + "0210" + "00000000000000000000ffffc0000201" +
				"030f" + "0001" + "0000000000000002" + "02" + "0003" + "1f90" + "030d" + "0002" +
				"0000000000000002" + "01" + "0000"},
		{"endpoint without its data", AppendCellEndpoint(nil, CellEndpoint{KeyHash: 9, Instances: []EndpointInstance{
			{Slot: 1, Digest: 2, State: EndpointReady, DataOn: 0xc3}}}), "01" + "01080000000000000009" +
			"030d" + "0001" + "0000000000000002" + "02" + "0000" + "0712" + "0001" + "0000000000000002" + "00000000000000c3"},
		{"denial", AppendCellDenial(nil, testDenial),
			"01" + "01080000000000000009" + "02080000000000000007" + "030d" +
				hex.EncodeToString([]byte("no host paths"))},
	} {
		if got := hex.EncodeToString(test.got); got != test.want {
			t.Errorf("%s:\n got %s\nwant %s", test.name, got, test.want)
		}
	}
}

func TestValuesComeBack(t *testing.T) {
	contact, err := ParseCellContact(AppendCellContact(nil, testContact()))
	if err != nil || !reflect.DeepEqual(contact, testContact()) {
		t.Errorf("contact %+v, %v", contact, err)
	}
	capacity, err := ParseCellCapacity(AppendCellCapacity(nil, testCapacity))
	if err != nil || capacity != testCapacity {
		t.Errorf("capacity %+v, %v", capacity, err)
	}
	endpoint, err := ParseCellEndpoint(AppendCellEndpoint(nil, testEndpoint))
	if err != nil || !reflect.DeepEqual(endpoint, testEndpoint) {
		t.Errorf("endpoint %+v, %v", endpoint, err)
	}
	if moved, err := ParseCellEndpoint(AppendCellEndpoint(nil, testMoved)); err != nil || !reflect.DeepEqual(moved, testMoved) {
		t.Errorf("endpoint %+v, %v", moved, err)
	}
	denial, err := ParseCellDenial(AppendCellDenial(nil, testDenial))
	if err != nil || denial != testDenial {
		t.Errorf("denial %+v, %v", denial, err)
	}
	bare := CellEndpoint{KeyHash: 1}
	if got, err := ParseCellEndpoint(AppendCellEndpoint(nil, bare)); err != nil || !reflect.DeepEqual(got,
		bare) {
		t.Errorf("endpoint without address: %+v, %v", got, err)
	}
}

// TestD12_UnknownTagsAreSkipped: a newer version adds facts, an older one still reads the rest.
func TestD12_UnknownTagsAreSkipped(t *testing.T) {
	newer := append(AppendCellContact(nil, testContact()), 100, 2, 1, 2, 100, 0, 127, 1, 9)
	if got, err := ParseCellContact(newer); err != nil || !reflect.DeepEqual(got, testContact()) {
		t.Fatalf("contact of a newer version: %+v, %v", got, err)
	}
}

// TestD12_UnknownCriticalTagIsAnErrorOfItsOwn: what a newer version marks as not to be overlooked is not
// skipped, and can be told from damage.
func TestD12_UnknownCriticalTagIsAnErrorOfItsOwn(t *testing.T) {
	newer := append(AppendCellContact(nil, testContact()), 200, 1, 7)
	if got, err := ParseCellContact(newer); !errors.Is(err, ErrCritical) || !reflect.DeepEqual(got, CellContact{}) {
		t.Fatalf("contact with a critical field: %+v, %v", got, err)
	}
}

func TestValuesReject(t *testing.T) {
	contact := AppendCellContact(nil, testContact())
	parseContact := func(b []byte) error { _, err := ParseCellContact(b); return err }
	field := func(tag byte, raw string) []byte {
		b, _ := hex.DecodeString(raw)
		return append([]byte{1, tag, byte(len(b))}, b...)
	}
	const address = "00000000000000000000ffffc0000201"
	label := func(texts ...string) []byte {
		b := []byte{1}
		for _, text := range texts {
			b = appendTLV(b, tagLabel, []byte(text))
		}
		return b
	}
	candidates := []byte{1}
	for range CandidatesMax + 1 {
		candidates = append(candidates, field(tagCandidate, address+"308501")[1:]...)
	}
	for name, value := range map[string][]byte{
		"empty":                 nil,
		"version 2":             append([]byte{2}, contact[1:]...),
		"field cut off":         contact[:len(contact)-1],
		"half a head":           append(contact[:len(contact):len(contact)], 200),
		"tags descending":       {1, tagKeysMax, 4, 0, 0, 0, 1, tagFeatures, 4, 0, 0, 0, 1},
		"scalar twice":          {1, tagKeysMax, 4, 0, 0, 0, 1, tagKeysMax, 4, 0, 0, 0, 1},
		"number too short":      {1, tagKeysMax, 3, 0, 0, 1},
		"number too long":       {1, tagSecret, 9, 0, 0, 0, 0, 0, 0, 0, 0, 1},
		"versions reversed":     field(tagVersions, "0201"),
		"escape in hostname":    field(tagHostname, "1b5b324a"),
		"newline in software":   field(tagSoftware, "610a"),
		"candidate short":       field(tagCandidate, address+"3085"),
		"candidate port 0":      field(tagCandidate, address+"000001"),
		"candidate unspecified": field(tagCandidate, strings.Repeat("00", 16)+"308501"),
		"candidate multicast":   field(tagCandidate, "ff020000000000000000000000000001"+"308501"),
		"candidate reach 4":     field(tagCandidate, address+"308504"),
		"five candidates":       candidates,
		"label without name":    label("=x"),
		"label without sign":    label("zone"),
		"labels unsorted":       label("b=1", "a=1"),
		"label twice":           label("a=1", "a=2"),
		"label with escape":     label("a=\x1b"),
		"label too long":        label("a=" + strings.Repeat("x", LabelSizeMax)),
		"longer than a value": append(contact[:len(contact):len(contact)],
			bytes.Repeat(append([]byte{200, 255}, make([]byte, 255)...), 2)...),
	} {
		if err := parseContact(value); err == nil {
			t.Errorf("contact, %s: accepted", name)
		}
	}
	for name, value := range map[string][]byte{
		"instance short": field(tagInstance, "0001"),
		"half a port":    field(tagInstance, "0001"+"0000000000000002"+"02"+"0003"+"1f"),
		"17 ports": field(tagInstance,
			"0001"+"0000000000000002"+"02"+"0003"+strings.Repeat("1f90", 17)),
		"address unspecified": field(tagAddress, "00000000000000000000ffff00000000"),
		"address short":       field(tagAddress, "c0000201"),
		"more than 16 instance": append([]byte{1}, bytes.Repeat(field(tagInstance,
			"00010000000000000002020003")[1:], 17)...),
	} {
		if got, err := ParseCellEndpoint(value); err == nil || !reflect.DeepEqual(got, CellEndpoint{}) {
			t.Errorf("endpoint, %s: %+v, %v", name, got, err)
		}
	}
}

// TestF82_ValuesFitTheirRegister: whatever a cell has to say, its value has at most 512 bytes and can
// be read back; what does not fit is left out, also when the buffer was not empty.
func TestF82_ValuesFitTheirRegister(t *testing.T) {
	prefix := make([]byte, 300)
	contact := testContact()
	contact.Hostname, contact.Arch, contact.Software = strings.Repeat("h", 300), strings.Repeat("a", 300),
		strings.Repeat("\x1b", 300)
	contact.Candidates = nil
	for i := range CandidatesMax {
		port := netip.AddrPortFrom(netip.MustParseAddr("2001:db8::1"), uint16(i+1))
		contact.Candidates = append(contact.Candidates, Candidate{port, wire.ReachPublic})
	}
	contact.Labels = [][2]string{{"", "no name"}, {"a=b", "sign in name"}, {"esc", "\x1b"}}
	for i := range 40 {
		contact.Labels = append(contact.Labels, [2]string{fmt.Sprintf("label%02d", 39-i), "value"})
	}
	value := AppendCellContact(prefix, contact)[len(prefix):]
	got, err := ParseCellContact(value)
	if err != nil || len(value) > wire.ValueMax || len(got.Labels) < 10 || got.Labels[0][0] != "label00" ||
		len(got.Candidates) != CandidatesMax || got.Software != strings.Repeat("?", 31) {
		t.Fatalf("contact of %d bytes, %d labels: %+v, %v", len(value), len(got.Labels), got, err)
	}
	endpoint := CellEndpoint{KeyHash: 1, Address: netip.MustParseAddr("2001:db8::1")}
	for i := range 20 {
		endpoint.Instances = append(endpoint.Instances, EndpointInstance{Slot: uint16(i), Ports: make([]uint16,
			20)})
	}
	value = AppendCellEndpoint(prefix, endpoint)[len(prefix):]
	if got, err := ParseCellEndpoint(value); err != nil || len(value) > wire.ValueMax ||
		len(got.Instances) != 10 ||
		len(got.Instances[0].Ports) != EndpointPortsMax {
		t.Fatalf("endpoint of %d bytes, %d instances, %v", len(value), len(got.Instances), err)
	}
	value = AppendCellDenial(nil, CellDenial{1, 2, strings.Repeat("é", 300)})
	if got, err := ParseCellDenial(value); err != nil || got.Reason != strings.Repeat("?", 200) {
		t.Fatalf("denial %+v, %v", got, err)
	}
}

func TestF61_LabelsAreSortedAndUnique(t *testing.T) {
	contact := testContact()
	contact.Labels = [][2]string{{"zone", "a"}, {"rack", "7"}, {"zone", "b"}}
	given := fmt.Sprint(contact.Labels)
	got, err := ParseCellContact(AppendCellContact(nil, contact))
	if err != nil || !reflect.DeepEqual(got.Labels, [][2]string{{"rack", "7"}, {"zone", "a"}}) {
		t.Fatalf("labels %v, %v", got.Labels, err)
	}
	if fmt.Sprint(contact.Labels) != given {
		t.Fatal("the caller's labels were sorted")
	}
}

func TestValuesOfDrawnContactsComeBack(t *testing.T) {
	text := rapid.StringMatching(`[ -~]{0,15}`)
	rapid.Check(t, func(t *rapid.T) {
		contact := CellContact{
			SecretHash: rapid.Uint64().Draw(t, "secret"), ClusterID: rapid.Uint64().Draw(t, "cluster"),
			Flags: rapid.Uint32().Draw(t, "flags"), VersionMin: 1, VersionMax: rapid.Uint8Min(1).Draw(t, "version"),
			Features: rapid.Uint32().Draw(t, "features"), KeysMax: rapid.Uint32().Draw(t, "keys"),
			Reach: rapid.SampledFrom([]wire.Reach{wire.ReachUnknown, wire.ReachPublic, wire.ReachPunched,
				wire.ReachRelayed}).Draw(t, "reach"),
			Homes: [][]wire.CellID{nil, {7}, {9, 7}}[rapid.IntRange(0, 2).Draw(t, "homes")],
			Arch:  text.Draw(t, "arch"), Hostname: text.Draw(t, "hostname"), Software: text.Draw(t, "software"),
		}
		got, err := ParseCellContact(AppendCellContact(nil, contact))
		if err != nil || !reflect.DeepEqual(got, contact) {
			t.Fatalf("sent %+v\n got %+v, %v", contact, got, err)
		}
	})
}

func TestAppendersPanicOnWhatNobodyReads(t *testing.T) {
	for name, f := range map[string]func(){
		"five candidates":     func() { AppendCellContact(nil, CellContact{Candidates: make([]Candidate, 5)}) },
		"candidate nowhere":   func() { AppendCellContact(nil, CellContact{Candidates: make([]Candidate, 1)}) },
		"versions reversed":   func() { AppendCellContact(nil, CellContact{VersionMin: 1}) },
		"status without life": func() { AppendCellStatus(nil, CellStatus{}) },
		"five claimants": func() {
			AppendCellStatus(nil, CellStatus{Life: Dead,
				Claimants: make([]wire.CellID, 5)})
		},
		"reserved claimant": func() {
			AppendCellStatus(nil, CellStatus{Life: Dead,
				Claimants: []wire.CellID{0}})
		},
		"endpoint nowhere":  func() { AppendCellEndpoint(nil, CellEndpoint{Address: netip.IPv6Unspecified()}) },
		"vip of no address": func() { VIPKey(netip.Addr{}) },
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

// FuzzValues holds all decoders: no panic, bounded result, and what was read can be written and read
// again to the same.
func FuzzValues(f *testing.F) {
	f.Add(AppendCellContact(nil, testContact()))
	f.Add(AppendCellCapacity(nil, testCapacity))
	f.Add(AppendCellEndpoint(nil, testEndpoint))
	f.Add(AppendCellEndpoint(nil, testExits))
	f.Add(AppendCellEndpoint(nil, testReasons))
	f.Add(AppendCellDenial(nil, testDenial))
	f.Fuzz(func(t *testing.T, b []byte) {
		if contact, err := ParseCellContact(b); err == nil {
			again, err := ParseCellContact(AppendCellContact(nil, contact))
			// Texts of another writer may be longer than ours and labels then find no room.
			again.Arch, again.Hostname, again.Software = contact.Arch, contact.Hostname, contact.Software
			if len(again.Labels) < len(contact.Labels) {
				again.Labels = contact.Labels
			}
			if err != nil || !reflect.DeepEqual(again, contact) {
				t.Fatalf("contact %+v became %+v, %v", contact, again, err)
			}
		}
		if capacity, err := ParseCellCapacity(b); err == nil {
			if again, err := ParseCellCapacity(AppendCellCapacity(nil, capacity)); err != nil || again != capacity {
				t.Fatalf("capacity %+v became %+v, %v", capacity, again, err)
			}
		}
		if endpoint, err := ParseCellEndpoint(b); err == nil {
			again, err := ParseCellEndpoint(AppendCellEndpoint(nil, endpoint))
			if len(again.Instances) < len(endpoint.Instances) {
				again.Instances = endpoint.Instances
			}
			if err != nil || !reflect.DeepEqual(again, endpoint) {
				t.Fatalf("endpoint %+v became %+v, %v", endpoint, again, err)
			}
		}
		if denial, err := ParseCellDenial(b); err == nil {
			again, err := ParseCellDenial(AppendCellDenial(nil, denial))
			if again.Reason = denial.Reason; err != nil || again != denial {
				t.Fatalf("denial %+v became %+v, %v", denial, again, err)
			}
		}
	})
}

// Why an instance does not run travels with its endpoint, as far as there is room, and only as plain text of
// instances that are listed as ended.
func TestEndpointReasons(t *testing.T) {
	value := AppendCellEndpoint(nil, testReasons)
	if got, err := ParseCellEndpoint(value); err != nil || !reflect.DeepEqual(got, testReasons) {
		t.Fatalf("%+v, %v", got, err)
	}
	notReady := AppendCellEndpoint(nil, testNotReady)
	if got, err := ParseCellEndpoint(notReady); err != nil || !reflect.DeepEqual(got, testNotReady) {
		t.Fatalf("%+v, %v", got, err)
	}
	running := CellEndpoint{KeyHash: 9, Instances: []EndpointInstance{{Digest: 1, State: EndpointReady, Reason: "none"}}}
	plain := AppendCellEndpoint(nil, running)
	tail := appendTLV(nil, tagWhy, append(make([]byte, 9), "\x01no"...))
	if got, err := ParseCellEndpoint(append(plain, tail...)); err == nil {
		t.Errorf("the reason of an instance that runs was taken: %+v", got)
	}
	// Cells of an earlier version refuse the reason of one that runs under tagWhy: it has a tag that they
	// pass over.
	for _, mismatch := range []struct {
		tag   byte
		state EndpointState
	}{{tagWhy, EndpointStarting}, {tagNotReady, EndpointBackoff}, {tagNotReady, EndpointReady}} {
		value := AppendCellEndpoint(nil, CellEndpoint{KeyHash: 9, Instances: []EndpointInstance{{State: mismatch.state}}})
		value = append(value, appendTLV(nil, mismatch.tag, append(make([]byte, 10), "no"...))...)
		if got, err := ParseCellEndpoint(value); err == nil {
			t.Errorf("tag %d of one that is %v was taken: %+v", mismatch.tag, mismatch.state, got)
		}
	}
	for _, text := range []string{"", "a\x1b[2J", strings.Repeat("x", EndpointReasonMax+1)} {
		ended := AppendCellEndpoint(nil, CellEndpoint{KeyHash: 9, Instances: []EndpointInstance{{State: EndpointBackoff}}})
		tail := appendTLV(nil, tagWhy, append(make([]byte, 10), text...))
		if got, err := ParseCellEndpoint(append(ended, tail...)); err == nil {
			t.Errorf("reason %q was taken: %+v", text, got)
		}
	}
	many := CellEndpoint{KeyHash: 9}
	for i := range EndpointInstancesMax {
		many.Instances = append(many.Instances, EndpointInstance{Slot: uint16(i), State: EndpointBackoff,
			Reason: strings.Repeat("é", EndpointReasonMax)})
	}
	value = AppendCellEndpoint(nil, many)
	got, err := ParseCellEndpoint(value)
	if err != nil || len(value) > wire.ValueMax || len(got.Instances) != EndpointInstancesMax || got.Instances[0].Reason == "" {
		t.Errorf("%d bytes, %d instances, %v", len(value), len(got.Instances), err)
	}
}

// How an instance ended for good travels with its endpoint; a code that belongs to no exited instance is
// refused.
func TestEndpointExitCodes(t *testing.T) {
	value := AppendCellEndpoint(nil, testExits)
	got, err := ParseCellEndpoint(value)
	if err != nil || !reflect.DeepEqual(got, testExits) {
		t.Fatalf("%+v, %v", got, err)
	}
	stray := testExits
	stray.Instances = stray.Instances[1:2]
	tail := value[len(value)-16:]
	if got, err := ParseCellEndpoint(append(AppendCellEndpoint(nil, stray), tail...)); err == nil {
		t.Errorf("an exit code without its instance was taken: %+v", got)
	}
	many := CellEndpoint{KeyHash: 9}
	for i := range EndpointInstancesMax {
		many.Instances = append(many.Instances, EndpointInstance{Slot: uint16(i), State: EndpointExited, ExitCode: 1})
	}
	value = AppendCellEndpoint(nil, many)
	if got, err := ParseCellEndpoint(value); err != nil || len(value) > wire.ValueMax || len(got.Instances) < 14 {
		t.Errorf("%d bytes, %d instances, %v", len(value), len(got.Instances), err)
	}
}
