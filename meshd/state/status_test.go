package state

import (
	"bytes"
	"encoding/hex"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"colloid.net/meshd/wire"
)

func TestStatusGolden(t *testing.T) {
	s := CellStatus{Suspect, 0x01020304, []wire.CellID{9, 7, 9}}
	got := hex.EncodeToString(AppendCellStatus(nil, s))
	const want = "01" + "03" + "01020304" + "02" + "0000000000000007" + "0000000000000009"
	if got != want {
		t.Fatalf("status %s, want %s", got, want)
	}
	back, err := ParseCellStatus(AppendCellStatus(nil, s))
	if err != nil || back.Life != Suspect || back.Incarnation != 0x01020304 ||
		!slices.Equal(back.Claimants, []wire.CellID{7, 9}) {
		t.Fatalf("came back as %+v, %v", back, err)
	}
}

func TestStatusRejects(t *testing.T) {
	good := AppendCellStatus(nil, CellStatus{Dead, 3, []wire.CellID{7, 9}})
	for name, change := range map[string]func(b []byte) []byte{
		"empty":              func(b []byte) []byte { return nil },
		"cut":                func(b []byte) []byte { return b[:len(b)-1] },
		"a byte too many":    func(b []byte) []byte { return append(b, 0) },
		"version 2":          func(b []byte) []byte { b[0] = 2; return b },
		"life 0":             func(b []byte) []byte { b[1] = 0; return b },
		"life 6":             func(b []byte) []byte { b[1] = 6; return b },
		"claimants doubled":  func(b []byte) []byte { b[14] = 9; return b },
		"claimants unsorted": func(b []byte) []byte { b[14] = 10; return b },
		"claimant 0":         func(b []byte) []byte { b[14] = 0; return b },
		"five claimants": func(b []byte) []byte {
			return append(append(b[:6], 5), bytes.Repeat([]byte{0, 0, 0, 0, 0, 0, 0, 1}, 5)...)
		},
	} {
		value := change(slices.Clone(good))
		if s, err := ParseCellStatus(value); err == nil {
			t.Errorf("%s: accepted as %+v", name, s)
		}
		if !bytes.Equal(JoinStatusValues(nil, value, good), good) || !bytes.Equal(JoinStatusValues(nil, good,
			value), good) {
			t.Errorf("%s: outranks a valid status", name)
		}
	}
}

// drawStatus draws an encoded status; some are malformed in ways that a decoder could overlook. The
// ranges are small so that equal ranks are frequent.
func drawStatus(t *rapid.T) []byte {
	claimants := rapid.SliceOfN(rapid.SampledFrom([]wire.CellID{1, 2, 3, 4, 5, 6}), 0, ClaimantsMax).Draw(t,
		"claimants")
	value := AppendCellStatus(nil, CellStatus{
		Life:        Life(rapid.IntRange(1, 5).Draw(t, "life")),
		Incarnation: rapid.Uint32Range(1, 2).Draw(t, "incarnation"),
		Claimants:   claimants,
	})
	switch rapid.IntRange(0, 5).Draw(t, "kind") {
	case 0:
		value[rapid.IntRange(0, len(value)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "byte")
	case 1:
		value = value[:rapid.IntRange(0, len(value)).Draw(t, "cut")]
	case 2: // right in all but the order of its claimants
		if len(claimants) >= 2 {
			value = append(value[:6], 2)
			value = append(value, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 4)
		}
	}
	return value
}

// TestF47_StatusJoinIsALeastUpperBound: associative, commutative, idempotent, total, for any bytes.
func TestF47_StatusJoinIsALeastUpperBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := drawStatus(t), drawStatus(t), drawStatus(t)
		join := func(x, y []byte) []byte { return JoinStatusValues(nil, x, y) }
		if !bytes.Equal(join(a, a), a) {
			t.Fatalf("not idempotent: %x became %x", a, join(a, a))
		}
		if !bytes.Equal(join(a, b), join(b, a)) {
			t.Fatalf("not commutative: %x and %x give %x or %x", a, b, join(a, b), join(b, a))
		}
		if left, right := join(join(a, b), c), join(a, join(b, c)); !bytes.Equal(left, right) {
			t.Fatalf("not associative: %x %x %x give %x or %x", a, b, c, left, right)
		}
		if ab := join(a, b); !bytes.Equal(join(ab, a), ab) || !bytes.Equal(join(ab, b), ab) {
			t.Fatalf("not an upper bound: %x of %x and %x", ab, a, b)
		}
		// In place over either side, as the store does it.
		if ab := join(a, b); !bytes.Equal(JoinStatusValues(slices.Clone(a)[:0], a, b), ab) {
			t.Fatalf("joining into a buffer differs")
		}
	})
}

// TestF47_StatusJoinAgainstModel compares the join with its definition on decoded values.
func TestF47_StatusJoinAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x, y := drawStatus(t), drawStatus(t)
		a, errA := ParseCellStatus(x)
		b, errB := ParseCellStatus(y)
		var want []byte
		switch {
		case errA != nil && errB != nil:
			want = slices.MaxFunc([][]byte{x, y}, bytes.Compare)
		case errB != nil || errA == nil && a.Outranks(b):
			want = x
		case errA != nil || b.Outranks(a):
			want = y
		default:
			all := append(slices.Clone(a.Claimants), b.Claimants...)
			slices.Sort(all)
			all = slices.Compact(all)
			a.Claimants = all[max(0, len(all)-ClaimantsMax):]
			want = AppendCellStatus(nil, a)
		}
		if got := JoinStatusValues(nil, x, y); !bytes.Equal(got, want) {
			t.Fatalf("join of %x and %x: %x, want %x", x, y, got, want)
		}
	})
}

func TestF47_LivesRankWithinAnIncarnation(t *testing.T) {
	order := []CellStatus{{Alive, 1, nil}, {Leaving, 1, nil}, {Suspect, 1, nil}, {Dead, 1, nil}, {Gone, 1, nil},
		{Alive, 2, nil}, {Dead, 2, nil}, {Alive, 1<<32 - 1, nil}}
	for i := range order {
		for j := range order {
			if order[i].Outranks(order[j]) != (i > j) {
				t.Errorf("%v against %v", order[i], order[j])
			}
			got := JoinStatusValues(nil, AppendCellStatus(nil, order[i]), AppendCellStatus(nil, order[j]))
			if want := AppendCellStatus(nil, order[max(i, j)]); !bytes.Equal(got, want) {
				t.Errorf("join of %v and %v: %x", order[i], order[j], got)
			}
		}
	}
}

func TestStatusJoinDoesNotAllocate(t *testing.T) {
	a := AppendCellStatus(nil, CellStatus{Suspect, 1, []wire.CellID{1, 2, 3, 4}})
	b := AppendCellStatus(nil, CellStatus{Suspect, 1, []wire.CellID{5, 6, 7, 8}})
	claimants := []wire.CellID{3, 1}
	buffer := make([]byte, 0, 64)
	if n := testing.AllocsPerRun(100, func() {
		JoinStatusValues(buffer, a, b)
		AppendCellStatus(buffer, CellStatus{Suspect, 1, claimants})
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzStatus(f *testing.F) {
	f.Add(AppendCellStatus(nil, CellStatus{Suspect, 1, []wire.CellID{1, 2}}), AppendCellStatus(nil,
		CellStatus{Suspect, 1, []wire.CellID{3}}))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		if s, err := ParseCellStatus(a); err == nil && !bytes.Equal(AppendCellStatus(nil, s), a) {
			t.Fatalf("%x has another form: %x", a, AppendCellStatus(nil, s))
		}
		ab := JoinStatusValues(nil, a, b)
		if !bytes.Equal(ab, JoinStatusValues(nil, b, a)) || !bytes.Equal(ab, JoinStatusValues(nil, ab, a)) {
			t.Fatalf("join of %x and %x is no join", a, b)
		}
	})
}
