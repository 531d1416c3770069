package sim

import (
	"net/netip"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/wire"
)

// NetworkOptions describe the weather.
type NetworkOptions struct {
	DelayMin, DelayMax time.Duration // one way; zero means 0.2..1 ms
	Loss               float64       // probability that a datagram vanishes
	Duplicate          float64       // probability that it arrives twice
	Reorder            float64       // probability that it is held back by up to ReorderBy
	ReorderBy          time.Duration // zero means 50 ms
}

// network carries datagrams between nodes. Cuts are directional; a node can be cut from all. Addresses
// are looked up here and nowhere else, so that translating networks can be put in between.
type network struct {
	world      *World
	options    NetworkOptions
	cut        map[[2]int]int // from, to; how many faults cut the direction
	group      []int          // partition number by node; empty = one network
	free       [][]byte
	foreign    map[netip.AddrPort]*foreignTraffic // of addresses that are no machine of this world
	tap        func(from, to *Node, datagram []byte)
	foreignTap func(to netip.AddrPort, datagram []byte)   // what goes to addresses that are no machine of this world
	drop       func(from, to *Node, datagram []byte) bool // for tests that break something

	epoch, weather, parted int           // numbers of faults: only the latest of a kind is undone at its end
	stormy                 time.Duration // last moment of weather in which cells may take each other for dead

	Sent, Delivered, Lost uint64
	Bytes                 uint64
}

// foreignTraffic is what one node exchanged with an address that nobody owns: an attacker's victim (F14).
type foreignTraffic struct{ in, out int }

func (n *network) init(w *World, options NetworkOptions) {
	n.world = w
	n.setOptions(options)
	n.cut = make(map[[2]int]int)
	n.foreign = make(map[netip.AddrPort]*foreignTraffic)
}

func (n *network) setOptions(options NetworkOptions) {
	if options.DelayMax == 0 {
		options.DelayMin, options.DelayMax = 200*time.Microsecond, time.Millisecond
	}
	if options.ReorderBy == 0 {
		options.ReorderBy = 50 * time.Millisecond
	}
	n.options = options
}

// SetNetwork changes the weather from now on.
func (w *World) SetNetwork(options NetworkOptions) {
	w.Storm()
	w.network.setOptions(options)
}

// Storm returns when the weather was last such that cells may take each other for dead without blame.
func (w *World) Storm() time.Duration {
	options := w.network.options
	if options.Loss > stormLoss || options.DelayMax > stormDelay || options.Reorder > 0 && options.ReorderBy > stormDelay {
		w.network.stormy = w.now
	}
	return w.network.stormy
}

// The failure detector is made for losses up to 5 % and tested with more (F62, F70).
const (
	stormLoss  = 0.06
	stormDelay = 250 * time.Millisecond
)

// Network returns the present weather.
func (w *World) Network() NetworkOptions { return w.network.options }

// Traffic returns datagrams and bytes sent since the beginning.
func (w *World) Traffic() (datagrams, bytes uint64) { return w.network.Sent, w.network.Bytes }

// Cut stops datagrams in one direction; Mend undoes one Cut.
func (w *World) Cut(from, to *Node) {
	w.network.cut[[2]int{from.Index, to.Index}]++
	w.disturb(from)
	w.disturb(to)
}

// Mend ends a Cut.
func (w *World) Mend(from, to *Node) {
	pair := [2]int{from.Index, to.Index}
	if w.network.cut[pair]--; w.network.cut[pair] <= 0 {
		delete(w.network.cut, pair)
	}
	w.disturb(from)
	w.disturb(to)
}

// Partition divides the network: group(i) says to which part node i belongs.
func (w *World) Partition(group func(i int) int) {
	w.network.group = make([]int, len(w.nodes))
	for i, n := range w.nodes {
		w.network.group[i] = group(i)
		w.disturb(n)
	}
	w.Tracef("partition %v", w.network.group)
}

// Isolate cuts one node from all others.
func (w *World) Isolate(n *Node) {
	w.Partition(func(i int) int {
		if i == n.Index {
			return 1
		}
		return 0
	})
}

// Unite ends a partition. Cuts stay.
func (w *World) Unite() {
	w.network.group = nil
	for _, n := range w.nodes {
		w.disturb(n)
	}
	w.Tracef("united")
}

// Heal ends partitions and cuts.
func (w *World) Heal() {
	w.network.group = nil
	clear(w.network.cut)
	for _, n := range w.nodes {
		w.disturb(n)
	}
	w.Tracef("heal")
}

// Connected reports whether datagrams pass in both directions.
func (w *World) Connected(a, b *Node) bool {
	return !w.network.blocked(a.Index, b.Index) && !w.network.blocked(b.Index, a.Index)
}

// disrupted reports whether any link is cut now.
func (n *network) disrupted() bool { return len(n.cut) > 0 || len(n.group) > 0 }

func (n *network) blocked(from, to int) bool {
	if from < 0 {
		return false
	}
	if len(n.cut) > 0 && n.cut[[2]int{from, to}] > 0 {
		return true
	}
	return len(n.group) > 0 && n.groupOf(from) != n.groupOf(to)
}

// groupOf returns the part of a node; machines added during a partition are in part 0.
func (n *network) groupOf(i int) int {
	if i < len(n.group) {
		return n.group[i]
	}
	return 0
}

func (n *network) send(from *Node, source, to netip.AddrPort, datagram []byte) {
	if len(datagram) > wire.DatagramMax/2 {
		n.world.examined("RES-2")
	}
	if len(datagram) > wire.DatagramMax {
		n.world.fail("RES-2", "n%d sends a datagram of %d bytes", from.Index, len(datagram))
	}
	n.Sent++
	n.Bytes += uint64(len(datagram))
	target, source, socket := n.resolve(from, source, to)
	if target == nil {
		if traffic := n.foreign[to]; traffic != nil {
			traffic.out += len(datagram)
		}
		if n.foreignTap != nil {
			n.foreignTap(to, datagram)
		}
		n.Lost++
		return
	}
	for _, check := range n.world.sendChecks {
		n.world.note(check, check.Datagram(n.world, from, target, datagram))
	}
	if n.tap != nil {
		n.tap(from, target, datagram)
	}
	if n.drop != nil && n.drop(from, target, datagram) {
		n.Lost++
		return
	}
	if n.blocked(from.Index, target.Index) || n.options.Loss > 0 && n.world.random.Float64() < n.options.Loss {
		n.Lost++
		return
	}
	n.scheduleVia(from.Index, source, target, socket, datagram)
	if n.options.Duplicate > 0 && n.world.random.Float64() < n.options.Duplicate {
		n.scheduleVia(from.Index, source, target, socket, datagram)
	}
}

// Inject delivers a datagram that seems to come from an address that is no machine of this world.
func (w *World) Inject(source netip.AddrPort, target *Node, datagram []byte) {
	traffic := w.network.foreign[source]
	if traffic == nil {
		traffic = new(foreignTraffic)
		w.network.foreign[source] = traffic
	}
	traffic.in += len(datagram)
	w.network.schedule(-1, source, target, datagram)
}

func (n *network) schedule(from int, source netip.AddrPort, target *Node, datagram []byte) {
	n.scheduleVia(from, source, target, 0, datagram)
}

// scheduleVia delivers to one of the further sockets of a machine, 0 for the cell's own.
func (n *network) scheduleVia(from int, source netip.AddrPort, target *Node, socket int, datagram []byte) {
	delay := n.options.DelayMin
	if spread := n.options.DelayMax - n.options.DelayMin; spread > 0 {
		delay += time.Duration(n.world.random.Int64N(int64(spread)))
	}
	if n.options.Reorder > 0 && n.world.random.Float64() < n.options.Reorder {
		delay += time.Duration(n.world.random.Int64N(int64(n.options.ReorderBy)))
	}
	n.world.events.push(n.world.now+delay, event{
		datagram: append(n.buffer(), datagram...), source: source, from: from, node: target, socket: socket,
	})
}

func (n *network) deliver(e event) {
	target := e.node
	if target.cell == nil || n.blocked(e.from, target.Index) {
		n.free = append(n.free, e.datagram)
		return
	}
	n.Delivered++
	if target.paused { // it waits in the socket's buffer, as far as there is room
		target.input(func(now clock.Instant) { target.receive(now, e.socket, e.source, e.datagram) })
		return
	}
	target.receive(target.instant(), e.socket, e.source, e.datagram)
	n.free = append(n.free, e.datagram)
	target.after()
}

func (n *network) buffer() []byte {
	if last := len(n.free) - 1; last >= 0 {
		b := n.free[last]
		n.free = n.free[:last]
		return b[:0]
	}
	return make([]byte, 0, 1280)
}
