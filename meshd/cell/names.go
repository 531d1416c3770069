package cell

import (
	"fmt"
	"net/netip"

	"colloid.net/meshd/names"
	"colloid.net/meshd/reconcile"
	"colloid.net/meshd/state"
	"colloid.net/workload"
)

// Names lists the ready instances of all workloads by name, as containers of this host reach them (F158).
// gateways are addresses of the host that containers reach, for what runs in the host's own network where
// the cell's address is a loopback one. Two kinds of workloads with one name share it.
func (c *Cell) Names(gateways []netip.Addr) map[string][]names.Target {
	table := make(map[string][]names.Target)
	for _, actual := range c.actualSorted() {
		if actual.State != reconcile.Ready || c.reconciler.Draining(actual.ID) {
			continue
		}
		name := state.WorkloadName(actual.Key)
		if target := c.nearTarget(&actual, gateways); len(target.Addresses) > 0 {
			table[name] = append(table[name], target)
		}
	}
	for _, id := range sortedEndpointIDs(c.views.endpoints) {
		view := c.views.cells[id.cell]
		if id.cell == c.config.Self || view == nil || c.healthOf(view) == healthOut {
			continue
		}
		endpoint := c.views.endpoints[id]
		if !endpoint.Address.IsValid() || endpoint.Address.IsLoopback() {
			continue
		}
		var spec *workload.Spec
		if w := c.views.byHash[endpoint.KeyHash]; w != nil {
			spec = w.spec
		}
		for i := range endpoint.Instances {
			instance := &endpoint.Instances[i]
			target := names.Target{
				Label: targetLabel(instance.Slot, id.cell.String()), Addresses: []netip.Addr{endpoint.Address},
			}
			if instance.State == state.EndpointReady && farPorts(&target, spec, instance.Ports) {
				table[id.workload] = append(table[id.workload], target)
			}
		}
	}
	return table
}

func targetLabel(slot uint16, cell string) string { return fmt.Sprintf("%d-%s", slot, cell) }

func (c *Cell) nearTarget(actual *reconcile.Actual, gateways []netip.Addr) names.Target {
	target := names.Target{Label: targetLabel(actual.ID.Slot, c.config.Self.String()), Near: true}
	own := actual.Address.IsValid()
	switch {
	case own:
		target.Addresses = append(target.Addresses, actual.Address)
		if actual.AddressIPv6.IsValid() {
			target.Addresses = append(target.Addresses, actual.AddressIPv6)
		}
	case c.ownAddress().IsValid() && !c.ownAddress().IsLoopback():
		target.Addresses = append(target.Addresses, c.ownAddress())
	default:
		target.Addresses = append(target.Addresses, gateways...)
	}
	spec, err := workload.Decode(actual.Spec)
	if err != nil {
		return target
	}
	for _, port := range spec.Ports {
		number := port.Host
		if own || number == 0 {
			number = port.Container
		}
		target.Ports = append(target.Ports, names.Port{Service: port.Container, Number: number, UDP: port.Protocol == workload.UDP})
	}
	return target
}

// farPorts fills in the ports at which an instance of another cell answers. Without one it cannot be reached
// from here.
func farPorts(target *names.Target, spec *workload.Spec, published []uint16) bool {
	for i, number := range published {
		if number == 0 {
			continue
		}
		port := names.Port{Service: number, Number: number}
		if spec != nil && len(spec.Ports) == len(published) {
			port.Service, port.UDP = spec.Ports[i].Container, spec.Ports[i].Protocol == workload.UDP
		}
		target.Ports = append(target.Ports, port)
	}
	return len(target.Ports) > 0
}
