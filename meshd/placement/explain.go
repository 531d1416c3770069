package placement

import (
	"fmt"
	"slices"

	"colloid.net/workload"
)

// Explain says for every cell of the last Compute how it ranks for a workload and why it holds a
// replica or not, best score first; nil when the workload was not part of it. It fills the cells again
// up to the workload, because room depends on who was served before, and costs as much as a Compute
// without changes.
func (p *Planner) Explain(keyHash uint64) []Ranked {
	target, ok := slices.BinarySearchFunc(p.demands, keyHash, func(d *demand, key uint64) int {
		switch {
		case d.w.KeyHash < key:
			return -1
		case d.w.KeyHash > key:
			return 1
		}
		return 0
	})
	if !ok {
		return nil
	}
	plan := p.newPlan()
	p.startFill()
	for _, i := range p.sequence {
		if int(i) == target {
			break
		}
		p.placeDemand(plan, i)
	}
	d := p.demands[target]
	before := make([]blocker, len(p.nodes)) // what each cell lacked when the workload's turn came
	for _, n := range p.order {
		before[n] = p.blockerOf(d, n)
	}
	lacks := make([]string, len(p.nodes))
	for _, n := range p.order {
		lacks[n] = p.lackText(d, n, before[n])
	}
	p.placeDemand(plan, int32(target))
	plan.finish()
	lines := p.explainLines(d, plan.Of(keyHash), before, lacks)
	for i := range lines {
		_, lines[i].StandsBy = plan.StandsBy(keyHash, lines[i].Cell)
	}
	return lines
}

func (p *Planner) explainLines(d *demand, replicas []Replica, before []blocker, lacks []string) []Ranked {
	index := uint16(0) // of the scores of cells without a replica: the first that is not anchored
	for int(index)+1 < d.replicas && int(index) < len(d.anchored) && d.anchored[index] != anchorNone {
		index++
	}
	lines := make([]Ranked, 0, len(p.order))
	for i, id := range p.ids {
		n := p.order[i]
		line := Ranked{Cell: id}
		scored := index
		for _, replica := range replicas {
			if replica.Cell != id || line.Placed {
				continue
			}
			line.Placed = true
			line.Verdict = "placed"
			if d.stateful {
				scored = replica.Slot
				line.Verdict = fmt.Sprintf("placed as replica %d", replica.Slot)
				if int(replica.Slot) < len(d.anchored) && d.anchored[replica.Slot] == n {
					line.Verdict += ", owns its volume"
				}
			}
		}
		if !d.stateful {
			scored = 0
		}
		line.Score = p.Score(d.w.KeyHash, id, scored)
		if !line.Placed {
			line.Verdict = lacks[n]
			if before[n] == blockNothing {
				line.Verdict = notNeeded(d, len(replicas))
			}
		}
		lines = append(lines, line)
	}
	slices.SortStableFunc(lines, func(a, b Ranked) int {
		switch {
		case a.Score > b.Score:
			return -1
		case a.Score < b.Score:
			return 1
		}
		return 0
	})
	return lines
}

func notNeeded(d *demand, placed int) string {
	switch {
	case d.replicas == 0:
		return "not needed: scaled to zero"
	case placed < d.replicas && slices.Contains(d.anchored, anchorWaits):
		return "not needed: a replica waits for room on the owner of its volume"
	case placed < d.replicas:
		return fmt.Sprintf("not placed: the plan is full with %d replicas", ReplicasMax)
	case placed == 1:
		return "not needed: 1 better cell holds the replica"
	}
	return fmt.Sprintf("not needed: %d better cells hold the replicas", placed)
}

// lackText is the verdict on a cell that takes no replica because of b.
func (p *Planner) lackText(d *demand, n int32, b blocker) string {
	cell, left := &p.nodes[n].cell, &p.rooms[n]
	switch b {
	case blockRuntime:
		return fmt.Sprintf("runtime %s not offered: its runnerd runs none, or there is no runnerd", runtimeName(d.class.runtime))
	case blockForbidden:
		return fmt.Sprintf("runtime %s not offered: its host's policy forbids it", runtimeName(d.class.runtime))
	case blockArchitecture:
		return fmt.Sprintf("architecture %s wanted, the cell is %s", d.class.architecture, cell.Arch)
	case blockConstraint:
		for i := range d.class.constraints {
			if !satisfies(cell.Labels, &d.class.constraints[i]) {
				return fmt.Sprintf("constraint %s not met", constraintText(&d.class.constraints[i]))
			}
		}
	case blockDegraded:
		return "its store is full"
	case blockNoNew:
		if cell.Capacity.Cordoned {
			return "cordoned"
		}
		if cell.Drained {
			return "drained"
		}
		return "leaving"
	case blockDenied:
		i := slices.Index(d.w.Denied, cell.ID)
		if i < len(d.w.DenialReasons) && d.w.DenialReasons[i] != "" {
			return "refused there: " + d.w.DenialReasons[i]
		}
		return "refused there"
	case blockProcessor:
		return fmt.Sprintf("cpu %d millicores short", int64(d.ask.processor)-left.processor)
	case blockMemory:
		return fmt.Sprintf("memory %d MiB short", int64(d.ask.memory)-left.memory)
	case blockDisk:
		return fmt.Sprintf("disk %d MiB short", int64(d.ask.disk)-left.disk)
	case blockInstances:
		return fmt.Sprintf("all %d instance slots taken", cell.Capacity.InstancesMax)
	case blockPort:
		for _, port := range d.ask.ports {
			if contains(left.ports, port) {
				return fmt.Sprintf("host port %s taken", portText(port))
			}
		}
	}
	return ""
}

func portText(key uint32) string {
	name := "tcp"
	if workload.Protocol(key>>16) == workload.UDP {
		name = "udp"
	}
	return fmt.Sprintf("%d/%s", key&0xffff, name)
}
