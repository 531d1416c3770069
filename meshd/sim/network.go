package sim

import (
	"net/netip"
	"time"

	"colloid.net/meshd/clock"
)

// NetworkOptions describe the weather.
type NetworkOptions struct {
	DelayMin, DelayMax time.Duration // one way; zero means 0.2..1 ms
	Loss               float64       // probability that a datagram vanishes
	Duplicate          float64       // probability that it arrives twice
	Reorder            float64       // probability that it is held back by up to ReorderBy
	ReorderBy          time.Duration // zero means 50 ms
}

// network carries datagrams between nodes. Cuts are directional; a node can be cut from all.
type network struct {
	world   *World
	options NetworkOptions
	cut     map[[2]int]bool // from, to
	group   []int           // partition number by node; empty = one network
	free    [][]byte

	Sent, Delivered, Lost uint64
	Bytes                 uint64
}

func (n *network) init(w *World, options NetworkOptions) {
	if options.DelayMax == 0 {
		options.DelayMin, options.DelayMax = 200*time.Microsecond, time.Millisecond
	}
	if options.ReorderBy == 0 {
		options.ReorderBy = 50 * time.Millisecond
	}
	n.world, n.options, n.cut = w, options, make(map[[2]int]bool)
}

// SetNetwork changes the weather from now on.
func (w *World) SetNetwork(options NetworkOptions) {
	cut, group, sent, bytes := w.network.cut, w.network.group, w.network.Sent, w.network.Bytes
	w.network.init(w, options)
	w.network.cut, w.network.group, w.network.Sent, w.network.Bytes = cut, group, sent, bytes
}

// Traffic returns datagrams and bytes sent since the beginning.
func (w *World) Traffic() (datagrams, bytes uint64) { return w.network.Sent, w.network.Bytes }

// Cut stops datagrams in one direction; Mend allows them again.
func (w *World) Cut(from, to *Node) { w.network.cut[[2]int{from.Index, to.Index}] = true }

// Mend ends a Cut.
func (w *World) Mend(from, to *Node) { delete(w.network.cut, [2]int{from.Index, to.Index}) }

// Partition divides the network: group(i) says to which part node i belongs.
func (w *World) Partition(group func(i int) int) {
	w.network.group = make([]int, len(w.nodes))
	for i := range w.nodes {
		w.network.group[i] = group(i)
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

// Heal ends partitions and cuts.
func (w *World) Heal() {
	w.network.group = nil
	clear(w.network.cut)
	w.Tracef("heal")
}

// Connected reports whether datagrams pass in both directions.
func (w *World) Connected(a, b *Node) bool {
	return !w.network.blocked(a.Index, b.Index) && !w.network.blocked(b.Index, a.Index)
}

func (n *network) blocked(from, to int) bool {
	if len(n.cut) > 0 && n.cut[[2]int{from, to}] {
		return true
	}
	return from < len(n.group) && to < len(n.group) && n.group[from] != n.group[to]
}

func (n *network) send(from *Node, to netip.AddrPort, datagram []byte) {
	n.Sent++
	n.Bytes += uint64(len(datagram))
	target := n.world.byAddr[to]
	if target == nil || n.blocked(from.Index, target.Index) || n.world.random.Float64() < n.options.Loss {
		n.Lost++
		return
	}
	n.schedule(from, target, datagram)
	if n.options.Duplicate > 0 && n.world.random.Float64() < n.options.Duplicate {
		n.schedule(from, target, datagram)
	}
}

func (n *network) schedule(from, target *Node, datagram []byte) {
	delay := n.options.DelayMin
	if spread := n.options.DelayMax - n.options.DelayMin; spread > 0 {
		delay += time.Duration(n.world.random.Int64N(int64(spread)))
	}
	if n.options.Reorder > 0 && n.world.random.Float64() < n.options.Reorder {
		delay += time.Duration(n.world.random.Int64N(int64(n.options.ReorderBy)))
	}
	copied := append(n.buffer(), datagram...)
	source := from.Address
	n.world.After(delay, func() {
		if !n.blocked(from.Index, target.Index) && target.cell != nil {
			n.Delivered++
			if target.paused {
				target.input(func(now clock.Instant) { target.cell.Receive(now, source, copied) })
				return
			}
			target.input(func(now clock.Instant) { target.cell.Receive(now, source, copied) })
		}
		n.free = append(n.free, copied)
	})
}

func (n *network) buffer() []byte {
	if last := len(n.free) - 1; last >= 0 {
		b := n.free[last]
		n.free = n.free[:last]
		return b[:0]
	}
	return make([]byte, 0, 1280)
}
