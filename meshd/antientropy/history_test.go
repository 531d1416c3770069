package antientropy

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"colloid.net/meshd/crdt"
	"colloid.net/meshd/wire"
)

// TestF45_RandomHistoriesOverLossySessions runs writes, deletes, sessions at 20 % loss that overlap and
// break off, collection and restarts through the real protocol, and checks at the end that nothing
// deleted is alive, nothing written is lost, and nothing is left to collect.
func TestF45_RandomHistoriesOverLossySessions(t *testing.T) {
	for seed := range uint64(150) {
		h := newHistory(t, seed)
		for range 60 {
			h.step()
		}
		h.settle(30 * time.Minute)
		h.heal()
		h.check(seed)
	}
}

type history struct {
	*network
	random    *rand.Rand
	covered   map[string]map[wire.CellID]uint64 // by key and actor: superseded up to
	values    map[string]map[wire.Dot]bool      // by key: what was written and is no tombstone
	snapshots map[wire.CellID][]byte
	logs      map[wire.CellID][]wire.Record // own writes since the snapshot
}

func newHistory(t *testing.T, seed uint64) *history {
	h := &history{network: newNetwork(t, seed, 4), random: rand.New(rand.NewPCG(seed, 5)),
		covered: map[string]map[wire.CellID]uint64{}, values: map[string]map[wire.Dot]bool{},
		snapshots: map[wire.CellID][]byte{}, logs: map[wire.CellID][]wire.Record{}}
	h.loss, h.duplicate = 0.2, 0.1
	for _, id := range h.ids {
		h.snapshots[id] = h.cells[id].store.AppendSnapshot(nil)
		h.cells[id].sessions.SetMembers(h.ids)
	}
	return h
}

func (h *history) step() {
	p := h.cells[h.ids[h.random.IntN(len(h.ids))]]
	name := fmt.Sprintf("spread.key%d", h.random.IntN(3))
	switch h.random.IntN(12) {
	case 0, 1:
		h.write(p, name, fmt.Sprint("v", h.random.IntN(100)))
	case 2:
		h.write(p, name, "")
	case 3, 4, 5, 6:
		p.sessions.Start(h.now, h.ids[h.random.IntN(len(h.ids))], false)
	case 7:
		p.sessions.Collect()
	case 8:
		h.snapshots[p.id], h.logs[p.id] = p.store.AppendSnapshot(nil), nil
	case 9:
		if h.random.IntN(3) == 0 {
			h.restart(p)
		}
	default:
		limit := h.now.Add(time.Duration(h.random.IntN(400)) * time.Millisecond)
		for h.network.step(limit) {
		}
	}
}

func (h *history) write(p *peer, name, value string) {
	if h.covered[name] == nil {
		h.covered[name], h.values[name] = map[wire.CellID]uint64{}, map[wire.Dot]bool{}
	}
	if r, found := p.store.Get([]byte(name)); found {
		for rest := r.Context(); len(rest) > 0; rest = rest[wire.DotSize:] {
			d := wire.DotAt(rest)
			h.covered[name][d.Actor] = max(h.covered[name][d.Actor], d.Sequence)
		}
	}
	p.write(name, value)
	if value != "" {
		h.values[name][wire.Dot{Actor: p.id, Sequence: p.sequence}] = true
	}
	var r wire.Record
	register, _ := p.store.Get([]byte(name))
	register.Record(&r)
	r.Name = []byte(name)
	r.Entries, r.Context = append([]byte(nil), r.Entries...), append([]byte(nil), r.Context...)
	h.logs[p.id] = append(h.logs[p.id], r)
}

// restart loads the last snapshot and the own writes after it, in a new incarnation.
func (h *history) restart(p *peer) {
	p.store = crdt.New(crdt.Options{Self: p.id, HashKey0: 11, HashKey1: 22})
	if err := p.store.LoadSnapshot(h.snapshots[p.id]); err != nil {
		h.t.Fatal(err)
	}
	for i := range h.logs[p.id] {
		p.store.Merge(&h.logs[p.id][i])
	}
	p.sequence += 1 << wire.CounterBits
	p.store.OwnStable(p.sequence)
	h.renew(p)
	p.sessions.SetMembers(h.ids)
}

// heal lets everybody meet everybody without loss, with vectors each time.
func (h *history) heal() {
	h.loss, h.duplicate = 0, 0
	for range 4 {
		for _, from := range h.ids {
			for _, to := range h.ids {
				if from != to {
					h.cells[from].sessions.count, h.cells[to].sessions.count = 0, 0
					h.session(from, to)
				}
			}
		}
		for _, id := range h.ids {
			h.cells[id].sessions.Collect()
		}
	}
}

func (h *history) check(seed uint64) {
	h.equal()
	store := h.cells[1].store
	if deleted, emptied := store.Tombstones(); deleted+emptied > 0 {
		h.t.Fatalf("seed %d: %d tombstones and %d emptied registers are left", seed, deleted, emptied)
	}
	for name, dots := range h.values {
		r, found := store.Get([]byte(name))
		for d := range dots {
			held := found && holds(r, d)
			if superseded := h.covered[name][d.Actor] >= d.Sequence; held == superseded {
				h.t.Fatalf("seed %d: %v of %s held %v, superseded %v", seed, d, name, held, superseded)
			}
		}
	}
}

func holds(r crdt.Register, dot wire.Dot) bool {
	for rest := r.Entries(); len(rest) > 0; {
		var other wire.Dot
		if other, _, rest, _ = wire.NextEntry(rest); other == dot {
			return true
		}
	}
	return false
}
