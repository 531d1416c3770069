package cluster

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"

	"colloid.net/ipc/uds"
)

// ReadyInstances lists the ready instances of a workload on cells that the answering cell believes
// alive. Others are in the status too: an endpoint of a dead cell stays until it is cleaned up.
func ReadyInstances(status *uds.Status, key string) []uds.InstanceInfo {
	alive := map[string]bool{}
	for _, c := range status.Cells {
		alive[c.ID] = c.State == "alive"
	}
	var found []uds.InstanceInfo
	for _, w := range status.Workloads {
		for _, i := range w.Instances {
			if w.Key == key && i.State == "ready" && alive[i.Cell] && len(i.Ports) > 0 {
				found = append(found, i)
			}
		}
	}
	return found
}

// InstanceURL is where an instance answers HTTP.
func InstanceURL(i uds.InstanceInfo) string {
	return "http://" + net.JoinHostPort(i.Address, strconv.Itoa(int(i.Ports[0]))) + "/"
}

// Ask sends one HTTP request to every ready instance of a workload that a cell knows and returns the
// answers. It fails if one of them does not answer.
func (c *Cluster) Ask(ctx context.Context, from *Cell, key string) ([]string, error) {
	status, err := from.Status(ctx)
	if err != nil {
		return nil, err
	}
	var answers []string
	for _, instance := range ReadyInstances(status, key) {
		body, err := c.Get(ctx, InstanceURL(instance))
		if err != nil {
			return nil, fmt.Errorf("instance on cell %s: %w", instance.Cell, err)
		}
		answers = append(answers, strings.TrimSpace(body))
	}
	return answers, nil
}
