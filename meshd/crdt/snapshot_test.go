package crdt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"testing"

	"pgregory.net/rapid"

	"colloid.net/meshd/wire"
)

func sample(t testing.TB) *Store {
	s := New(Options{Self: 1, HashKey0: 1, HashKey1: 2})
	fill(s, 3)
	for i := range 6 {
		dotted(s, string(gcKeyN(i)), "v", uint64(2*i+1))
		dotted(s, string(gcKeyN(i/2)), "", uint64(2*i+2))
	}
	r := newModel("spread.key5").write("w", wire.Dot{Actor: 2, Sequence: 1}).record(s)
	mustMerge(t, s, &r)
	empty := wire.Record{Name: []byte("spread.gone"),
		Context: wire.AppendDot(nil, wire.Dot{Actor: 9, Sequence: 9})}
	empty.KeyHash = s.Hash(empty.Name)
	mustMerge(t, s, &empty)
	s.RaiseStable(wire.AppendDot(nil, wire.Dot{Actor: 7, Sequence: 3}))
	return s
}

func TestF157_SnapshotHoldsEverything(t *testing.T) {
	s := sample(t)
	data := s.AppendSnapshot([]byte("prefix"))[len("prefix"):]
	for _, key := range []uint64{1, 77} { // the hash key may have changed since
		c := New(Options{Self: 1, HashKey0: key, HashKey1: 2})
		c.Write([]byte("spread.before"), []byte("x"), wire.Dot{Actor: 1, Sequence: 999})
		if err := c.LoadSnapshot(data); err != nil {
			t.Fatal(err)
		}
		if c.Len() != s.Len() || c.ConflictCount() != s.ConflictCount() || key == 1 && c.Root() != s.Root() ||
			!bytes.Equal(c.AppendStable(nil), s.AppendStable(nil)) {
			t.Fatal("the copy differs")
		}
		a1, a2 := s.Tombstones()
		if b1, b2 := c.Tombstones(); a1 != b1 || a2 != b2 || a1 == 0 || a2 == 0 {
			t.Fatal("tombstones differ")
		}
		if key == 1 && !bytes.Equal(c.AppendSnapshot(nil), data) {
			t.Fatal("the copy's snapshot differs")
		}
	}
}

func TestF157_DamagedSnapshotsLeaveTheStoreEmpty(t *testing.T) {
	data := sample(t).AppendSnapshot(nil)
	s := New(Options{Self: 1, HashKey0: 1, HashKey1: 2})
	check := func(what string, damaged []byte, want error) {
		t.Helper()
		if err := s.LoadSnapshot(damaged); !errors.Is(err, want) {
			t.Fatalf("%s: error %v", what, err)
		}
		if s.Len() != 0 || s.Root() != 0 || s.Stable(7) != 0 {
			t.Fatalf("%s: the store is not empty", what)
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		damaged := bytes.Clone(data)
		at := rapid.IntRange(0, len(data)-1).Draw(rt, "at")
		if rapid.Bool().Draw(rt, "cut") {
			damaged = damaged[:at]
		} else if at != 8 && at != 9 {
			damaged[at] ^= byte(rapid.IntRange(1, 255).Draw(rt, "flip"))
		} else {
			return
		}
		if err := s.LoadSnapshot(damaged); err == nil || s.Len() != 0 {
			rt.Fatalf("byte %d: error %v, %d keys", at, err, s.Len())
		}
	})
	newer := bytes.Clone(data)
	newer[9]++
	check("newer version", reseal(newer), ErrSnapshotVersion)
	check("longer", append(bytes.Clone(data), 0), ErrSnapshotDamaged)
	check("empty", nil, ErrSnapshotDamaged)
	small := New(Options{Self: 1, KeysMax: 2})
	if err := small.LoadSnapshot(data); !errors.Is(err, ErrSnapshotFull) || small.Len() != 0 {
		t.Fatalf("too many keys: %v", err)
	}
	if err := s.LoadSnapshot(data); err != nil || s.Len() == 0 {
		t.Fatal("the undamaged snapshot does not load")
	}
}

// reseal makes length and checksum right again.
func reseal(data []byte) []byte {
	if len(data) < snapshotHead+snapshotTail {
		return data
	}
	binary.BigEndian.PutUint64(data[26:], uint64(len(data)))
	end := len(data) - snapshotTail
	binary.BigEndian.PutUint32(data[end:], crc32.Checksum(data[:end], castagnoli))
	return data
}

// FuzzLoadSnapshot: whatever the file holds, loading neither panics nor leaves half a state, and what
// loads is saved and loaded again alike.
func FuzzLoadSnapshot(f *testing.F) {
	data := sample(f).AppendSnapshot(nil)
	f.Add(data, true)
	f.Add(data[:len(data)/2], true)
	f.Add(data, false)
	f.Add([]byte{}, false)
	f.Fuzz(func(t *testing.T, data []byte, repair bool) {
		if repair {
			data = reseal(bytes.Clone(data))
		}
		s := New(Options{Self: 1, HashKey0: 1, HashKey1: 2})
		if err := s.LoadSnapshot(data); err != nil {
			if s.Len() != 0 || s.Root() != 0 || len(s.AppendStable(nil)) != 0 {
				t.Fatal("not empty after an error")
			}
			return
		}
		c := New(Options{Self: 1, HashKey0: 1, HashKey1: 2})
		if err := c.LoadSnapshot(s.AppendSnapshot(nil)); err != nil || c.Root() != s.Root() || c.Len() != s.Len() {
			t.Fatalf("saved and loaded: %v", err)
		}
	})
}

// FuzzMerge: arbitrary records keep the store's invariants.
func FuzzMerge(f *testing.F) {
	s := sample(f)
	s.Walk("", func(r Register) bool {
		var record wire.Record
		r.Record(&record)
		f.Add(record.Name, record.EntryCount, bytes.Clone(record.Entries), bytes.Clone(record.Context))
		return true
	})
	f.Fuzz(func(t *testing.T, name []byte, count int, entries, context []byte) {
		s := sample(t)
		r := wire.Record{KeyHash: s.Hash(name), Name: name, EntryCount: count, Entries: entries, Context: context}
		outcome := s.Merge(&r)
		if s.Merge(&r).Changed || outcome.Rejected && outcome.Changed {
			t.Fatal("not idempotent")
		}
		s.Walk("", func(r Register) bool {
			var record wire.Record
			r.Record(&record)
			if !wellFormed(&record) {
				t.Fatalf("register %s is broken", r.Name())
			}
			return true
		})
	})
}
