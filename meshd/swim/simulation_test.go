package swim

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/overlay"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// world runs many detectors over a lossy network in virtual time. Statuses spread like gossip does:
// every cell hears of a change after a delay of its own, unless it is cut off from the writer.
type world struct {
	random  *rand.Rand
	now     clock.Instant
	events  events
	cells   []*simulated
	byID    map[wire.CellID]*simulated
	loss    float64
	latency time.Duration                   // one way
	spread  time.Duration                   // gossip delay: uniform up to this, 20 ms at least
	block   func(from, to *simulated) bool  // datagrams dropped always
	onPing  func(from, to *simulated)       // PINGs as they are sent
	onClaim func(by *simulated, c statusOf) // every status write

	datagrams uint64 // sent
	writes    []statusOf
}

type statusOf struct {
	at     clock.Instant
	by     wire.CellID
	target wire.CellID
	status state.CellStatus
}

type simulated struct {
	world    *world
	id       wire.CellID
	index    int
	address  netip.AddrPort
	members  *overlay.Members
	detector *Detector
	crashed  bool
	paused   clock.Instant // runs again at this time; 0 = runs
	held     []event
	status   map[wire.CellID][]byte // encoded registers
	wakeAt   clock.Instant
	sent     uint64
	told     int
	ticks    int
	observed int
}

type event struct {
	to     *simulated
	from   *simulated
	header wire.Header // Type 0: wake-up; TypeDelta: a status
	data   [28]byte
	size   int
	target wire.CellID
	value  []byte
}

// events is a heap of times over a pool of events, without pointers in what moves.
type events struct {
	heap   []timed
	pool   []event
	free   []int32
	serial uint64
}

type timed struct {
	at     clock.Instant
	serial uint64
	event  int32
}

func (t timed) before(o timed) bool { return t.at < o.at || t.at == o.at && t.serial < o.serial }

func (e *events) push(at clock.Instant, v event) {
	i := int32(len(e.pool))
	if n := len(e.free); n > 0 {
		i, e.free = e.free[n-1], e.free[:n-1]
		e.pool[i] = v
	} else {
		e.pool = append(e.pool, v)
	}
	e.serial++
	e.heap = append(e.heap, timed{at, e.serial, i})
	for c := len(e.heap) - 1; c > 0; {
		parent := (c - 1) / 2
		if !e.heap[c].before(e.heap[parent]) {
			break
		}
		e.heap[c], e.heap[parent] = e.heap[parent], e.heap[c]
		c = parent
	}
}

func (e *events) pop() (clock.Instant, event) {
	top, last := e.heap[0], len(e.heap)-1
	e.heap[0] = e.heap[last]
	e.heap = e.heap[:last]
	for i := 0; ; {
		c := 2*i + 1
		if c+1 < last && e.heap[c+1].before(e.heap[c]) {
			c++
		}
		if c >= last || !e.heap[c].before(e.heap[i]) {
			break
		}
		e.heap[c], e.heap[i] = e.heap[i], e.heap[c]
		i = c
	}
	e.free = append(e.free, top.event)
	return top.at, e.pool[top.event]
}

func newWorld(seed uint64, n int, loss float64) *world {
	w := &world{
		random:  rand.New(rand.NewPCG(seed, 1)),
		now:     clock.Instant(time.Hour),
		byID:    make(map[wire.CellID]*simulated),
		loss:    loss,
		latency: time.Millisecond,
		spread:  100 * time.Millisecond,
	}
	for i := range n {
		id := wire.CellID(w.random.Uint64())
		c := &simulated{world: w, id: id, index: i, status: make(map[wire.CellID][]byte)}
		c.address = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 1}), wire.Port)
		w.cells = append(w.cells, c)
		w.byID[id] = c
	}
	for _, c := range w.cells {
		c.members = overlay.NewMembers(c.id)
		for _, other := range w.cells {
			if other != c {
				c.members.Upsert(other.id).Address = other.address
			}
		}
		c.boot()
	}
	for _, c := range w.cells {
		for _, other := range w.cells {
			alive := state.CellStatus{Life: state.Alive, Incarnation: 1, Claimants: []wire.CellID{other.id}}
			c.status[other.id] = state.AppendCellStatus(nil, alive)
			c.detector.StatusChanged(w.now, other.id, alive)
		}
		c.wake()
	}
	return w
}

func (c *simulated) boot() {
	w := c.world
	c.detector = New(Options{
		Self:    c.id,
		Random:  rand.New(rand.NewPCG(w.random.Uint64(), 2)),
		Members: c.members,
		Send:    c.send,
		Claim:   c.claim,
		TellStatus: func(_ clock.Instant, to, about wire.CellID) {
			c.told++
			if value := c.status[about]; value != nil {
				w.transmit(c, w.byID[to], event{header: wire.Header{Type: wire.TypeDelta}, target: about, value: value})
			}
		},
		Observed: func(clock.Instant, wire.CellID, netip.AddrPort) { c.observed++ },
	})
	c.detector.SetSelf(state.CellStatus{Life: state.Alive, Incarnation: 1})
}

func (c *simulated) send(to wire.CellID, t wire.Type, nonce uint32, payload []byte) {
	e := event{header: wire.Header{Type: t, Sender: c.id, Nonce: nonce}, size: len(payload)}
	copy(e.data[:], payload)
	if t == wire.TypePing && c.world.onPing != nil {
		c.world.onPing(c, c.world.byID[to])
	}
	c.sent++
	c.world.datagrams++
	c.world.transmit(c, c.world.byID[to], e)
}

func (w *world) transmit(from, to *simulated, e event) {
	if to == nil || w.loss > 0 && w.random.Float64() < w.loss || w.block != nil && w.block(from, to) {
		return
	}
	e.from, e.to = from, to
	w.events.push(w.now.Add(w.latency), e)
}

// claim is the store and the gossip of a cell in one: join, tell the detector, spread.
func (c *simulated) claim(now clock.Instant, target wire.CellID, s state.CellStatus) {
	s.Claimants = slices.Clone(s.Claimants)
	write := statusOf{at: now, by: c.id, target: target, status: s}
	c.world.writes = append(c.world.writes, write)
	if c.world.onClaim != nil {
		c.world.onClaim(c, write)
	}
	c.merge(now, target, state.AppendCellStatus(nil, s), true)
}

// merge joins a value. What is new to the others is spread: an own write, and a union of two.
func (c *simulated) merge(now clock.Instant, target wire.CellID, value []byte, own bool) {
	joined := value
	if old := c.status[target]; old != nil {
		joined = state.JoinStatusValues(nil, old, value)
		if string(joined) == string(old) {
			return
		}
	}
	c.status[target] = joined
	s, err := state.ParseCellStatus(joined)
	if err != nil {
		panic(err)
	}
	c.detector.StatusChanged(now, target, s)
	if own || string(joined) != string(value) {
		c.spreadStatus(target)
	}
}

// spreadStatus stands for gossip: it reaches every cell that the network lets it reach directly or
// through one third cell, some time within world.spread, later by retries where datagrams get lost.
func (c *simulated) spreadStatus(target wire.CellID) {
	w := c.world
	for _, other := range w.cells {
		if other == c || other.crashed || !w.connected(c, other) {
			continue
		}
		delay := 20*time.Millisecond + time.Duration(w.random.Int64N(int64(w.spread)))
		for range 3 {
			if w.random.Float64() < w.loss {
				delay += 250 * time.Millisecond
			}
		}
		w.events.push(w.now.Add(delay), event{header: wire.Header{Type: wire.TypeDelta}, from: c, to: other,
			target: target, value: c.status[target]})
	}
}

func (w *world) connected(from, to *simulated) bool {
	if w.block == nil || !w.block(from, to) {
		return true
	}
	for _, via := range w.cells {
		if via != from && via != to && !via.crashed && !w.block(from, via) && !w.block(via, to) {
			return true
		}
	}
	return false
}

// wake keeps one wake-up event per cell at its deadline.
func (c *simulated) wake() {
	due := c.detector.Deadline()
	if due == clock.Never || due == c.wakeAt && due > c.world.now {
		return
	}
	c.wakeAt = max(due, c.world.now)
	c.world.events.push(c.wakeAt, event{to: c})
}

// run advances virtual time.
func (w *world) run(d time.Duration) {
	until := w.now.Add(d)
	for len(w.events.heap) > 0 && w.events.heap[0].at <= until {
		var e event
		w.now, e = w.events.pop()
		w.deliver(e)
	}
	w.now = until
}

func (w *world) deliver(e event) {
	c := e.to
	if c.crashed {
		return
	}
	if c.paused != 0 {
		if w.now < c.paused {
			if e.header.Type != 0 {
				c.held = append(c.held, e) // the socket buffer
			}
			return
		}
	}
	switch e.header.Type {
	case 0:
		if w.now != c.wakeAt {
			return // superseded
		}
		c.wakeAt = 0
		c.ticks++
		c.detector.Tick(w.now)
	case wire.TypeDelta:
		c.merge(w.now, e.target, e.value, false)
	default:
		c.detector.Receive(w.now, e.from.id, e.from.address, e.header, e.data[:e.size])
	}
	c.wake()
}

// pause stops a cell like SIGSTOP does; datagrams wait in its socket buffer.
func (c *simulated) pause(d time.Duration) {
	c.paused = c.world.now.Add(d)
	c.world.events.push(c.paused, event{header: wire.Header{Type: wire.TypeLeave}, to: c, from: c})
	c.wakeAt = 0
}

// restart is a crash and a new run of the daemon with a higher incarnation and no memory.
func (c *simulated) restart(incarnation uint32) {
	c.crashed = false
	c.boot()
	c.detector.SetSelf(state.CellStatus{Life: state.Alive, Incarnation: incarnation})
	c.wake()
}

// deaths returns the DEAD writes about a cell, or about all cells if id is 0.
func (w *world) deaths(id wire.CellID) (found []statusOf) {
	for _, write := range w.writes {
		if write.status.Life == state.Dead && (id == 0 || write.target == id) {
			found = append(found, write)
		}
	}
	return found
}

func (w *world) count(life state.Life) (n int) {
	for _, write := range w.writes {
		if write.status.Life == life {
			n++
		}
	}
	return n
}

func (s statusOf) String() string {
	return fmt.Sprintf("%v: %v says %v is %v(%d)",
		time.Duration(s.at), s.by, s.target, s.status.Life, s.status.Incarnation)
}
