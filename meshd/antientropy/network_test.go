package antientropy

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/crdt"
	"colloid.net/meshd/wire"
)

// network connects cells through a queue with delay and loss, in virtual time.
type network struct {
	t         testing.TB
	random    *rand.Rand
	now       clock.Instant
	delay     time.Duration
	loss      float64
	duplicate float64
	queue     packets
	order     uint64
	cells     map[wire.CellID]*peer
	ids       []wire.CellID
	datagrams int
	bytes     int // with header and trailer
	tap       func(from, to wire.CellID, t wire.Type, nonce uint32, payload []byte) (drop bool)
}

type peer struct {
	id        wire.CellID
	store     *crdt.Store
	sessions  *Sessions
	completed []wire.CellID
	bootstrap int
	sequence  uint64
}

type packet struct {
	at       clock.Instant
	order    uint64
	from, to wire.CellID
	header   wire.Header
	payload  []byte
}

type packets []packet

func (p packets) Len() int { return len(p) }
func (p packets) Less(i, j int) bool {
	return p[i].at < p[j].at || p[i].at == p[j].at && p[i].order < p[j].order
}
func (p packets) Swap(i, j int) { p[i], p[j] = p[j], p[i] }
func (p *packets) Push(x any)   { *p = append(*p, x.(packet)) }
func (p *packets) Pop() any {
	last := (*p)[len(*p)-1]
	*p = (*p)[:len(*p)-1]
	return last
}

func newNetwork(t testing.TB, seed uint64, cells int) *network {
	n := &network{t: t, random: rand.New(rand.NewPCG(seed, 77)), now: 1, delay: 5 * time.Millisecond,
		cells: make(map[wire.CellID]*peer)}
	for i := range cells {
		n.add(wire.CellID(i + 1))
	}
	return n
}

func (n *network) add(id wire.CellID) *peer {
	p := &peer{id: id}
	p.store = crdt.New(crdt.Options{Self: id, HashKey0: 11, HashKey1: 22, KeysMax: 1_000_000})
	n.cells[id] = p
	n.ids = append(n.ids, id)
	n.renew(p)
	return p
}

// renew gives the cell new sessions, as after a restart.
func (n *network) renew(p *peer) {
	p.sessions = New(Options{Self: p.id, Random: rand.New(rand.NewPCG(n.random.Uint64(), 3)), Store: p.store,
		Send: func(to wire.CellID, t wire.Type, nonce uint32, payload []byte) {
			n.send(p.id, to, t, nonce, payload)
		},
		Completed: func(_ clock.Instant, other wire.CellID, bootstrap bool) {
			p.completed = append(p.completed, other)
			if bootstrap {
				p.bootstrap++
			}
		}})
}

func (n *network) send(from, to wire.CellID, t wire.Type, nonce uint32, payload []byte) {
	if len(payload) > wire.SealedPayloadMax {
		n.t.Fatalf("%v of %d bytes", t, len(payload))
	}
	n.datagrams++
	n.bytes += wire.HeaderSize + len(payload) + wire.TrailerSize
	if n.tap != nil && n.tap(from, to, t, nonce, payload) {
		return
	}
	copies := 1
	if n.random.Float64() < n.duplicate {
		copies++
	}
	for range copies {
		if n.random.Float64() < n.loss {
			continue
		}
		n.order++
		jitter := time.Duration(0)
		if n.loss > 0 {
			jitter = time.Duration(n.random.Int64N(int64(n.delay)))
		}
		heap.Push(&n.queue, packet{n.now.Add(n.delay + jitter), n.order, from, to,
			wire.Header{Type: t, PayloadLength: uint16(len(payload)), Sender: from, Nonce: nonce},
			append([]byte(nil), payload...)})
	}
}

// step advances to the next event; it reports false if there is none before limit.
func (n *network) step(limit clock.Instant) bool {
	next := clock.Never
	if len(n.queue) > 0 {
		next = n.queue[0].at
	}
	for _, id := range n.ids {
		next = clock.Earliest(next, n.cells[id].sessions.Deadline())
	}
	if next > limit || next == clock.Never {
		return false
	}
	if next > n.now {
		n.now = next
	}
	for _, id := range n.ids {
		if s := n.cells[id].sessions; s.Deadline().Reached(n.now) {
			s.Tick(n.now)
		}
	}
	for len(n.queue) > 0 && n.queue[0].at <= n.now {
		p := heap.Pop(&n.queue).(packet)
		if to := n.cells[p.to]; to != nil {
			to.sessions.Receive(n.now, p.from, p.header, p.payload)
		}
	}
	return true
}

// settle runs until all is quiet, and fails if that takes longer than the limit.
func (n *network) settle(limit time.Duration) {
	n.t.Helper()
	end := n.now.Add(limit)
	for steps := 0; n.step(end); steps++ {
		if steps > 5_000_000 {
			n.t.Fatal("does not come to rest")
		}
	}
	for _, id := range n.ids {
		if d := n.cells[id].sessions.Deadline(); d != clock.Never {
			n.t.Fatalf("cell %v is still busy after %v", id, limit)
		}
	}
}

// session runs one session to its end and returns whether both sides completed it.
func (n *network) session(from, to wire.CellID) (initiator, responder bool) {
	a, b := n.cells[from], n.cells[to]
	a.completed, b.completed = nil, nil
	if !a.sessions.Start(n.now, to, false) {
		n.t.Fatal("session not started")
	}
	n.settle(11 * time.Minute)
	return len(a.completed) > 0, len(b.completed) > 0
}

// write makes a local write at p.
func (p *peer) write(name, value string) {
	p.sequence++
	outcome := p.store.Write([]byte(name), []byte(value), wire.Dot{Actor: p.id, Sequence: p.sequence})
	if outcome.Rejected {
		panic(fmt.Sprintf("write %s rejected", name))
	}
	p.store.OwnStable(p.sequence)
}

// load puts count keys written by foreign actors into a store.
func load(store *crdt.Store, count int, sequence uint64) {
	value := []byte("0123456789012345678901234567890123456789")
	for i := range count {
		name := fmt.Appendf(nil, "health.%016x.cpu.%02d", uint64(i)*0x9e3779b97f4a7c15|1, i%100)
		dot := wire.Dot{Actor: wire.CellID(1000 + i%50), Sequence: sequence + uint64(i)}
		r := wire.Record{KeyHash: store.Hash(name), Name: name, EntryCount: 1,
			Entries: wire.AppendEntry(nil, dot, value[:15+i%26]), Context: wire.AppendDot(nil, dot)}
		store.Merge(&r)
	}
}

func (n *network) equal(ids ...wire.CellID) {
	n.t.Helper()
	if len(ids) == 0 {
		ids = n.ids
	}
	first := n.cells[ids[0]].store
	for _, id := range ids[1:] {
		if n.cells[id].store.Root() != first.Root() {
			n.t.Fatalf("cell %v differs from cell %v", id, ids[0])
		}
	}
}
