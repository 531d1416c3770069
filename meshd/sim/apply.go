package sim

import (
	"encoding/binary"
	"net/netip"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/cell"
	"colloid.net/meshd/wire"
	"colloid.net/workload"
)

// Spec encodes a process workload for scenarios.
func Spec(replicas int, image string) []byte {
	raw, err := workload.Encode(&workload.Spec{
		Runtime: workload.RuntimeProcess, Replicas: uint16(replicas), Image: image,
	})
	if err != nil {
		panic("sim: " + err.Error())
	}
	return raw
}

// StatefulSpec encodes a stateful process workload for scenarios.
func StatefulSpec(image string) []byte {
	raw, err := workload.Encode(&workload.Spec{
		Runtime: workload.RuntimeProcess, Replicas: 1, Image: image, Stateful: true,
	})
	if err != nil {
		panic("sim: " + err.Error())
	}
	return raw
}

// node returns a machine of the scenario, nil if there is none with this number.
func (w *World) node(i int) *Node {
	if i < 0 || i >= len(w.nodes) {
		return nil
	}
	return w.nodes[i]
}

// Apply does one fault now and schedules its end.
func (w *World) Apply(f Fault) {
	form := verbForms[f.Verb]
	n, other := w.node(f.Node), w.node(f.Other)
	if form.node && n == nil || form.other && (other == nil || other == n) {
		return // the machine does not exist in the shrunk scenario
	}
	w.Tracef("* %s", f)
	switch f.Verb {
	case Write, Delete, Resolve, Drain, Uncordon, Backup: // operators' writes disturb nobody
	default:
		w.trouble = max(w.trouble, w.now+f.For)
	}
	switch f.Verb {
	case Weather, Partition, Cut, Deaf:
		w.applyNetwork(f, n, other)
	case Crash, Kill, Wipe, Restore, Clone, Pause, Starve:
		w.applyDown(f, n, other)
	case Write, Delete, Resolve, Forget, Leave, Join, Drain, Uncordon:
		w.applyOperator(f, n, other)
	case Rebind:
		w.disturb(n)
		n.Rebind()
	case Reboot:
		w.reboot(n, f.For)
	case Equip:
		w.reequip(n, f.Machine)
	case Backup:
		n.backup = n.disk.image.clone()
		n.backupAt = w.now
	case Jump:
		n.JumpClock(f.For)
	case Full:
		n.disk.full = true
		w.After(f.For, func() { n.disk.full = false })
	case Runnerd:
		n.host.leave()
		w.After(f.For, n.host.comeBack)
	case Exit:
		n.host.exit(int(w.random.Uint32() >> 1))
	case Spoof:
		w.spoof(n, f.For)
	case Upgrade:
		w.change(n, NextVersions)
		w.After(f.For, func() { w.change(n, wire.Spoken) })
	}
}

// reboot switches the routers of a machine off for a while. Machines behind one router may see each other
// and nobody else meanwhile, so it counts as a partition.
func (w *World) reboot(n *Node, d time.Duration) {
	if n.router == nil {
		return
	}
	set := func(down bool) {
		n.setRouters(down)
		for _, other := range w.nodes {
			w.disturb(other)
		}
	}
	set(true)
	w.After(d, func() { set(false) })
}

func (w *World) applyNetwork(f Fault, n, other *Node) {
	w.network.epoch++
	epoch := w.network.epoch
	switch f.Verb {
	case Weather:
		w.SetNetwork(f.Weather)
		w.network.weather = epoch
		w.After(f.For, func() {
			if w.network.weather == epoch {
				w.SetNetwork(w.options.Network)
			}
		})
	case Partition:
		w.Partition(func(i int) int {
			if i < len(f.Groups) {
				return f.Groups[i]
			}
			return 0
		})
		w.network.parted = epoch
		w.After(f.For, func() {
			if w.network.parted == epoch {
				w.Unite()
			}
		})
	case Cut:
		w.Cut(n, other)
		w.After(f.For, func() { w.Mend(n, other) })
	case Deaf:
		others := make([]*Node, 0, len(w.nodes))
		for _, from := range w.nodes {
			if from != n {
				w.Cut(from, n)
				others = append(others, from)
			}
		}
		w.After(f.For, func() {
			for _, from := range others {
				w.Mend(from, n)
			}
		})
	}
}

// applyDown handles what stops a process. Only one such fault has a machine at a time.
func (w *World) applyDown(f Fault, n, other *Node) {
	victim := n
	if f.Verb == Clone {
		victim = other
	}
	if victim.reserved || f.Verb == Restore && n.backup == nil {
		return
	}
	victim.reserved = true
	boot := func() {
		victim.reserved = false
		victim.Boot()
	}
	switch f.Verb {
	case Crash:
		n.PowerOff()
	case Kill:
		n.Kill()
	case Wipe:
		w.losing(n, 0)
		n.outside = true
		n.PowerOff()
		n.Wipe()
		boot = func() {
			n.reserved = false
			n.Boot()
			w.rejoin(n)
		}
	case Restore:
		w.losing(n, n.backupAt)
		n.Kill()
		n.disk.restore(n.backup)
	case Clone:
		w.losing(other, 0)
		other.PowerOff()
		other.disk.restore(&n.disk.image)
		other.disk.identify() // another machine-id: the storage draws a new identity (F2)
	case Pause:
		n.Pause()
		boot = func() {
			n.reserved = false
			n.Resume()
		}
	case Starve:
		w.starve(n, w.now+f.For)
		return
	}
	w.After(f.For, boot)
}

// starve lets a process run in slices of 50 ms with gaps of up to 1.5 s between them.
func (w *World) starve(n *Node, until time.Duration) {
	if w.now >= until || w.calm || n.cell == nil {
		n.starved, n.reserved = false, false
		n.Resume()
		w.disturb(n)
		return
	}
	n.starved = true
	n.Pause()
	w.After(100*time.Millisecond+time.Duration(w.random.Int64N(int64(1400*time.Millisecond))), func() {
		n.Resume()
		w.After(50*time.Millisecond, func() { w.starve(n, until) })
	})
}

func (w *World) applyOperator(f Fault, n, other *Node) {
	if f.Verb == Join {
		fresh := w.AddNode()
		fresh.Boot()
		w.rejoin(fresh)
		return
	}
	if n.cell == nil || n.paused {
		return
	}
	switch f.Verb {
	case Write:
		n.specify(&f, func(value []byte) { n.Set(f.Key, value, uds.ExpectAny, nil) })
	case Drain:
		w.drained[other.Index] = struct{}{}
		n.drain(other, true, f.Abandon, nil)
	case Uncordon:
		delete(w.drained, other.Index)
		n.Drain(other, false)
	case Delete:
		n.Delete(f.Key)
	case Resolve:
		if register, found := n.cell.Store().Get([]byte(f.Key)); found && register.Conflicted() {
			n.specify(&f, func(value []byte) { n.Resolve(f.Key, value) })
		}
	case Forget:
		id := binary.BigEndian.AppendUint64(nil, uint64(other.ID()))
		n.Command(cell.Request{Code: uds.CodeForget, Payload: id}, func(r cell.Response) {
			w.Tracef("n%d forget n%d: %d %s", n.Index, other.Index, r.Status, r.Text)
			w.forgot = w.forgot || r.Status == uds.OK
		})
	case Leave:
		if n.reserved {
			return
		}
		n.reserved = true
		w.disturb(n)
		w.losing(n, 0)
		payload := []byte{0, 20}
		if f.Abandon {
			payload = append(payload, 2)
		}
		n.Command(cell.Request{Code: uds.CodeLeave, Payload: payload}, func(r cell.Response) {
			w.Tracef("n%d leave: %d %s", n.Index, r.Status, r.Text)
			n.outside = n.outside || r.Status == uds.OK
			if w.calm { // the last fault was while it handed over
				w.After(time.Second, func() { w.rejoin(n) })
			}
		})
		w.After(f.For+25*time.Second, func() {
			n.reserved = false
			w.rejoin(n)
		})
	}
}

// rejoin connects a machine to the main cluster, again and again until it is in, or down.
func (w *World) rejoin(n *Node) {
	if n.outside && n.cell != nil && n.cell.ClusterID() == w.cluster {
		n.outside = false
		w.disturb(n)
	}
	if n.cell == nil || n.cell.ClusterID() == w.cluster || n.joining {
		return
	}
	var seeds []*Node
	for _, m := range w.nodes {
		if n.NAT == Blocked && m != w.nodes[0] {
			continue // nobody tells it to connect to what it cannot reach
		}
		if m != n && m.router == nil && m.cell != nil && !m.paused && m.cell.Phase() == cell.Active && m.cell.ClusterID() == w.cluster {
			seeds = append(seeds, m)
		}
	}
	again := func() {
		n.joining = false
		w.rejoin(n)
	}
	n.joining = true
	run := n.run
	if len(seeds) == 0 || n.paused {
		w.After(time.Second, again)
		return
	}
	n.connect(seeds[w.random.IntN(len(seeds))], true, func(cell.Response) {
		if n.run == run {
			w.After(time.Second, again)
		}
	})
}

// spoof replays for a while, from addresses that are nobody's, what the node received lately: of each
// kind of message one, every 50 ms.
func (w *World) spoof(n *Node, d time.Duration) {
	until := w.now + d
	seen := make(map[byte][]byte)
	order := []byte{}
	previous := w.network.tap
	w.network.tap = func(from, to *Node, datagram []byte) {
		if previous != nil {
			previous(from, to, datagram)
		}
		if to != n || w.now >= until {
			return
		}
		kind := datagram[1]
		if seen[kind] == nil {
			order = append(order, kind)
		}
		seen[kind] = append(seen[kind][:0], datagram...)
	}
	var shoot func()
	number := 0
	shoot = func() {
		if w.now >= until || w.calm {
			return
		}
		for _, kind := range order {
			number++
			source := netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(number % 8)}), uint16(1024+number%3))
			w.Inject(source, n, seen[kind])
		}
		w.After(50*time.Millisecond, shoot)
	}
	w.After(time.Second, shoot)
}
