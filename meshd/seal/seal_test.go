package seal

import (
	"bytes"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"colloid.net/meshd/wire"
)

const (
	cellA = wire.CellID(0x0a00000000000001)
	cellB = wire.CellID(0x0b00000000000002)
)

func testKey(seed byte) (k Key) {
	for i := range k {
		k[i] = seed + byte(i)
	}
	return k
}

// datagram builds header and payload with room for the trailer.
func datagram(sender wire.CellID, t wire.Type, payload string) []byte {
	buffer := make([]byte, 0, wire.DatagramMax)
	buffer = wire.AppendHeader(buffer, wire.Header{Type: t, PayloadLength: uint16(len(payload)),
		Sender: sender, Nonce: 7})
	return append(buffer, payload...)
}

func clone(b []byte) []byte { return append([]byte(nil), b...) }

// open opens a copy, because Open destroys what it is given.
func open(o *Opener, sealed []byte) (wire.Header, []byte, error) { return o.Open(clone(sealed)) }

func TestF12_SealedDatagramGolden(t *testing.T) {
	// Computed once by an implementation of HKDF and RFC 8439 in another language; a change here is a
	// change of the protocol.
	sealed := NewSealer(testKey(1), cellA, 2).Seal(datagram(cellA, wire.TypeDeltaAck, "payload!"))
	if got := hex.EncodeToString(sealed); got != goldenSealed {
		t.Fatalf("sealed %s\nwant   %s", got, goldenSealed)
	}
	if len(sealed) != wire.HeaderSize+8+wire.TrailerSize {
		t.Fatalf("%d bytes", len(sealed))
	}
}

const goldenSealed = "010600080a0000000000000100000007" +
	"dfc6279c252142ba" +
	"00000200000000017db390ef659c1dda866faf7079491769"

// TestF12_SealAgainstDefinition rebuilds a sealed datagram from the standard pieces.
func TestF12_SealAgainstDefinition(t *testing.T) {
	plain := datagram(cellA, wire.TypeDelta, "some payload")
	sealed := NewSealer(testKey(1), cellA, 5).Seal(clone(plain))
	info := labelSender + string([]byte{0x0a, 0, 0, 0, 0, 0, 0, 1})
	key := testKey(1)
	derived, err := hkdf.Key(sha256.New, key[:], nil, info, 32)
	if err != nil {
		t.Fatal(err)
	}
	nonce := append(make([]byte, 4), 0, 0, 5, 0, 0, 0, 0, 1) // 5<<40 | 1
	expected := newAEAD(derived).Seal(nil, nonce, plain[wire.HeaderSize:], plain[:wire.HeaderSize])
	size := len(plain) - wire.HeaderSize
	want := append(clone(plain[:wire.HeaderSize]), expected[:size]...)
	want = append(append(want, nonce[4:]...), expected[size:]...)
	if !bytes.Equal(sealed, want) {
		t.Fatalf("sealed %x\nwant   %x", sealed, want)
	}
}

func TestF12_SealAndOpen(t *testing.T) {
	sealer, opener := NewSealer(testKey(1), cellA, 1), NewOpener(testKey(1), 4)
	for _, payload := range []string{"", "x", strings.Repeat("p", wire.SealedPayloadMax)} {
		plain := datagram(cellA, wire.TypeDelta, payload)
		sealed := sealer.Seal(plain)
		if &sealed[0] != &plain[0] {
			t.Errorf("payload of %d bytes: not sealed in place", len(payload))
		}
		if payload != "" && bytes.Contains(sealed, []byte(payload)) && len(payload) > 1 {
			t.Errorf("payload of %d bytes is readable", len(payload))
		}
		header, got, err := opener.Open(sealed)
		if err != nil || string(got) != payload || header.Sender != cellA || header.Type != wire.TypeDelta ||
			int(header.PayloadLength) != len(payload) || header.Nonce != 7 {
			t.Errorf("payload of %d bytes came back as %d, %+v, %v", len(payload), len(got), header, err)
		}
		if cap(got) != len(got) {
			t.Errorf("appending to the payload would write into the trailer")
		}
	}
}

func TestSealWithoutSpareCapacity(t *testing.T) {
	plain := datagram(cellA, wire.TypeDelta, "payload")
	for spare := range wire.TrailerSize + 1 {
		tight := append(make([]byte, 0, len(plain)+spare), plain...)
		sealed := NewSealer(testKey(1), cellA, 1).Seal(tight)
		if _, payload, err := NewOpener(testKey(1), 1).Open(sealed); err != nil || string(payload) != "payload" {
			t.Fatalf("with %d bytes to spare: %q, %v", spare, payload, err)
		}
	}
}

// TestF12_AnyFlippedBitFails: header, payload and trailer are all under the tag, and a refused
// datagram leaves no trace.
func TestF12_AnyFlippedBitFails(t *testing.T) {
	sealed := NewSealer(testKey(1), cellA, 1).Seal(datagram(cellA, wire.TypeDelta, "some payload"))
	opener := NewOpener(testKey(1), 4)
	for bit := range len(sealed) * 8 {
		changed := clone(sealed)
		changed[bit/8] ^= 1 << (bit % 8)
		if _, payload, err := opener.Open(changed); err == nil {
			t.Fatalf("bit %d of byte %d flipped: accepted, payload %q", bit%8, bit/8, payload)
		}
	}
	for size := range len(sealed) {
		if _, _, err := open(opener, sealed[:size]); err == nil {
			t.Fatalf("cut to %d bytes: accepted", size)
		}
	}
	if len(opener.senders) != 0 || len(opener.index) != 0 || len(opener.floors) != 0 {
		t.Fatalf("refused datagrams left %d senders", len(opener.senders))
	}
	if _, _, err := open(opener, sealed); err != nil {
		t.Fatalf("after %d forgeries the real one is refused: %v", len(sealed)*8, err)
	}
	// The same again with the sender known.
	again := NewSealer(testKey(1), cellA, 2).Seal(datagram(cellA, wire.TypeDelta, "some payload"))
	for bit := range len(again) * 8 {
		changed := clone(again)
		changed[bit/8] ^= 1 << (bit % 8)
		if _, _, err := opener.Open(changed); err == nil {
			t.Fatalf("known sender, bit %d of byte %d flipped: accepted", bit%8, bit/8)
		}
	}
	if _, _, err := open(opener, again); err != nil {
		t.Fatalf("known sender: the real one is refused: %v", err)
	}
}

// TestF12_UnauthenticatedDatagramsChangeNothing sends every type unsealed, with a trailer of zeros and
// sealed with a foreign key.
func TestF12_UnauthenticatedDatagramsChangeNothing(t *testing.T) {
	opener := NewOpener(testKey(1), 4)
	for i := range 256 {
		if !wire.Type(i).Known() {
			continue
		}
		plain := datagram(cellA, wire.Type(i), "payload")
		zero := append(clone(plain), make([]byte, wire.TrailerSize)...)
		counted := append(clone(plain), append([]byte{0, 0, 1, 0, 0, 0, 0, 1}, make([]byte, tagSize)...)...)
		foreign := NewSealer(testKey(2), cellA, 1).Seal(clone(plain))
		stolen := NewSealer(testKey(1), cellB, 1).Seal(datagram(cellB, wire.Type(i), "payload"))
		copy(stolen[4:12], plain[4:12]) // another member's key under this sender's name
		for name, d := range map[string][]byte{"plain": plain, "zero": zero, "counted": counted, "foreign": foreign,
			"stolen": stolen} {
			if _, payload, err := opener.Open(d); err == nil || payload != nil {
				t.Errorf("%s, %s: accepted", wire.Type(i), name)
			}
		}
		if wire.Type(i).Joining() {
			if _, _, err := open(opener, NewSealer(testKey(1), cellA, 1).Seal(clone(plain))); err == nil {
				t.Errorf("%s: sealed join accepted", wire.Type(i))
			}
		}
	}
	if len(opener.senders) != 0 || len(opener.floors) != 0 {
		t.Fatalf("%d senders, %d floors", len(opener.senders), len(opener.floors))
	}
}

func TestF13_CountersAreNeverUsedAgain(t *testing.T) {
	seen := make(map[uint64]bool)
	for incarnation := range uint32(100) { // a hundred starts
		sealer := NewSealer(testKey(1), cellA, incarnation)
		for range 50 {
			sealer.Seal(datagram(cellA, wire.TypeLeave, ""))
			if counter := sealer.Counter(); seen[counter] || counter>>wire.CounterBits != uint64(incarnation) {
				t.Fatalf("counter %x in incarnation %d", counter, incarnation)
			}
			seen[sealer.Counter()] = true
		}
		sealer.Rekey(testKey(2))
		sealer.Rekey(testKey(1))
		sealer.Seal(datagram(cellA, wire.TypeLeave, ""))
		if seen[sealer.Counter()] {
			t.Fatalf("counter %x again after changing the key and back", sealer.Counter())
		}
		seen[sealer.Counter()] = true
	}
}

func TestF13_SealerStopsAtTheEndOfItsIncarnation(t *testing.T) {
	sealer := NewSealer(testKey(1), cellA, 3)
	sealer.counter = sealer.last - 1
	sealer.Seal(datagram(cellA, wire.TypeLeave, ""))
	if sealer.Counter() != 4<<wire.CounterBits-1 {
		t.Fatalf("last counter %x", sealer.Counter())
	}
	mustPanic(t, "one more", func() { sealer.Seal(datagram(cellA, wire.TypeLeave, "")) })
}

func mustPanic(t *testing.T, name string, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s: no panic", name)
		}
	}()
	f()
}

func TestBrokenInvariantsPanic(t *testing.T) {
	sealer := NewSealer(testKey(1), cellA, 1)
	long := datagram(cellA, wire.TypeDelta, strings.Repeat("x", wire.SealedPayloadMax+1))
	mustPanic(t, "zero key", func() { NewSealer(Key{}, cellA, 1) })
	mustPanic(t, "zero key", func() { NewOpener(Key{}, 1) })
	mustPanic(t, "reserved cell", func() { NewSealer(testKey(1), 0, 1) })
	mustPanic(t, "incarnation of 25 bits", func() { NewSealer(testKey(1), cellA, 1<<24) })
	mustPanic(t, "no senders", func() { NewOpener(testKey(1), 0) })
	mustPanic(t, "another sender", func() { sealer.Seal(datagram(cellB, wire.TypeLeave, "")) })
	mustPanic(t, "no header", func() { sealer.Seal(make([]byte, 3)) })
	mustPanic(t, "payload_len too small", func() { sealer.Seal(append(datagram(cellA, wire.TypeLeave, ""), 1)) })
	mustPanic(t, "too long", func() { sealer.Seal(long) })
}

func TestKeysAreNotPrinted(t *testing.T) {
	k := testKey(0x41)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%q", "%d"} {
		for _, text := range []string{fmt.Sprintf(verb, k), fmt.Sprintf(verb, &k), fmt.Sprintf(verb,
			struct{ K Key }{k})} {
			if strings.Contains(text, "414243") || strings.Contains(text, "ABC") || strings.Contains(text, "65 66") ||
				strings.Contains(text, "0x41") {
				t.Errorf("verb %s shows the key: %s", verb, text)
			}
		}
	}
}

func TestF7_DerivedValuesGolden(t *testing.T) {
	k := testKey(1)
	k0, k1 := HashKey(k)
	sum := sha256.Sum256(k[:])
	if id := fmt.Sprintf("%016x", ClusterID(k)); id != hex.EncodeToString(sum[:8]) {
		t.Errorf("cluster id %s", id)
	}
	if got := fmt.Sprintf("%016x %016x", k0, k1); got != goldenHashKey {
		t.Errorf("hash key %s, want %s", got, goldenHashKey)
	}
	if o0, o1 := HashKey(testKey(2)); o0 == k0 || o1 == k1 {
		t.Error("two clusters hash alike")
	}
}

const goldenHashKey = "b94fab11a3724f51 3d2dbd24b1e1f749"

func TestGenerateKey(t *testing.T) {
	if k, err := GenerateKey(bytes.NewReader(bytes.Repeat([]byte{7}, 32))); err != nil || k[31] != 7 {
		t.Errorf("%v", err)
	}
	if _, err := GenerateKey(bytes.NewReader(make([]byte, 31))); err == nil {
		t.Error("short random source")
	}
	if _, err := GenerateKey(bytes.NewReader(make([]byte, 32))); err == nil {
		t.Error("random source of zeros")
	}
}

func TestRES1_NoAllocationsForKnownSenders(t *testing.T) {
	sealer, opener := NewSealer(testKey(1), cellA, 1), NewOpener(testKey(1), 4)
	buffer := make([]byte, wire.DatagramMax)
	payload := bytes.Repeat([]byte("p"), 208)
	round := func() error {
		d := wire.AppendHeader(buffer[:0], wire.Header{Type: wire.TypeDelta, PayloadLength: 208, Sender: cellA})
		_, _, err := opener.Open(sealer.Seal(append(d, payload...)))
		return err
	}
	for _, overlap := range []bool{false, true} {
		if overlap {
			opener.Rekey(testKey(2))
		}
		if err := round(); err != nil {
			t.Fatal(err)
		}
		if n := testing.AllocsPerRun(200, func() { _ = round() }); n != 0 {
			t.Errorf("overlap %t: %v allocations", overlap, n)
		}
	}
	forged := datagram(cellA, wire.TypeDelta, string(payload))
	forged = append(append(forged, 0, 0, 9, 0, 0, 0, 0, 1), make([]byte, tagSize)...)
	if n := testing.AllocsPerRun(200, func() {
		if _, _, err := opener.Open(append(buffer[:0], forged...)); err != ErrForged {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("forged datagram of a known sender: %v allocations", n)
	}
}

func BenchmarkSealOpen208(b *testing.B) {
	sealer, opener := NewSealer(testKey(1), cellA, 1), NewOpener(testKey(1), 4)
	buffer := make([]byte, wire.DatagramMax)
	payload := bytes.Repeat([]byte("p"), 208)
	b.ReportAllocs()
	for b.Loop() {
		d := wire.AppendHeader(buffer[:0], wire.Header{Type: wire.TypeDelta, PayloadLength: 208, Sender: cellA})
		if _, _, err := opener.Open(sealer.Seal(append(d, payload...))); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkOpenForgedStranger(b *testing.B) {
	opener := NewOpener(testKey(1), 4)
	forged := datagram(cellA, wire.TypeDelta, strings.Repeat("p", 208))
	forged = append(append(forged, 0, 0, 9, 0, 0, 0, 0, 1), make([]byte, tagSize)...)
	b.ReportAllocs()
	buffer := make([]byte, wire.DatagramMax)
	for i := 0; b.Loop(); i++ {
		d := append(buffer[:0], forged...)
		d[11] = byte(i)
		if _, _, err := opener.Open(d); err != ErrForged {
			b.Fatal(err)
		}
	}
}
