package crdt

import (
	"fmt"
	"testing"

	"colloid.net/meshd/wire"
)

// meet is a complete session: everything of both sides, answers to stale entries, then the vectors.
func meet(a, b *Store) {
	ofA, ofB := a.AppendStable(nil), b.AppendStable(nil)
	for _, way := range [][2]*Store{{a, b}, {b, a}} {
		from, to := way[0], way[1]
		var all []wire.Record
		from.Walk("", func(r Register) bool {
			from.FramesOf(r, 1160, func(f *wire.Record) bool {
				all = append(all, copyRecord(f))
				return true
			})
			return true
		})
		for i := range all {
			if to.Merge(&all[i]).Stale {
				var answer wire.Record
				to.StaleAnswer(&answer)
				answer = copyRecord(&answer)
				from.Merge(&answer)
			}
		}
	}
	a.RaiseStable(ofB)
	b.RaiseStable(ofA)
}

func trio() (a, b, c *Store) {
	return New(Options{Self: 1}), New(Options{Self: 2}), New(Options{Self: 3})
}

// dotted writes and states the write as stable, as a cell whose own writes survive restarts does.
func dotted(s *Store, name, value string, sequence uint64) {
	s.Write([]byte(name), []byte(value), wire.Dot{Actor: s.self, Sequence: sequence})
	s.OwnStable(sequence)
}

// TestF45_TheTraceOfTheReview: C misses the tombstone (A,2) and gets (A,3) on another key. The text's
// watermark frees the tombstone then; the vector does not.
func TestF45_TheTraceOfTheReview(t *testing.T) {
	a, b, c := trio()
	dotted(a, "spread.k1", "v", 1)
	meet(a, b)
	meet(a, c)
	dotted(a, "spread.k1", "", 2)
	dotted(a, "spread.k2", "w", 3)
	meet(a, b)
	exchange(a, c, []byte("spread.k2")) // gossip: C has (A,3), not (A,2)
	if c.Stable(1) != 1 {
		t.Fatalf("C's vector is at %d", c.Stable(1))
	}
	vectors := [][]byte{b.AppendStable(nil), c.AppendStable(nil)}
	if freed := a.Collect(vectors); freed != 0 {
		t.Fatal("a tombstone that C lacks was freed")
	}
	meet(b, c)
	meet(a, c)
	vectors = [][]byte{b.AppendStable(nil), c.AppendStable(nil)}
	if freed := a.Collect(vectors); freed != 1 {
		t.Fatal("a tombstone that everybody has was not freed")
	}
	if deleted, _ := a.Tombstones(); deleted != 0 || a.Len() != 1 {
		t.Fatal("the key is still there")
	}
}

// TestF45_StaleEntryBesideANewValue: rule (iii) holds for present registers too. After the tombstone
// was freed the key is written anew; an old value from far away must not stand beside the new one.
func TestF45_StaleEntryBesideANewValue(t *testing.T) {
	a, b, c := trio()
	dotted(a, "spread.k", "old", 1)
	var old wire.Record
	r, _ := a.Get([]byte("spread.k"))
	r.Record(&old)
	old = copyRecord(&old)
	meet(a, b)
	dotted(b, "spread.k", "", 1)
	meet(a, b)
	for _, s := range []*Store{a, b} {
		s.Collect([][]byte{a.AppendStable(nil), b.AppendStable(nil)})
		if s.Len() != 0 {
			t.Fatal("the tombstone is still there")
		}
	}
	dotted(b, "spread.k", "new", 2)
	meet(a, b)
	c.Merge(&old) // a cell that knows nothing takes the old value for news
	outcome := a.Merge(&old)
	if !outcome.Stale {
		t.Fatalf("the old value was not recognised: %+v", outcome)
	}
	var answer wire.Record
	a.StaleAnswer(&answer)
	if err := wire.CheckRecord(&answer); err != nil || answer.EntryCount != 0 {
		t.Fatalf("answer %+v: %v", answer, err)
	}
	if !c.Merge(&answer).Changed {
		t.Fatal("the answer changed nothing")
	}
	meet(a, c)
	meet(a, b)
	for i, s := range []*Store{a, b, c} {
		r, _ := s.Get([]byte("spread.k"))
		if value, ok := r.Live(); !ok || string(value) != "new" {
			t.Fatalf("cell %d: %q, %d entries", i+1, value, r.EntryCount())
		}
		if s.Root() != a.Root() {
			t.Fatalf("cell %d differs", i+1)
		}
	}
}

// TestF46_ReturningZombie: a cell expelled for a week comes back. What was deleted meanwhile stays
// deleted, what it wrote while away survives.
func TestF46_ReturningZombie(t *testing.T) {
	a, b, z := trio()
	for i := range 100 {
		dotted(a, string(gcKey(i)), "v", uint64(i+1))
	}
	meet(a, b)
	meet(a, z)
	meet(a, b)
	dotted(z, "spread.mine", "written while away", 1)
	for i := range 100 {
		dotted(a, string(gcKey(i)), "", uint64(i+101))
	}
	meet(a, b)
	for _, s := range []*Store{a, b} { // z does not count any more
		if freed := s.Collect([][]byte{a.AppendStable(nil), b.AppendStable(nil)}); freed != 100 {
			t.Fatalf("%d freed, want 100", freed)
		}
	}
	meet(z, b)
	meet(z, a)
	meet(a, b)
	for i, s := range []*Store{a, b, z} {
		s.Collect([][]byte{a.AppendStable(nil), b.AppendStable(nil), z.AppendStable(nil)})
		live := 0
		s.Walk("", func(r Register) bool {
			if _, ok := r.Live(); ok {
				live++
			}
			return true
		})
		if live != 1 || s.Len() != 1 {
			t.Fatalf("cell %d: %d live keys of %d, want only the zombie's own write", i+1, live, s.Len())
		}
	}
}

// TestF45_EmptiedRegistersAreNotDigested: a cell that still remembers a superseded key and one that
// has forgotten it have equal roots.
func TestF45_EmptiedRegistersAreNotDigested(t *testing.T) {
	a, b, _ := trio()
	root := a.Root()
	r := wire.Record{KeyHash: a.Hash([]byte("spread.k")), Name: []byte("spread.k"),
		Context: wire.AppendDot(nil, wire.Dot{Actor: 9, Sequence: 9})}
	if !a.Merge(&r).Changed {
		t.Fatal("not remembered")
	}
	if _, emptied := a.Tombstones(); emptied != 1 || a.Root() != root || a.Root() != b.Root() {
		t.Fatal("an emptied register shows in the digest")
	}
	if a.Collect(nil) != 0 {
		t.Fatal("forgotten too early")
	}
	a.RaiseStable(r.Context)
	if a.Collect(nil) != 1 || a.Len() != 0 {
		t.Fatal("not forgotten")
	}
}

func TestF45_MembersWithoutAVectorHoldTombstones(t *testing.T) {
	a, _, _ := trio()
	dotted(a, "spread.k", "v", 1)
	dotted(a, "spread.k", "", 2)
	if a.Collect([][]byte{nil}) != 0 {
		t.Fatal("freed although a member never stated its vector")
	}
	if a.Collect(nil) != 1 {
		t.Fatal("a lone cell must free its own tombstones")
	}
}

func TestRaiseStableRefusesMalformedVectors(t *testing.T) {
	a, _, _ := trio()
	dot := wire.AppendDot(nil, wire.Dot{Actor: 5, Sequence: 9})
	for _, raw := range [][]byte{dot[:15], append(dot, dot...), make([]byte, 16)} {
		if a.RaiseStable(raw) || a.Stable(5) != 0 {
			t.Fatalf("took % x", raw)
		}
	}
	if !a.RaiseStable(dot) || a.Stable(5) != 9 {
		t.Fatal("a good vector was refused")
	}
	if low := wire.AppendDot(nil, wire.Dot{Actor: 5, Sequence: 3}); !a.RaiseStable(low) || a.Stable(5) != 9 {
		t.Fatal("the vector fell")
	}
}

// Collection looks at every leaf, the first and the last one too.
func TestF45_EveryLeafIsCollected(t *testing.T) {
	s := New(Options{Self: 1})
	leaves, sequence := map[int]bool{}, uint64(0)
	for i := 0; !leaves[0] || !leaves[Leaves-1]; i++ {
		name := fmt.Appendf(nil, "spread.%d", i)
		leaf := LeafOf(s.Hash(name))
		if leaf != 0 && leaf != Leaves-1 && i > 100 || leaves[leaf] {
			continue
		}
		leaves[leaf] = true
		sequence++
		s.Write(name, nil, wire.Dot{Actor: 1, Sequence: sequence})
	}
	s.OwnStable(sequence)
	if freed := s.Collect(nil); freed != len(leaves) || s.Len() != 0 {
		t.Errorf("%d of %d tombstones freed", freed, len(leaves))
	}
}
