package wire

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func drawCell(t *rapid.T) CellID {
	return CellID(rapid.Uint64Range(1, 1<<64-2).Draw(t, "cell"))
}

func drawAddress(t *rapid.T) netip.AddrPort {
	port := rapid.Uint16Range(1, 65535).Draw(t, "port")
	raw := [16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "address"))
	if rapid.Bool().Draw(t, "v4") {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(raw[:4])), port)
	}
	return netip.AddrPortFrom(netip.AddrFrom16(raw).Unmap(), port)
}

func drawContact(t *rapid.T) Contact {
	return Contact{drawCell(t), drawAddress(t), Reach(rapid.IntRange(0, 3).Draw(t, "reach")),
		rapid.Byte().Draw(t, "flags")}
}

// drawRecord draws a valid record with any number of entries.
func drawRecord(t *rapid.T, entriesMax int) *Record {
	actors := rapid.SliceOfNDistinct(rapid.Uint64Range(1, 1<<64-2), 1, FrameContextMax, rapid.ID).Draw(t,
		"actors")
	slices.Sort(actors)
	r := &Record{
		KeyHash: rapid.Uint64().Draw(t, "hash"),
		Name:    rapid.SliceOfN(rapid.ByteRange(0x20, 0x7e), 1, NameMax).Draw(t, "name"),
	}
	for _, actor := range actors {
		dot := Dot{CellID(actor), rapid.Uint64Min(1).Draw(t, "sequence")}
		r.Context = AppendDot(r.Context, dot)
		if r.EntryCount < entriesMax && rapid.Bool().Draw(t, "has an entry") {
			value := rapid.SliceOfN(rapid.Byte(), 0, ValueMax).Draw(t, "value")
			r.Entries = AppendEntry(r.Entries, dot, value)
			r.EntryCount++
		}
	}
	return r
}

// TestF22_ParseOfAppendIsIdentity is the other half of what the fuzz targets hold: whatever valid
// thing is sent arrives as it was, whatever lies in the buffer before it.
func TestF22_ParseOfAppendIsIdentity(t *testing.T) {
	prefix := []byte("before")
	rapid.Check(t, func(t *rapid.T) {
		var got Record
		state := drawRecord(t, FrameContextMax)
		encoded := AppendStateRecord(slices.Clone(prefix), state)[len(prefix):]
		rest, err := NextStateRecord(append(encoded, "tail"...), &got)
		if err != nil || string(rest) != "tail" || !equal(state, &got) || len(encoded) != RecordSize(state) {
			t.Fatalf("state record: %v, rest %q\nsent %+v\n got %+v", err, rest, state, got)
		}
		delta := drawRecord(t, 1)
		if delta.EntryCount == 1 {
			encoded := AppendDelta(slices.Clone(prefix), delta)[len(prefix):]
			if err := ParseDelta(encoded, &got); err != nil || !equal(delta, &got) {
				t.Fatalf("delta: %v\nsent %+v\n got %+v", err, delta, got)
			}
		}
		contact := drawContact(t)
		if contact.Check(Options{Loopback: true}) == nil {
			back, err := ParseContact(AppendContact(nil, contact), Options{Loopback: true})
			if err != nil || back != contact {
				t.Fatalf("contact %+v came back as %+v, %v", contact, back, err)
			}
			observed, err := ParsePing(AppendPing(nil, contact.Address))
			if err != nil || observed != contact.Address {
				t.Fatalf("address %v came back as %v, %v", contact.Address, observed, err)
			}
		}
		open := StreamOpen{1, drawCell(t), StreamExec, state.Name, AppendExtension(nil, 9, state.Name)}
		if back, err := ParseStreamOpen(AppendStreamOpen(nil, open)); err != nil || !reflect.DeepEqual(back, open) {
			t.Fatalf("open %+v came back as %+v, %v", open, back, err)
		}
		levels := rapid.Uint8Range(0, MerkleLevelsMax).Draw(t, "levels")
		depth := rapid.Uint8Range(0, MerkleDepth-levels).Draw(t, "depth")
		m := MerkleRange{depth, uint16(rapid.Uint32Range(0, 1<<depth-1).Draw(t, "prefix")), levels}
		hashes := rapid.SliceOfN(rapid.Uint64(), m.Width(), m.Width()).Draw(t, "hashes")
		back, err := ParseMerkleResp(AppendMerkleResp(nil, m, hashes))
		if err != nil || back.Range != m || back.Len() != len(hashes) ||
			back.At(m.Width()-1) != hashes[m.Width()-1] {
			t.Fatalf("merkle range %+v came back as %+v, %v", m, back.Range, err)
		}
	})
}

// TestContextLookupAgainstScan compares the binary search with the obvious loop.
func TestContextLookupAgainstScan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := drawRecord(t, 0)
		asked := drawCell(t)
		if rapid.Bool().Draw(t, "present") {
			asked = DotAt(r.Context[rapid.IntRange(0, len(r.Context)/DotSize-1).Draw(t, "at")*DotSize:]).Actor
		}
		want := uint64(0)
		for raw := r.Context; len(raw) > 0; raw = raw[DotSize:] {
			if dot := DotAt(raw); dot.Actor == asked {
				want = dot.Sequence
			}
		}
		if got := ContextLookup(r.Context, asked); got != want {
			t.Fatalf("sequence of %s: %d, want %d", asked, got, want)
		}
	})
}
