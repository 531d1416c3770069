package crdt

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"

	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// The oracle: registers as sets, merged exactly as section 7.3 writes it down, with F2 for equal dots
// and F47 for status keys. Slow and obvious.

type modelRegister struct {
	name    string
	entries map[wire.Dot]string
	context map[wire.CellID]uint64
}

func newModel(name string) modelRegister {
	return modelRegister{name, map[wire.Dot]string{}, map[wire.CellID]uint64{}}
}

func (m modelRegister) clone() modelRegister {
	c := newModel(m.name)
	for d, v := range m.entries {
		c.entries[d] = v
	}
	for a, s := range m.context {
		c.context[a] = s
	}
	return c
}

func (m modelRegister) dominates(d wire.Dot) bool { return m.context[d.Actor] >= d.Sequence }

func (m modelRegister) merge(o modelRegister) modelRegister {
	r := newModel(m.name)
	for actor, sequence := range m.context {
		r.context[actor] = max(sequence, o.context[actor])
	}
	for actor, sequence := range o.context {
		r.context[actor] = max(sequence, m.context[actor])
	}
	if state.CategoryOf([]byte(m.name)) == state.Status {
		r.joinStatus(m, o)
		return r
	}
	for d, v := range m.entries {
		if other, both := o.entries[d]; both {
			r.entries[d] = max(v, other)
		} else if !o.dominates(d) {
			r.entries[d] = v
		}
	}
	for d, v := range o.entries {
		if _, both := m.entries[d]; !both && !m.dominates(d) {
			r.entries[d] = v
		}
	}
	return r
}

func (m modelRegister) joinStatus(a, b modelRegister) {
	var value []byte
	some := false
	for _, side := range []modelRegister{a, b} {
		for _, v := range side.entries {
			if v == "" {
				continue
			}
			if !some {
				value, some = []byte(v), true
			} else {
				value = state.JoinStatusValues(nil, value, []byte(v))
			}
		}
	}
	if !some {
		return
	}
	var greatest wire.Dot
	for actor, sequence := range m.context {
		if d := (wire.Dot{Actor: actor, Sequence: sequence}); dotLess(greatest, d) {
			greatest = d
		}
	}
	m.entries[greatest] = string(value)
}

func (m modelRegister) write(value string, dot wire.Dot) modelRegister {
	if state.CategoryOf([]byte(m.name)) == state.Status {
		one := newModel(m.name)
		one.entries[dot] = value
		one.context[dot.Actor] = dot.Sequence
		return m.merge(one)
	}
	r := m.clone()
	r.entries = map[wire.Dot]string{dot: value}
	r.context[dot.Actor] = max(r.context[dot.Actor], dot.Sequence)
	return r
}

func (m modelRegister) record(s *Store) wire.Record {
	r := wire.Record{Name: []byte(m.name), EntryCount: len(m.entries)}
	r.KeyHash = s.Hash(r.Name)
	var dots []wire.Dot
	for d := range m.entries {
		dots = append(dots, d)
	}
	sort.Slice(dots, func(i, j int) bool { return dots[i].Actor < dots[j].Actor })
	for _, d := range dots {
		r.Entries = wire.AppendEntry(r.Entries, d, []byte(m.entries[d]))
	}
	var actors []wire.CellID
	for a := range m.context {
		actors = append(actors, a)
	}
	slices.Sort(actors)
	for _, a := range actors {
		r.Context = wire.AppendDot(r.Context, wire.Dot{Actor: a, Sequence: m.context[a]})
	}
	return r
}

// expect compares the store's register with the model.
func (m modelRegister) expect(s *Store) error {
	r, found := s.Get([]byte(m.name))
	want := m.record(s)
	if !found {
		return fmt.Errorf("%s: not in the store", m.name)
	}
	if r.EntryCount() != want.EntryCount || !bytes.Equal(r.Entries(), want.Entries) ||
		!bytes.Equal(r.Context(), want.Context) {
		return fmt.Errorf("%s:\nstore %d % x ctx % x\nmodel %d % x ctx % x", m.name, r.EntryCount(), r.Entries(),
			r.Context(), want.EntryCount, want.Entries, want.Context)
	}
	return nil
}

func copyRecord(r *wire.Record) wire.Record {
	c := *r
	c.Name, c.Entries, c.Context = bytes.Clone(r.Name), bytes.Clone(r.Entries), bytes.Clone(r.Context)
	return c
}

// history produces states of one key as they come about on several replicas that write and exchange.
type history struct {
	random   *rand.Rand
	replicas []modelRegister
	next     []uint64
	states   []modelRegister
}

func newHistory(random *rand.Rand, name string, replicas int) *history {
	h := &history{random: random, next: make([]uint64, replicas)}
	for range replicas {
		h.replicas = append(h.replicas, newModel(name))
	}
	return h
}

func (h *history) value(name string) string {
	if state.CategoryOf([]byte(name)) == state.Status {
		s := state.CellStatus{Life: state.Life(1 + h.random.IntN(5)), Incarnation: uint32(h.random.IntN(3)),
			Claimants: []wire.CellID{wire.CellID(1 + h.random.IntN(6))}}
		return string(state.AppendCellStatus(nil, s))
	}
	if h.random.IntN(4) == 0 {
		return ""
	}
	return fmt.Sprintf("value-%d-%s", h.random.IntN(3), bytes.Repeat([]byte("x"), h.random.IntN(40)))
}

// step writes at a replica or merges one replica into another, and keeps the new state.
func (h *history) step() {
	i := h.random.IntN(len(h.replicas))
	if h.random.IntN(2) == 0 {
		h.next[i] += 1 + h.random.Uint64N(3)
		dot := wire.Dot{Actor: wire.CellID(i + 1), Sequence: h.next[i]}
		h.replicas[i] = h.replicas[i].write(h.value(h.replicas[i].name), dot)
	} else {
		j := h.random.IntN(len(h.replicas))
		h.replicas[i] = h.replicas[i].merge(h.replicas[j])
	}
	if len(h.replicas[i].context) > 0 {
		h.states = append(h.states, h.replicas[i].clone())
	}
}

func (h *history) join() modelRegister {
	all := newModel(h.replicas[0].name)
	for _, s := range h.states {
		all = all.merge(s)
	}
	return all
}

// frames returns a state as frames, made by a store that holds nothing else.
func frames(s *Store, m modelRegister, budget int) (all []wire.Record) {
	maker := New(Options{Self: 99, HashKey0: 1, HashKey1: 2})
	maker.hashMask = s.hashMask
	r := m.record(s)
	maker.Merge(&r)
	maker.Frames(r.Name, budget, func(f *wire.Record) bool {
		all = append(all, copyRecord(f))
		return true
	})
	return all
}

func mustMerge(t testing.TB, s *Store, r *wire.Record) Outcome {
	t.Helper()
	outcome := s.Merge(r)
	if outcome.Rejected {
		t.Fatalf("record of %s rejected", r.Name)
	}
	return outcome
}
