package sim

import (
	"fmt"
	"slices"

	"colloid.net/meshd/placement"
	"colloid.net/meshd/reconcile"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
	"colloid.net/workload"
)

// checkRoom is F72: no plan gives a cell what it cannot take, and no cell commands its host to run more than its memory, or
// two instances on one port.
func checkRoom() *Checker {
	plans := make(map[*Node]*placement.Plan)
	return &Checker{Name: "F72", Action: overcommits, Step: func(w *World, n *Node) error {
		if n.cell == nil || n.cell.Plan() == plans[n] {
			return nil
		}
		cells, workloads, current := n.cell.PlanInput()
		if plans[n] = n.cell.Plan(); !current || plans[n] == nil {
			return nil
		}
		if slices.ContainsFunc(workloads, demanding) {
			w.examined("F72")
		}
		if err := fitting(cells, workloads, n.cell.Plan()); err != nil {
			return fmt.Errorf("n%d plans: %w", n.Index, err)
		}
		return nil
	}}
}

// demanding reports whether a workload asks for anything that could be missing.
func demanding(w placement.Workload) bool {
	s := w.Spec
	return s != nil && s.Replicas > 0 && (s.MemoryMiB > 0 || s.CPUMillicores > 0 || s.DiskMiB > 0 || len(s.Ports) > 0 ||
		len(s.Constraints) > 0 || s.Architecture != "")
}

// taken is what a plan gives to one cell.
type taken struct {
	processor, memory, disk, instances uint64
	ports                              map[workload.Port]string
}

// fitting reports a replica that is where it cannot be. It adds up from scratch what placement keeps track of.
func fitting(cells []placement.Cell, workloads []placement.Workload, plan *placement.Plan) error {
	loads := make(map[wire.CellID]*taken, len(cells))
	for i := range workloads {
		w := &workloads[i]
		seen := make(map[wire.CellID]bool)
		for _, replica := range plan.Of(w.KeyHash) {
			at := slices.IndexFunc(cells, func(c placement.Cell) bool { return c.ID == replica.Cell })
			if at < 0 {
				return fmt.Errorf("%s on %v, which is none of the healthy cells", w.Key, replica.Cell)
			}
			if reason := unsuitable(&cells[at], w); reason != "" {
				return fmt.Errorf("%s on %v: %s", w.Key, replica.Cell, reason)
			}
			if seen[replica.Cell] && !w.Spec.Oversubscribe {
				return fmt.Errorf("%s on %v twice", w.Key, replica.Cell)
			}
			seen[replica.Cell] = true
			if loads[replica.Cell] == nil {
				loads[replica.Cell] = &taken{ports: make(map[workload.Port]string)}
			}
			if err := loads[replica.Cell].add(w, &cells[at].Capacity); err != nil {
				return fmt.Errorf("%v: %w", replica.Cell, err)
			}
		}
	}
	return nil
}

// unsuitable says why a cell is none for a workload, whatever room it has.
func unsuitable(c *placement.Cell, w *placement.Workload) string {
	labelled := func(wanted workload.Constraint) bool {
		return slices.Contains(c.Labels, [2]string{wanted.Label, wanted.Value}) != wanted.Negate
	}
	offered := map[workload.Runtime]uint32{
		workload.RuntimeOCI: state.FlagOCI, workload.RuntimeWasm: state.FlagWasm, workload.RuntimeProcess: state.FlagProcess,
	}
	switch {
	case c.Flags&offered[w.Spec.Runtime] == 0:
		return "it has not the runtime"
	case w.Spec.Architecture != "" && w.Spec.Architecture != c.Arch:
		return "another architecture"
	case slices.ContainsFunc(w.Spec.Constraints, func(k workload.Constraint) bool { return !labelled(k) }):
		return "its labels are not those wanted"
	case c.Flags&state.FlagDegraded != 0:
		return "its store is full"
	case slices.Contains(w.Denied, c.ID):
		return "its host refuses it"
	case c.NoNew && !slices.Contains(w.Keepers, c.ID) && !slices.Contains(w.Anchors, c.ID):
		return "it takes nothing new"
	}
	return ""
}

// add books one replica and reports what does not fit.
func (t *taken) add(w *placement.Workload, most *state.CellCapacity) error {
	t.processor += uint64(w.Spec.CPUMillicores)
	t.memory += uint64(w.Spec.MemoryMiB)
	t.disk += uint64(w.Spec.DiskMiB)
	t.instances++
	for _, limit := range []struct {
		noun string
		used uint64
		most uint32
	}{
		{"millicores", t.processor, most.CPUMillicores}, {"MiB of memory", t.memory, most.MemoryMiB},
		{"MiB of disk", t.disk, most.DiskMiB}, {"instances", t.instances, most.InstancesMax},
	} {
		if limit.most > 0 && limit.used > uint64(limit.most) {
			return fmt.Errorf("%d %s with %s, of %d", limit.used, limit.noun, w.Key, limit.most)
		}
	}
	for _, port := range w.Spec.Ports {
		key := workload.Port{Protocol: port.Protocol, Host: port.Host}
		if holder, held := t.ports[key]; held && port.Host != 0 {
			return fmt.Errorf("port %d of %s and %s", port.Host, holder, w.Key)
		}
	}
	for _, port := range w.Spec.Ports {
		t.ports[workload.Port{Protocol: port.Protocol, Host: port.Host}] = w.Key
	}
	return nil
}

// frozen reports whether a cell holds a key for one in CONFLICT.
func frozen(n *Node, key string) bool {
	register, found := n.cell.Store().Get([]byte(key))
	return found && register.Conflicted()
}

// overcommits judges a command to start something by what the host runs at that moment. Of its memory only that of
// instances counts which the plan knows: it reserves nothing for those of older specifications and of frozen keys, which
// may stay for long, and a start that waited for them could wait for ever.
func overcommits(w *World, n *Node, action reconcile.Action) error {
	spec, err := workload.Decode(action.Spec)
	if action.Kind != reconcile.Start || err != nil || n.host.instances[action.ID] != nil {
		return nil
	}
	cells, workloads, _ := n.cell.PlanInput()
	at := slices.IndexFunc(cells, func(c placement.Cell) bool { return c.ID == n.cell.Self() })
	if at < 0 {
		return nil
	}
	memory := uint64(spec.MemoryMiB)
	for _, i := range n.host.sorted() {
		other, err := workload.Decode(i.spec)
		if err != nil || i.state == reconcile.Denied || i.state == reconcile.Exited {
			continue
		}
		if slices.ContainsFunc(workloads, func(w placement.Workload) bool {
			return w.KeyHash == i.id.KeyHash && w.Digest == i.id.Digest && !frozen(n, i.key)
		}) {
			memory += uint64(other.MemoryMiB)
		}
		for _, port := range spec.Ports {
			if port.Host != 0 && slices.ContainsFunc(other.Ports, func(p workload.Port) bool {
				return p.Host == port.Host && p.Protocol == port.Protocol
			}) {
				return fmt.Errorf("n%d starts %s on port %d, which %s has", n.Index, action.Key, port.Host, i.key)
			}
		}
	}
	if spec.MemoryMiB > 0 || len(spec.Ports) > 0 {
		w.examined("F72")
	}
	if most := cells[at].Capacity.MemoryMiB; spec.MemoryMiB > 0 && most > 0 && memory > uint64(most) {
		return fmt.Errorf("n%d starts %s, with which %d MiB run, of %d", n.Index, action.Key, memory, most)
	}
	return nil
}

// checkDrains holds a cell to an operator's wish that it be empty: once it knows, nothing new starts there.
func checkDrains() *Checker {
	return &Checker{Name: "DRAIN", Action: func(w *World, n *Node, action reconcile.Action) error {
		register, found := n.cell.Store().Get([]byte(state.DrainKey(n.cell.Self())))
		if !found || register.Absent() {
			return nil
		}
		w.examined("DRAIN")
		if action.Kind == reconcile.Start && n.host.instances[action.ID] == nil {
			return fmt.Errorf("n%d starts %s although it is to be empty", n.Index, action.Key)
		}
		return nil
	}}
}
