package gossip

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/overlay"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// network runs the gossip of many cells over a lossy network in virtual time. A cell's store is a
// version number per key; a frame carries it as the sequence of its only dot.
type network struct {
	random *rand.Rand
	now    clock.Instant
	serial uint64
	queue  []delivery // heap
	nodes  []*node
	byID   map[wire.CellID]*node
	loss   float64
	frames uint64 // deltas sent, acknowledgements not counted
	// choose replaces the target rule (F42's regression); nil = the real one.
	choose func(from *node, keyHash uint64, except wire.CellID) []*node
}

type node struct {
	net     *network
	id      wire.CellID
	members *overlay.Members
	gossip  *Gossip
	dead    bool
	have    map[string]uint64 // version by key
	depth   int               // hops of the first copy received
	heardAt clock.Instant     // when that was
	wakeAt  clock.Instant
}

type delivery struct {
	at       clock.Instant
	serial   uint64
	from, to *node
	kind     wire.Type // 0 = wake-up
	nonce    uint32
	key      string
	version  uint64
	depth    int
}

func (d delivery) before(o delivery) bool { return d.at < o.at || d.at == o.at && d.serial < o.serial }

func (w *network) push(at clock.Instant, d delivery) {
	w.serial++
	d.at, d.serial = at, w.serial
	w.queue = append(w.queue, d)
	for c := len(w.queue) - 1; c > 0; {
		parent := (c - 1) / 2
		if !w.queue[c].before(w.queue[parent]) {
			break
		}
		w.queue[c], w.queue[parent] = w.queue[parent], w.queue[c]
		c = parent
	}
}

func (w *network) pop() delivery {
	top, last := w.queue[0], len(w.queue)-1
	w.queue[0] = w.queue[last]
	w.queue = w.queue[:last]
	for i := 0; ; {
		c := 2*i + 1
		if c+1 < last && w.queue[c+1].before(w.queue[c]) {
			c++
		}
		if c >= last || !w.queue[c].before(w.queue[i]) {
			return top
		}
		w.queue[c], w.queue[i] = w.queue[i], w.queue[c]
		i = c
	}
}

// newNetwork makes n cells of which deadShare are dead without anybody knowing; cell 0 lives.
func newNetwork(seed uint64, n int, loss, deadShare float64) *network {
	w := &network{random: rand.New(rand.NewPCG(seed, 1)), now: clock.Instant(time.Hour), loss: loss,
		byID: make(map[wire.CellID]*node)}
	for range n {
		x := &node{net: w, id: wire.CellID(w.random.Uint64()), have: make(map[string]uint64)}
		w.nodes = append(w.nodes, x)
		w.byID[x.id] = x
	}
	members := w.allMembers()
	for i := range int(deadShare * float64(n)) {
		w.nodes[n-1-i].dead = true
	}
	for _, x := range w.nodes {
		if x.dead {
			continue
		}
		x.members = members
		x.gossip = New(Options{Self: x.id, Random: rand.New(rand.NewPCG(w.random.Uint64(), 2)),
			Members: x.members, Store: x, Send: x.send})
	}
	return w
}

// allMembers builds the one list that all cells share: gossip only reads it and passes itself over.
func (w *network) allMembers() *overlay.Members {
	members := overlay.NewMembers(1)
	for _, x := range w.nodes {
		m := members.Upsert(x.id)
		m.Address = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, 1}), wire.Port)
		m.Life = state.Alive
	}
	return members
}

// Frames makes the node the Store of its own gossip.
func (x *node) Frames(name []byte, _ int, yield func(*wire.Record) bool) {
	version := x.have[string(name)]
	if version == 0 {
		return
	}
	dot := wire.AppendDot(nil, wire.Dot{Actor: 1, Sequence: version})
	yield(&wire.Record{KeyHash: hashOf(name), Name: name, EntryCount: 1,
		Entries: wire.AppendEntry(nil, wire.Dot{Actor: 1, Sequence: version}, []byte("v")), Context: dot})
}

func hashOf(name []byte) uint64 {
	h := uint64(14695981039346656037)
	for _, b := range name {
		h = (h ^ uint64(b)) * 1099511628211
	}
	return h
}

func (x *node) send(to wire.CellID, kind wire.Type, nonce uint32, payload []byte) {
	var r wire.Record
	if err := wire.ParseDelta(payload, &r); err != nil || kind != wire.TypeDelta {
		panic(err)
	}
	dot, _, _, _ := wire.NextEntry(r.Entries)
	x.net.frames++
	x.net.transmit(delivery{from: x, to: x.net.byID[to], kind: kind, nonce: nonce, key: string(r.Name),
		version: dot.Sequence, depth: x.depth + 1})
}

func (w *network) transmit(d delivery) {
	if d.to.dead || w.random.Float64() < w.loss {
		return
	}
	latency := time.Millisecond + time.Duration(w.random.Int64N(int64(4*time.Millisecond)))
	w.push(w.now.Add(latency), d)
}

// write changes a key at a cell and spreads it.
func (x *node) write(key string) {
	x.have[key]++
	x.spread(key, 0)
}

func (x *node) spread(key string, except wire.CellID) {
	if x.net.choose == nil {
		x.gossip.Spread(x.net.now, []byte(key), except)
		x.wake()
		return
	}
	for _, to := range x.net.choose(x, hashOf([]byte(key)), except) {
		x.net.frames++
		x.net.transmit(delivery{from: x, to: to, kind: wire.TypeDelta, key: key, version: x.have[key],
			depth: x.depth + 1})
	}
}

func (x *node) wake() {
	if due := x.gossip.Deadline(); due != clock.Never && due != x.wakeAt {
		x.wakeAt = max(due, x.net.now)
		x.net.push(x.wakeAt, delivery{to: x})
	}
}

// run delivers until nothing is left to do or the time is over.
func (w *network) run(d time.Duration) {
	until := w.now.Add(d)
	for len(w.queue) > 0 && w.queue[0].at <= until {
		e := w.pop()
		w.now = e.at
		switch e.kind {
		case 0:
			if e.at == e.to.wakeAt {
				e.to.wakeAt = 0
				e.to.gossip.Tick(w.now)
			}
		case wire.TypeDelta:
			e.to.receive(e)
		case wire.TypeDeltaAck:
			e.to.gossip.Ack(w.now, e.from.id, e.nonce)
		}
		e.to.wake()
	}
	w.now = until
}

// receive merges, forwards iff that changed something (F27), and acknowledges always (F28).
func (x *node) receive(e delivery) {
	if e.version > x.have[e.key] {
		if x.have[e.key] == 0 {
			x.depth, x.heardAt = e.depth, x.net.now
		}
		x.have[e.key] = e.version
		x.spread(e.key, e.from.id)
	}
	x.net.transmit(delivery{from: x, to: e.from, kind: wire.TypeDeltaAck, nonce: e.nonce})
}

// coverage returns how many of the living cells have the key, how many live, and the greatest depth.
func (w *network) coverage(key string) (have, alive, depth int) {
	for _, x := range w.nodes {
		if x.dead {
			continue
		}
		alive++
		if x.have[key] > 0 {
			have++
			depth = max(depth, x.depth)
		}
	}
	return have, alive, depth
}

// oldRule is the specification's target choice: the three contacts of the k-bucket (k = 20, filled from
// all members) that the key hash falls into, topped up from the nearest other buckets (F42).
func oldRule(w *network) func(*node, uint64, wire.CellID) []*node {
	type bucketed struct{ buckets [64][]*node }
	tables := make(map[*node]*bucketed)
	for _, x := range w.nodes {
		table := &bucketed{}
		for _, i := range w.random.Perm(len(w.nodes)) {
			if other := w.nodes[i]; other != x {
				b := index(x.id, uint64(other.id))
				if len(table.buckets[b]) < overlay.BucketSizeMax {
					table.buckets[b] = append(table.buckets[b], other)
				}
			}
		}
		tables[x] = table
	}
	return func(from *node, keyHash uint64, except wire.CellID) (targets []*node) {
		home := index(from.id, keyHash)
		for distance := 0; distance < 64 && len(targets) < Fanout; distance++ {
			for _, b := range []int{home + distance, home - distance} {
				if b < 0 || b > 63 || distance == 0 && b != home {
					continue
				}
				for _, other := range tables[from].buckets[b] {
					if len(targets) < Fanout && other.id != except && !slices.Contains(targets, other) {
						targets = append(targets, other)
					}
				}
			}
		}
		return targets
	}
}

func index(a wire.CellID, b uint64) int {
	for i := range 64 {
		if (uint64(a)^b)>>(63-i)&1 == 1 {
			return i
		}
	}
	return 63
}
