// Package sim runs whole clusters in one goroutine on virtual time: the very code of package cell that
// the reactor drives, with a network, disks, clocks and hosts that fail as a seed dictates. The same
// seed gives the same run, byte for byte; a failing seed is a bug report.
//
// The nouns. A World holds everything and pops events in order of time. A Node is one machine: a Cell
// (while meshd runs), a Disk (survives crashes) and a Host (what runnerd keeps alive). The Network
// decides what becomes of each datagram. Checkers look at the world after steps.
package sim

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/cell"
	"colloid.net/meshd/clock"
	"colloid.net/meshd/nat"
	"colloid.net/meshd/wire"
)

// Options of a world.
type Options struct {
	Seed    uint64
	Cells   int
	Network NetworkOptions
	NAT     []NATKind // what stands before each machine; those that are not named are Public
	// Version6 gives machines addresses of IP version 6; for routers that do not translate.
	Version6 bool
	// Tracking has the router that several machines share choose ports as Linux does: see tracking.
	Tracking bool
	Timing   cell.Timing
	// Trace, if set, receives one line for everything worth telling in a failure report.
	Trace func(line string)
	// Debug, if set, receives what cells log for those who look into something, above all what happens to paths.
	Debug func(n *Node, line string)
	// KeysMax of every cell, 0 = the default.
	KeysMax uint32
	// SocketsMax is how many further sockets a cell can open, 0 = as many as it wants.
	SocketsMax int
}

// World is one simulated universe.
type World struct {
	options Options
	random  *rand.Rand
	now     time.Duration // virtual time since the beginning
	events  events
	nodes   []*Node
	byAddr  map[netip.AddrPort]*Node
	routers map[netip.Addr]*router // by global address
	network network
	Steps   uint64
	Failure error  // first violation; Run stops there
	cluster uint64 // that was formed; machines outside are taken back by their operators

	forgot  bool             // an operator gave a cell up
	trouble time.Duration    // when the last fault ends that is no operator's write
	drained map[int]struct{} // machines that operators want empty
	calm    bool             // no fault goes on any more
	flaky   bool             // now and then a host cannot fetch what it is to prepare

	examinations map[string]int // by rule, see examined

	checks     []*Checker
	losesNow   *Node
	lost       []func(n *Node, since time.Duration)
	synced     []func(n *Node, record *wire.Record)
	stepChecks []*Checker
	sendChecks []*Checker
}

// New makes a world of machines that are switched off; see Node.Boot and Form.
func New(options Options) *World {
	w := &World{
		options: options,
		random:  rand.New(rand.NewPCG(options.Seed, 0x636f6c6c6f6964)),
		byAddr:  make(map[netip.AddrPort]*Node),
		routers: make(map[netip.Addr]*router),
		drained: make(map[int]struct{}),

		examinations: make(map[string]int),
	}
	w.network.init(w, options.Network)
	for range options.Cells {
		w.AddNode()
	}
	return w
}

// AddNode adds one machine, switched off.
func (w *World) AddNode() *Node {
	index := len(w.nodes)
	address := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(index >> 16), byte(index >> 8), byte(index)}), wire.Port)
	n := &Node{world: w, Index: index, Address: address, offset: time.Duration(1 + w.random.Int64N(int64(time.Hour))), versions: wire.Spoken}
	n.disk = newDisk(w, n)
	n.host = newHost(n)
	w.nodes = append(w.nodes, n)
	if len(w.options.NAT) == 0 { // one private network
		w.byAddr[address] = n
		return n
	}
	if index < len(w.options.NAT) {
		n.NAT = w.options.NAT[index]
	}
	w.place(n)
	return n
}

// Node returns the machine with an index.
func (w *World) Node(i int) *Node { return w.nodes[i] }

// Nodes returns all machines.
func (w *World) Nodes() []*Node { return w.nodes }

// Now returns the virtual time since the beginning.
func (w *World) Now() time.Duration { return w.now }

// Random is the world's source of chance, for scenarios.
func (w *World) Random() *rand.Rand { return w.random }

// After schedules f.
func (w *World) After(d time.Duration, f func()) { w.events.push(w.now+d, event{run: f}) }

// Tracef tells the trace.
func (w *World) Tracef(format string, arguments ...any) {
	if w.options.Trace != nil {
		w.options.Trace(fmt.Sprintf("%12.6f ", w.now.Seconds()) + fmt.Sprintf(format, arguments...))
	}
}

// Run lets d of virtual time pass, or less if a checker objects.
func (w *World) Run(d time.Duration) error {
	until := w.now + d
	for w.events.len() > 0 && w.events.next() <= until && w.Failure == nil {
		w.step()
	}
	if w.Failure == nil {
		w.now = until
	}
	return w.Failure
}

// Until runs until done or limit; it reports whether done came true and when.
func (w *World) Until(limit time.Duration, done func() bool) (time.Duration, bool) {
	begin := w.now
	for !done() {
		if w.now-begin >= limit || w.Failure != nil || w.events.len() == 0 {
			return w.now - begin, false
		}
		w.step()
	}
	return w.now - begin, true
}

func (w *World) step() {
	at, e := w.events.pop()
	w.now = at
	w.Steps++
	switch {
	case e.run != nil:
		e.run()
	case e.datagram != nil:
		w.network.deliver(e)
	default:
		e.node.ticked(e.number)
	}
}

// Form boots every machine and joins all to the first, which founded the cluster.
func (w *World) Form(limit time.Duration) error {
	for _, n := range w.nodes {
		n.Boot()
	}
	if err := w.Run(10 * time.Millisecond); err != nil {
		return err
	}
	for _, n := range w.nodes[1:] {
		w.join(n, w.nodes[0])
	}
	took, ok := w.Until(limit, w.Formed)
	if !ok {
		return fmt.Errorf("seed %d: cluster of %d not formed after %v: %v", w.options.Seed, len(w.nodes), took, w.Failure)
	}
	w.cluster = w.nodes[0].cell.ClusterID()
	w.Tracef("formed in %v", took)
	return nil
}

// join connects a node, again and again: a cell takes in a few joiners at a time.
func (w *World) join(n, seed *Node) {
	n.connect(seed, false, func(r cell.Response) {
		if r.Status != uds.OK {
			w.After(time.Second, func() { w.join(n, seed) })
		}
	})
}

// Formed reports whether all running cells are active and see each other alive.
func (w *World) Formed() bool {
	up := 0
	for _, n := range w.nodes {
		if n.cell == nil {
			continue
		}
		if n.cell.Phase() != cell.Active || !n.cell.Joined() && len(w.nodes) > 1 {
			return false
		}
		up++
	}
	for _, n := range w.nodes {
		if n.cell != nil && n.cell.AliveCount() < up {
			return false
		}
	}
	return true
}

func (w *World) socketsMax() int {
	if w.options.SocketsMax > 0 {
		return w.options.SocketsMax
	}
	return nat.SocketsMax
}

// instant translates virtual time to a node's clock.
func (n *Node) instant() clock.Instant { return clock.Instant(n.world.now + n.offset) }
