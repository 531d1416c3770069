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
		runHistory(t, seed)
	}
}

func runHistory(t *testing.T, seed uint64) {
	n := newNetwork(t, seed, 4)
	n.loss, n.duplicate = 0.2, 0.1
	random := rand.New(rand.NewPCG(seed, 5))
	covered := map[string]map[wire.CellID]uint64{} // by key and actor: superseded up to
	live := map[string]map[wire.Dot]bool{}
	snapshots := map[wire.CellID][]byte{}
	logs := map[wire.CellID][]wire.Record{}
	for _, id := range n.ids {
		snapshots[id] = n.cells[id].store.AppendSnapshot(nil)
		n.cells[id].sessions.SetMembers(n.ids)
	}
	write := func(p *peer, name, value string) {
		if covered[name] == nil {
			covered[name], live[name] = map[wire.CellID]uint64{}, map[wire.Dot]bool{}
		}
		if r, found := p.store.Get([]byte(name)); found {
			for rest := r.Context(); len(rest) > 0; rest = rest[wire.DotSize:] {
				d := wire.DotAt(rest)
				covered[name][d.Actor] = max(covered[name][d.Actor], d.Sequence)
			}
		}
		p.write(name, value)
		if value != "" {
			live[name][wire.Dot{Actor: p.id, Sequence: p.sequence}] = true
		}
		var r wire.Record
		register, _ := p.store.Get([]byte(name))
		register.Record(&r)
		r.Name = []byte(name)
		r.Entries, r.Context = append([]byte(nil), r.Entries...), append([]byte(nil), r.Context...)
		logs[p.id] = append(logs[p.id], r)
	}
	for range 60 {
		p := n.cells[n.ids[random.IntN(len(n.ids))]]
		name := fmt.Sprintf("spread.key%d", random.IntN(3))
		switch random.IntN(12) {
		case 0, 1:
			write(p, name, fmt.Sprint("v", random.IntN(100)))
		case 2:
			write(p, name, "")
		case 3, 4, 5, 6:
			p.sessions.Start(n.now, n.ids[random.IntN(len(n.ids))], false)
		case 7:
			p.sessions.Collect()
		case 8:
			snapshots[p.id], logs[p.id] = p.store.AppendSnapshot(nil), nil
		case 9:
			if random.IntN(3) > 0 {
				break
			}
			p.store = crdt.New(crdt.Options{Self: p.id, HashKey0: 11, HashKey1: 22})
			if err := p.store.LoadSnapshot(snapshots[p.id]); err != nil {
				t.Fatal(err)
			}
			for _, r := range logs[p.id] {
				p.store.Merge(&r)
			}
			p.sequence += 1 << wire.CounterBits
			p.store.OwnStable(p.sequence)
			n.renew(p)
			p.sessions.SetMembers(n.ids)
		default:
			for limit := n.now.Add(time.Duration(random.IntN(400)) * time.Millisecond); n.step(limit); {
			}
		}
	}
	n.settle(30 * time.Minute)
	n.loss, n.duplicate = 0, 0
	for range 4 {
		for _, from := range n.ids {
			for _, to := range n.ids {
				if from != to {
					// Vectors travel with each session here, because garbage or a count of ten asks for them.
					n.cells[from].sessions.count, n.cells[to].sessions.count = 0, 0
					n.session(from, to)
				}
			}
		}
		for _, id := range n.ids {
			n.cells[id].sessions.Collect()
		}
	}
	n.equal()
	store := n.cells[1].store
	deleted, emptied := store.Tombstones()
	if deleted+emptied > 0 {
		t.Fatalf("seed %d: %d tombstones and %d emptied registers are left", seed, deleted, emptied)
	}
	for name, dots := range live {
		r, found := store.Get([]byte(name))
		for d := range dots {
			held := found && holds(r, d)
			if superseded := covered[name][d.Actor] >= d.Sequence; held == superseded {
				t.Fatalf("seed %d: %v of %s held %v, superseded %v", seed, d, name, held, superseded)
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
