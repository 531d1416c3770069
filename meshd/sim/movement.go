package sim

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"

	"colloid.net/meshd/placement"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// planned is one plan of a cell and what it was computed from.
type planned struct {
	plan      *placement.Plan
	cells     []placement.Cell
	workloads []placement.Workload
}

// checkMovement is EXEC-3: when one cell leaves H, or comes in, and nothing else changes, the replicas of that
// cell move and no others. It looks at every plan of every cell and compares it with the one before. Where
// some cell lacks room for some workload nothing is promised: what one workload loses another may take.
func checkMovement() *Checker {
	last := make(map[*Node]planned)
	return &Checker{Name: "EXEC-3", Step: func(w *World, n *Node) error {
		if n.cell == nil || n.cell.Plan() == last[n].plan {
			return nil
		}
		cells, workloads, current := n.cell.PlanInput()
		if !current {
			delete(last, n)
			return nil
		}
		before := last[n]
		now := planned{n.cell.Plan(), cells, workloads}
		last[n] = now
		if before.plan == nil {
			return nil
		}
		compared, err := movement(before, now)
		if compared {
			w.examined("EXEC-3")
		}
		if err != nil {
			return fmt.Errorf("n%d: %w", n.Index, err)
		}
		return nil
	}}
}

// movement compares two plans if they differ by one cell and nothing else; compared says whether they do.
func movement(before, now planned) (compared bool, problem error) {
	smaller, larger := before, now
	if len(before.cells) > len(now.cells) {
		smaller, larger = now, before
	}
	if !sameWorkloads(before.workloads, now.workloads) {
		return false, nil
	}
	changed, ok := oneMore(smaller.cells, larger.cells)
	if !ok || !roomy(larger.cells, now.workloads) {
		return false, nil
	}
	for i := range now.workloads {
		w := &now.workloads[i]
		if smaller.plan.ShortOfRoom(w.KeyHash) || larger.plan.ShortOfRoom(w.KeyHash) {
			return false, nil
		}
	}
	for i := range now.workloads {
		w := &now.workloads[i]
		if w.Spec.Stateful { // who owns the data decides there
			continue
		}
		for _, replica := range larger.plan.Of(w.KeyHash) {
			if replica.Cell != changed && !placedOn(smaller.plan.Of(w.KeyHash), replica) {
				return true, fmt.Errorf("cell %v comes or goes, and the replica of %s on %v moves", changed, w.Key, replica.Cell)
			}
		}
	}
	return true, nil
}

func placedOn(replicas []placement.Replica, wanted placement.Replica) bool {
	return slices.ContainsFunc(replicas, func(r placement.Replica) bool {
		return r.Cell == wanted.Cell && r.Slot == wanted.Slot
	})
}

// oneMore returns the cell that larger has beside those of smaller, if that is the only difference. Both are
// in ascending order.
func oneMore(smaller, larger []placement.Cell) (extra wire.CellID, ok bool) {
	if len(larger) != len(smaller)+1 {
		return 0, false
	}
	at := 0
	for at < len(smaller) && smaller[at].ID == larger[at].ID {
		at++
	}
	for i := range smaller {
		other := i
		if i >= at {
			other++
		}
		if !sameCell(&smaller[i], &larger[other]) {
			return 0, false
		}
	}
	return larger[at].ID, true
}

func sameCell(a, b *placement.Cell) bool {
	return a.ID == b.ID && a.Flags == b.Flags && a.Arch == b.Arch && a.NoNew == b.NoNew &&
		slices.Equal(a.Labels, b.Labels) && sameCapacity(&a.Capacity, &b.Capacity)
}

func sameCapacity(a, b *state.CellCapacity) bool { return reflect.DeepEqual(a, b) }

func sameWorkloads(a, b []placement.Workload) bool {
	return slices.EqualFunc(a, b, func(x, y placement.Workload) bool {
		return x.KeyHash == y.KeyHash && x.Incumbent == y.Incumbent && bytes.Equal(x.Encoded, y.Encoded) &&
			slices.Equal(x.Denied, y.Denied) && slices.Equal(x.Keepers, y.Keepers) && slices.Equal(x.Anchors, y.Anchors)
	})
}

// roomy reports whether room decides nothing: every cell could hold all workloads at once. Otherwise a replica that
// has lost its cell may take the last room on another cell from one that is served after it (sim: 4 cells of which
// one takes a single instance).
func roomy(cells []placement.Cell, workloads []placement.Workload) bool {
	var processor, memory, disk, count uint64
	for i := range workloads {
		spec := workloads[i].Spec
		for _, other := range workloads[:i] {
			if portsCollide(spec, other.Spec) {
				return false
			}
		}
		n := uint64(1)
		if spec.Oversubscribe {
			n = uint64(spec.Replicas)
		}
		processor += n * uint64(spec.CPUMillicores)
		memory += n * uint64(spec.MemoryMiB)
		disk += n * uint64(spec.DiskMiB)
		count += n
	}
	fits := func(limit uint32, used uint64) bool { return limit == 0 || used <= uint64(limit) }
	return !slices.ContainsFunc(cells, func(c placement.Cell) bool {
		return !fits(c.Capacity.CPUMillicores, processor) || !fits(c.Capacity.MemoryMiB, memory) ||
			!fits(c.Capacity.DiskMiB, disk) || !fits(c.Capacity.InstancesMax, count)
	})
}
