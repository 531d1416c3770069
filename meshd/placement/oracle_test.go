package placement

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sort"

	"github.com/dchest/siphash"
	"pgregory.net/rapid"

	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
	"colloid.net/workload"
)

// oracle is the rule of the package comment written down as plainly as possible: no caches, no
// classes, every cell scored and sorted for every replica. It returns cell/slot/rank per key hash.
type oracle struct {
	cells []Cell
	used  map[wire.CellID][]*workload.Spec
	plan  map[uint64][]Replica
	// standbys has, per key hash, the slot of each cell that stands by.
	standbys map[uint64]map[wire.CellID]uint16
}

func oracleScore(key uint64, cell wire.CellID, index int) uint64 {
	raw := binary.BigEndian.AppendUint64(nil, key)
	raw = binary.BigEndian.AppendUint64(raw, uint64(cell))
	raw = binary.BigEndian.AppendUint16(raw, uint16(index))
	return siphash.Hash(testKey0, testKey1, raw)
}

func runOracle(cells []Cell, workloads []Workload) map[uint64][]Replica {
	return askOracle(cells, workloads).plan
}

func askOracle(cells []Cell, workloads []Workload) *oracle {
	o := oracle{cells: cells, used: map[wire.CellID][]*workload.Spec{}, plan: map[uint64][]Replica{},
		standbys: map[uint64]map[wire.CellID]uint16{}}
	order := slices.Clone(workloads)
	sort.SliceStable(order, func(i, j int) bool {
		a, b := &order[i], &order[j]
		if a.Incumbent != b.Incumbent {
			return a.Incumbent
		}
		if a.Spec.Priority != b.Spec.Priority {
			return a.Spec.Priority > b.Spec.Priority
		}
		return a.KeyHash < b.KeyHash
	})
	waits := map[[2]uint64]bool{}
	for i := range order {
		w := &order[i]
		for index := 0; w.Spec.Stateful && index < min(int(w.Spec.Replicas), len(w.Anchors)); index++ {
			cell := o.find(w.Anchors[index])
			if cell == nil || !o.canRun(w, cell) || !w.Spec.Oversubscribe && o.holds(w, cell.ID) > 0 {
				continue
			}
			if !o.fits(w.Spec, cell) {
				waits[[2]uint64{w.KeyHash, uint64(index)}] = true
				continue
			}
			o.put(w, cell.ID, index, index)
		}
	}
	for i := range order {
		w := &order[i]
		for index := range int(w.Spec.Replicas) {
			if waits[[2]uint64{w.KeyHash, uint64(index)}] || w.Spec.Stateful && o.hasIndex(w, index) {
				continue
			}
			scoreIndex := 0
			if w.Spec.Stateful {
				scoreIndex = index
			}
			var best *Cell
			for c := range o.cells {
				cell := &o.cells[c]
				open := !cell.NoNew || slices.Contains(w.Keepers, cell.ID)
				takes := open && o.canRun(w, cell) && o.fits(w.Spec, cell)
				if !takes || o.holds(w, cell.ID) > 0 && !w.Spec.Oversubscribe {
					continue
				}
				if best == nil || o.holds(w, cell.ID) < o.holds(w, best.ID) ||
					o.holds(w, cell.ID) == o.holds(w, best.ID) &&
						oracleScore(w.KeyHash, cell.ID, scoreIndex) > oracleScore(w.KeyHash, best.ID, scoreIndex) {
					best = cell
				}
			}
			if best == nil {
				continue
			}
			if w.Spec.Stateful {
				o.put(w, best.ID, index, index)
			} else {
				o.put(w, best.ID, o.holds(w, best.ID), len(o.plan[w.KeyHash]))
			}
		}
		slices.SortFunc(o.plan[w.KeyHash], func(a, b Replica) int { return int(a.Rank) - int(b.Rank) })
		o.standBy(w)
	}
	return &o
}

// standBy finds for each index of a workload that is placed the best cell that could take it and has none.
func (o *oracle) standBy(w *Workload) {
	found := map[wire.CellID]uint16{}
	o.standbys[w.KeyHash] = found
	if len(o.plan[w.KeyHash]) < int(w.Spec.Replicas) || w.Spec.Runtime == workload.RuntimeProcess {
		return
	}
	for index := range w.Spec.Replicas {
		if index > 0 && !w.Spec.Stateful {
			break
		}
		var order []*Cell
		for c := range o.cells {
			willing := Workload{Spec: w.Spec} // who refuses has a rank, too
			if cell := &o.cells[c]; !cell.NoNew && o.canRun(&willing, cell) {
				order = append(order, cell)
			}
		}
		score := func(c *Cell) uint64 { return oracleScore(w.KeyHash, c.ID, int(index)) }
		sort.Slice(order, func(i, j int) bool { return score(order[i]) > score(order[j]) })
		reach := int(w.Spec.Replicas)
		if w.Spec.Stateful {
			reach = min(reach, indexedMax)
		}
		for _, cell := range order[:min(len(order), reach+standbyReach)] {
			if o.canRun(w, cell) && o.fits(w.Spec, cell) && o.holds(w, cell.ID) == 0 {
				if _, known := found[cell.ID]; !known {
					found[cell.ID] = index
				}
				break
			}
		}
	}
}

func (o *oracle) find(id wire.CellID) *Cell {
	for i := range o.cells {
		if o.cells[i].ID == id {
			return &o.cells[i]
		}
	}
	return nil
}

func (o *oracle) put(w *Workload, cell wire.CellID, slot, rank int) {
	o.used[cell] = append(o.used[cell], w.Spec)
	o.plan[w.KeyHash] = append(o.plan[w.KeyHash], Replica{cell, uint16(slot), uint16(rank)})
}

func (o *oracle) holds(w *Workload, cell wire.CellID) (n int) {
	for _, r := range o.plan[w.KeyHash] {
		if r.Cell == cell {
			n++
		}
	}
	return n
}

func (o *oracle) hasIndex(w *Workload, index int) bool {
	return slices.ContainsFunc(o.plan[w.KeyHash], func(r Replica) bool { return int(r.Slot) == index })
}

// canRun is eligibility without NoNew.
func (o *oracle) canRun(w *Workload, cell *Cell) bool {
	flag := map[workload.Runtime]uint32{workload.RuntimeOCI: state.FlagOCI, workload.RuntimeWasm: state.FlagWasm,
		workload.RuntimeProcess: state.FlagProcess}[w.Spec.Runtime]
	if cell.Flags&flag == 0 || cell.Flags&state.FlagDegraded != 0 || slices.Contains(w.Denied, cell.ID) ||
		w.Spec.Architecture != "" && w.Spec.Architecture != cell.Arch {
		return false
	}
	for _, c := range w.Spec.Constraints {
		if slices.Contains(cell.Labels, [2]string{c.Label, c.Value}) == c.Negate {
			return false
		}
	}
	return true
}

func (o *oracle) fits(spec *workload.Spec, cell *Cell) bool {
	return violation(cell, append(slices.Clone(o.used[cell.ID]), spec)) == ""
}

// violation checks what runs on a cell against its capacity (F72, F77).
func violation(cell *Cell, specs []*workload.Spec) string {
	var cpu, memory, disk uint64
	ports := map[workload.Port]bool{}
	for _, s := range specs {
		cpu, memory, disk = cpu+uint64(s.CPUMillicores), memory+uint64(s.MemoryMiB), disk+uint64(s.DiskMiB)
		for _, p := range s.Ports {
			p.Container = 0
			if p.Host != 0 && ports[p] {
				return fmt.Sprintf("host port %d twice", p.Host)
			}
			ports[p] = true
		}
	}
	c := cell.Capacity
	switch {
	case c.CPUMillicores != 0 && cpu > uint64(c.CPUMillicores):
		return "cpu"
	case c.MemoryMiB != 0 && memory > uint64(c.MemoryMiB):
		return "memory"
	case c.DiskMiB != 0 && disk > uint64(c.DiskMiB):
		return "disk"
	case c.InstancesMax != 0 && len(specs) > int(c.InstancesMax):
		return "instances"
	}
	return ""
}

// Generators. Values are few and small, so that shortage, ties of requests and shared ports are common.

func drawCell(t *rapid.T, id wire.CellID) Cell {
	small := func(name string, values ...uint32) uint32 { return rapid.SampledFrom(values).Draw(t, name) }
	c := Cell{
		ID: id,
		Flags: small("flags", state.FlagOCI, state.FlagOCI, state.FlagOCI|state.FlagWasm, state.FlagProcess,
			state.FlagOCI|state.FlagDegraded),
		Arch:  rapid.SampledFrom([]string{"amd64", "amd64", "arm64"}).Draw(t, "arch"),
		NoNew: rapid.IntRange(0, 7).Draw(t, "noNew") == 0,
		Capacity: state.CellCapacity{
			CPUMillicores: small("cpu", 0, 1000, 3000), MemoryMiB: small("memory", 0, 0, 512, 2048),
			DiskMiB: small("disk", 0, 100), InstancesMax: small("instances", 0, 0, 1, 3, 10),
		},
	}
	if rapid.Bool().Draw(t, "labelled") {
		c.Labels = [][2]string{{"zone", rapid.SampledFrom([]string{"a", "b"}).Draw(t, "zone")}}
	}
	return c
}

func drawSpec(t *rapid.T) *workload.Spec {
	s := &workload.Spec{
		Runtime:       rapid.SampledFrom([]workload.Runtime{1, 1, 1, 2, 3}).Draw(t, "runtime"),
		Stateful:      rapid.IntRange(0, 2).Draw(t, "stateful") == 0,
		Oversubscribe: rapid.IntRange(0, 3).Draw(t, "oversubscribe") == 0,
		Replicas:      uint16(rapid.IntRange(0, 6).Draw(t, "replicas")),
		CPUMillicores: rapid.SampledFrom([]uint32{0, 100, 900}).Draw(t, "cpu"),
		MemoryMiB:     rapid.SampledFrom([]uint32{0, 128, 512}).Draw(t, "memory"),
		DiskMiB:       rapid.SampledFrom([]uint32{0, 0, 30}).Draw(t, "disk"),
		Priority:      rapid.SampledFrom([]int8{0, 0, 0, 5, -128, 127}).Draw(t, "priority"),
	}
	if rapid.IntRange(0, 3).Draw(t, "architecture") == 0 {
		s.Architecture = "arm64"
	}
	if rapid.IntRange(0, 3).Draw(t, "constrained") == 0 {
		s.Constraints = []workload.Constraint{{Label: "zone", Value: "a", Negate: rapid.Bool().Draw(t, "negate")}}
	}
	if rapid.IntRange(0, 3).Draw(t, "published") == 0 {
		s.Ports = []workload.Port{{Host: rapid.SampledFrom([]uint16{0, 80, 53}).Draw(t, "port"), Container: 80,
			Protocol: workload.Protocol(rapid.IntRange(0, 1).Draw(t, "protocol"))}}
	}
	return s
}

func drawWorkload(t *rapid.T, key uint64, ids []wire.CellID) Workload {
	w := Workload{Key: "spread.x", KeyHash: key, Spec: drawSpec(t), Digest: key,
		Incumbent: rapid.IntRange(0, 9).Draw(t, "incumbent") == 0}
	some := func(name string) (list []wire.CellID) {
		if len(ids) > 0 && rapid.IntRange(0, 3).Draw(t, name) == 0 {
			return rapid.SliceOfN(rapid.SampledFrom(ids), 0, 3).Draw(t, name+"Cells")
		}
		return nil
	}
	w.Denied, w.Anchors, w.Keepers = some("denied"), some("anchors"), some("keepers")
	for i := range w.Anchors {
		if rapid.Bool().Draw(t, "unanchored") {
			w.Anchors[i] = 0
		}
	}
	return w
}
