package main

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/gossip"
	"colloid.net/meshd/overlay"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// measureGossip spreads one write over clusters of up to 10,000 cells (the member list of a real cell ends at
// 4,096) at 5 % loss with 10 % of the cells dead and nobody knowing: the share of living cells reached, the hops of the last first copy, and the
// datagrams sent per cell, acknowledgements not counted.
func measureGossip() {
	for _, cells := range []int{10, 100, 1000, 3000, 10000} {
		var reached, hops, datagrams []float64
		for seed := range uint64(5) {
			s := newSpread(seed, cells)
			s.run()
			reached = append(reached, s.reached())
			hops = append(hops, float64(s.hops))
			datagrams = append(datagrams, float64(s.sent)/float64(cells))
		}
		bench(fmt.Sprintf("gossip_%d_reached_pct", cells), 100*median(reached))
		bench(fmt.Sprintf("gossip_%d_hops", cells), median(hops))
		bench(fmt.Sprintf("gossip_%d_datagrams_per_cell", cells), median(datagrams))
	}
}

const (
	spreadLoss = 0.05
	spreadDead = 0.10
	spreadKey  = "spread.bench"
)

// spread is one write on its way through a cluster in virtual time.
type spread struct {
	random *rand.Rand
	now    clock.Instant
	order  uint64
	queue  spreadQueue
	cells  []*spreadCell
	byID   map[wire.CellID]*spreadCell
	sent   int
	hops   int
}

type spreadCell struct {
	spread *spread
	id     wire.CellID
	gossip *gossip.Gossip // nil: dead
	has    bool
	depth  int
	wakeAt clock.Instant
}

type spreadEvent struct {
	at    clock.Instant
	order uint64
	run   func()
}

type spreadQueue []spreadEvent

func (q spreadQueue) Len() int { return len(q) }
func (q spreadQueue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].order < q[j].order
}
func (q spreadQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

// Push implements heap.Interface.
func (q *spreadQueue) Push(x any) { *q = append(*q, x.(spreadEvent)) }

// Pop implements heap.Interface.
func (q *spreadQueue) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}

func newSpread(seed uint64, cells int) *spread {
	s := &spread{random: rand.New(rand.NewPCG(seed, 1)), now: 1, byID: make(map[wire.CellID]*spreadCell)}
	// One list serves all cells: gossip only reads it and passes itself over.
	members := overlay.NewMembersForMeasurement(1, cells)
	for range cells {
		c := &spreadCell{spread: s, id: wire.CellID(s.random.Uint64()>>1 + 2)}
		s.cells, s.byID[c.id] = append(s.cells, c), c
		if member := members.Upsert(c.id); member != nil {
			member.Life = state.Alive
			member.Address = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, 1}), wire.Port)
		}
	}
	for i, c := range s.cells {
		if i > 0 && s.random.Float64() < spreadDead {
			continue
		}
		c.gossip = gossip.New(gossip.Options{
			Self: c.id, Random: rand.New(rand.NewPCG(seed, uint64(c.id))), Members: members, Store: c, Send: c.send,
		})
	}
	return s
}

func (s *spread) after(d time.Duration, f func()) {
	s.order++
	heap.Push(&s.queue, spreadEvent{s.now.Add(d), s.order, f})
}

// run injects the write at the first cell and lets everything happen.
func (s *spread) run() {
	s.cells[0].hears(0, 0)
	for len(s.queue) > 0 {
		next := heap.Pop(&s.queue).(spreadEvent)
		s.now = next.at
		next.run()
	}
}

func (s *spread) reached() float64 {
	live, has := 0, 0
	for _, c := range s.cells {
		if c.gossip != nil {
			live++
			if c.has {
				has++
			}
		}
	}
	return float64(has) / float64(live)
}

// hears takes a copy of the write and passes the first one on.
func (c *spreadCell) hears(from wire.CellID, depth int) {
	if c.has {
		return
	}
	c.has, c.depth = true, depth
	c.spread.hops = max(c.spread.hops, depth)
	c.gossip.Spread(c.spread.now, []byte(spreadKey), from)
	c.wake()
}

// wake arranges for the next retry.
func (c *spreadCell) wake() {
	deadline := c.gossip.Deadline()
	if deadline == clock.Never || c.wakeAt == deadline {
		return
	}
	c.wakeAt = deadline
	c.spread.after(max(0, deadline.Sub(c.spread.now)), func() {
		if c.wakeAt == deadline {
			c.wakeAt = 0
			c.gossip.Tick(c.spread.now)
			c.wake()
		}
	})
}

func (c *spreadCell) send(to wire.CellID, _ wire.Type, nonce uint32, _ []byte) {
	s, target := c.spread, c.spread.byID[to]
	s.sent++
	depth := c.depth + 1
	if target.gossip == nil || s.random.Float64() < spreadLoss {
		return
	}
	delay := time.Duration(200+s.random.IntN(800)) * time.Microsecond
	s.after(delay, func() {
		if s.random.Float64() >= spreadLoss {
			s.after(delay, func() {
				c.gossip.Ack(s.now, to, nonce)
				c.wake()
			})
		}
		target.hears(c.id, depth)
	})
}

// Frames makes the cell the store of its own gossip.
func (c *spreadCell) Frames(name []byte, _ int, yield func(*wire.Record) bool) {
	dot := wire.Dot{Actor: 2, Sequence: 1 << wire.CounterBits}
	yield(&wire.Record{
		KeyHash: 1, Name: name, EntryCount: 1,
		Entries: wire.AppendEntry(nil, dot, []byte("v")), Context: wire.AppendDot(nil, dot),
	})
}
