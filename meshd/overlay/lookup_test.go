package overlay

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/wire"
)

// dht is a static network for lookups: every node has a table filled from all others.
type dht struct {
	ids    []wire.CellID
	tables map[wire.CellID]*Table
	dead   map[wire.CellID]bool
}

func newDHT(random *rand.Rand, n int, deadShare float64) *dht {
	d := &dht{tables: map[wire.CellID]*Table{}, dead: map[wire.CellID]bool{}}
	for range n {
		d.ids = append(d.ids, wire.CellID(random.Uint64()))
	}
	for i, id := range d.ids {
		table := NewTable(TableOptions{Self: id, AnySubnet: true})
		for _, j := range random.Perm(n) {
			table.Insert(start, contact(d.ids[j], j), 0)
		}
		d.tables[id] = table
		d.dead[id] = i > 0 && float64(i) < deadShare*float64(n)
	}
	return d
}

type query struct {
	to    wire.Contact
	nonce uint32
	at    clock.Instant
}

// search runs one lookup from the first node; answers take 10 ms.
func (d *dht) search(t *testing.T, target wire.CellID, lie func(query) []wire.Contact) (
	*Lookup, time.Duration) {
	t.Helper()
	var queue []query
	now, nonce := start, uint32(0)
	l := NewLookup(LookupOptions{
		Self: d.ids[0],
		Query: func(to wire.Contact, _ wire.CellID, n uint32) {
			queue = append(queue, query{to, n, now})
		},
		Nonce: func() uint32 { nonce++; return nonce },
	})
	l.Start(now, target, d.tables[d.ids[0]].Closest(target, BucketSizeMax, nil))
	for steps := 0; l.Running(); steps++ {
		if steps > 1000 || l.inFlight > Parallelism || l.queries > QueriesMax {
			t.Fatalf("after %d steps: %d in flight, %d queries", steps, l.inFlight, l.queries)
		}
		if len(queue) > 0 {
			q := queue[0]
			queue = queue[1:]
			if d.dead[q.to.ID] {
				continue
			}
			now = max(now, q.at.Add(10*time.Millisecond))
			answer := d.tables[q.to.ID].Closest(target, BucketSizeMax, nil)
			if lie != nil {
				answer = append(answer, lie(q)...)
			}
			l.Receive(now, q.to.ID, q.nonce, answer)
			continue
		}
		now = l.Deadline()
		if now == clock.Never {
			t.Fatal("running without a deadline")
		}
		l.Tick(now)
	}
	return l, now.Sub(start)
}

// TestF40_LookupWithDeadContacts: 30 % of all contacts are dead; the lookup ends and finds the living
// nodes nearest to the target.
func TestF40_LookupWithDeadContacts(t *testing.T) {
	for _, deadShare := range []float64{0, 0.3} {
		found, wanted, nearest := 0, 0, 0
		for seed := range uint64(20) {
			random := rand.New(rand.NewPCG(seed, 1))
			d := newDHT(random, 300, deadShare)
			target := wire.CellID(random.Uint64())
			l, took := d.search(t, target, nil)
			if took > 13*time.Second {
				t.Errorf("seed %d: lookup took %v", seed, took)
			}
			var alive []wire.CellID
			for _, id := range d.ids[1:] {
				if !d.dead[id] {
					alive = append(alive, id)
				}
			}
			slices.SortFunc(alive, func(a, b wire.CellID) int { return cmp.Compare(a^target, b^target) })
			result := l.Closest(nil)
			for i, c := range result {
				if d.dead[c.ID] || i > 0 && result[i-1].ID^target >= c.ID^target {
					t.Fatalf("seed %d: result %d is dead or out of order", seed, i)
				}
				if slices.Contains(alive[:BucketSizeMax], c.ID) {
					found++
				}
			}
			wanted += BucketSizeMax
			if len(result) > 0 && result[0].ID == alive[0] {
				nearest++
			}
		}
		// The cap on queries leaves about 22 answers when 30 % are dead: most of the 20, not all.
		if nearest != 20 || deadShare == 0 && found < wanted*99/100 || found < wanted*8/10 {
			t.Errorf("dead %.1f: nearest found %d of 20 times, %d of %d near ones", deadShare, nearest, found, wanted)
		}
	}
}

// TestF40_HostileAnswers: nodes that name ever nearer made-up contacts cost at most QueriesMax queries.
func TestF40_HostileAnswers(t *testing.T) {
	random := rand.New(rand.NewPCG(9, 1))
	d := newDHT(random, 50, 0)
	target := wire.CellID(random.Uint64())
	made := wire.CellID(1 << 20)
	l, took := d.search(t, target, func(query) (fake []wire.Contact) {
		for range 41 {
			made--
			id := target ^ made
			d.dead[id] = true
			fake = append(fake, contact(id, 1))
		}
		return append(fake, wire.Contact{ID: 0}, wire.Contact{ID: d.ids[0], Address: addr(1)})
	})
	if l.Queries() > QueriesMax || took > QueriesMax*QueryTimeout {
		t.Errorf("%d queries in %v", l.Queries(), took)
	}
	if len(l.candidates) > candidatesMax {
		t.Errorf("%d candidates", len(l.candidates))
	}
}

// TestF40_OnlyOutstandingAnswersCount: wrong sender, wrong nonce, second copy, and after the end.
func TestF40_OnlyOutstandingAnswersCount(t *testing.T) {
	var queries []query
	l := NewLookup(LookupOptions{Self: 1, Nonce: func() uint32 { return uint32(len(queries)) + 70 },
		Query: func(to wire.Contact, _ wire.CellID, n uint32) {
			queries = append(queries, query{to: to, nonce: n})
		}})
	if l.Receive(start, 16, 70, nil) || l.Deadline() != clock.Never {
		t.Error("an idle lookup took an answer")
	}
	l.Start(start, 99, []wire.Contact{contact(16, 1)})
	if l.Receive(start, 17, 70, nil) || l.Receive(start, 16, 71, nil) {
		t.Error("an answer to no question was taken")
	}
	if !l.Receive(start, 16, 70, []wire.Contact{contact(17, 1)}) || l.Receive(start, 16, 70, nil) {
		t.Error("the answer was not taken exactly once")
	}
	l.Tick(start.Add(QueryTimeout))
	if l.Running() || len(l.Closest(nil)) != 1 || len(queries) != 2 {
		t.Errorf("running %v, results %v, queries %v", l.Running(), l.Closest(nil), queries)
	}
	l.Start(start, 99, nil)
	if l.Running() {
		t.Error("a lookup without contacts runs")
	}
}
