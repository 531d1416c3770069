package sim

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/cell"
	"colloid.net/meshd/crdt"
	"colloid.net/meshd/reconcile"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
	"colloid.net/workload"
)

// wanted is one workload as the operators left it.
type wanted struct {
	key    string
	hash   uint64
	spec   *workload.Spec // nil if frozen
	good   *workload.Spec // what may run instead, after an update that failed; nil = nothing
	frozen bool
}

// wanted lists all workloads that have a value, in the order in which they are served (F72): the greater priority
// first, then the smaller hash.
func (w *World) wanted() (list []wanted) {
	store := w.nodes[0].cell.Store()
	store.Walk("", func(r crdt.Register) bool {
		if !state.IsWorkload(r.Name()) || r.Absent() {
			return true
		}
		one := wanted{key: string(r.Name()), hash: r.KeyHash()}
		value, single := r.Live()
		spec, err := workload.Decode(value)
		if one.frozen = !single || err != nil; !one.frozen {
			one.spec = spec
			one.good = goodOf(store, one.key, spec)
		}
		list = append(list, one)
		return true
	})
	slices.SortFunc(list, func(a, b wanted) int { return a.compare(&b) })
	return list
}

func (a *wanted) compare(b *wanted) int {
	return cmp.Or(cmp.Compare(b.priority(), a.priority()), cmp.Compare(a.hash, b.hash))
}

func (a *wanted) priority() int8 {
	if a.spec == nil {
		return 0
	}
	return a.spec.Priority
}

// goodOf is the specification that replaces one that asks to be rolled back, if there is one.
func goodOf(store *crdt.Store, key string, spec *workload.Spec) *workload.Spec {
	register, found := store.Get([]byte(state.RolloutKey(state.WorkloadName(key), state.RolloutGood)))
	if !found || !spec.Update.AutoRollback {
		return nil
	}
	_, value, _ := register.Latest()
	good, err := workload.Decode(value)
	if err != nil || workload.CheckKey(key, good) != nil || good.InstanceDigest() == spec.InstanceDigest() {
		return nil
	}
	return good
}

// placed reports what keeps the running instances from being exactly the wanted ones. It asks nothing of the plans
// of cells: every instance must be on a machine that may run it and has room, and a replica may be missing only
// where no machine could take it beside what is served before it (F72, F78).
func (w *World) placed() error {
	list := w.wanted()
	frozen, known := false, make(map[string]*wanted)
	for i := range list {
		known[list[i].key] = &list[i]
		frozen = frozen || list[i].frozen
	}
	for _, n := range w.nodes {
		for _, i := range n.host.sorted() {
			if one := known[i.key]; one == nil || !one.frozen && i.id.KeyHash != one.hash {
				return fmt.Errorf("n%d runs %s, which nobody wants", n.Index, i.key)
			}
		}
		if err := n.crowded(); err != nil && !frozen {
			return err
		}
	}
	for i := range list {
		if one := &list[i]; !one.frozen {
			if err := w.placedKey(list, one, frozen); err != nil {
				return err
			}
		}
	}
	return nil
}

// placedKey checks one workload. Beside what is frozen, which stays where it is, others may lack room.
func (w *World) placedKey(list []wanted, one *wanted, frozen bool) error {
	if w.homeless(one) {
		return nil
	}
	spec, running := one.spec, w.instancesOf(one.hash)
	if one.good != nil && len(running) > 0 && running[0].id.Digest == one.good.InstanceDigest() {
		spec = one.good
	}
	digest, settled, other := spec.InstanceDigest(), 0, 0
	slots := make(map[uint16]bool)
	for _, i := range running {
		switch {
		case i.id.Digest != digest || spec.Stateful && (slots[i.id.Slot] || int(i.id.Slot) >= int(spec.Replicas)):
			other++
		case i.state == reconcile.Ready, !works(spec.Image), spec.Restart != workload.RestartAlways && i.state == reconcile.Exited:
			settled++
		default:
			other++
		}
		slots[i.id.Slot] = true
	}
	replicas := int(spec.Replicas)
	if !works(one.spec.Image) { // some of the old ones serve on, and where some are depends on when it failed
		return w.onEligible(one, spec)
	}
	if other != 0 || settled > replicas {
		return fmt.Errorf("%s: %d of %d instances ready, %d others", one.key, settled, replicas, other)
	}
	if err := w.onEligible(one, spec); err != nil || frozen {
		return err
	}
	for _, n := range w.nodes {
		if settled < replicas && n.couldRun(list, one, spec) {
			return fmt.Errorf("%s: %d of %d instances ready, and n%d could run one", one.key, settled, replicas, n.Index)
		}
	}
	return nil
}

// homeless reports whether no machine may run a workload: then what runs of it serves on, as long as its room is
// not needed.
func (w *World) homeless(one *wanted) bool {
	return one.spec != nil && !slices.ContainsFunc(w.nodes, func(n *Node) bool {
		ok, _ := n.machine.offers(one.spec)
		return ok
	})
}

// onEligible checks where the instances of a workload are.
func (w *World) onEligible(one *wanted, spec *workload.Spec) error {
	for _, n := range w.nodes {
		count := n.count(one.hash)
		if count > 1 && !spec.Oversubscribe && works(one.spec.Image) {
			return fmt.Errorf("n%d runs %d instances of %s", n.Index, count, one.key)
		}
		// A policy is asked at a start: what it would refuse now runs on.
		if ok, why := n.machine.offers(spec); count > 0 && !ok && why != "policy" && works(one.spec.Image) {
			return fmt.Errorf("n%d runs %s against its %s", n.Index, one.key, why)
		}
	}
	return nil
}

func (w *World) instancesOf(hash uint64) (list []*instance) {
	for _, n := range w.nodes {
		for _, i := range n.host.sorted() {
			if i.id.KeyHash == hash {
				list = append(list, i)
			}
		}
	}
	return list
}

// count returns how many instances of a workload are on the machine.
func (n *Node) count(hash uint64) (count int) {
	for id := range n.host.instances {
		if id.KeyHash == hash {
			count++
		}
	}
	return count
}

// couldRun reports whether the machine could take one more instance beside all that is served before it.
func (n *Node) couldRun(list []wanted, one *wanted, spec *workload.Spec) bool {
	if ok, _ := n.machine.offers(spec); !ok || n.count(one.hash) > 0 && !spec.Oversubscribe {
		return false
	}
	before := func(i *instance) bool {
		at := slices.IndexFunc(list, func(other wanted) bool { return other.hash == i.id.KeyHash })
		if at >= 0 && n.world.homeless(&list[at]) {
			return list[at].priority() > one.priority()
		}
		return at >= 0 && list[at].compare(one) <= 0
	}
	return n.room(spec, before) == nil
}

// crowded reports whether what is on the machine exceeds it.
func (n *Node) crowded() error {
	return n.room(&workload.Spec{}, func(*instance) bool { return true })
}

// room reports what of a request does not fit beside the instances that count.
func (n *Node) room(spec *workload.Spec, counts func(*instance) bool) error {
	limit := n.machine.capacity()
	var used [4]uint64
	ask := func(s *workload.Spec, one uint64) {
		used[0] += uint64(s.CPUMillicores)
		used[1] += uint64(s.MemoryMiB)
		used[2] += uint64(s.DiskMiB)
		used[3] += one
	}
	var others []*instance
	for _, i := range n.host.sorted() {
		if !counts(i) {
			continue
		}
		ask(i.runs, 1)
		if portsCollide(i.runs, spec) {
			return fmt.Errorf("n%d: a port of %s is taken", n.Index, i.key)
		}
		for _, other := range others {
			if portsCollide(i.runs, other.runs) {
				return fmt.Errorf("n%d: %s and %s have a port in common", n.Index, i.key, other.key)
			}
		}
		others = append(others, i)
	}
	if len(spec.Image) > 0 {
		ask(spec, 1)
	}
	for at, most := range [4]uint32{limit.CPUMillicores, limit.MemoryMiB, limit.DiskMiB, limit.InstancesMax} {
		if most != 0 && used[at] > uint64(most) {
			return fmt.Errorf("n%d: %d %s of %d", n.Index, used[at],
				[4]string{"millicores", "MiB of memory", "MiB of disk", "instances"}[at], most)
		}
	}
	return nil
}

// uncordonAll is an operator who ends all wishes that cells be empty, again and again until none is left in calm.
func (w *World) uncordonAll() {
	const often, calls = 5 * time.Second, 60
	var look func(left int)
	look = func(left int) {
		for _, n := range w.nodes {
			if n.cell == nil || n.paused || n.cell.Phase() != cell.Active || n.cell.ClusterID() != w.cluster {
				continue
			}
			for _, id := range drains(n) {
				w.uncordon(n, id)
			}
			break
		}
		if left > 0 {
			w.After(often, func() { look(left - 1) })
		}
	}
	look(calls)
}

// drains lists the cells that somebody wants empty, as a node knows it.
func drains(n *Node) (ids []wire.CellID) {
	n.cell.Store().Walk(state.PrefixCell, func(r crdt.Register) bool {
		if id, ok := state.SplitDrain(string(r.Name())); ok && !r.Absent() {
			ids = append(ids, id)
		}
		return true
	})
	slices.Sort(ids)
	return ids
}

// uncordon takes the wish back that a cell be empty.
func (w *World) uncordon(n *Node, id wire.CellID) {
	for _, other := range w.nodes {
		if other.ID() == id {
			delete(w.drained, other.Index)
		}
	}
	n.Command(drainRequest(id, 0), func(r cell.Response) {
		if r.Status != uds.OK {
			w.Tracef("n%d uncordon %v: %d %s", n.Index, id, r.Status, r.Text)
		}
	})
}
