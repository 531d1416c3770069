package cell

import (
	"fmt"
	"slices"
	"strings"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// A volume is a directory of one host, and nothing carries what is in it to another. So a replica with volumes that
// comes to run on another cell begins there without its data. An operator who takes a cell away has to say that this
// is meant; where a cell dies, whoever continues says so for as long as it has the replica.

// volumeSlot is one replica of a stateful workload.
type volumeSlot struct {
	workload string // name
	slot     uint16
}

// volumeHoldersMax bounds the replicas of which a cell remembers who had them last.
const volumeHoldersMax = 4096

// noteHolders remembers which cell has the replicas that an endpoint lists. Others than stateful ones have no volumes,
// and would fill the table.
func (c *Cell) noteHolders(id endpointID, endpoint *state.CellEndpoint) {
	if endpoint.KeyHash != c.store.Hash([]byte(state.PrefixStateful+id.workload)) {
		return
	}
	for _, instance := range endpoint.Instances {
		at := volumeSlot{id.workload, instance.Slot}
		if _, known := c.views.holders[at]; known || len(c.views.holders) < volumeHoldersMax {
			c.views.holders[at] = id.cell
		}
	}
}

// hasVolumes reports whether replicas of a workload have volumes of their own.
func (v *workloadView) hasVolumes() bool {
	return v.spec != nil && v.spec.Stateful && len(v.spec.Volumes) > 0
}

// markMoved notes on the instances of this cell's endpoint which other cell has the data of their volumes: the one that
// had the replica before it came here. What was noted once stays as long as the replica is here.
func (c *Cell) markMoved(key string, endpoint *state.CellEndpoint) {
	view := c.views.workloads[key]
	if view == nil || !view.hasVolumes() {
		return
	}
	name := state.WorkloadName(key)
	before := c.views.endpoints[endpointID{c.config.Self, name}]
	for i := range endpoint.Instances {
		instance := &endpoint.Instances[i]
		here := false
		if before != nil && before.KeyHash == endpoint.KeyHash {
			for _, old := range before.Instances {
				if old.Slot == instance.Slot {
					here, instance.DataOn = true, old.DataOn
				}
			}
		}
		if holder := c.views.holders[volumeSlot{name, instance.Slot}]; !here && holder != c.config.Self {
			instance.DataOn = holder
		}
	}
}

// volumesAt lists the replicas with volumes on a cell, sorted: "stateful.db/1".
func (c *Cell) volumesAt(id wire.CellID) []string {
	var list []string
	add := func(key string, slot uint16) {
		if view := c.views.workloads[key]; view != nil && view.hasVolumes() {
			if text := fmt.Sprintf("%s/%d", key, slot); !slices.Contains(list, text) {
				list = append(list, text)
			}
		}
	}
	for at, endpoint := range c.views.endpoints {
		if view := c.views.byHash[endpoint.KeyHash]; at.cell == id && view != nil {
			for _, instance := range endpoint.Instances {
				add(view.key, instance.Slot)
			}
		}
	}
	slices.Sort(list)
	return list
}

// volumesRefusal says why a cell is not taken away, and how to go on.
func volumesRefusal(list []string, command string) Response {
	shown := strings.Join(list[:min(len(list), replicasNamed)], ", ")
	if more := len(list) - replicasNamed; more > 0 {
		shown += fmt.Sprintf(" and %d more", more)
	}
	return failure(uds.ErrorInvalid, "the volumes of "+shown+" are on this cell alone, and where these replicas go they begin "+
		"without their data: save it first, then `"+command+" --abandon-volumes`; the files stay on this machine")
}

// replicasNamed bounds the names in one message.
const replicasNamed = 5

// volumeAlarms names the replicas of a workload that go on without their data.
func volumeAlarms(w *uds.WorkloadStatus, add func(severity, text, hint string)) {
	for _, instance := range w.Instances {
		if instance.DataOn != "" {
			add("warning", fmt.Sprintf("%s/%d began on cell %s without the data of its volumes: that is on cell %s", w.Key,
				instance.Slot, instance.Cell, instance.DataOn),
				"volumes are not replicated: bring that cell back or copy the data; the warning stays as long as this copy")
		}
	}
}
