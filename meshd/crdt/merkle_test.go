package crdt

import (
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"colloid.net/meshd/wire"
)

func TestF52_DigestSeesValueAndContext(t *testing.T) {
	put := func(value string, context ...wire.Dot) uint64 {
		s := New(Options{Self: 1, HashKey0: 1, HashKey1: 2})
		m := newModel("spread.web").write(value, wire.Dot{Actor: 5, Sequence: 1})
		for _, d := range context {
			m.context[d.Actor] = d.Sequence
		}
		r := m.record(s)
		mustMerge(t, s, &r)
		return s.Root()
	}
	base := put("a")
	if base == 0 || base != put("a") {
		t.Fatal("equal states have different roots")
	}
	if base == put("b") {
		t.Fatal("another value under the same dot is invisible")
	}
	if base == put("a", wire.Dot{Actor: 6, Sequence: 1}) {
		t.Fatal("another context is invisible")
	}
}

// TestF52_LevelsAgreeWithASlowTree compares every level with a tree hashed afresh from the leaves,
// after random mutations with and without views that force copying.
func TestF52_LevelsAgreeWithASlowTree(t *testing.T) {
	for seed := range uint64(12) {
		random := rand.New(rand.NewPCG(seed, 52))
		s := New(Options{Self: 1, HashKey0: 1, HashKey1: 2})
		var views []*View
		var frozen [][]uint64
		sequence := uint64(0)
		for range 5 {
			for range random.IntN(200) {
				sequence++
				name := gcKeyN(random.IntN(300))
				if at, found := s.find(s.Hash(name), name); found && random.IntN(3) == 0 {
					s.drop(at)
					continue
				}
				s.Write(name, []byte("v"), wire.Dot{Actor: 1, Sequence: sequence})
			}
			if random.IntN(2) == 0 {
				v := s.View()
				views = append(views, v)
				frozen = append(frozen, slowTree(v))
			}
		}
		tree := slowTree(s.View())
		for range 20 {
			depth := random.IntN(Depth + 1)
			levels := random.IntN(min(7, Depth-depth) + 1)
			prefix := random.IntN(1 << depth)
			for i, digest := range s.Level(depth, prefix, levels, nil) {
				if digest != tree[1<<(depth+levels)+prefix<<levels+i] {
					t.Fatalf("node (%d, %d) differs", depth+levels, prefix<<levels+i)
				}
			}
		}
		for i, v := range views {
			again := slowTree(v)
			for n := range again {
				if again[n] != frozen[i][n] {
					t.Fatal("a view changed")
				}
			}
			v.Release()
		}
	}
}

func slowTree(v *View) []uint64 {
	tree := make([]uint64, 2*Leaves)
	for leaf := range Leaves {
		if b := v.blocks[leaf>>blockBits]; b != nil {
			tree[Leaves+leaf] = b.leaves[leaf&(1<<blockBits-1)]
		}
	}
	for n := Leaves - 1; n > 0; n-- {
		tree[n] = v.combine(tree[2*n], tree[2*n+1])
	}
	return tree
}

// TestF52_LeafDigestIsOfItsKeysOnly: every register is found by the digest of exactly one leaf.
func TestF52_LeafDigestIsOfItsKeysOnly(t *testing.T) {
	s := New(Options{Self: 1, HashKey0: 1, HashKey1: 2})
	leaves := map[int]bool{}
	for i := range 500 {
		name := gcKeyN(i)
		s.Write(name, []byte("v"), wire.Dot{Actor: 1, Sequence: uint64(i + 1)})
		leaves[leafOf(s.Hash(name))] = true
	}
	for leaf, digest := range s.View().leafDigests() {
		if (digest != 0) != leaves[leaf] {
			t.Fatalf("leaf %d: digest %x, has keys %v", leaf, digest, leaves[leaf])
		}
	}
}

func (v *View) leafDigests() []uint64 { return slowTree(v)[Leaves:] }

// Ranges of leaves, a word at a time, against the same leaf by leaf.
func TestLeafSetRangesAgainstSingleLeaves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		random := seeded(t)
		var fast, slow, fastTo, slowTo, except LeafSet
		for range random.IntN(40) {
			first := random.IntN(Leaves - 300)
			last := first + 1 + random.IntN(300)
			except.Set(first + random.IntN(100))
			kind, holds := random.IntN(4), true
			for leaf := first; leaf < last; leaf++ {
				holds = holds && slow.Has(leaf)
				switch {
				case kind == 0 && !except.Has(leaf):
					slow.Set(leaf)
				case kind == 1:
					slow.Clear(leaf)
				case kind == 2 && slow.Has(leaf):
					slow.Clear(leaf)
					slowTo.Set(leaf)
				}
			}
			if fast.Holds(first, last) != holds {
				t.Fatalf("holds %d to %d: %v", first, last, !holds)
			}
			switch kind {
			case 0:
				fast.Add(first, last, &except)
			case 1:
				fast.Remove(first, last)
			case 2:
				fast.Move(first, last, &fastTo)
			}
			if fast != slow || fastTo != slowTo {
				t.Fatalf("kind %d, %d to %d: sets differ", kind, first, last)
			}
		}
		if fast.Reset(); fast != (LeafSet{}) {
			t.Fatal("something is left")
		}
	})
}

func TestLeafSetAgainstMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		random := seeded(t)
		var set LeafSet
		oracle := map[int]bool{}
		for range random.IntN(300) {
			leaf := random.IntN(Leaves) &^ (random.IntN(2) * 0xfff)
			if random.IntN(3) == 0 {
				set.Clear(leaf)
				delete(oracle, leaf)
			} else {
				set.Set(leaf)
				oracle[leaf] = true
			}
		}
		last, count := -1, 0
		for leaf, ok := set.Next(0); ok; leaf, ok = set.Next(leaf + 1) {
			if !oracle[leaf] || leaf <= last || !set.Has(leaf) {
				t.Fatalf("leaf %d after %d", leaf, last)
			}
			last = leaf
			count++
		}
		if count != len(oracle) {
			t.Fatalf("%d members, want %d", count, len(oracle))
		}
	})
}
