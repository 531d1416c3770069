package cell

import (
	"cmp"
	"slices"

	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
	"colloid.net/workload"
)

// How likely a cell has the image of a workload that it has an instance of.
const (
	holderRuns    = iota // it runs what has this image
	holderRan            // it has started it before, and may be starting it for the first time
	holderAnother        // it runs another version of the workload
)

// Holders lists other cells that may have an image, because they run or ran a workload with it, at most so many
// and the likeliest first (F76). Nothing is sent for it. Cells of the same likelihood are in an order that
// depends on who asks, so that not all ask the same one.
func (c *Cell) Holders(image [32]byte, avoid func(wire.CellID) bool, most int) []wire.CellID {
	ranks := make(map[wire.CellID]int)
	for _, view := range c.views.workloads {
		for _, spec := range []*workload.Spec{view.spec, view.wanted} {
			if spec != nil && spec.Runtime == workload.RuntimeOCI && spec.ImageDigest == image {
				c.rankHolders(ranks, state.WorkloadName(view.key), spec.InstanceDigest())
			}
		}
	}
	var holders []wire.CellID
	for id := range ranks {
		if m := c.members.Get(id); m != nil && c.answers(m) && !avoid(id) {
			holders = append(holders, id)
		}
	}
	slices.SortFunc(holders, func(a, b wire.CellID) int {
		return cmp.Or(cmp.Compare(ranks[a], ranks[b]), cmp.Compare(a^c.config.Self, b^c.config.Self))
	})
	return holders[:min(len(holders), most)]
}

// rankHolders notes the cells with an endpoint of a workload.
func (c *Cell) rankHolders(ranks map[wire.CellID]int, name string, digest uint64) {
	for id, endpoint := range c.views.endpoints {
		if id.workload != name || id.cell == c.config.Self {
			continue
		}
		for _, instance := range endpoint.Instances {
			rank := holderRan
			switch {
			case instance.Digest != digest:
				rank = holderAnother
			case instance.State == state.EndpointReady || instance.State == state.EndpointUnready ||
				instance.State == state.EndpointDraining:
				rank = holderRuns
			}
			if before, known := ranks[id.cell]; !known || rank < before {
				ranks[id.cell] = rank
			}
		}
	}
}
