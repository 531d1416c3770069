package crdt

import (
	"testing"

	"pgregory.net/rapid"

	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// TestF47_StatusIsAMaxRegister: associativity, commutativity and idempotence, context and digests
// included, over values from any writers with sequences in any order; one entry always.
func TestF47_StatusIsAMaxRegister(t *testing.T) {
	name := state.StatusKey(5)
	rapid.Check(t, func(t *rapid.T) {
		random := seeded(t)
		h := newHistory(random, name, 2+random.IntN(5))
		for i := range h.next {
			h.next[i] = uint64(random.IntN(100)) // other incarnations: no order between the cells' sequences
		}
		for range 2 + random.IntN(25) {
			h.step()
		}
		if len(h.states) < 3 {
			return
		}
		pick := func() *Store {
			s := New(Options{Self: 99})
			r := h.states[random.IntN(len(h.states))].record(s)
			s.Merge(&r)
			return s
		}
		join := func(a, b *Store) *Store {
			s := New(Options{Self: 99})
			for _, from := range []*Store{a, b} {
				exchange(from, s, []byte(name))
			}
			return s
		}
		a, b, c := pick(), pick(), pick()
		left, right := join(join(a, b), c), join(a, join(b, c))
		if left.Root() != right.Root() || join(a, b).Root() != join(b, a).Root() || join(a, a).Root() != a.Root() {
			t.Fatal("the join depends on order or grouping")
		}
		r, _ := left.Get([]byte(name))
		dot, _, ok := r.Latest()
		if r.EntryCount() != 1 || !ok || wire.ContextLookup(r.Context(), dot.Actor) != dot.Sequence {
			t.Fatalf("%d entries, dot %v", r.EntryCount(), dot)
		}
	})
}

func TestF47_LocalWriteNeverLowersTheStatus(t *testing.T) {
	s := New(Options{Self: 1})
	name := []byte(state.StatusKey(5))
	claim := func(life state.Life, by wire.CellID) []byte {
		return state.AppendCellStatus(nil,
			state.CellStatus{Life: life, Incarnation: 3, Claimants: []wire.CellID{by}})
	}
	dead := claim(state.Dead, 2)
	alive := claim(state.Alive, 5)
	s.Write(name, dead, wire.Dot{Actor: 1, Sequence: 1})
	s.Write(name, alive, wire.Dot{Actor: 1, Sequence: 2})
	r, _ := s.Get(name)
	value, ok := r.Live()
	if !ok || string(value) != string(dead) {
		t.Fatalf("value % x", value)
	}
	if outcome := s.Write(name, nil, wire.Dot{Actor: 1, Sequence: 3}); !outcome.Rejected {
		t.Fatal("a status was deleted")
	}
	accused := claim(state.Dead, 1)
	s.Write(name, accused, wire.Dot{Actor: 1, Sequence: 4})
	r, _ = s.Get(name)
	value, _ = r.Live()
	if status, err := state.ParseCellStatus(value); err != nil || len(status.Claimants) != 2 {
		t.Fatalf("claimants were not united: %+v, %v", status, err)
	}
}
