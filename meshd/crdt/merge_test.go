package crdt

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

var names = []string{"spread.web", "stateful.db", "health.0000000000000001.status",
	"health.0000000000000002.contact",
	"kv.app.counter", "gateway.10.0.0.1", "ep.0000000000000003.web", "health.0000000000000002.status"}

func seeded(t *rapid.T) *rand.Rand {
	return rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
}

// TestSEC_AnyOrderDuplicationAndFragments: stores that got the same states in any order, repeated and
// cut into frames, hold exactly what the set-theoretic join says and have equal roots. It runs with an
// 8-bit hash as well, so that names collide all the time (F16).
func TestSEC_AnyOrderDuplicationAndFragments(t *testing.T) {
	for _, mask := range []uint64{^uint64(0), 0xff << 56, 0} {
		t.Run(fmt.Sprintf("mask %x", mask), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) { checkSEC(t, mask) })
		})
	}
}

func checkSEC(t *rapid.T, mask uint64) {
	random := seeded(t)
	stores := [3]*Store{}
	for i := range stores {
		stores[i] = New(Options{Self: wire.CellID(90 + i), HashKey0: 1, HashKey1: 2})
		stores[i].hashMask = mask
	}
	var records []wire.Record
	var joins []modelRegister
	for _, name := range names {
		h := newHistory(random, name, 2+random.IntN(4))
		for range random.IntN(20) {
			h.step()
		}
		if len(h.states) == 0 {
			continue
		}
		for _, s := range h.states {
			if random.IntN(2) == 0 {
				records = append(records, s.record(stores[0]))
			} else {
				records = append(records, frames(stores[0], s, FrameBudgetMin)...)
			}
		}
		joins = append(joins, h.join())
	}
	for _, s := range stores {
		random.Shuffle(len(records), func(i, j int) { records[i], records[j] = records[j], records[i] })
		for i := range records {
			for range 1 + random.IntN(2) {
				if s.Merge(&records[i]).Rejected {
					t.Fatalf("record of %s rejected", records[i].Name)
				}
			}
			if random.IntN(10) == 0 {
				s.Root() // rehashing early must not matter
			}
		}
		if s.Root() != stores[0].Root() || s.Len() != len(joins) {
			t.Fatalf("roots differ, or %d keys instead of %d", s.Len(), len(joins))
		}
		for _, j := range joins {
			if err := j.expect(s); err != nil {
				t.Fatal(err)
			}
		}
		for i := range records { // idempotent
			if s.Merge(&records[i]).Changed {
				t.Fatalf("known record of %s changed the store", records[i].Name)
			}
		}
	}
}

// TestSAFE4_NoConcurrentValueIsLost: whatever is merged, every entry that no later write has seen is
// there. The truth is kept apart from contexts: each write notes what it superseded.
func TestSAFE4_NoConcurrentValueIsLost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		random := seeded(t)
		const cells = 4
		name := []byte("spread.web")
		stores := make([]*Store, cells)
		for i := range stores {
			stores[i] = New(Options{Self: wire.CellID(i + 1), HashKey0: 1, HashKey1: 2})
		}
		superseded := map[wire.Dot]bool{}
		written := map[wire.Dot]bool{}
		for step := range 40 {
			i := random.IntN(cells)
			if random.IntN(2) == 0 {
				if r, ok := stores[i].Get(name); ok {
					for rest := r.Entries(); len(rest) > 0; {
						var d wire.Dot
						d, _, rest, _ = wire.NextEntry(rest)
						superseded[d] = true
					}
				}
				dot := wire.Dot{Actor: wire.CellID(i + 1), Sequence: uint64(step + 1)}
				stores[i].Write(name, fmt.Appendf(nil, "v%d", step), dot)
				written[dot] = true
			} else {
				exchange(stores[i], stores[random.IntN(cells)], name)
			}
		}
		for range cells {
			for i := range stores {
				for j := range stores {
					exchange(stores[i], stores[j], name)
				}
			}
		}
		for i, s := range stores {
			r, _ := s.Get(name)
			held := 0
			for d := range written {
				if has(r, d) {
					held++
				}
				if has(r, d) == superseded[d] {
					t.Fatalf("cell %d: entry %v held %v, superseded %v", i, d, has(r, d), superseded[d])
				}
			}
			if held != r.EntryCount() {
				t.Fatalf("cell %d holds %d entries, %d were written", i, r.EntryCount(), held)
			}
		}
	})
}

func has(r Register, dot wire.Dot) bool {
	if r.raw == nil {
		return false
	}
	for rest := r.Entries(); len(rest) > 0; {
		var d wire.Dot
		if d, _, rest, _ = wire.NextEntry(rest); d == dot {
			return true
		}
	}
	return false
}

func exchange(from, to *Store, name []byte) {
	if r, ok := from.Get(name); ok && from != to {
		var record wire.Record
		r.Record(&record)
		to.Merge(&record)
	}
}

// TestF43_FramesAreHarmlessOlderStates: all frames together are the state; any of them, in any order
// and number, change nothing where the state is, and never take anything away elsewhere.
func TestF43_FramesAreHarmlessOlderStates(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		random := seeded(t)
		name := names[random.IntN(len(names))]
		h := newHistory(random, name, 2+random.IntN(40))
		for range 1 + random.IntN(120) {
			h.step()
		}
		if len(h.states) == 0 {
			return
		}
		whole := h.join()
		if random.IntN(2) == 0 {
			whole = h.states[random.IntN(len(h.states))]
		}
		fresh := func() *Store { return New(Options{Self: 99, HashKey0: 1, HashKey1: 2}) }
		pieces := frames(fresh(), whole, FrameBudgetMin+random.IntN(500))
		random.Shuffle(len(pieces), func(i, j int) { pieces[i], pieces[j] = pieces[j], pieces[i] })
		all := fresh()
		for i := range pieces {
			if err := wire.CheckRecord(&pieces[i]); err != nil {
				t.Fatalf("frame %d does not fit the wire: %v", i, err)
			}
			all.Merge(&pieces[i])
		}
		if err := whole.expect(all); err != nil {
			t.Fatal(err)
		}
		other := h.states[random.IntN(len(h.states))]
		model := other.clone()
		s := fresh()
		r := other.record(s)
		s.Merge(&r)
		for i := range pieces {
			if all.Merge(&pieces[i]).Changed {
				t.Fatal("a frame changed the state that it came from")
			}
			if random.IntN(2) == 0 {
				s.Merge(&pieces[i])
				for d := range model.entries {
					if _, kept := whole.entries[d]; kept || !whole.dominates(d) {
						if got, _ := s.Get([]byte(name)); !has(got, d) && state.CategoryOf([]byte(name)) != state.Status {
							t.Fatalf("a frame took entry %v away that the state leaves alone", d)
						}
					}
				}
			}
		}
		r = whole.record(s)
		s.Merge(&r)
		if err := model.merge(whole).expect(s); err != nil {
			t.Fatal(err)
		}
	})
}

// TestF2_EqualDotsWithUnequalValues: a cloned cell's writes do not annihilate each other: the bytewise
// greater value stays, wherever they meet, and the duplicate is reported.
func TestF2_EqualDotsWithUnequalValues(t *testing.T) {
	dot := wire.Dot{Actor: 7, Sequence: 5}
	for _, order := range [][2]string{{"aaa", "b"}, {"b", "aaa"}} {
		s := New(Options{Self: 1})
		var last Outcome
		for _, v := range order {
			m := newModel("spread.web").write(v, dot)
			r := m.record(s)
			last = mustMerge(t, s, &r)
		}
		r, _ := s.Get([]byte("spread.web"))
		value, ok := r.Live()
		if !ok || string(value) != "b" || !last.DuplicateDot {
			t.Fatalf("order %v: value %q, ok %v, outcome %+v", order, value, ok, last)
		}
	}
}

// TestF2_NeverFewerDotsThanTheUndominatedUnion holds with forged histories in which dots repeat.
func TestF2_NeverFewerDotsThanTheUndominatedUnion(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		random := seeded(t)
		forge := func() modelRegister {
			m := newModel("spread.web")
			for actor := range 1 + random.IntN(5) {
				d := wire.Dot{Actor: wire.CellID(actor + 1), Sequence: 1 + random.Uint64N(3)}
				m.context[d.Actor] = d.Sequence
				if random.IntN(2) == 0 {
					m.entries[d] = fmt.Sprint(random.IntN(3))
				}
			}
			return m
		}
		a, b := forge(), forge()
		s := New(Options{Self: 99})
		for _, m := range []modelRegister{a, b} {
			r := m.record(s)
			s.Merge(&r)
		}
		r, _ := s.Get([]byte("spread.web"))
		for _, pair := range [][2]modelRegister{{a, b}, {b, a}} {
			for d := range pair[0].entries {
				_, both := pair[1].entries[d]
				if (both || !pair[1].dominates(d)) && !has(r, d) {
					t.Fatalf("dot %v is gone", d)
				}
			}
		}
		if err := a.merge(b).expect(s); err != nil {
			t.Fatal(err)
		}
	})
}

func TestF1_ContextNeverFalls(t *testing.T) {
	s := New(Options{Self: 7, OwnSequence: 1 << wire.CounterBits})
	name := []byte("spread.web")
	ahead := newModel("spread.web").write("old run", wire.Dot{Actor: 7, Sequence: 57})
	r := ahead.record(s)
	if outcome := mustMerge(t, s, &r); outcome.OwnDotAhead {
		t.Fatal("a dot of an earlier incarnation is not ahead")
	}
	outcome := s.Write(name, []byte("x"), wire.Dot{Actor: 7, Sequence: 1})
	if !outcome.Rejected || !outcome.OwnDotAhead {
		t.Fatalf("a write below the own context went through: %+v", outcome)
	}
	outcome = s.Write(name, []byte("new run"), wire.Dot{Actor: 7, Sequence: 1<<wire.CounterBits + 1})
	if !outcome.Changed {
		t.Fatalf("the write of the new incarnation was refused: %+v", outcome)
	}
	r = ahead.record(s)
	if mustMerge(t, s, &r).Changed {
		t.Fatal("the old value came back")
	}
	forged := newModel("spread.other").write("x", wire.Dot{Actor: 7, Sequence: 9 << wire.CounterBits})
	r = forged.record(s)
	if !mustMerge(t, s, &r).OwnDotAhead {
		t.Fatal("an own dot above the own sequence was not reported")
	}
	s.RaiseOwnSequence(10 << wire.CounterBits)
	if mustMerge(t, s, &r).OwnDotAhead {
		t.Fatal("reported although the incarnation was raised above it")
	}
}

func TestSAFE3_WriteResolvesConflictEverywhere(t *testing.T) {
	a, b := New(Options{Self: 1}), New(Options{Self: 2})
	name := []byte("spread.web")
	a.Write(name, []byte("one"), wire.Dot{Actor: 1, Sequence: 1})
	b.Write(name, []byte("two"), wire.Dot{Actor: 2, Sequence: 1})
	send := func(from, to *Store) (outcome Outcome) {
		from.Frames(name, 1160, func(r *wire.Record) bool {
			outcome = to.Merge(r)
			return true
		})
		return outcome
	}
	if o := send(a, b); !o.Conflicted || o.Resolved || b.ConflictCount() != 1 {
		t.Fatalf("conflict not seen: %+v", o)
	}
	send(b, a)
	seen := 0
	a.Conflicts(func(r Register) bool { seen++; return string(r.Name()) == "spread.web" })
	r, _ := a.Get(name)
	if _, live := r.Live(); live || seen != 1 {
		t.Fatal("a key in conflict has no live value")
	}
	before := r.DotDigest()
	if o := a.Write(name, []byte("three"), wire.Dot{Actor: 1, Sequence: 2}); !o.Resolved {
		t.Fatalf("write did not resolve: %+v", o)
	}
	if o := send(a, b); !o.Resolved || b.ConflictCount() != 0 {
		t.Fatalf("resolution not seen by the other cell: %+v", o)
	}
	if r, _ = a.Get(name); r.DotDigest() == before {
		t.Fatal("digest of the dot set did not change (F55)")
	}
}

func TestF55_DotDigestIsNeverReserved(t *testing.T) {
	if d := emptyRegister.DotDigest(); d == 0 || d == 1 {
		t.Fatalf("digest %d", d)
	}
}

// TestF48_TwentySiblings: neither truncation nor merging of equal values; the order of merging is
// irrelevant.
func TestF48_TwentySiblings(t *testing.T) {
	var all []modelRegister
	for actor := range 20 {
		d := wire.Dot{Actor: wire.CellID(actor + 1), Sequence: 1}
		all = append(all, newModel("spread.web").write("same value", d))
	}
	over := all[3].merge(all[4]).write("over two", wire.Dot{Actor: 40, Sequence: 1})
	all = append(all, over)
	random := rand.New(rand.NewPCG(1, 1))
	root := uint64(0)
	for range 50 {
		random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		s := New(Options{Self: 99})
		for _, m := range all {
			r := m.record(s)
			mustMerge(t, s, &r)
		}
		if r, _ := s.Get([]byte("spread.web")); r.EntryCount() != 19 {
			t.Fatalf("%d entries, want 19", r.EntryCount())
		}
		if root != 0 && s.Root() != root {
			t.Fatal("roots differ")
		}
		root = s.Root()
	}
}

// TestF49_SixtyFourActors: contexts have no limit in memory and travel in frames of 32 actors.
func TestF49_SixtyFourActors(t *testing.T) {
	a, b := New(Options{Self: 1}), New(Options{Self: 2})
	name := []byte("kv.app.k")
	for actor := range 64 {
		a.Write(name, fmt.Appendf(nil, "v%d", actor), wire.Dot{Actor: wire.CellID(actor + 1), Sequence: 1})
	}
	count := 0
	a.Frames(name, 1160, func(r *wire.Record) bool {
		if err := wire.CheckRecord(r); err != nil {
			t.Fatal(err)
		}
		b.Merge(r)
		count++
		return true
	})
	if r, _ := b.Get(name); r.ContextCount() != 64 || r.EntryCount() != 1 || count != 2 || a.Root() != b.Root() {
		t.Fatalf("%d actors and %d entries after %d frames", r.ContextCount(), r.EntryCount(), count)
	}
}

func TestF22_MalformedRecordsAreRejected(t *testing.T) {
	s := New(Options{Self: 1, HashKey0: 1, HashKey1: 2})
	good := newModel("spread.web").write("v", wire.Dot{Actor: 5, Sequence: 9}).record(s)
	dot := wire.AppendDot(nil, wire.Dot{Actor: 5, Sequence: 9})
	for what, damage := range map[string]func(*wire.Record){
		"hash of another name": func(r *wire.Record) { r.KeyHash++ },
		"empty name":           func(r *wire.Record) { r.Name = nil },
		"unprintable name":     func(r *wire.Record) { r.Name = []byte("a\nb"); r.KeyHash = s.Hash(r.Name) },
		"count too high":       func(r *wire.Record) { r.EntryCount = 2 },
		"entry cut off":        func(r *wire.Record) { r.Entries = r.Entries[:len(r.Entries)-1] },
		"dot not in the context": func(r *wire.Record) {
			r.Context = wire.AppendDot(nil, wire.Dot{Actor: 5, Sequence: 10})
		},
		"no context":                 func(r *wire.Record) { r.Context = nil },
		"actor twice in the context": func(r *wire.Record) { r.Context = append(dot, dot...) },
		"actor zero":                 func(r *wire.Record) { r.Context = append(make([]byte, 16), dot...) },
		"two entries of an actor": func(r *wire.Record) {
			r.Entries = append(r.Entries, r.Entries...)
			r.EntryCount = 2
		},
	} {
		r := copyRecord(&good)
		damage(&r)
		if outcome := s.Merge(&r); !outcome.Rejected || outcome.Full || s.Len() != 0 {
			t.Errorf("%s: %+v", what, outcome)
		}
	}
	if mustMerge(t, s, &good); s.Len() != 1 {
		t.Fatal("the undamaged record was not merged")
	}
}

// TestShortWayAgreesWithTheRule compares mergeNewer with the rule of 7.3 and F45 (iii) for one actor
// that writes again, over all small cases.
func TestShortWayAgreesWithTheRule(t *testing.T) {
	values := []string{"", "a", "bb"}
	for n := range 4 * 4 * 4 * 3 * 3 {
		present, incoming, stable := uint64(n%4), uint64(n/4%4), uint64(n/16%4)
		here, news := values[n/64%3], values[n/192%3]
		if present == 0 || incoming == 0 {
			continue
		}
		s := New(Options{Self: 1})
		old := newModel("spread.web").write(here, wire.Dot{Actor: 5, Sequence: present})
		r := old.record(s)
		s.Merge(&r)
		s.RaiseStable(wire.AppendDot(nil, wire.Dot{Actor: 5, Sequence: max(stable, 1)}))
		update := newModel("spread.web").write(news, wire.Dot{Actor: 5, Sequence: incoming})
		r = update.record(s)
		outcome := s.Merge(&r)
		want := old.merge(update)
		if stale := incoming > present && incoming <= max(stable, 1); stale {
			want.entries = map[wire.Dot]string{}
		}
		if stale := incoming != present && incoming <= max(stable, 1); outcome.Stale != stale {
			t.Fatalf("present %d, incoming %d, C %d: stale %v", present, incoming, stable, outcome.Stale)
		}
		if err := want.expect(s); err != nil {
			t.Fatalf("present %d %q, incoming %d %q, C %d: %v", present, here, incoming, news, stable, err)
		}
		deleted, emptied := s.Tombstones()
		got, _ := s.Get([]byte("spread.web"))
		if (deleted == 1) != got.Deleted() || (emptied == 1) != (got.EntryCount() == 0) {
			t.Fatalf("present %d %q, incoming %d %q: totals are wrong", present, here, incoming, news)
		}
		if outcome.Changed != (s.Root() != old.root()) {
			t.Fatalf("present %d %q, incoming %d %q: changed %v", present, here, incoming, news, outcome.Changed)
		}
	}
}

func (m modelRegister) root() uint64 {
	s := New(Options{Self: 1})
	r := m.record(s)
	s.Merge(&r)
	return s.Root()
}
