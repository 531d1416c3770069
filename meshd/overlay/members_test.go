package overlay

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"

	"pgregory.net/rapid"
)

// TestF41_MembersAgainstModel drives the list with random changes and questions and compares every
// answer with a plain sorted slice.
func TestF41_MembersAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const self = wire.CellID(500)
		members := NewMembers(self)
		var model []wire.CellID
		id := rapid.Custom(func(t *rapid.T) wire.CellID {
			return wire.CellID(rapid.Uint64Range(1, 40).Draw(t, "id") * 25)
		})
		t.Repeat(map[string]func(*rapid.T){
			"upsert": func(t *rapid.T) {
				c := id.Draw(t, "cell")
				m := members.Upsert(c)
				if (m == nil) != (c == self) {
					t.Fatalf("upsert of %v gave %v", c, m)
				}
				if m != nil && !slices.Contains(model, c) {
					model = append(model, c)
					slices.Sort(model)
				}
			},
			"remove": func(t *rapid.T) {
				c := id.Draw(t, "cell")
				members.Remove(c)
				model = slices.DeleteFunc(model, func(x wire.CellID) bool { return x == c })
			},
			"": func(t *rapid.T) {
				var got []wire.CellID
				members.Each(func(m *Member) bool { got = append(got, m.ID); return true })
				if !slices.Equal(got, model) || members.Len() != len(model) {
					t.Fatalf("list %v, want %v", got, model)
				}
			},
			"ring": func(t *rapid.T) {
				from, odd := id.Draw(t, "from"), rapid.Bool().Draw(t, "skip odd")
				skip := func(m *Member) bool { return odd && m.ID%2 == 1 }
				ring := rotated(model, from) // after from, from itself last
				ring = slices.DeleteFunc(ring, func(c wire.CellID) bool { return odd && c%2 == 1 })
				compare(t, "successor", members.Successor(from, skip), first(ring))
				others := slices.DeleteFunc(slices.Clone(ring), func(c wire.CellID) bool { return c == from })
				slices.Reverse(others)
				var got []wire.CellID
				for _, m := range members.Predecessors(from, 3, nil, skip) {
					got = append(got, m.ID)
				}
				if want := others[:min(3, len(others))]; !slices.Equal(got, want) {
					t.Fatalf("predecessors of %v: %v, want %v", from, got, want)
				}
				if from != self {
					withSelf := rotated(append(slices.Clone(model), self), from)
					withSelf = slices.DeleteFunc(withSelf, func(c wire.CellID) bool {
						return c == from || c != self && odd && c%2 == 1
					})
					slices.Reverse(withSelf)
					for n := 1; n < 5; n++ {
						want := slices.Index(withSelf, self) < n
						if got := members.Precedes(from, n, skip); got != want {
							t.Fatalf("self among the %d predecessors of %v: %v, want %v", n, from, got, want)
						}
					}
				}
			},
		})
	})
}

// rotated returns the ids clockwise behind from, from itself last.
func rotated(ids []wire.CellID, from wire.CellID) []wire.CellID {
	ids = slices.Clone(ids)
	slices.SortFunc(ids, func(a, b wire.CellID) int {
		if a-from-1 < b-from-1 {
			return -1
		}
		return 1
	})
	return ids
}

func first(ids []wire.CellID) wire.CellID {
	if len(ids) == 0 {
		return 0
	}
	return ids[0]
}

func compare(t *rapid.T, what string, m *Member, want wire.CellID) {
	t.Helper()
	got := wire.CellID(0)
	if m != nil {
		got = m.ID
	}
	if got != want {
		t.Fatalf("%s: %v, want %v", what, got, want)
	}
}

// TestRandomIsUniform draws pairs among members of which most are skipped.
func TestRandomIsUniform(t *testing.T) {
	members := NewMembers(1)
	for id := wire.CellID(2); id < 102; id++ {
		members.Upsert(id)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for _, step := range []wire.CellID{1, 20} {
		counts := map[wire.CellID]int{}
		skip := func(m *Member) bool { return m.ID%step != 0 }
		for range 10000 {
			drawn := members.Random(random, 2, nil, skip)
			if len(drawn) != 2 || drawn[0] == drawn[1] || skip(drawn[0]) || skip(drawn[1]) {
				t.Fatalf("drew %v", drawn)
			}
			counts[drawn[0].ID]++
			counts[drawn[1].ID]++
		}
		eligible := 100 / int(step)
		for id, n := range counts {
			if want := 20000 / eligible; n < want*7/10 || n > want*13/10 {
				t.Errorf("member %v drawn %d times, want about %d", id, n, want)
			}
		}
		if len(counts) != eligible {
			t.Errorf("%d members drawn, want %d", len(counts), eligible)
		}
	}
	if drawn := members.Random(random, 5, nil, func(m *Member) bool { return m.ID > 3 }); len(drawn) != 2 {
		t.Errorf("asked for five of two, got %d", len(drawn))
	}
}

func TestMembersAreBounded(t *testing.T) {
	members := NewMembers(1)
	for id := wire.CellID(2); id < MembersMax+2; id++ {
		if members.Upsert(id) == nil {
			t.Fatalf("member %d refused", id)
		}
	}
	if members.Upsert(MembersMax+2) != nil || members.Upsert(0) != nil ||
		members.Upsert(^wire.CellID(0)) != nil {
		t.Error("a member beyond the bound or with a reserved id was taken")
	}
	if members.Upsert(5) == nil {
		t.Error("a known member is refused at the bound")
	}
}

func TestMembersAllocateNothing(t *testing.T) {
	members := NewMembers(1)
	for id := wire.CellID(2); id < 200; id++ {
		members.Upsert(id)
	}
	random := rand.New(rand.NewPCG(1, 2))
	dst := make([]*Member, 0, 8)
	skip := func(m *Member) bool { return m.Life == state.Dead }
	if n := testing.AllocsPerRun(100, func() {
		members.Get(7)
		members.Successor(1, skip)
		members.Precedes(9, 5, skip)
		dst = members.Predecessors(40, 5, dst[:0], skip)
		dst = members.Random(random, 3, dst[:0], skip)
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

func TestObserveRTT(t *testing.T) {
	m := Member{}
	m.ObserveRTT(100 * time.Millisecond)
	m.ObserveRTT(-time.Second)
	m.ObserveRTT(200 * time.Millisecond)
	if m.RTT != 125*time.Millisecond {
		t.Errorf("average %v, want 125 ms", m.RTT)
	}
}

func TestSubnet(t *testing.T) {
	for address, want := range map[string]string{
		"10.1.2.3":                 "10.1.2.0/24",
		"::ffff:10.1.2.3":          "10.1.2.0/24",
		"2001:db8:1:2ff::9":        "2001:db8:1:200::/56",
		"fe80::1%eth0":             "fe80::/56",
		"2001:db8:1:1ff:9:9:9:9":   "2001:db8:1:100::/56",
		"2001:db8:ffff:ffff::ffff": "2001:db8:ffff:ff00::/56",
	} {
		if got := Subnet(netip.MustParseAddr(address)); got != netip.MustParsePrefix(want) {
			t.Errorf("subnet of %s is %v, want %s", address, got, want)
		}
	}
}
