package sim

import (
	"fmt"
	"strings"
	"time"

	"colloid.net/meshd/reconcile"
	"colloid.net/workload"
)

// hostPorts lists what the instance publishes on its machine.
func (i *instance) hostPorts() (ports []uint16) {
	if i.runs == nil {
		return nil
	}
	for _, port := range i.runs.Ports {
		if port.Host != 0 {
			ports = append(ports, port.Host)
		}
	}
	return ports
}

// lacksEnvironment reports whether runnerd could not start it again by itself (F83).
func (i *instance) lacksEnvironment() bool {
	return i.runs != nil && i.runs.EnvironmentDigest != [32]byte{} && !i.handed
}

// holds reports whether the program has its ports open.
func (i *instance) holds() bool {
	return i.state == reconcile.Ready || i.state == reconcile.Unready || i.state == reconcile.Stopping
}

// portHolder is another instance that has a port open which this one wants, nil if none.
func (h *host) portHolder(i *instance) *instance {
	for _, other := range h.sorted() {
		if other != i && other.holds() && portsCollide(i.runs, other.runs) {
			return other
		}
	}
	return nil
}

func portsCollide(a, b *workload.Spec) bool {
	for _, p := range a.Ports {
		for _, q := range b.Ports {
			if p.Host != 0 && p.Host == q.Host && p.Protocol == q.Protocol {
				return true
			}
		}
	}
	return false
}

// refusal says why the policy of the host is against one more instance, "" if it is not. As runnerd does, it counts
// all that is here, also what is about to end.
func (h *host) refusal(spec *workload.Spec) string {
	if h.Deny != nil {
		if reason := h.Deny(spec); reason != "" {
			return reason
		}
	}
	count, processor, memory := uint32(1), spec.CPUMillicores, spec.MemoryMiB
	for _, i := range h.instances {
		count++
		processor += i.runs.CPUMillicores
		memory += i.runs.MemoryMiB
	}
	limit := h.node.machine.capacity()
	switch {
	case count > limit.InstancesMax:
		return fmt.Sprintf("all %d instances are in use", limit.InstancesMax)
	case processor > limit.CPUMillicores:
		return fmt.Sprintf("%d millicores of %d", processor, limit.CPUMillicores)
	case memory > limit.MemoryMiB:
		return fmt.Sprintf("%d MiB of %d", memory, limit.MemoryMiB)
	}
	return ""
}

// later does something after a while, if the instance is still there and in the same state then.
func (h *host) later(i *instance, d time.Duration, state reconcile.State, do func()) {
	run := h.run
	h.node.world.After(d, func() {
		if h.run == run && h.instances[i.id] == i && i.state == state {
			do()
		}
	})
}

// pauseMax bounds the pauses between attempts; they grow by 5/2.
const pauseMax = 5 * time.Minute

// attempt is one start of the program. One that fails is followed by another after a pause.
func (h *host) attempt(i *instance, pause time.Duration) {
	if strings.HasPrefix(bare(i.runs.Image), imageHangs) {
		return
	}
	h.later(i, h.StartDelay+h.fetchTime(i.runs), reconcile.Starting, func() {
		holder := h.portHolder(i)
		if holder == nil && works(i.runs.Image) {
			i.state = reconcile.Ready
			h.report(i)
			return
		}
		if holder != nil {
			h.node.world.Tracef("n%d: %s cannot open its port, %s has it", h.node.Index, i.key, holder.key)
		}
		i.exitCode = 1
		if i.runs.Restart == workload.RestartNever {
			i.state = reconcile.Exited
			h.report(i)
			return
		}
		i.state = reconcile.Backoff
		h.report(i)
		h.later(i, pause, reconcile.Backoff, func() {
			if i.lacksEnvironment() {
				return
			}
			i.restarts++
			i.state = reconcile.Starting
			h.report(i)
			h.attempt(i, min(pause*5/2, pauseMax))
		})
	})
}

// hand gives runnerd the environment of an instance that it has already.
func (h *host) hand(i *instance, environment *workload.Environment) {
	if environment == nil || !i.lacksEnvironment() {
		return
	}
	i.handed = true
	if i.state == reconcile.Backoff {
		i.state = reconcile.Starting
		h.attempt(i, time.Second)
	}
}

// forget is the end of a runnerd: it keeps environments in memory only (F83).
func (h *host) forget() {
	for _, i := range h.instances {
		i.handed = false
	}
}
